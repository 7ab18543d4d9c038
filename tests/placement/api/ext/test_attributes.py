"""Tests of ``/ext/v1/resource_providers/{uuid}/attributes``, and of claims that order hosts by attributes."""

from typing import Any

import pytest
from werkzeug.test import TestResponse

from tests.placement.builders import make_provider, new_claim, post_claims, read_error
from tests.placement.running import Admin, application

NOBODY = "00000000-0000-4000-8000-00000000dead"


def path(provider: str) -> str:
    return f"/ext/v1/resource_providers/{provider}/attributes"


def put(admin: Admin, provider: str, generation: int | None = None, **attributes: Any) -> TestResponse:
    if generation is None:
        generation = admin("GET", f"/resource_providers/{provider}").json["generation"]
    body = {"attributes": attributes, "resource_provider_generation": generation}
    return admin("PUT", path(provider), json=body)


def chosen(answer: TestResponse) -> str:
    assert answer.status_code in (200, 201), answer.json
    root: str = answer.json["claims"][0]["root_provider_uuid"]
    return root


def test_strings_and_numbers_are_kept_with_a_provider_and_seen_by_every_worker(
    admin: Admin, url: str
) -> None:
    only, other = make_provider(admin, "cn", VCPU=8), Admin(application(url))
    assert other("GET", path(only)).json == {"attributes": {}, "resource_provider_generation": 1}
    values = {"price": 0.1, "rack": "r12", "power": 450, "empty": "", "least": -1e300, "slots": 2**53}
    answer = put(admin, only, **values)
    assert answer.json == {"attributes": values, "resource_provider_generation": 2}
    assert other("GET", path(only)).json == answer.json
    assert put(other, only, rack="r13").json["resource_provider_generation"] == 3
    assert admin("GET", path(only)).json["attributes"] == {"rack": "r13"}
    assert put(admin, only, rack="r13").json["resource_provider_generation"] == 3  # nothing changed


def test_a_stale_generation_and_an_unknown_provider_are_refused(admin: Admin) -> None:
    only = make_provider(admin, "cn", VCPU=8)
    assert put(admin, only, price=1).status_code == 200
    assert read_error(put(admin, only, 1, price=2))[:2] == (409, "placement.concurrent_update")
    assert admin("GET", path(only)).json["attributes"] == {"price": 1}
    assert put(admin, NOBODY, 1, price=2).status_code == 404
    assert admin("GET", path(NOBODY)).status_code == 404


@pytest.mark.parametrize(
    "attributes",
    [
        {"1st": 1},
        {"a b": 1},
        {"n" * 65: 1},
        {"": 1},
        {"a": True},
        {"a": None},
        {"a": []},
        {"a": "x" * 256},
        {"a": 10**400},
        {"a": "\0"},
        {f"a{number}": 1 for number in range(257)},
    ],
)
def test_invalid_names_and_values_and_too_many_attributes_are_refused(
    admin: Admin, attributes: dict[str, Any]
) -> None:
    only = make_provider(admin, "cn", VCPU=8)
    assert put(admin, only, **attributes).status_code == 400
    assert admin("GET", path(only)).json["attributes"] == {}


def test_attributes_are_deleted_with_their_provider(admin: Admin) -> None:
    only = make_provider(admin, "cn", VCPU=8)
    assert put(admin, only, price=1).status_code == 200
    assert admin("DELETE", f"/resource_providers/{only}").status_code == 204
    again = {"name": "cn", "uuid": only}
    assert admin("POST", "/resource_providers", json=again).status_code == 200
    assert admin("GET", path(only)).json["attributes"] == {}


def test_claims_are_ordered_by_a_low_or_high_number(admin: Admin) -> None:
    hosts = {price: make_provider(admin, f"cn{price}", VCPU=8) for price in (3, 1, 2)}
    for price, each in hosts.items():
        assert put(admin, each, price=price).status_code == 200
    for weight, best in ((-1, 1), (1, 3)):
        answer = post_claims(
            admin,
            new_claim("resources=VCPU:1", order={"attribute:price": weight}, alternates=5),
            dry_run=True,
        )
        (found,) = answer.json["claims"]
        roots = [each["root_provider_uuid"] for each in (found, *found["alternates"])]
        assert roots == [hosts[best], hosts[2], hosts[4 - best]]
        scores = [each["score"]["criteria"]["attribute:price"] for each in (found, *found["alternates"])]
        assert scores == [1.0, 0.5, 0.0]


def test_hosts_without_the_number_come_last_in_any_order(admin: Admin) -> None:
    dear, none, text = (
        make_provider(admin, "dear", VCPU=2),
        make_provider(admin, "none", VCPU=99),
        make_provider(admin, "text", VCPU=99),
    )
    cheap = make_provider(admin, "cheap", VCPU=1)
    for each, price in ((dear, 9), (cheap, 1), (text, "much")):
        assert put(admin, each, price=price).status_code == 200
    order = {"attribute:price": -1, "spread": 1000}
    assert chosen(post_claims(admin, new_claim("resources=VCPU:2", order=order))) == dear
    assert chosen(post_claims(admin, new_claim("resources=VCPU:2", order=order))) in (none, text)


def test_a_number_of_the_root_applies_to_its_zones_unless_they_have_their_own(admin: Admin) -> None:
    near, far = make_provider(admin, "near"), make_provider(admin, "far")
    assert put(admin, near, power=5).status_code == 200
    assert put(admin, far, power=9).status_code == 200
    zones = {root: make_provider(admin, f"zone{root}", parent=root, VCPU=8) for root in (near, far)}
    wanted = {"query": "resources=VCPU:1", "order": {"attribute:power": -1}}
    assert chosen(post_claims(admin, new_claim(**wanted), dry_run=True)) == near
    assert put(admin, zones[far], power=1).status_code == 200
    assert chosen(post_claims(admin, new_claim(**wanted), dry_run=True)) == far
    assert put(admin, zones[far]).status_code == 200
    assert chosen(post_claims(admin, new_claim(**wanted), dry_run=True)) == near


def test_only_known_attributes_may_have_a_negative_weight(admin: Admin) -> None:
    make_provider(admin, "cn", VCPU=8)
    assert post_claims(admin, new_claim("resources=VCPU:1", order={"pack": -1})).status_code == 400
    assert post_claims(admin, new_claim("resources=VCPU:1", order={"attribute:": 1})).status_code == 400
    assert (
        post_claims(admin, new_claim("resources=VCPU:1", order={"attribute:nowhere": 1})).status_code == 400
    )


def test_distances_that_are_reported_decide_over_which_zones_a_claim_is_split(admin: Admin) -> None:
    root = make_provider(admin, "cn")
    zones = [make_provider(admin, f"cn_{number}", parent=root, PCPU=4) for number in range(4)]
    for each in zones:
        body = {"traits": ["HW_NUMA_ROOT"], "resource_provider_generation": 1}
        assert admin("PUT", f"/resource_providers/{each}/traits", json=body).status_code == 200
    near = {frozenset((1, 3))}
    for one, uuid in enumerate(zones):
        told = {
            f"numa_distance.{zones[other]}": 10 if one == other else 12 if {one, other} in near else 32
            for other in range(4)
        }
        assert put(admin, uuid, **told).status_code == 200
    wanted = new_claim("resources=PCPU:8", topology="best-effort", order={"numa_distance": 1})
    (found,) = post_claims(admin, wanted, dry_run=True).json["claims"]
    assert found["allocations"].keys() == {zones[1], zones[3]}
    assert found["score"]["criteria"]["numa_distance"] == pytest.approx(10 / 12)
