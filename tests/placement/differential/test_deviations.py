"""Tests that reproduce each documented deviation on both services.

If a deviation no longer exists, its test fails, and it has to be removed from the table.
"""

from collections.abc import Callable
from typing import Final

import pytest

from placement_extras.shadow.comparison import (
    CandidateAmounts,
    OrphanConsumers,
    candidate_amounts,
    comparable_body,
    explain_difference,
    find_differences,
)
from tests.databases import DatabaseServer
from tests.placement.builders import claim_body
from tests.placement.differential import table
from tests.placement.differential.play import Names, Play
from tests.placement.differential.services import Exchange, Request
from tests.placement.differential.stories import (
    describe,
    listed,
    make,
    present_inventories,
    put,
    set_aggregates,
    set_traits,
)

pytestmark = pytest.mark.slow

SHARES: Final = "MISC_SHARES_VIA_AGGREGATE"
_WORLDS: Final = 12

#: deviations that no request can show, and the tests of our side
ELSEWHERE: Final = {
    "collisions": "tests/placement/workers",
    "over-commit": "tests/placement/workers",
    "classes-at-once": "tests/placement/workers/test_racing.py",
    "random-order": "tests/placement/search/test_search.py",
    "audit-middleware": "nowhere: it is not there",
}


def statuses(exchange: Exchange) -> tuple[int, int]:
    """Return the status of OpenStack Placement's answer and of our service's answer."""
    return exchange.theirs.status, exchange.ours.status


def is_recognised(exchange: Exchange, name: str) -> bool:
    """Whether the comparison of ``placement-shadow`` recognises each difference as the deviation with this
    name.
    """
    return all(
        explain_difference(exchange, each, OrphanConsumers()) == name for each in find_differences(exchange)
    )


def sentences(play: Play, names: Names) -> None:
    play("POST", "/resource_providers", {"name": 1})
    theirs, ours = (
        each.first_error["detail"] for each in (play.exchanges[-1].theirs, play.exchanges[-1].ours)
    )
    first, empty, last = theirs.splitlines()
    said = "JSON does not validate: 1 is not of type 'string'"
    assert ours.splitlines() == [
        first,
        empty,
        f" {said} Failed validating 'type' in schema['properties']['name']",
    ]
    assert last.startswith(f" {said} ")
    assert len(last) > len(last.rstrip()) > len(ours.splitlines()[-1])


def order(play: Play, names: Names) -> None:
    body = {"name": 1, "uuid": "x"}
    play.exchanges.append(exchange := play.differ("POST", "/resource_providers", body))
    assert statuses(exchange) == (400, 400)


def status_500(play: Play, names: Names) -> None:
    (host,) = make(play, names, VCPU=8)
    inventory = {"resource_provider_generation": 1, "inventories": {"vcpu": {}}}
    for method, path, body, raw, ours in (
        ("GET", "/usages?project_id=%FF", None, None, 400),
        ("GET", "/allocation_candidates?resources=VCPU:1&limit=cow&limit=5", None, None, 400),
        ("POST", "/resource_providers", None, b'{"name": "a\\ud800"}', 400),
        ("POST", "/resource_classes", {"name": "CUSTOM_A\n"}, None, 400),
        ("PUT", f"/resource_providers/{host}/inventories", inventory, None, 400),
    ):
        assert statuses(play.differ(method, path, body, raw=raw)) == (500, ours)


def unauthenticated(play: Play, names: Names) -> None:
    exchange = play.differ("GET", "/resource_providers", headers=(("X-Auth-Token", None),))
    assert statuses(exchange) == (401, 401)
    assert exchange.ours.first_error["detail"]
    assert not {"code", "openstack-api-version"} & {*exchange.ours.first_error, *exchange.ours.headers}
    assert "www-authenticate" in exchange.ours.headers
    assert "errors" not in exchange.theirs.body


def method_of_older_versions(play: Play, names: Names) -> None:
    (host,) = make(play, names)
    exchange = play.differ("DELETE", f"/resource_providers/{host}/inventories", version="1.4")
    assert "allow" not in exchange.theirs.headers
    assert exchange.ours.headers["allow"] == "GET, POST, PUT"


def vary(play: Play, names: Names) -> None:
    for path, version in (("/nowhere", "1.39"), ("/resource_providers", "1.99")):
        play("GET", path, version=version)
        theirs, ours = play.exchanges[-1].theirs, play.exchanges[-1].ours
        assert "vary" not in theirs.headers
        assert ours.headers["vary"] == "openstack-api-version"


def uuids(play: Play, names: Names) -> None:
    """Show that our service finds a provider by its uuid in capital letters, and OpenStack Placement does
    not.
    """
    (host,) = make(play, names, VCPU=8)
    capital = "00000000-0000-0000-0000-00000000ABCD"
    assert play("POST", "/resource_providers", {"name": f"{host}-x", "uuid": capital}).status == 200
    describe(play, capital.lower(), VCPU=8)
    assert statuses(play.differ("GET", f"/resource_providers/{capital}")) == (404, 200)
    assert statuses(play.differ("GET", f"/resource_providers/{capital}/inventories")) == (404, 200)
    assert len(play.differ("GET", f"/resource_providers?uuid={capital}").ours.body["resource_providers"]) == 1
    wanted = claim_body({capital: {"VCPU": 1}})
    assert statuses(play.differ("PUT", f"/allocations/{names.consumers[0]}", wanted)) == (400, 204)
    child = {"name": f"{host}-y", "uuid": names.providers[1], "parent_provider_uuid": capital}
    assert statuses(play.differ("POST", "/resource_providers", child)) == (400, 200)
    body = {"resource_provider_generation": play.generation(host), "aggregates": [capital]}
    exchange = play.differ("PUT", f"/resource_providers/{host}/aggregates", body)
    assert exchange.theirs.body["aggregates"] == [capital]
    assert exchange.ours.body["aggregates"] == [capital.lower()]
    body = {"resource_provider_generation": body["resource_provider_generation"] + 1}
    twice = {**body, "aggregates": [capital, capital.lower()]}
    assert statuses(play.differ("PUT", f"/resource_providers/{host}/aggregates", twice)) == (200, 400)
    renamed = {"name": f"{names.providers[1]}-z", "parent_provider_uuid": capital.replace("-", "")}
    assert statuses(play.differ("PUT", f"/resource_providers/{names.providers[1]}", renamed))[1] == 200
    dashless = {"name": f"{host}-w", "parent_provider_uuid": host.replace("-", "")}
    assert statuses(play.differ("POST", "/resource_providers", dashless)) == (400, 200)


def not_uuids(play: Play, names: Names) -> None:
    (host,) = make(play, names, VCPU=8)
    one = claim_body({host: {"VCPU": 1}})
    assert statuses(play.differ("POST", "/allocations", {"a" * 36: one})) == (204, 400)
    spelt = "00000000-0000-0000-0000-0000000000AB"
    theirs, ours = statuses(play.differ("POST", "/allocations", {spelt: one, spelt.lower(): one}))
    assert theirs in (204, 409)
    assert ours == 400


def texts(play: Play, names: Names) -> None:
    (host,) = make(play, names, VCPU=8)
    line_feed = {**claim_body({host: {"VCPU": 1}}), "consumer_type": "A\n"}
    assert statuses(play.differ("PUT", f"/allocations/{names.consumers[0]}", line_feed)) == (204, 400)
    assert statuses(play.differ("PUT", f"/traits/{names.traits[0]}%0A")) == (201, 400)
    exchange = play.differ("POST", "/resource_providers", {"name": f"{host}\0"})
    assert statuses(exchange)[1] == 400


def numbers(play: Play, names: Names) -> None:
    (host,) = make(play, names, VCPU=8)
    raw = b'{"resource_provider_generation": 0, "total": 5, "allocation_ratio": NaN}'
    exchange = play.differ("PUT", f"/resource_providers/{host}/inventories/VCPU", raw=raw)
    assert statuses(exchange) == (409, 400)


def classes(play: Play, names: Names) -> None:
    (host,) = make(play, names)
    body = present_inventories(play, host, vcpu={"total": 1, "foo": 2})
    exchange = play.differ("PUT", f"/resource_providers/{host}/inventories", body)
    assert statuses(exchange) == (400, 400)
    assert "No such resource class vcpu" in exchange.theirs.first_error["detail"]
    assert "'vcpu' does not match" in exchange.ours.first_error["detail"]
    # beside other faults; OpenStack Placement names only one
    missing = {"resource_provider_generation": 0, "inventories": {"vcpu": {"total": 1}}}
    body_of_nobody = {"inventories": {names.consumers[0]: missing}, "allocations": {}}
    exchange = play.differ("POST", "/reshaper", body_of_nobody)
    assert is_recognised(exchange, "classes")
    assert exchange.theirs.first_error["code"] == "placement.resource_provider.not_found"
    assert "'vcpu' does not match" in exchange.ours.first_error["detail"]
    body["resource_provider_generation"] += 1
    exchange = play.differ("PUT", f"/resource_providers/{host}/inventories", body)
    assert statuses(exchange) == (409, 400)
    assert is_recognised(exchange, "classes")


def mappings(play: Play, names: Names) -> None:
    (host,) = make(play, names, VCPU=8)
    for wrong in ({"": ["x"]}, {"": []}, {"": "x"}, {"x y": [host]}):
        body = claim_body({host: {"VCPU": 1}}, mappings=wrong)
        exchange = play.differ("PUT", f"/allocations/{names.consumers[0]}", body)
        assert exchange.ours.status == 400


def slashes(play: Play, names: Names) -> None:
    assert statuses(play.differ("GET", "//resource_classes")) == (404, 200)


def type_of_holds(play: Play, names: Names) -> None:
    (host,) = make(play, names, VCPU=8)
    hold = {**claim_body({host: {"VCPU": 1}}), "consumer_type": "WINDOW_HOLD"}
    assert statuses(play.differ("PUT", f"/allocations/{names.consumers[0]}", hold)) == (204, 400)


def unknown_names(play: Play, names: Names) -> None:
    nowhere = names.providers[4]
    for path in (
        f"/resource_providers?in_tree={nowhere}&required=CUSTOM_UNKNOWN",
        f"/allocation_candidates?resources={names.classes[0]}:1&resources1=CUSTOM_UNKNOWN:1",
    ):
        assert play("PUT", f"/resource_classes/{names.classes[0]}").status in (201, 204)
        assert statuses(play.differ("GET", path)) == (200, 400)


def repeated_parameters(play: Play, names: Names) -> None:
    for path in (
        "/allocation_candidates?resources=VCPU:1&group_policy=bogus&group_policy=none",
        f"/resource_providers?uuid=x&uuid={names.providers[0]}",
    ):
        assert statuses(play.differ("GET", path)) == (200, 400)


def form_of_trait_names(play: Play, names: Names) -> None:
    for text in ("foo:x", "xin:CUSTOM_A"):
        assert statuses(play.differ("GET", f"/traits?name={text}")) == (200, 400)


def case_of_trait_names(play: Play, names: Names) -> None:
    exchange = play.differ("GET", "/traits?name=startswith:compute_node")
    assert exchange.ours.body["traits"] == []
    assert "COMPUTE_NODE" in exchange.theirs.body["traits"]


def last_modified(play: Play, names: Names) -> None:
    (host,) = make(play, names)
    exchange = play.differ("GET", f"/resource_providers/{host}/inventories")
    assert "last-modified" not in exchange.theirs.headers
    assert "last-modified" in exchange.ours.headers


def additional_classes(play: Play, names: Names) -> None:
    exchange = play.differ("GET", "/resource_classes")
    theirs, ours = (
        {each["name"] for each in answer.body["resource_classes"] if not each["name"].startswith("CUSTOM_")}
        for answer in (exchange.theirs, exchange.ours)
    )
    assert ours - theirs == {"LLC", "MBA"}
    assert theirs - ours == set()


def in_some_world(show: Callable[[Names], bool], names: Names) -> None:
    """Show a deviation that depends on the order of sets, in at least one of many cases. Our service is right
    in all of them.
    """
    shown = [show(Names(names.number * 1000 + each)) for each in range(_WORLDS)]
    assert any(shown)


def sums(play: Play, names: Names) -> None:
    """Show that OpenStack Placement adds the amounts of the unsuffixed group at the child once for each
    provider of its disk.
    """

    def show(names: Names) -> bool:
        name = names.classes[0]
        assert play("PUT", f"/resource_classes/{name}").status == 201
        root, child = make(play, names, 0)
        describe(play, root, VCPU=8, DISK_GB=8)
        describe(play, child, DISK_GB=8, **{name: 8})
        query = f"resources=VCPU:1,DISK_GB:1,{name}:1&resources1={name}:3&group_policy=isolate"
        theirs, ours = answered(play, f"/allocation_candidates?{query}")
        right = [
            {root: {"VCPU": 1, "DISK_GB": 1}, child: {name: 4}},
            {root: {"VCPU": 1}, child: {name: 4, "DISK_GB": 1}},
        ]
        assert comparable_body("", ours) == comparable_body("", right)
        return any(each[child][name] > 4 for each in theirs)

    in_some_world(show, names)


def answered(play: Play, path: str) -> tuple[list[CandidateAmounts], list[CandidateAmounts]]:
    """Return the candidates from OpenStack Placement and from our service."""
    exchange = play.pair.ask(Request("GET", path))
    return candidate_amounts(exchange.theirs.body), candidate_amounts(exchange.ours.body)


def sharing_children(play: Play, names: Names) -> None:
    """Create a host, and in another tree a child provider that shares its disk."""
    host, _, pool = make(play, names, None, 1)
    describe(play, host, VCPU=8)
    describe(play, pool, DISK_GB=8)
    set_traits(play, pool, SHARES)
    for uuid in (host, pool):
        set_aggregates(play, uuid, names.aggregates[0])
    query = f"resources=VCPU:1,DISK_GB:1&member_of={names.aggregates[0]}"
    exchange = play.differ("GET", f"/allocation_candidates?{query}")
    assert statuses(exchange) == (500, 200)
    assert candidate_amounts(exchange.ours.body) == [{host: {"VCPU": 1}, pool: {"DISK_GB": 1}}]


def sharing_alone(play: Play, names: Names) -> None:
    """Create a host that gives nothing to the unsuffixed group, because its disk comes from a sharing
    provider.
    """

    def show(names: Names) -> bool:
        host, pool = make(play, names, None)
        describe(play, host, VCPU=8)
        describe(play, pool, DISK_GB=8)
        set_traits(play, pool, SHARES)
        for uuid in (host, pool):
            set_aggregates(play, uuid, names.aggregates[0])
        query = f"resources=DISK_GB:1&resources1=VCPU:1&in_tree1={host}"
        theirs, ours = answered(play, f"/allocation_candidates?{query}")
        assert ours == [{host: {"VCPU": 1}, pool: {"DISK_GB": 1}}]
        return theirs == []

    in_some_world(show, names)


def tree_of_groups_without_resources(play: Play, names: Names) -> None:
    host, child, other, cousin = make(play, names, 0, None, 2)
    for uuid in (host, other):
        describe(play, uuid, VCPU=8)
    trait = names.traits[0]
    assert play("PUT", f"/traits/{trait}").status == 201
    for uuid in (child, cousin):
        set_traits(play, uuid, trait)
    query = f"resources_A=VCPU:1&required_B={trait}&in_tree_B={host}&same_subtree=_A,_B&group_policy=none"
    exchange = play.differ("GET", f"/allocation_candidates?{query}")
    assert candidate_amounts(exchange.ours.body) == [{host: {"VCPU": 1}}]
    assert len(candidate_amounts(exchange.theirs.body)) == 2


def forbidding_without_resources(play: Play, names: Names) -> None:
    host, child = make(play, names, 0)
    describe(play, host, VCPU=8)
    one, other = names.traits[:2]
    for trait in (one, other):
        play("PUT", f"/traits/{trait}")
    set_traits(play, child, one)
    query = f"resources_=VCPU:1&in_tree_={host}&same_subtree=_,_ROOT&group_policy=none"
    exchange = play.differ("GET", f"/allocation_candidates?{query}&required_ROOT=!{other}")
    assert candidate_amounts(exchange.theirs.body) == []
    assert candidate_amounts(exchange.ours.body) == [{host: {"VCPU": 1}}] * 2
    assert is_recognised(exchange, "forbidding-without-resources")
    exchange = play.differ("GET", f"/allocation_candidates?{query}&member_of_ROOT=!{names.aggregates[0]}")
    assert candidate_amounts(exchange.ours.body) == [{host: {"VCPU": 1}}] * 2
    assert is_recognised(exchange, "forbidding-without-resources")
    play("GET", f"/allocation_candidates?{query}&required_ROOT={one},!{other}")


def capacity(play: Play, names: Names) -> None:
    (host,) = make(play, names)
    describe(play, host, VCPU={"total": 2**31 - 1, "allocation_ratio": 3e38})
    exchange = play.differ("GET", f"/allocation_candidates?resources=VCPU:1000000&in_tree={host}")
    theirs, ours = (
        each.body["provider_summaries"][host]["resources"]["VCPU"]["capacity"]
        for each in (exchange.theirs, exchange.ours)
    )
    assert len(str(theirs)) == 48
    assert ours == 2**53


def orphans(play: Play, names: Names) -> None:
    (host,) = make(play, names, VCPU=8)
    emptied, mistaken, *_ = names.consumers
    assert put(play, emptied, {}) == 204
    assert put(play, mistaken, {names.providers[4]: {"VCPU": 1}}) == 400
    for consumer in (emptied, mistaken):
        exchange = play.differ("PUT", f"/allocations/{consumer}", claim_body({host: {"VCPU": 1}}))
        assert statuses(exchange) == (409, 204)
        assert "expected 0 but got None" in exchange.theirs.first_error["detail"]
    consumer = names.consumers[2]
    refused = claim_body({names.providers[4]: {"VCPU": 1}}, consumer_type="MIGRATION")
    assert play("PUT", f"/allocations/{consumer}", refused).status == 400
    assert play("PUT", f"/allocations/{consumer}", listed(host, VCPU=1), "1.7").status == 204
    exchange = play.differ("GET", f"/allocations/{consumer}")
    assert exchange.theirs.body["consumer_type"] == "MIGRATION"
    assert exchange.ours.body["consumer_type"] == "unknown"


def usages_on_postgresql(play: Play, names: Names) -> None:
    (host,) = make(play, names, VCPU=8)
    assert put(play, names.consumers[0], {host: {"VCPU": 1}}) == 204
    assert statuses(play.differ("GET", "/usages?project_id=project")) == (500, 200)


def extensions(play: Play, names: Names) -> None:
    assert statuses(play.differ("GET", "/ext/v1")) == (404, 200)


def roles_of_noauth2(play: Play, names: Names) -> None:
    exchange = play.differ("POST", "/reshaper", {}, headers=(("X-Roles", None),))
    assert statuses(exchange) == (403, 400)


SHOWN: Final[dict[str, Callable[[Play, Names], None]]] = {
    story.__name__.replace("_", "-"): story
    for story in (
        sentences, order, status_500, unauthenticated, method_of_older_versions, vary,
        uuids, not_uuids, texts, type_of_holds, numbers, classes, mappings, slashes,
        unknown_names, repeated_parameters, form_of_trait_names, case_of_trait_names, last_modified,
        additional_classes, sums, sharing_children, sharing_alone, tree_of_groups_without_resources,
        forbidding_without_resources, capacity,
        orphans, usages_on_postgresql, extensions, roles_of_noauth2,
    )
}  # fmt: skip

#: deviations that exist only on some databases
ONLY_ON: Final = {
    "usages-on-postgresql": {"postgresql"},
    "case-of-trait-names": {"sqlite", "mariadb"},
    "uuids": {"sqlite", "postgresql"},
}


@pytest.mark.parametrize("name", SHOWN)
def test_a_deviation_behaves_as_the_table_describes(
    play: Play, names: Names, database_server: DatabaseServer, name: str
) -> None:
    if database_server.kind not in ONLY_ON.get(name, {database_server.kind}):
        pytest.skip(f"not on {database_server.kind}")
    SHOWN[name](play, names)


def test_every_deviation_of_the_table_is_shown() -> None:
    assert sorted(table.names()) == sorted([*SHOWN, *ELSEWHERE])
