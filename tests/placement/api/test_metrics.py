"""Tests of ``/metrics``, which Prometheus reads."""

import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa
from prometheus_client.parser import text_string_to_metric_families

from placement.exceptions import Unavailable
from placement.store import usages
from placement.store.usages import WindowUsage, read_sums
from tests.placement.builders import make_provider, new_claim, post_claims, put_allocation
from tests.placement.moving_clock import advance_clock, after
from tests.placement.running import Admin, application

Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


@pytest.fixture
def make(sqlite_url) -> Callable[..., Admin]:
    """A function that makes a worker with metrics enabled and with these options of metrics."""

    def made(**options: object) -> Admin:
        url = str(options.pop("connection", sqlite_url))
        return Admin(application(url, metrics={"enabled": True, **options}))

    return made


def scrape(admin: Admin) -> Samples:
    answer = admin("GET", "/metrics", headers={"X-Auth-Token": ""})
    assert answer.status_code == 200
    assert answer.mimetype == "text/plain"
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(answer.text)
        for sample in family.samples
    }


def resource(kind: str, host: str, resource_class: str) -> tuple[str, tuple[tuple[str, str], ...]]:
    return f"openstack_placement_resource_{kind}", (("hostname", host), ("resourcetype", resource_class))


def test_inventories_have_the_metrics_of_openstack_exporter(make: Callable[..., Admin]) -> None:
    admin = make()
    only = make_provider(admin, 'cn"1\\', VCPU=8)
    body = {"resource_provider_generation": 1, "total": 8, "reserved": 1, "allocation_ratio": 4.0}
    assert admin("PUT", f"/resource_providers/{only}/inventories/VCPU", json=body).status_code == 200
    assert post_claims(admin, new_claim("resources=VCPU:3")).status_code == 201
    told = scrape(admin)
    kinds = ("total", "reserved", "allocation_ratio", "usage")
    assert [told[resource(kind, 'cn"1\\', "VCPU")] for kind in kinds] == [8, 1, 4, 3]
    assert told["placement_resource_providers", ()] == 1
    assert told["placement_provider_series_left_out", ()] == 0
    assert told["placement_database_up", ()] == 1


def test_the_time_of_the_last_model_file_is_a_metric(sqlite_url: str, tmp_path: Path) -> None:
    kept = {"model_file": str(tmp_path / "model")}
    admin = Admin(application(sqlite_url, metrics={"enabled": True}, placement=kept))
    admin("GET", "/resource_providers")
    for thread in threading.enumerate():
        if thread.name == "write model":
            thread.join(60)
    assert scrape(admin)["placement_model_file_timestamp_seconds", ()] == (tmp_path / "model").stat().st_mtime


def test_requests_are_counted_by_operation_and_status(make: Callable[..., Admin]) -> None:
    admin = make()
    for path in ("/resource_providers", "/resource_providers", "/resource_providers?x=1", "/nowhere"):
        admin("GET", path)
    admin("GET", "/", headers={"OpenStack-API-Version": "placement 9.9"})
    told = scrape(admin)

    def requests(operation: str, status: str) -> float:
        return told["placement_requests_total", (("operation", operation), ("status", status))]

    assert requests("GET /resource_providers", "200") == 2
    assert requests("GET /resource_providers", "400") == 1
    assert requests("none of the API", "404") == 1
    assert requests("GET /", "406") == 1
    seconds = "placement_request_seconds_count", (("operation", "GET /resource_providers"),)
    assert told[seconds] == 3
    assert told["placement_model_refreshes_total", ()] == 1


def test_windows_have_numbers_amounts_and_refusals(
    make: Callable[..., Admin], sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    admin = make()
    host = make_provider(admin, "cn", VCPU=8)

    def book(amount: int, begin: float, end: float) -> str:
        times = {"starts_at": after(begin), "expires_at": after(end)}
        body = {"query": f"resources=VCPU:{amount}", "project_id": "web", "user_id": "ann", **times}
        uuid: str = admin("POST", "/ext/v1/reservations", json=body).json["reservation"]["uuid"]
        return uuid

    active = book(4, 10, 7200)
    book(6, 7300, 9000)
    advance_clock(sqlite_url, 20)
    taking = new_claim("resources=VCPU:1", project_id="web")
    assert post_claims(admin, taking, reservation=active, ends_at=after(7000)).status_code == 201
    assert post_claims(admin, new_claim("resources=VCPU:2"), ends_at=after(7000)).status_code == 201
    # one without an end is refused
    assert put_allocation(admin, {host: {"VCPU": 3}}).status_code == 409
    told = scrape(admin)
    vcpu = (("resourcetype", "VCPU"),)
    assert [told["placement_windows", (("state", state),)] for state in ("pending", "active")] == [1, 1]
    assert told["placement_window_booked_amount", vcpu] == 3 + 6
    # the other claim is from no window
    assert told["placement_window_used_amount", vcpu] == 1
    # the window and both claims use all of the room that the pending window needs later
    assert told["placement_window_lent_amount", vcpu] == 6
    assert told["placement_reservation_claimed_amount_total", vcpu] == 1
    assert told["placement_window_refusals_total", ()] == 1
    assert told["placement_windows_left_out", ()] == 0
    # four amounts of two windows and two claims
    monkeypatch.setattr(usages, "MAX_AMOUNTS", 3)
    before, told = told, scrape(admin)
    assert told["placement_windows_left_out", ()] == 1
    assert ("placement_window_lent_amount", vcpu) not in told
    of_windows = ("placement_windows", "placement_window_booked_amount", "placement_window_used_amount")
    kept = {key: value for key, value in before.items() if key[0] in of_windows}
    assert kept.items() <= told.items()


def test_many_windows_are_added_up_once_a_minute_and_the_log_says_what_is_missing(
    make: Callable[..., Admin], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    monkeypatch.setattr(usages, "MAX_AMOUNTS", 0)
    read = list[WindowUsage]()

    def note(conn: sa.Connection) -> WindowUsage:
        read.append(read_sums(conn))
        return read[-1]

    monkeypatch.setattr(usages, "read_sums", note)
    admin = make()
    make_provider(admin, "cn", VCPU=8)
    times = {"starts_at": after(3600), "expires_at": after(7200)}
    body = {"query": "resources=VCPU:4", "project_id": "web", "user_id": "ann", **times}
    uuid = admin("POST", "/ext/v1/reservations", json=body).json["reservation"]["uuid"]
    for seconds, reads in ((60.0, 1), (60.0, 1), (0.0, 2)):
        monkeypatch.setattr("placement.api.metrics._SUMS_SECONDS", seconds)
        told = scrape(admin)
        assert told["placement_windows", (("state", "pending"),)] == 1
        assert (told["placement_windows_left_out", ()], len(read)) == (1, reads)
    assert caplog.text.count("The metrics lack placement_window_lent_amount, because") == 1
    # the lent amounts come back with the number of amounts
    assert admin("DELETE", f"/ext/v1/reservations/{uuid}").status_code == 204
    assert scrape(admin)["placement_windows_left_out", ()] == 0


def test_a_window_that_claims_use_up_is_active_and_books_again_what_they_give_back(
    make: Callable[..., Admin],
) -> None:
    admin = make()
    make_provider(admin, "cn", VCPU=8)
    times = {"starts_at": after(0), "expires_at": after(7200)}
    body = {"query": "resources=VCPU:4", "project_id": "web", "user_id": "ann", **times}
    window = admin("POST", "/ext/v1/reservations", json=body).json["reservation"]
    for amount, until in ((3, window["expires_at"]), (1, after(3600))):
        claim = new_claim(f"resources=VCPU:{amount}", project_id="web")
        answer = post_claims(admin, claim, reservation=window["uuid"], ends_at=until)
        assert answer.status_code == 201, answer.text
    active, booked = ("placement_windows", (("state", "active"),)), (("resourcetype", "VCPU"),)
    told = scrape(admin)
    used = ("placement_window_used_amount", booked)
    assert (told[active], told["placement_window_booked_amount", booked], told[used]) == (1, 0, 4)
    assert admin("DELETE", f"/allocations/{claim['consumer_uuid']}").status_code == 204
    told = scrape(admin)
    assert (told[active], told["placement_window_booked_amount", booked], told[used]) == (1, 1, 3)
    assert told["placement_windows", (("state", "pending"),)] == 0
    # the claim stays, but its window is gone
    assert admin("DELETE", f"/ext/v1/reservations/{window['uuid']}").status_code == 204
    assert used not in scrape(admin)


def test_a_window_still_borrows_the_room_that_a_claim_gives_back(
    make: Callable[..., Admin], sqlite_url: str
) -> None:
    admin = make()
    make_provider(admin, "cn", VCPU=8)

    def book(begin: float, end: float) -> str:
        times = {"starts_at": after(begin), "expires_at": after(end)}
        body = {"query": "resources=VCPU:6", "project_id": "web", "user_id": "ann", **times}
        uuid: str = admin("POST", "/ext/v1/reservations", json=body).json["reservation"]["uuid"]
        return uuid

    window, lent = book(0, 10_800), ("placement_window_lent_amount", (("resourcetype", "VCPU"),))
    book(14_400, 18_000)
    assert scrape(admin)[lent] == 6
    claims = [new_claim("resources=VCPU:3", project_id="web") for _ in range(2)]
    assert post_claims(admin, *claims, reservation=window, ends_at=after(3600)).status_code == 201
    assert scrape(admin)[lent] == 6
    assert admin("DELETE", f"/allocations/{claims[0]['consumer_uuid']}").status_code == 204
    assert scrape(admin)[lent] == 6
    # the other claim has ended, but is not released yet
    advance_clock(sqlite_url, 7200)
    assert scrape(admin)[lent] == 6


def test_the_database_is_up_though_the_sums_of_windows_take_too_long(
    make: Callable[..., Admin], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: object) -> None:
        raise Unavailable("the statement took too long")

    monkeypatch.setattr(usages, "read_window_usage", refuse)
    told = scrape(make())
    assert (told["placement_database_up", ()], told["placement_windows_left_out", ()]) == (1, 1)


def test_the_number_of_series_is_limited(make: Callable[..., Admin]) -> None:
    admin = make(max_provider_series=7)
    make_provider(admin, "one", VCPU=8)
    assert resource("total", "one", "VCPU") in scrape(admin)
    make_provider(admin, "two", VCPU=8)
    told = scrape(admin)
    assert resource("total", "one", "VCPU") not in told
    assert told["placement_provider_series_left_out", ()] == 8
    assert told["placement_resource_providers", ()] == 2


def test_other_metrics_are_served_without_a_database(make: Callable[..., Admin], tmp_path) -> None:
    admin = make(connection=f"sqlite:///{tmp_path}/nothing/there.sqlite")
    admin("GET", "/resource_providers")
    told = scrape(admin)
    assert told["placement_database_up", ()] == 0
    asked = (("operation", "GET /resource_providers"), ("status", "503"))
    assert told["placement_requests_total", asked] == 1


def test_metrics_are_not_found_without_the_option(make: Callable[..., Admin]) -> None:
    admin = make(enabled=False)
    assert admin("GET", "/metrics").status_code == 404
    assert admin("GET", "/metrics", headers={"X-Auth-Token": ""}).status_code == 401
    assert make()("POST", "/metrics").status_code == 405


def complaints(text: str) -> Iterator[str]:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("needs promtool, of Debian's package prometheus")
    done = subprocess.run(
        [promtool, "check", "metrics"], input=text, capture_output=True, text=True, check=False
    )
    yield from (done.stdout + done.stderr).splitlines()


def test_promtool_complains_only_about_a_name_of_openstack_exporter(
    make: Callable[..., Admin],
) -> None:
    admin = make()
    make_provider(admin, "cn", VCPU=8)
    text = admin("GET", "/metrics").text
    (complaint,) = complaints(text)
    assert complaint.startswith("openstack_placement_resource_total ")
    assert "_total" in complaint
