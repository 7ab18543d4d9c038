"""Preemptible claims: they use promised room until its windows begin, and last as long as they were told."""

import time
from datetime import datetime
from typing import Any

import pytest

from tests.placement.api.ext.windows import HOUR, booked, show
from tests.placement.builders import (
    claim_body,
    make_provider,
    new_claim,
    post_claims,
    put_allocation,
    read_error,
    read_usages,
)
from tests.placement.moving_clock import advance_clock, after
from tests.placement.running import Admin
from tests.placement.workers.window_tables import find_broken_promises

YEAR = 366 * 86_400


@pytest.fixture
def host(admin: Admin) -> str:
    return make_provider(admin, "cn", VCPU=8)


def claim(admin: Admin, *amounts: int, hours: float = 1, **fields: Any) -> list[dict[str, Any]]:
    """Claim VCPUs for at least some hours; return the documents of the claims."""
    asked = [new_claim(f"resources=VCPU:{amount}") for amount in amounts]
    answer = post_claims(admin, *asked, preemptible={"min_duration": int(hours * HOUR)}, **fields)
    assert answer.status_code in (200, 201), answer.text
    documents: list[dict[str, Any]] = answer.json["claims"]
    return documents


def seconds(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


def test_a_preemptible_claim_ends_when_the_lead_of_a_window_begins(admin: Admin, url: str, host: str) -> None:
    start = after(4 * HOUR)
    window = booked(admin, 8, 4, 5, starts_at=start, lead_time=600)
    (claimed,) = claim(admin, 8)
    assert seconds(claimed["ends_at"]) == pytest.approx(seconds(start) - 600, abs=0.002)
    shown = admin("GET", f"/ext/v1/claims/{claimed['consumer_uuid']}").json["claim"]
    assert (shown["expires_at"], shown["is_final"]) == (claimed["ends_at"], True)
    assert find_broken_promises(url) == []
    advance_clock(url, 4.5 * HOUR)
    assert admin("GET", f"/allocations/{claimed['consumer_uuid']}").json["allocations"] == {}
    assert show(admin, window)["allocations"] == {host: {"resources": {"VCPU": 8}}}


def test_the_host_is_chosen_where_the_room_stays_free_longest(admin: Admin, host: str) -> None:
    others = [make_provider(admin, f"cn{number}", VCPU=8) for number in range(3)]
    for number, each in enumerate([host, *others]):
        booked(admin, 8, 2 + number, 9, allowed_hosts=[each])
    (claimed,) = claim(admin, 1)
    assert claimed["root_provider_uuid"] == others[2]
    # that host is full until its window begins, and the next one has less time
    claim(admin, 7)
    (second,) = claim(admin, 1)
    assert second["root_provider_uuid"] == others[1]


def test_a_preemptible_claim_always_has_an_end(admin: Admin, host: str) -> None:
    (claimed,) = claim(admin, 1)
    assert seconds(claimed["ends_at"]) == pytest.approx(time.time() + YEAR, abs=60)
    assert claimed["on_end"] == "evict"
    latest = after(2 * HOUR)
    (longest,) = claim(admin, 1, hours=YEAR / HOUR - 24)
    assert longest["ends_at"] >= claimed["ends_at"]
    (limited,) = claim(admin, 1, ends_at=latest, on_end="notify")
    assert (limited["ends_at"], limited["on_end"]) == (latest, "notify")


def test_claims_of_one_call_get_a_common_end(admin: Admin, url: str, host: str) -> None:
    other = make_provider(admin, "other", VCPU=8)
    starts = after(3 * HOUR), after(5 * HOUR)
    for each, start in zip((host, other), starts, strict=True):
        booked(admin, 8, 3, 9, allowed_hosts=[each], starts_at=start)
    claimed = claim(admin, 5, 5)
    assert [each["ends_at"] for each in claimed] == [starts[0]] * 2
    assert {each["root_provider_uuid"] for each in claimed} == {host, other}
    together = claim(admin, 1, 2, dry_run=True)
    assert [each["ends_at"] for each in together] == [starts[1]] * 2
    assert read_usages(admin, host) == {"VCPU": 8}
    assert find_broken_promises(url) == []


def test_an_order_decides_among_hosts_with_equal_times(admin: Admin, host: str) -> None:
    make_provider(admin, "empty", VCPU=9)
    assert put_allocation(admin, {host: {"VCPU": 4}}).status_code == 204
    wanted = new_claim("resources=VCPU:1", order={"pack": 1})
    (claimed,) = post_claims(admin, wanted, preemptible={"min_duration": 60}).json["claims"]
    assert claimed["root_provider_uuid"] == host


def test_a_claim_that_cannot_last_is_refused_with_the_windows_in_the_way(admin: Admin, host: str) -> None:
    window = booked(admin, 8, 2, 3)
    refused = post_claims(admin, new_claim("resources=VCPU:1"), preemptible={"min_duration": int(2.5 * HOUR)})
    status, code, detail = read_error(refused)
    assert (status, code) == (409, "placement.ext.no_candidate")
    assert f"overlap this time: {window} from " in detail


def test_a_consumer_may_become_preemptible_and_permanent_again(admin: Admin, url: str, host: str) -> None:
    wanted = new_claim("resources=VCPU:8")
    assert post_claims(admin, wanted).status_code == 201
    again = wanted | {"consumer_generation": 1}
    (claimed,) = post_claims(admin, again, preemptible={"min_duration": 60}).json["claims"]
    assert (claimed["consumer_generation"], claimed["ends_at"] is None) == (2, False)
    booked(admin, 8, YEAR / HOUR - 1, YEAR / HOUR + 1, starts_at=claimed["ends_at"])
    # the window needs the room after the end
    path = f"/allocations/{wanted['consumer_uuid']}"
    assert admin("PUT", path, json=claim_body({host: {"VCPU": 8}}, 2)).status_code == 409
    assert post_claims(admin, new_claim("resources=VCPU:1")).status_code == 409
    assert find_broken_promises(url) == []


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"preemptible": {}}, "min_duration"),
        ({"preemptible": {"min_duration": 0}}, "min_duration"),
        ({"preemptible": {"min_duration": YEAR - 86_400 + 1}}, "min_duration"),
        ({"preemptible": None}, "object"),
        ({"ends_at": "2000-01-01T00:00:00Z"}, "ends_at has to be at least 60 seconds from now"),
        ({"reservation": "00000000-0000-0000-0000-000000000001"}, "cannot be preemptible"),
    ],
)
def test_wrong_preemptible_claims_are_refused(
    admin: Admin, host: str, fields: dict[str, Any], message: str
) -> None:
    body = {"preemptible": {"min_duration": 60}, **fields}
    answer = post_claims(admin, new_claim("resources=VCPU:1"), **body)
    assert (answer.status_code, message in answer.text) == (400, True)


def test_a_preemptible_claim_cannot_be_confirmed(admin: Admin, host: str) -> None:
    both = post_claims(admin, new_claim("resources=VCPU:1", expires_in=60), preemptible={"min_duration": 60})
    assert (both.status_code, "either expires_in or preemptible" in both.text) == (400, True)
    (claimed,) = claim(admin, 1)
    path = f"/ext/v1/claims/{claimed['consumer_uuid']}"
    assert admin("PUT", path, json={"consumer_generation": 1}).status_code == 409
