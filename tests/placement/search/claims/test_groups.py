"""Tests that members of a group are kept together or apart, even if others join meanwhile, on each kind of
database.
"""

from collections.abc import Sequence
from typing import Any

import pytest
from werkzeug.test import TestResponse

from placement.search.claims import service
from placement.search.claims.placement import PlacedClaim
from placement.store.claims import ConsumerClaim
from placement.store.groups import Members
from tests.placement.builders import OWNER, make_provider, new_claim, post_claims, put_allocation, read_error
from tests.placement.running import Admin
from tests.placement.sql import read_scalar

NO_CANDIDATE = "placement.ext.no_candidate"


@pytest.fixture
def hosts(admin: Admin) -> list[str]:
    return [make_provider(admin, name, VCPU=4) for name in ("one", "two", "three")]


def member(policy: str = "", *, query: str = "resources=VCPU:1", **fields: Any) -> dict[str, Any]:
    """A claim of a new consumer. With a policy, the consumer joins the group ``web``."""
    limit = {"max_per_host": fields.pop("max_per_host")} if "max_per_host" in fields else {}
    group = {"group": {"name": "web", "policy": policy, **limit}} if policy else {}
    return new_claim(query, **group, **fields)


def roots(answer: TestResponse) -> list[str]:
    assert answer.status_code in (200, 201), answer.text
    return [each["root_provider_uuid"] for each in answer.json["claims"]]


def put(admin: Admin, consumer: str, provider: str, generation: int | None) -> None:
    answer = put_allocation(admin, {provider: {"VCPU": 1}}, consumer, generation)
    assert answer.status_code == 204, answer.text


def test_affinity_places_members_on_one_host(admin: Admin, hosts: list[str]) -> None:
    first = roots(post_claims(admin, member("affinity")))
    assert roots(post_claims(admin, *[member("affinity") for _ in range(3)])) == first * 3
    status, code, detail = read_error(post_claims(admin, member("affinity")))
    assert (status, code) == (409, NO_CANDIDATE)
    why = "0 of 1 host: 1 has less than 1 VCPU free (most: 0 on "
    assert why in detail
    assert detail.endswith("); 2 hosts are excluded by its group.")


def test_anti_affinity_places_members_on_different_hosts(admin: Admin, hosts: list[str]) -> None:
    found = roots(post_claims(admin, member("anti-affinity"))) + roots(
        post_claims(admin, *[member("anti-affinity") for _ in range(2)])
    )
    assert sorted(found) == sorted(hosts)
    status, code, detail = read_error(post_claims(admin, member("anti-affinity")))
    assert (status, code) == (409, NO_CANDIDATE)
    assert detail.endswith(": no host may be chosen: 3 hosts are excluded by its group.")
    assert roots(post_claims(admin, member()))  # a claim without a group ignores the policy


def test_a_member_on_several_hosts_counts_once(admin: Admin, hosts: list[str]) -> None:
    both = member("soft-affinity")
    assert post_claims(admin, both).status_code == 201
    body = {
        "allocations": {each: {"resources": {"VCPU": 1}} for each in hosts[:2]},
        "consumer_generation": 1,
        **OWNER,
    }
    assert admin("PUT", f"/allocations/{both['consumer_uuid']}", json=body).status_code == 204
    answer = post_claims(admin, member("soft-affinity", alternates=2), dry_run=True)
    (found,) = answer.json["claims"]
    scores = {each["root_provider_uuid"]: each["score"]["total"] for each in (found, *found["alternates"])}
    assert scores == {hosts[0]: 1.0, hosts[1]: 1.0, hosts[2]: 0.0}


def test_max_per_host_limits_members_of_a_host(admin: Admin, hosts: list[str]) -> None:
    found = roots(post_claims(admin, *[member("anti-affinity", max_per_host=2) for _ in range(6)]))
    assert sorted(found) == sorted(hosts * 2)
    assert read_error(post_claims(admin, member("anti-affinity", max_per_host=2)))[:2] == (409, NO_CANDIDATE)
    assert roots(post_claims(admin, member("anti-affinity", max_per_host=3)))


def test_soft_policies_hold_while_there_is_room(admin: Admin, hosts: list[str]) -> None:
    found = roots(post_claims(admin, *[member("soft-anti-affinity") for _ in range(6)]))
    assert sorted(found) == sorted(hosts * 2)
    (first,) = roots(post_claims(admin, member("soft-affinity", allowed_hosts=[hosts[0]])))
    answer = post_claims(admin, member("soft-affinity"))
    assert roots(answer) == [first]
    assert answer.json["claims"][0]["score"] == {
        "total": pytest.approx(3 / 7),
        "criteria": {"group": pytest.approx(3 / 7)},
    }
    assert roots(post_claims(admin, member("soft-affinity")))[0] != first  # the first host is full
    answer = post_claims(
        admin, member("soft-affinity", order={"group": 0, "spread": 1}, allowed_hosts=hosts[1:])
    )
    assert answer.json["claims"][0]["score"]["criteria"]["spread"] == 0.25


def test_members_leave_with_their_last_allocation(admin: Admin, hosts: list[str]) -> None:
    wanted = [member("anti-affinity") for _ in hosts]
    found = dict(zip(roots(post_claims(admin, *wanted)), wanted, strict=True))
    gone = hosts[1]
    assert admin("DELETE", f"/allocations/{found[gone]['consumer_uuid']}").status_code == 204
    assert roots(post_claims(admin, member("anti-affinity"))) == [gone]


def test_members_moved_by_put_stay_members(admin: Admin, hosts: list[str]) -> None:
    first, second = member("anti-affinity"), member("anti-affinity")
    assert (
        roots(
            post_claims(admin, {**first, "allowed_hosts": hosts[:1]}, {**second, "allowed_hosts": hosts[1:2]})
        )
        == hosts[:2]
    )
    # a plain PUT ignores the policy: both members are on one host now
    put(admin, first["consumer_uuid"], hosts[1], 1)
    there = hosts[1:2]
    assert (
        read_error(post_claims(admin, member("anti-affinity", allowed_hosts=there, max_per_host=2)))[1]
        == NO_CANDIDATE
    )
    assert roots(post_claims(admin, member("anti-affinity", allowed_hosts=there, max_per_host=3))) == there
    assert roots(post_claims(admin, member("anti-affinity", allowed_hosts=hosts[:1]))) == hosts[:1]


def test_a_member_may_move_and_leaves_if_the_claim_names_no_group(admin: Admin, hosts: list[str]) -> None:
    wanted = [member("anti-affinity") for _ in hosts]
    found = dict(zip(roots(post_claims(admin, *wanted)), wanted, strict=True))
    moving = {**found[hosts[0]], "consumer_generation": 1}
    assert roots(post_claims(admin, moving)) == [hosts[0]]  # the consumer does not count as beside itself
    assert read_error(post_claims(admin, member("anti-affinity")))[1] == NO_CANDIDATE
    del moving["group"]
    assert roots(post_claims(admin, {**moving, "consumer_generation": 2, "allowed_hosts": [hosts[0]]})) == [
        hosts[0]
    ]
    assert roots(post_claims(admin, member("anti-affinity"))) == [hosts[0]]


def test_all_claims_of_a_group_are_placed_or_none(admin: Admin, hosts: list[str]) -> None:
    wanted = [member("anti-affinity") for _ in range(4)]
    status, code, detail = read_error(post_claims(admin, *wanted))
    assert (status, code) == (409, NO_CANDIDATE)
    assert "claim 4 of 4" in detail
    for each in wanted:
        assert admin("GET", f"/allocations/{each['consumer_uuid']}").json == {"allocations": {}}
    # only the largest host has room for both members
    large = make_provider(admin, "large", VCPU=8)
    assert roots(post_claims(admin, *[member("affinity") for _ in range(6)])) == [large] * 6


def test_members_that_share_a_pool_are_on_different_hosts(admin: Admin, hosts: list[str]) -> None:
    pool = make_provider(admin, "pool", DISK_GB=100)
    traits = {"traits": ["MISC_SHARES_VIA_AGGREGATE"], "resource_provider_generation": 1}
    assert admin("PUT", f"/resource_providers/{pool}/traits", json=traits).status_code == 200
    for provider, generation in ((pool, 2), *[(each, 1) for each in hosts]):
        body = {"aggregates": [hosts[0]], "resource_provider_generation": generation}
        assert admin("PUT", f"/resource_providers/{provider}/aggregates", json=body).status_code == 200
    query = "resources=VCPU:1,DISK_GB:10"
    found = roots(post_claims(admin, *[member("anti-affinity", query=query) for _ in range(3)]))
    assert sorted(found) == sorted(hosts)
    _, code, detail = read_error(post_claims(admin, member("anti-affinity", query=query)))
    assert code == NO_CANDIDATE
    # no member is on the pool
    why = "0 of 1 host: 1 has no VCPU; leaving out VCPU would leave 1 host"
    assert detail.endswith(f": {why}; 3 hosts are excluded by its group.")
    alone = member("anti-affinity", query="resources=DISK_GB:10", excluded_hosts=hosts)
    assert roots(post_claims(admin, alone)) == [pool]
    assert roots(post_claims(admin, member("affinity", query=query)))[0] in hosts


def pool(admin: Admin, members: Sequence[str], **totals: int) -> str:
    """Create a provider that shares with these hosts, each of which was written once before."""
    made = str(admin("POST", "/resource_providers", json={"name": "pool"}).json["uuid"])
    inventories = {"inventories": {each: {"total": total} for each, total in totals.items()}}
    for generation, (what, body) in enumerate(
        (("inventories", inventories), ("traits", {"traits": ["MISC_SHARES_VIA_AGGREGATE"]}))
    ):
        path = f"/resource_providers/{made}/{what}"
        answer = admin("PUT", path, json={**body, "resource_provider_generation": generation})
        assert answer.status_code == 200, answer.text
    for provider, generation in ((made, 2), *[(each, 1) for each in members]):
        aggregates = {"aggregates": [made], "resource_provider_generation": generation}
        answer = admin("PUT", f"/resource_providers/{provider}/aggregates", json=aggregates)
        assert answer.status_code == 200, answer.text
    return made


def test_a_refusal_with_a_pool_names_only_hosts_that_the_policy_allows(admin: Admin) -> None:
    small, large = make_provider(admin, "small", VCPU=2), make_provider(admin, "large", VCPU=8)
    pool(admin, [small, large], DISK_GB=100)
    assert roots(post_claims(admin, member("affinity", allowed_hosts=[small]))) == [small]
    answer = post_claims(admin, member("affinity", query="resources=VCPU:4,DISK_GB:1"))
    status, code, detail = read_error(answer)
    assert (status, code) == (409, NO_CANDIDATE)
    # without VCPU the claim would be on the pool alone, which the group does not allow
    (helping,) = answer.json["errors"][0]["explanation"]["relaxations"]
    assert [(each["names"], each["amount"]) for each in helping["changes"]] == [(["VCPU"], 1)]
    assert "0 of 1 host: 1 " in detail
    assert detail.endswith("; asking for 1 VCPU would leave 1 host; 2 hosts are excluded by its group.")
    assert roots(post_claims(admin, member("affinity", query="resources=VCPU:1,DISK_GB:1"))) == [small]


@pytest.mark.parametrize("policy", ["affinity", "anti-affinity"])
def test_a_member_that_joins_before_the_write_is_seen(
    admin: Admin, hosts: list[str], monkeypatch: pytest.MonkeyPatch, policy: str
) -> None:
    claims_of, others = service.consumer_claims, list[str]()

    def slow_write(placed: Sequence[PlacedClaim]) -> list[ConsumerClaim]:
        if not others:
            others.append("")  # the second write is not delayed
            mine = placed[0].choice.root.uuid
            apart = {"allowed_hosts": [mine]} if policy == "anti-affinity" else {"excluded_hosts": [mine]}
            others[0] = roots(post_claims(admin, member(policy, **apart)))[0]
        return claims_of(placed)

    monkeypatch.setattr(service, "consumer_claims", slow_write)
    (found,) = roots(post_claims(admin, member(policy)))
    assert (found == others[0]) == (policy == "affinity")


def test_no_refusal_is_based_on_members_that_have_left(
    admin: Admin, hosts: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Members and providers are read one after the other, so the combination of these two readings may never
    have existed.
    """
    wanted = [member("anti-affinity", allowed_hosts=[each]) for each in hosts[:2]]
    assert roots(post_claims(admin, *wanted)) == hosts[:2]
    read, done = service.group_members, list[str]()

    def slow_read(rows: Sequence[Any]) -> Members:
        found = read(rows)
        if not done:
            done.append("")
            assert admin("DELETE", f"/allocations/{wanted[0]['consumer_uuid']}").status_code == 204
            assert (
                roots(post_claims(admin, member(query="resources=VCPU:4", allowed_hosts=hosts[2:])))
                == hosts[2:]
            )
        return found

    monkeypatch.setattr(service, "group_members", slow_read)
    assert roots(post_claims(admin, member("anti-affinity"))) == hosts[:1]


def test_the_table_of_members_is_empty_after_the_last_one(
    admin: Admin, hosts: list[str], database_url: str
) -> None:
    wanted = [member("anti-affinity") for _ in hosts]
    roots(post_claims(admin, *wanted))
    put(admin, wanted[0]["consumer_uuid"], hosts[0], 1)
    count = "SELECT COUNT(*) FROM consumer_groups WHERE name = 'web'"
    assert read_scalar(database_url, count) == 3
    body = {
        each["consumer_uuid"]: {"allocations": {}, "consumer_generation": generation, **OWNER}
        for each, generation in zip(wanted[:2], (2, 1), strict=True)
    }
    assert admin("POST", "/allocations", json=body).status_code == 204
    assert admin("DELETE", f"/allocations/{wanted[2]['consumer_uuid']}").status_code == 204
    assert read_scalar(database_url, count) == 0


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"group": {"name": "web", "policy": "near"}}, "near"),
        ({"group": {"name": "", "policy": "affinity"}}, "''"),
        ({"group": {"name": "a b", "policy": "affinity"}}, "is not a name of"),
        ({"group": {"name": "a\u0000", "policy": "affinity"}}, "is not a name of"),
        ({"group": {"name": "web", "policy": "affinity", "max_per_host": 2}}, "max_per_host"),
        ({"group": {"name": "web", "policy": "anti-affinity", "max_per_host": 0}}, "minimum"),
        ({"group": {"policy": "affinity"}}, "'name'"),
        ({"order": {"group": 1}}, "the claim has no group"),
    ],
)
def test_invalid_groups_are_refused(admin: Admin, fields: dict[str, Any], why: str) -> None:
    status, _, detail = read_error(post_claims(admin, member(**fields)))
    assert status == 400
    assert why in detail
