"""Tests of a claim that loses a race before its write: it goes to another host, or gets the right refusal."""

import math
from collections.abc import Callable
from typing import Any

import pytest
from werkzeug.test import TestResponse

from placement.search.claims import service
from tests.placement.builders import OWNER, make_provider, new_claim, post_claims, put_allocation
from tests.placement.running import Admin, application

Change = Callable[[Admin, str], TestResponse]


def after_each_look(
    monkeypatch: pytest.MonkeyPatch, change: Callable[[str], None], times: int = 1
) -> list[str]:
    """Apply a change to the chosen host before each write; return the list of the changed hosts."""
    place, done = service.place_claims, list[str]()

    def slow_place(*arguments: Any) -> Any:
        placed = place(*arguments)
        if isinstance(placed, list) and len(done) < times:
            done.append(placed[0].choice.root.uuid)
            change(done[-1])
        return placed

    monkeypatch.setattr(service, "place_claims", slow_place)
    return done


def take_all(admin: Admin, chosen: str) -> TestResponse:
    return put_allocation(admin, {chosen: {"VCPU": 4}})


def add_trait(admin: Admin, chosen: str) -> TestResponse:
    body = {"traits": ["HW_CPU_X86_AVX"], "resource_provider_generation": 1}
    return admin("PUT", f"/resource_providers/{chosen}/traits", json=body)


def remove(admin: Admin, chosen: str) -> TestResponse:
    return admin("DELETE", f"/resource_providers/{chosen}")


def empty(admin: Admin, chosen: str) -> TestResponse:
    return admin("DELETE", f"/resource_providers/{chosen}/inventories")


def disable(admin: Admin, chosen: str) -> TestResponse:
    body = {"resource_provider_generation": 1, "total": 4, "max_unit": 1}
    return admin("PUT", f"/resource_providers/{chosen}/inventories/VCPU", json=body)


def another_parent(admin: Admin, chosen: str) -> TestResponse:
    above = make_provider(admin, "above", VCPU=1)
    body = {"name": "below", "parent_provider_uuid": above}
    return admin("PUT", f"/resource_providers/{chosen}", json=body)


def done(change: Change, admin: Admin) -> Callable[[str], None]:
    def happen(chosen: str) -> None:
        answer = change(admin, chosen)
        assert answer.status_code < 300, answer.text

    return happen


@pytest.mark.parametrize("change", [take_all, add_trait, remove, empty, disable])
def test_a_claim_that_loses_a_race_goes_to_another_host(
    admin: Admin, monkeypatch: pytest.MonkeyPatch, change: Change
) -> None:
    hosts = {make_provider(admin, "one", VCPU=4), make_provider(admin, "other", VCPU=4)}
    lost = after_each_look(monkeypatch, done(change, admin))
    wanted = new_claim("resources=VCPU:4&required=!HW_CPU_X86_AVX")
    answer = post_claims(admin, wanted)
    assert answer.status_code == 201, answer.text
    (left,) = hosts - set(lost)
    held = admin("GET", f"/allocations/{wanted['consumer_uuid']}").json["allocations"]
    assert set(held) == {left}


def test_a_host_that_moved_below_another_is_searched_again(
    admin: Admin, monkeypatch: pytest.MonkeyPatch
) -> None:
    only = make_provider(admin, "cn", VCPU=4)
    after_each_look(monkeypatch, done(another_parent, admin))
    answer = post_claims(admin, new_claim())
    (above,) = (
        each["uuid"]
        for each in admin("GET", "/resource_providers").json["resource_providers"]
        if each["name"] == "above"
    )
    (claim,) = answer.json["claims"]
    assert (claim["root_provider_uuid"], set(claim["allocations"])) == (above, {only})


def test_a_claim_is_refused_if_the_last_place_is_gone(admin: Admin, monkeypatch: pytest.MonkeyPatch) -> None:
    make_provider(admin, "cn", VCPU=4)
    after_each_look(monkeypatch, done(take_all, admin))
    answer = post_claims(admin, new_claim())
    (error,) = answer.json["errors"]
    assert (answer.status_code, error["code"]) == (409, "placement.ext.no_candidate")
    assert "(most: 0 on cn)" in error["detail"]


def test_a_claim_that_loses_every_race_has_to_be_tried_later(
    admin: Admin, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(20):
        make_provider(admin, f"cn{number}", VCPU=4)
    lost = after_each_look(monkeypatch, done(take_all, admin), times=20)
    answer = post_claims(admin, new_claim())
    assert (answer.status_code, answer.headers["Retry-After"]) == (503, "5")
    assert len(lost) == 12  # the first attempt uses an older snapshot
    assert "lost a race against other writes in each of 11 attempts" in answer.json["errors"][0]["detail"]


def test_an_older_snapshot_refuses_no_claim(admin: Admin, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first search uses an older snapshot, the second the current one."""
    monkeypatch.setattr(service, "RECENT", math.inf)
    only = make_provider(admin, "cn", VCPU=4)
    # the snapshot that is old from here on
    assert admin("GET", "/allocation_candidates?resources=VCPU:1").status_code == 200
    taken = take_all(admin, only)
    assert taken.status_code == 204
    refused = post_claims(admin, new_claim())
    assert refused.status_code == 409
    assert "(most: 0 on cn)" in refused.json["errors"][0]["detail"]
    other = make_provider(admin, "other", VCPU=4)
    placed = post_claims(admin, new_claim())
    assert [each["root_provider_uuid"] for each in placed.json["claims"]] == [other]
    assert admin("PUT", "/traits/CUSTOM_NEW").status_code == 201
    unmet = admin(
        "POST", "/ext/v1/claims", json={"claims": [new_claim(query="resources=VCPU:1&required=CUSTOM_NEW")]}
    )
    assert unmet.status_code == 409


def test_an_older_snapshot_costs_no_retry(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "RECENT", math.inf)
    admin = Admin(application(database_url, placement={"allocation_conflict_retry_count": 0}))
    only = make_provider(admin, "cn", VCPU=4)
    path = "/allocation_candidates?resources=VCPU:1"
    assert admin("GET", path).status_code == 200  # the snapshot that is old from here on
    assert take_all(admin, only).status_code == 204
    other = make_provider(admin, "other", VCPU=4)
    placed = post_claims(admin, new_claim())
    assert [each["root_provider_uuid"] for each in placed.json["claims"]] == [other]


def test_no_claim_of_a_call_is_written_if_one_loses_a_race(
    admin: Admin, monkeypatch: pytest.MonkeyPatch
) -> None:
    hosts = [make_provider(admin, "one", VCPU=4), make_provider(admin, "other", VCPU=4)]
    after_each_look(monkeypatch, done(take_all, admin))
    wanted = [new_claim(), new_claim()]
    assert admin("POST", "/ext/v1/claims", json={"claims": wanted}).status_code == 409
    for each in wanted:
        assert admin("GET", f"/allocations/{each['consumer_uuid']}").json == {"allocations": {}}
    used = [admin("GET", f"/resource_providers/{each}/usages").json["usages"]["VCPU"] for each in hosts]
    assert sorted(used) == [0, 4]


def test_a_consumer_made_meanwhile_by_another_request_is_a_conflict(
    admin: Admin, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_provider(admin, "cn", VCPU=8)
    wanted = new_claim()

    def make(chosen: str) -> None:
        body = {"allocations": {chosen: {"resources": {"VCPU": 1}}}, "consumer_generation": None, **OWNER}
        assert admin("PUT", f"/allocations/{wanted['consumer_uuid']}", json=body).status_code == 204

    after_each_look(monkeypatch, make)
    answer = post_claims(admin, wanted)
    (error,) = answer.json["errors"]
    assert (answer.status_code, error["code"]) == (409, "placement.concurrent_update")


@pytest.mark.parametrize("generation", [None, 7], ids=["called new", "of another generation"])
def test_a_wrong_generation_is_refused_before_reasons_are_searched_for(
    admin: Admin, monkeypatch: pytest.MonkeyPatch, generation: int | None
) -> None:
    make_provider(admin, "cn", VCPU=4)
    wanted = new_claim()
    assert post_claims(admin, wanted).status_code == 201

    def explain(*_: Any) -> None:
        raise AssertionError("nobody asked")

    monkeypatch.setattr(service, "claim_refusal", explain)
    again = {**wanted, "query": "resources=VCPU:9", "consumer_generation": generation}
    answer = post_claims(admin, again)
    (error,) = answer.json["errors"]
    assert (answer.status_code, error["code"]) == (409, "placement.concurrent_update")
