"""Windows that end preemptible claims: which ones, when, and what the others keep."""

import re
from typing import Any

import pytest

from placement.search.claims import window_room
from placement.store import window_room as stored_room
from tests.placement.api.ext.windows import HOUR, PATH, book, booked
from tests.placement.builders import (
    make_provider,
    new_claim,
    post_claims,
    provider_path,
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


def lend(admin: Admin, amount: int, hours: float = 1, **fields: Any) -> str:
    """Claim VCPUs for at least some hours; return the consumer."""
    wanted = new_claim(f"resources=VCPU:{amount}", **fields)
    answer = post_claims(admin, wanted, preemptible={"min_duration": int(hours * HOUR)})
    assert answer.status_code == 201, answer.text
    (claim,) = answer.json["claims"]
    assert claim["kept_until"] == shown(admin, claim["consumer_uuid"])["kept_until"]
    return str(wanted["consumer_uuid"])


def shown(admin: Admin, consumer: str) -> dict[str, Any]:
    document: dict[str, Any] = admin("GET", f"/ext/v1/claims/{consumer}").json["claim"]
    return document


def test_a_window_ends_the_newest_claims_and_only_as_many_as_needed(
    admin: Admin, url: str, host: str
) -> None:
    oldest, middle, newest = (lend(admin, 2) for _ in range(3))
    before = shown(admin, oldest)["ends_at"]
    start = after(3 * HOUR)
    answer = book(admin, 5, 3, 4, starts_at=start).json
    assert answer["preempted"] == sorted([middle, newest])
    window = answer["reservation"]["uuid"]
    # a refusal marks the claims that only have to stay because they would not suffice
    again = read_error(book(admin, 8, 3, 4))[2]
    assert (f"{oldest} until {before} (preemptible)" in again, again.count("(preemptible)")) == (True, 1)
    assert [shown(admin, oldest)[name] for name in ("ends_at", "consumer_generation")] == [before, 1]
    for each in (middle, newest):
        document = shown(admin, each)
        assert (document["ends_at"], document["consumer_generation"]) == (start, 2)
        assert (document["on_end"], document["is_final"]) == ("evict", True)
    assert find_broken_promises(url) == []
    advance_clock(url, 3.5 * HOUR)
    assert admin("GET", f"{PATH}/{window}").json["reservation"]["state"] == "active"
    assert admin("GET", f"/allocations/{newest}").json["allocations"] == {}
    assert read_usages(admin, host)["VCPU"] >= 7
    assert find_broken_promises(url) == []


def test_free_room_is_used_before_a_claim_has_to_end(admin: Admin, host: str) -> None:
    kept = lend(admin, 8)
    other = make_provider(admin, "other", VCPU=8)
    end = shown(admin, kept)["ends_at"]
    window = booked(admin, 8, 3, 4)
    assert list(admin("GET", f"{PATH}/{window}").json["reservation"]["allocations"]) == [other]
    assert shown(admin, kept)["ends_at"] == end
    assert book(admin, 8, 3, 4).json["preempted"] == [kept]
    assert shown(admin, kept)["ends_at"] < end


def test_a_booking_with_free_room_reads_no_preemptible_claims(
    admin: Admin, host: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lend(admin, 4)
    monkeypatch.setattr(window_room, "read_preemptible", None)
    booked(admin, 4, 3, 4)


def test_a_window_moves_before_a_claim_has_to_end(admin: Admin, host: str) -> None:
    kept = lend(admin, 4)
    end = shown(admin, kept)["ends_at"]
    other = make_provider(admin, "other", VCPU=8)
    # until the window is booked, the host of the claim is full
    full = booked(admin, 4, 3, 4, allowed_hosts=[host])
    moving = booked(admin, 4, 3, 4)
    assert admin("DELETE", f"{PATH}/{full}").status_code == 204
    window = booked(admin, 8, 3, 4)
    hosts = [
        list(admin("GET", f"{PATH}/{each}").json["reservation"]["allocations"]) for each in (moving, window)
    ]
    assert hosts == [[host], [other]]
    assert shown(admin, kept)["ends_at"] == end


@pytest.mark.parametrize("by", ["name", "trait"])
def test_newer_claims_elsewhere_do_not_hide_those_in_the_way(
    admin: Admin, host: str, monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    monkeypatch.setattr(stored_room, "_MAX_CLAIMS", 1)
    old = lend(admin, 8)
    make_provider(admin, "other", VCPU=8)
    new = lend(admin, 8)
    fields: dict[str, Any] = {"allowed_hosts": [host]}
    if by == "trait":
        known = admin("GET", provider_path(host, "traits")).json
        generation = known["resource_provider_generation"]
        body = {"traits": ["HW_CPU_X86_AVX"], "resource_provider_generation": generation}
        assert admin("PUT", provider_path(host, "traits"), json=body).status_code == 200
        fields = {"query": "resources=VCPU:8&required=HW_CPU_X86_AVX"}
    booked(admin, 8, 3, 4, **fields)
    assert [shown(admin, each)["consumer_generation"] for each in (old, new)] == [2, 1]


def test_a_claim_keeps_its_least_duration_and_a_notice(admin: Admin, url: str, host: str) -> None:
    consumer = lend(admin, 8, 2)
    refused = book(admin, 1, 1.5, 2)
    assert refused.status_code == 409
    assert re.search(rf"overlap this time: {consumer} until \S+ \(preemptible\)\.", read_error(refused)[2])
    advance_clock(url, 3 * HOUR)
    # the least duration is over, but the guest needs some time to stop
    assert book(admin, 1, 200 / HOUR, 2).status_code == 409
    booked(admin, 1, 400 / HOUR, 2)
    assert find_broken_promises(url) == []


def test_the_lead_time_of_a_window_ends_a_claim(admin: Admin, host: str) -> None:
    consumer = lend(admin, 8)
    booked(admin, 1, 3, 4, lead_time=3600)
    assert shown(admin, consumer)["ends_at"] < after(2 * HOUR + 1)


def test_other_claims_are_not_preempted_and_preempt_nothing(admin: Admin, host: str) -> None:
    fixed = new_claim("resources=VCPU:4")
    assert post_claims(admin, fixed, ends_at=after(9 * HOUR)).status_code == 201
    lent = lend(admin, 4)
    end = shown(admin, lent)["ends_at"]
    assert book(admin, 5, 3, 4).status_code == 409
    for fields in ({}, {"ends_at": after(9 * HOUR)}, {"preemptible": {"min_duration": 60}}):
        assert post_claims(admin, new_claim("resources=VCPU:1"), **fields).status_code == 409
    assert shown(admin, lent)["ends_at"] == end


def test_a_claim_on_several_providers_ends_on_all_and_stays_in_its_group(admin: Admin, url: str) -> None:
    root = make_provider(admin, "root", VCPU=8)
    child = make_provider(admin, "child", parent=root, DISK_GB=8)
    group = {"name": "batch", "policy": "affinity"}
    wanted = new_claim("resources=VCPU:8,DISK_GB:8", group=group)
    assert post_claims(admin, wanted, preemptible={"min_duration": 60}).status_code == 201
    booked(admin, 1, 3, 4)
    # the room of both providers is free afterwards
    booked(admin, 0, 3.5, 4, query="resources=DISK_GB:8")
    assert read_usages(admin, child) == {"DISK_GB": 8}
    assert read_scalar(url, "SELECT count(*) FROM consumer_groups") == 1
    assert find_broken_promises(url) == []
