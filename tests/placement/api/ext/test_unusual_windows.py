"""Windows under unusual conditions: impossible times, a clock that is set back, and a foreign hold."""

from datetime import datetime

import pytest

from placement.store.time_schedule import hold_uuid
from tests.placement.api.ext.windows import HOUR, PATH, book, booked, show
from tests.placement.builders import (
    make_provider,
    new_claim,
    post_claims,
    put_allocation,
    read_error,
    read_usages,
)
from tests.placement.moving_clock import advance_clock, after
from tests.placement.running import Admin
from tests.placement.sql import read_scalar
from tests.placement.workers.window_tables import find_broken_promises


@pytest.fixture
def host(admin: Admin) -> str:
    return make_provider(admin, "cn", VCPU=8)


@pytest.mark.parametrize(
    ("start", "lead"),
    [
        ("0001-01-01T00:00:00Z", 0),
        ("0001-01-01T00:00:00Z", 5),
        ("1960-01-01T00:00:00Z", 0),
        ("1970-01-01T00:00:00Z", 0),
        ("1970-01-02T00:00:00Z", 86_400),
    ],
)
def test_a_window_begins_after_the_start_of_1970(admin: Admin, host: str, start: str, lead: int) -> None:
    maintenance = {"maintenance_of": host, "project_id": "project", "user_id": "user"}
    times = {"starts_at": start, "expires_at": after(HOUR)}
    for answer in (
        book(admin, 1, 0, 1, **times, lead_time=lead),
        *([] if lead else [admin("POST", PATH, json=maintenance | times)]),
    ):
        status, _, detail = read_error(answer)
        assert (status, "has to begin after 1970-01-01T00:00:00Z" in detail) == (400, True), detail
    assert admin("GET", PATH).json["reservations"] == []
    assert read_usages(admin, host) == {"VCPU": 0}


def test_a_window_of_1970_is_refused_as_a_window_in_the_past(admin: Admin, host: str) -> None:
    times = {"starts_at": "1970-01-01T00:00:01Z", "expires_at": after(HOUR)}
    status, _, detail = read_error(book(admin, 1, 0, 1, **times))
    assert (status, "cannot begin in the past by more than" in detail) == (400, True), detail


def test_a_window_that_has_begun_stays_active_if_the_clock_is_set_back(
    admin: Admin, url: str, host: str
) -> None:
    window = booked(admin, 8, 0, 3)
    first, second = new_claim("resources=VCPU:4"), new_claim("resources=VCPU:2")
    assert post_claims(admin, first, reservation=window, ends_at=after(2 * HOUR)).status_code == 201
    advance_clock(url, -HOUR)
    # each write of the window compares its start with the clock
    assert post_claims(admin, second, reservation=window, ends_at=after(2.5 * HOUR)).status_code == 201
    assert find_broken_promises(url) == []
    shown = show(admin, window)
    assert (shown["state"], shown["allocations"], shown["claimed"]) == (
        "active",
        {host: {"resources": {"VCPU": 2}}},
        {host: {"resources": {"VCPU": 6}}},
    )
    assert admin("DELETE", f"/allocations/{first['consumer_uuid']}").status_code == 204
    # no other consumer gets what the claim has given back, not even until the start by the clock
    assert post_claims(admin, new_claim("resources=VCPU:1"), ends_at=after(HOUR / 2)).status_code == 409
    assert show(admin, window)["allocations"] == {host: {"resources": {"VCPU": 6}}}
    body = {"generation": show(admin, window)["generation"], "expires_at": after(4.5 * HOUR)}
    changed = admin("PUT", f"{PATH}/{window}", json=body)
    assert (changed.status_code, changed.json["reservation"]["state"]) == (200, "active")
    assert find_broken_promises(url) == []
    last = post_claims(admin, new_claim("resources=VCPU:6"), reservation=window, ends_at=after(HOUR))
    assert last.status_code == 201
    assert find_broken_promises(url) == []
    advance_clock(url, 5 * HOUR)
    assert admin("GET", PATH).json["reservations"] == []
    assert read_usages(admin, host) == {"VCPU": 0}


@pytest.mark.parametrize("later", [[], [(8, 3, 4)]], ids=["no hold is needed", "a hold is needed"])
def test_a_consumer_with_the_uuid_of_a_hold_prevents_no_release(
    admin: Admin, url: str, host: str, caplog: pytest.LogCaptureFixture, later: list[tuple[int, float, float]]
) -> None:
    # the claim is as large as the windows, so there is no hold while it lasts
    assert post_claims(admin, new_claim("resources=VCPU:8"), ends_at=after(HOUR)).status_code == 201
    windows = [booked(admin, *each) for each in [(8, 2, 3), *later]]
    other = make_provider(admin, "other", VCPU=8)
    hold = hold_uuid(host)
    assert put_allocation(admin, {other: {"VCPU": 1}}, hold).status_code == 204
    advance_clock(url, 1.5 * HOUR)
    assert admin("GET", "/allocation_candidates?resources=VCPU:1").status_code == 200
    assert "has the uuid of the hold" in caplog.text
    advance_clock(url, HOUR)
    assert show(admin, windows[0])["state"] == "active"
    assert read_usages(admin, host) == {"VCPU": 8}
    # new windows are refused, and present ones can be deleted
    assert "has the uuid of the hold" in read_error(book(admin, 8, 5, 6, allowed_hosts=[host]))[2]
    for each in windows:
        assert admin("DELETE", f"{PATH}/{each}").status_code == 204
    assert read_usages(admin, host) == {"VCPU": 0}
    assert admin("DELETE", f"/allocations/{hold}").status_code == 204
    booked(admin, 8, 5, 6, allowed_hosts=[host])
    assert find_broken_promises(url) == []


def test_a_window_ends_exactly_when_its_answers_say(admin: Admin, url: str, host: str) -> None:
    window = booked(admin, 8, 0, 3)
    # a fraction below a microsecond would let the shown end be later than the real one
    body = {"generation": 1, "expires_in": 3600.0001234567}
    shown = admin("PUT", f"{PATH}/{window}", json=body).json["reservation"]["expires_at"]
    stored = read_scalar(url, "SELECT expires_at FROM reservations")
    assert stored == datetime.fromisoformat(shown).timestamp()
    assert post_claims(admin, new_claim(), reservation=window, ends_at=shown).status_code == 201


def test_a_claim_from_a_used_up_window_learns_that_nothing_is_left(admin: Admin, host: str) -> None:
    window, ends_at = booked(admin, 8, 0, 3), after(HOUR)
    taken = post_claims(admin, new_claim("resources=VCPU:8"), reservation=window, ends_at=ends_at)
    assert taken.status_code == 201
    refused = post_claims(admin, new_claim("resources=VCPU:1"), reservation=window, ends_at=ends_at)
    assert read_error(refused)[2].endswith("within the reservation, which holds nothing.")
