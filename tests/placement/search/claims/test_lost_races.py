"""Somebody else is faster between the look and the write: the claim goes elsewhere, or is told the truth."""

import math
import uuid
from collections.abc import Callable
from typing import Any

import pytest
from werkzeug.test import TestResponse

from placement.search.claims import service
from tests.placement.running import Admin, application

OWNER = {"consumer_type": "INSTANCE", "project_id": "project", "user_id": "user"}
Change = Callable[[Admin, str], TestResponse]


@pytest.fixture
def admin(database_url: str) -> Admin:
    return Admin(application(database_url))


def host(admin: Admin, name: str, total: int = 4) -> str:
    made = str(admin("POST", "/resource_providers", json={"name": name}).json["uuid"])
    body = {"resource_provider_generation": 0, "inventories": {"VCPU": {"total": total}}}
    assert admin("PUT", f"/resource_providers/{made}/inventories", json=body).status_code == 200
    return made


def wants(query: str = "resources=VCPU:4", **fields: Any) -> dict[str, Any]:
    return {
        "consumer_uuid": str(uuid.uuid4()),
        "consumer_generation": None,
        "query": query,
        **OWNER,
        **fields,
    }


def after_each_look(
    monkeypatch: pytest.MonkeyPatch, change: Callable[[str], None], times: int = 1
) -> list[str]:
    """Have something happen to the host that was chosen, before it is written; the hosts it happened to."""
    place, done = service.place, list[str]()

    def slow_place(*arguments: Any) -> Any:
        placed = place(*arguments)
        if isinstance(placed, list) and len(done) < times:
            done.append(placed[0].choice.root.uuid)
            change(done[-1])
        return placed

    monkeypatch.setattr(service, "place", slow_place)
    return done


def take_all(admin: Admin, chosen: str) -> TestResponse:
    body = {"allocations": {chosen: {"resources": {"VCPU": 4}}}, "consumer_generation": None, **OWNER}
    return admin("PUT", f"/allocations/{uuid.uuid4()}", json=body)


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
    above = host(admin, "above", 1)
    body = {"name": "below", "parent_provider_uuid": above}
    return admin("PUT", f"/resource_providers/{chosen}", json=body)


def done(change: Change, admin: Admin) -> Callable[[str], None]:
    def happen(chosen: str) -> None:
        answer = change(admin, chosen)
        assert answer.status_code < 300, answer.text

    return happen


@pytest.mark.parametrize("change", [take_all, add_trait, remove, empty, disable])
def test_who_loses_a_race_goes_elsewhere(
    admin: Admin, monkeypatch: pytest.MonkeyPatch, change: Change
) -> None:
    hosts = {host(admin, "one"), host(admin, "other")}
    lost = after_each_look(monkeypatch, done(change, admin))
    wanted = wants("resources=VCPU:4&required=!HW_CPU_X86_AVX")
    answer = admin("POST", "/ext/v1/claims", json={"claims": [wanted]})
    assert answer.status_code == 201, answer.text
    (left,) = hosts - set(lost)
    held = admin("GET", f"/allocations/{wanted['consumer_uuid']}").json["allocations"]
    assert set(held) == {left}


def test_a_host_that_became_part_of_another_is_looked_at_again(
    admin: Admin, monkeypatch: pytest.MonkeyPatch
) -> None:
    only = host(admin, "cn")
    after_each_look(monkeypatch, done(another_parent, admin))
    answer = admin("POST", "/ext/v1/claims", json={"claims": [wants()]})
    (above,) = (
        each["uuid"]
        for each in admin("GET", "/resource_providers").json["resource_providers"]
        if each["name"] == "above"
    )
    (claim,) = answer.json["claims"]
    assert (claim["root_provider_uuid"], set(claim["allocations"])) == (above, {only})


def test_no_candidate_is_said_if_the_last_place_is_gone(
    admin: Admin, monkeypatch: pytest.MonkeyPatch
) -> None:
    host(admin, "cn")
    after_each_look(monkeypatch, done(take_all, admin))
    answer = admin("POST", "/ext/v1/claims", json={"claims": [wants()]})
    (error,) = answer.json["errors"]
    assert (answer.status_code, error["code"]) == (409, "placement.ext.no_candidate")
    assert "(most: 0 on cn)" in error["detail"]


def test_who_is_too_slow_each_time_is_told_to_try_later(
    admin: Admin, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(20):
        host(admin, f"cn{number}")
    lost = after_each_look(monkeypatch, done(take_all, admin), times=20)
    answer = admin("POST", "/ext/v1/claims", json={"claims": [wants()]})
    assert (answer.status_code, answer.headers["Retry-After"]) == (503, "5")
    assert len(lost) == 12  # one by an old state
    assert "Others were faster each of 11 times" in answer.json["errors"][0]["detail"]


def test_what_was_known_a_moment_ago_refuses_nobody(admin: Admin, monkeypatch: pytest.MonkeyPatch) -> None:
    """Places are looked for by an old state first, and then by what is there now."""
    monkeypatch.setattr(service, "_RECENT", math.inf)
    only = host(admin, "cn")
    assert (
        admin("GET", "/allocation_candidates?resources=VCPU:1").status_code == 200
    )  # the state that is old from now on
    taken = take_all(admin, only)
    assert taken.status_code == 204
    refused = admin("POST", "/ext/v1/claims", json={"claims": [wants()]})
    assert refused.status_code == 409
    assert "(most: 0 on cn)" in refused.json["errors"][0]["detail"]
    other = host(admin, "other")
    placed = admin("POST", "/ext/v1/claims", json={"claims": [wants()]})
    assert [each["root_provider_uuid"] for each in placed.json["claims"]] == [other]
    assert admin("PUT", "/traits/CUSTOM_NEW").status_code == 201
    unmet = admin(
        "POST", "/ext/v1/claims", json={"claims": [wants(query="resources=VCPU:1&required=CUSTOM_NEW")]}
    )
    assert unmet.status_code == 409


def test_who_may_not_try_again_is_not_sent_away_because_of_an_old_state(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "_RECENT", math.inf)
    admin = Admin(application(database_url, retries=0))
    only = host(admin, "cn")
    path = "/allocation_candidates?resources=VCPU:1"
    assert admin("GET", path).status_code == 200  # the state that is old from now on
    assert take_all(admin, only).status_code == 204
    other = host(admin, "other")
    placed = admin("POST", "/ext/v1/claims", json={"claims": [wants()]})
    assert [each["root_provider_uuid"] for each in placed.json["claims"]] == [other]


def test_of_several_nothing_is_written_if_one_loses_a_race(
    admin: Admin, monkeypatch: pytest.MonkeyPatch
) -> None:
    hosts = [host(admin, "one"), host(admin, "other")]
    after_each_look(monkeypatch, done(take_all, admin))
    wanted = [wants(), wants()]
    assert admin("POST", "/ext/v1/claims", json={"claims": wanted}).status_code == 409
    for each in wanted:
        assert admin("GET", f"/allocations/{each['consumer_uuid']}").json == {"allocations": {}}
    used = [admin("GET", f"/resource_providers/{each}/usages").json["usages"]["VCPU"] for each in hosts]
    assert sorted(used) == [0, 4]


def test_a_consumer_that_somebody_else_made_meanwhile_is_not_taken_over(
    admin: Admin, monkeypatch: pytest.MonkeyPatch
) -> None:
    host(admin, "cn", 8)
    wanted = wants()

    def make(chosen: str) -> None:
        body = {"allocations": {chosen: {"resources": {"VCPU": 1}}}, "consumer_generation": None, **OWNER}
        assert admin("PUT", f"/allocations/{wanted['consumer_uuid']}", json=body).status_code == 204

    after_each_look(monkeypatch, make)
    answer = admin("POST", "/ext/v1/claims", json={"claims": [wanted]})
    (error,) = answer.json["errors"]
    assert (answer.status_code, error["code"]) == (409, "placement.concurrent_update")


@pytest.mark.parametrize("generation", [None, 7], ids=["called new", "of another generation"])
def test_who_does_not_know_the_consumer_is_told_so_before_anybody_finds_out_why_there_is_no_place(
    admin: Admin, monkeypatch: pytest.MonkeyPatch, generation: int | None
) -> None:
    host(admin, "cn")
    wanted = wants()
    assert admin("POST", "/ext/v1/claims", json={"claims": [wanted]}).status_code == 201

    def explain(*_: Any) -> None:
        raise AssertionError("nobody asked")

    monkeypatch.setattr(service, "refusal", explain)
    again = {**wanted, "query": "resources=VCPU:9", "consumer_generation": generation}
    answer = admin("POST", "/ext/v1/claims", json={"claims": [again]})
    (error,) = answer.json["errors"]
    assert (answer.status_code, error["code"]) == (409, "placement.concurrent_update")
