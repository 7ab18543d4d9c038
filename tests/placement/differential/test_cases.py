"""Tests that both services give the same answers in cases in which their answers once differed.

Every request goes to both services, and every answer is compared: status, code, words that clients look for,
headers, bodies with their generations. The asserts check the answer itself.
"""

from typing import Any

import pytest

from tests.placement.builders import claim_body
from tests.placement.differential.play import Names, Play
from tests.placement.differential.stories import (
    describe,
    listed,
    look,
    make,
    present_inventories,
    put,
    set_aggregates,
)

pytestmark = pytest.mark.slow

ROLES = (("X-Roles", "member"),)


def test_claims_of_an_over_committed_provider(play: Play, names: Names) -> None:
    host, other = make(play, names, None, VCPU=8)
    guest, migration, third, _ = names.consumers
    assert put(play, guest, {host: {"VCPU": 8}}) == 204
    describe(play, host, VCPU=4)
    moved = {guest: claim_body({other: {"VCPU": 8}}, 1), migration: claim_body({host: {"VCPU": 8}})}
    assert play("POST", "/allocations", moved).status == 204
    assert put(play, guest, {other: {"VCPU": 8}, host: {"VCPU": 1}}, 2) == 409
    assert put(play, migration, {host: {"VCPU": 7}}, 1) == 204
    assert put(play, migration, {host: {"VCPU": 8}}, 2) == 409
    assert put(play, third, {host: {"VCPU": 1}}) == 409
    swapped = {migration: claim_body({host: {"VCPU": 3}}, 2), third: claim_body({host: {"VCPU": 4}})}
    assert play("POST", "/allocations", swapped).status == 204
    grown = {migration: claim_body({host: {"VCPU": 4}}, 3), third: claim_body({host: {"VCPU": 4}}, 1)}
    assert play("POST", "/allocations", grown).status == 409
    assert play("POST", "/allocations", {migration: claim_body({}, 3)}).status == 204
    describe(play, host, VCPU={"total": 8, "reserved": 6})
    reshape = {"inventories": {host: present_inventories(play, host, VCPU=2)}}
    assert (
        play(
            "POST", "/reshaper", {**reshape, "allocations": {third: claim_body({host: {"VCPU": 5}}, 1)}}
        ).status
        == 409
    )
    assert (
        play(
            "POST", "/reshaper", {**reshape, "allocations": {third: claim_body({host: {"VCPU": 3}}, 1)}}
        ).status
        == 204
    )
    look(play, [host, other], [guest, migration, third])


def test_owners_before_1_8(play: Play, names: Names) -> None:
    (host,) = make(play, names, VCPU=8)
    guest, new, _, _ = names.consumers
    assert put(play, guest, {host: {"VCPU": 1}}) == 204
    assert play("PUT", f"/allocations/{guest}", listed(host, VCPU=9), "1.0").status == 409
    look(play, [], [guest])
    for consumer, version in ((guest, "1.0"), (new, "1.7")):
        assert play("PUT", f"/allocations/{consumer}", listed(host, VCPU=2), version).status == 204
        shown = play("GET", f"/allocations/{consumer}").body
        assert shown["project_id"] == shown["user_id"] == "00000000-0000-0000-0000-000000000000"
    owned = {**listed(host, VCPU=1), "project_id": names.projects[0], "user_id": "user"}
    assert play("PUT", f"/allocations/{guest}", owned, "1.8").status == 204
    look(play, [host], [guest, new])
    play("GET", f"/usages?project_id={names.projects[0]}")


def test_reshapes(play: Play, names: Names) -> None:
    host, other = make(play, names, None, VCPU=8, DISK_GB=8)
    guest, neighbour, _, _ = names.consumers
    assert play("POST", "/reshaper", {"inventories": {}, "allocations": {}}).status == 400
    assert play("POST", "/reshaper", {"inventories": {}, "allocations": {}}, "1.30").status == 400
    assert put(play, guest, {host: {"VCPU": 1}}) == 204
    for totals, status in (({"DISK_GB": 8}, 409), ({}, 409), ({"VCPU": 9}, 204), ({"VCPU": 9}, 204)):
        body = {"inventories": {host: present_inventories(play, host, **totals)}, "allocations": {}}
        assert play("POST", "/reshaper", body).status == status
        look(play, [host], [])
    both = {host: present_inventories(play, host), other: present_inventories(play, other, VCPU=8)}
    claims = {guest: claim_body({other: {"VCPU": 1}}, 1), neighbour: claim_body({other: {"VCPU": 1}})}
    assert play("POST", "/reshaper", {"inventories": both, "allocations": claims}).status == 204
    look(play, [host, other], [guest, neighbour])
    for uuid in (host, host):  # from no allocations to none
        body = {"inventories": {uuid: present_inventories(play, uuid)}, "allocations": {}}
        assert play("POST", "/reshaper", body).status == 204
    emptied = {
        "inventories": {host: present_inventories(play, host, VCPU=1)},
        "allocations": {guest: claim_body({}, 2)},
    }
    assert play("POST", "/reshaper", emptied).status == 204
    odd = present_inventories(
        play, host, VCPU={"total": 8, "reserved": 9}, DISK_GB={"total": 1, "allocation_ratio": -1.0}
    )
    assert play("POST", "/reshaper", {"inventories": {host: odd}, "allocations": {}}).status == 204
    stale = {"resource_provider_generation": 77, "inventories": {}}
    for wanted, claims in (
        ({host: stale}, {}),
        ({host: stale}, {neighbour: claim_body({}, 77)}),
        ({host: present_inventories(play, host)}, {neighbour: claim_body({}, 77)}),
        ({names.providers[4]: stale}, {}),
        ({host: present_inventories(play, host, CUSTOM_UNKNOWN=1)}, {}),
    ):
        assert play("POST", "/reshaper", {"inventories": wanted, "allocations": claims}).status in (400, 409)
    look(play, [host, other], [guest, neighbour])


def test_generations(play: Play, names: Names) -> None:
    host, other = make(play, names, None, VCPU=8)
    guest, neighbour, _, _ = names.consumers
    trait = names.traits[0]
    assert play("PUT", f"/traits/{trait}").status == 201
    path = f"/resource_providers/{host}"
    for traits in (
        [],
        [trait],
        [trait],
        [trait, trait],
        [trait, "COMPUTE_NODE"],
        ["COMPUTE_NODE", trait],
        [],
        [],
    ):
        body = {"traits": traits, "resource_provider_generation": play.generation(host)}
        assert play("PUT", f"{path}/traits", body).status == 200
    for _ in range(2):
        assert play("DELETE", f"{path}/traits").status == 204
        play.generation(host)
    for aggregates in ([names.aggregates[0]], [names.aggregates[0]], [], []):
        set_aggregates(play, host, *aggregates)
        assert play("PUT", f"{path}/aggregates", aggregates, "1.18").status == 200
        play.generation(host)
    for _ in range(2):
        describe(play, host, VCPU=8)
    for body in ({"name": names.name(host)}, {"name": f"{names.name(host)}-renamed"}):
        assert play("PUT", path, body).status == 200
    steps: list[dict[str, Any]] = [
        {
            guest: claim_body({host: {"VCPU": 1}}),
            neighbour: claim_body({host: {"VCPU": 1}, other: {"VCPU": 1}}),
        },
        {guest: claim_body({host: {"VCPU": 1}}, 1)},
        {guest: claim_body({other: {"VCPU": 1}}, 2)},
        {guest: claim_body({}, 3), neighbour: claim_body({host: {"VCPU": 1}}, 1)},
        {neighbour: claim_body({}, 2)},
    ]
    for claims in steps:
        assert play("POST", "/allocations", claims).status == 204
        look(play, [host, other], [guest, neighbour])
    assert put(play, guest, {host: {"VCPU": 1}}) == 204
    assert put(play, guest, {}, 1) == 204
    assert put(play, guest, {host: {"VCPU": 1}}) == 204
    assert play("DELETE", f"/allocations/{guest}").status == 204
    look(play, [host, other], [guest])


@pytest.mark.parametrize("version", ["1.0", "1.25", "1.26", "1.39"])
def test_capacities(play: Play, names: Names, version: str) -> None:
    (host,) = make(play, names, VCPU=8)
    path = f"/resource_providers/{host}/inventories"
    for total, reserved, ratio in (
        (8, 0, -1.0), (8, 0, 0), (8, 0, 1e-9), (1, 0, 0.5), (16, 17, 0.5), (16, 18, 0.5), (16, 16, 1.0),
        (16, 17, 1.0), (16, 15, 0.5), (16, 20, 0.1), (16, 14, 3.4e38), (16, 17, 3.4e38), (16, 17, 1.5),
        (16, 20, -1.0),
    ):  # fmt: skip
        values = {"total": total, "reserved": reserved, "allocation_ratio": ratio}
        play("PUT", path, present_inventories(play, host, VCPU=values), version)
        generation = play.generation(host)
        play("PUT", f"{path}/VCPU", {"resource_provider_generation": generation, **values}, version)
        play("POST", path, {"resource_class": "DISK_GB", **values}, version)
        play("DELETE", f"{path}/DISK_GB")
        play("GET", path)


def test_refusals_of_inventories(play: Play, names: Names) -> None:
    (host,) = make(play, names, VCPU=8)
    guest, missing = names.consumers[0], names.providers[4]
    path = f"/resource_providers/{host}/inventories"
    assert put(play, guest, {host: {"VCPU": 1}}) == 204
    too_much = {"total": 8, "reserved": 9}
    for method, where, body, status in (
        ("POST", path, {"resource_class": "VCPU", "total": 1}, 409),
        ("POST", path, {"resource_class": "CUSTOM_UNKNOWN", "total": 1}, 400),
        ("POST", path, {"resource_class": "CUSTOM_UNKNOWN", **too_much}, 400),
        ("POST", path, {"resource_class": "vcpu", "total": 1}, 400),
        ("PUT", path, {"resource_provider_generation": 1, "inventories": {"VCPU": too_much}}, 409),
        ("PUT", path, {"resource_provider_generation": 1, "inventories": {"CUSTOM_UNKNOWN": too_much}}, 409),
        ("PUT", path,
         {"resource_provider_generation": 2, "inventories": {"CUSTOM_UNKNOWN": {"total": 1}}}, 400),
        ("PUT", path, {"resource_provider_generation": 2, "inventories": {}}, 409),
        ("PUT", path, {"resource_provider_generation": 2, "inventories": {"VCPU": {"total": 0}}}, 400),
        ("PUT", path, {"inventories": {}}, 400),
        ("PUT", f"{path}/VCPU", {"resource_provider_generation": 1, **too_much}, 409),
        ("PUT", f"{path}/VCPU", {"resource_provider_generation": 2, **too_much}, 400),
        ("PUT", f"{path}/DISK_GB", {"resource_provider_generation": 2, "total": 1}, 400),
        ("PUT", f"{path}/CUSTOM_UNKNOWN", {"resource_provider_generation": 2, "total": 1}, 404),
        ("PUT", f"{path}/vcpu", {"resource_provider_generation": 2, "total": 1}, 404),
        ("DELETE", f"{path}/VCPU", None, 409),
        ("DELETE", f"{path}/DISK_GB", None, 404),
        ("DELETE", f"{path}/CUSTOM_UNKNOWN", None, 404),
        ("DELETE", path, None, 409),
        ("DELETE", f"/resource_providers/{host}", None, 409),
        ("PUT", f"/resource_providers/{missing}/inventories",
         {"resource_provider_generation": 0, "inventories": {"VCPU": too_much}}, 404),
        ("POST", f"/resource_providers/{missing}/inventories", {"resource_class": "VCPU", **too_much}, 404),
        ("PUT", f"/resource_providers/{missing}/traits",
         {"resource_provider_generation": 0, "traits": [1]}, 400),
        ("PUT", f"/resource_providers/{missing}/traits",
         {"resource_provider_generation": 0, "traits": []}, 404),
        ("PUT", f"/resource_providers/{missing}/aggregates",
         {"resource_provider_generation": 0, "aggregates": []}, 404),
    ):  # fmt: skip
        assert play(method, where, body).status == status, (method, where, body)
    look(play, [host], [guest])


def test_stale_generations(play: Play, names: Names) -> None:
    (host,) = make(play, names, VCPU=8)
    guest = names.consumers[0]
    path = f"/resource_providers/{host}"
    for where, body in (
        ("aggregates", {"aggregates": []}),
        ("traits", {"traits": []}),
        ("traits", {"traits": ["CUSTOM_UNKNOWN"]}),
        ("inventories", {"inventories": {}}),
        ("inventories/VCPU", {"total": 1}),
    ):
        for generation in (0, 2):
            assert (
                play("PUT", f"{path}/{where}", {**body, "resource_provider_generation": generation}).status
                == 409
            )
    for generation in (0, 1):
        assert put(play, guest, {host: {"VCPU": 1}}, generation) == 409
        assert put(play, guest, {}, generation) == 409
    assert put(play, guest, {host: {"VCPU": 1}}) == 204
    for known in (None, 0, 2):
        assert put(play, guest, {host: {"VCPU": 1}}, known) == 409
        assert play("POST", "/allocations", {guest: claim_body({}, known)}).status == 409


def test_moves_in_trees(play: Play, names: Names) -> None:
    root, child, other, grandchild = make(play, names, 0, None, 1)
    taken = names.name(other)
    missing = names.providers[4]
    for uuid, name, parent, version, status in (
        (root, taken, child, "1.39", 400),
        (root, taken, grandchild, "1.39", 400),
        (root, taken, missing, "1.39", 400),
        (root, names.name(root), root, "1.39", 400),
        (child, taken, None, "1.36", 400),
        (child, taken, other, "1.36", 400),
        (child, taken, None, "1.37", 409),
        (child, names.name(child), other, "1.37", 200),
        (child, names.name(child), None, "1.39", 200),
        (child, names.name(child), root, "1.14", 200),
    ):
        body = {"name": name, "parent_provider_uuid": parent}
        assert play("PUT", f"/resource_providers/{uuid}", body, version).status == status, body
        look(play, [root, child, other, grandchild], [])
    new = names.providers[4]
    for body, status in (
        ({"name": "", "uuid": new}, 400),
        ({"name": taken, "uuid": new}, 409),
        ({"name": f"{taken}-new", "uuid": root}, 409),
        ({"name": taken, "uuid": new, "parent_provider_uuid": new}, 400),
        ({"name": taken, "uuid": new, "parent_provider_uuid": names.consumers[0]}, 400),
        ({"name": "x" * 201, "uuid": new}, 400),
        ({"name": taken, "uuid": "x"}, 400),
        ({"uuid": new, "foo": 1}, 400),
    ):
        assert play("POST", "/resource_providers", body).status == status, body
    assert play("DELETE", f"/resource_providers/{root}").status == 409
    assert play("DELETE", f"/resource_providers/{missing}").status == 404


def test_queries(play: Play, names: Names) -> None:
    host, *_ = make(play, names, VCPU=8)
    for path in (
        f"/resource_providers?name=&in_tree={host}",
        f"/resource_providers?name={names.name(host)}",
        f"/resource_providers?uuid={host}",
        "/resource_providers?uuid=",
        "/resource_providers?uuid=x",
        "/resource_providers?in_tree=x",
        "/resource_providers?member_of=",
        "/resource_providers?member_of=x",
        "/resource_providers?required=",
        "/resource_providers?required=CUSTOM_UNKNOWN",
        "/resource_providers?resources=",
        "/resource_providers?resources=VCPU",
        "/resource_providers?resources=VCPU:x",
        "/resource_providers?resources=VCPU:0",
        "/resource_providers?resources=CUSTOM_UNKNOWN:1",
        "/resource_providers?foo=1",
        "/resource_providers?name=%FF",
        "/resource_providers?name=%C3%A9",
        "/resource_providers?%FF=1",
        "/traits?name=",
        "/traits?name=in:%FF",
        "/traits?associated=x",
        "/usages",
        "/usages?project_id=",
        "/usages?project_id=x&consumer_type=y",
        "/allocation_candidates",
        "/allocation_candidates?foo=1",
        "/allocation_candidates?resources=VCPU:1&limit=0",
        "/allocation_candidates?resources=VCPU:1&limit=%FF",
        "/allocation_candidates?resources=%FF:1",
        "/allocation_candidates?resources1=VCPU:1&resources2=VCPU:1",
        "/allocation_candidates?resources1=VCPU:1&resources2=VCPU:1&group_policy=x",
        "/allocation_candidates?resources=VCPU:1&required=COMPUTE_NODE,!COMPUTE_NODE",
        "/resource_providers/x",
        "/resource_providers/x/inventories",
        "/traits/CUSTOM_UNKNOWN",
        "/resource_classes/CUSTOM_UNKNOWN",
        "/allocations/x",
        "/nowhere",
        "/",
    ):
        play("GET", path)


@pytest.mark.parametrize(
    "header",
    [
        "placement 1.10, placement 1.20", "placement 1.20, placement 1.10", "compute 2.1, placement 1.10",
        "placement 1.99, placement 1.10", "placement 1.10, placement 1.99", "placement x, placement 1.10",
        "placement 1.10, placement x", "placement 1.10, placement", "placement", "placement latest",
        "placement LATEST", "PLACEMENT 1.10", "placement\t1.10", "placement 1.10,", "", ",", "1.10",
        "compute 2.1", "placement 1", "placement 1.1.1", "placement 1.-1", "placement 01.10",
        "placement +1.1", "placement 0.9", "placement 1.40", "placement 2.0",
    ],
)  # fmt: skip
def test_versions(play: Play, header: str) -> None:
    play("GET", "/resource_classes/VCPU", version=None, headers=(("OpenStack-API-Version", header),))


def test_two_headers_of_versions(play: Play) -> None:
    for one, other in (("1.1", "1.2"), ("1.2", "1.1")):
        headers = (
            ("OpenStack-API-Version", f"placement {one}"),
            ("OpenStack-API-Version", f"placement {other}"),
        )
        answer = play("GET", "/resource_classes/VCPU", version=None, headers=headers)
        assert answer.status == (200 if other == "1.2" else 404)


def test_lists_of_allocations(play: Play, names: Names) -> None:
    (host,) = make(play, names, VCPU=8, DISK_GB=8)
    guest = names.consumers[0]
    one, other = listed(host, VCPU=7)["allocations"], listed(host, DISK_GB=3)["allocations"]
    for items in ([*one, *other], [*other, *one], [*one, *one]):
        assert play("PUT", f"/allocations/{guest}", {"allocations": items}, "1.7").status == 204
        look(play, [host], [guest])
    assert play("PUT", f"/allocations/{guest}", {"allocations": []}, "1.7").status == 400


def test_refusals_of_claims(play: Play, names: Names) -> None:
    host, other = make(play, names, None, VCPU=8)
    guest = names.consumers[0]
    whole = claim_body({host: {"VCPU": 1}})
    for body in (
        claim_body({host: {"VCPU": 9}}),
        claim_body({host: {"VCPU": 0}}),
        claim_body({host: {"VCPU": -1}}),
        claim_body({host: {"VCPU": 2**31}}),
        claim_body({host: {"vcpu": 1}}),
        claim_body({host: {"DISK_GB": 1}}),
        claim_body({host: {"CUSTOM_UNKNOWN": 1}}),
        claim_body({host: {}}),
        claim_body({"x": {"VCPU": 1}}),
        claim_body({host: {"VCPU": 5}, other: {"VCPU": 9}}),
        {**whole, "project_id": ""},
        {**whole, "user_id": "x" * 256},
        {**whole, "consumer_type": "x"},
        {**whole, "foo": 1},
        {name: value for name, value in whole.items() if name != "consumer_type"},
        {},
        [],
    ):
        assert play("PUT", f"/allocations/{guest}", body).status in (400, 409)
    assert play("PUT", "/allocations/x", whole).status == 400
    assert play("POST", "/allocations", {}).status == 400
    assert play("DELETE", f"/allocations/{guest}").status == 404
    assert play("DELETE", "/allocations/x").status == 404
    look(play, [host], [guest])


def test_names(play: Play, names: Names) -> None:
    (host,) = make(play, names, VCPU=8)
    trait, name = names.traits[0], names.classes[0]
    path = f"/resource_providers/{host}"
    for method, where, body, version in (
        ("PUT", f"/traits/{trait}", None, "1.39"),
        ("PUT", f"/traits/{trait}", None, "1.39"),
        ("GET", f"/traits/{trait}", None, "1.39"),
        ("PUT", "/traits/SMALL", None, "1.39"),
        ("PUT", "/traits/CUSTOM_", None, "1.39"),
        ("DELETE", "/traits/COMPUTE_NODE", None, "1.39"),
        ("PUT", f"{path}/traits", {"resource_provider_generation": 1, "traits": [trait]}, "1.39"),
        ("DELETE", f"/traits/{trait}", None, "1.39"),
        ("DELETE", f"{path}/traits", None, "1.39"),
        ("DELETE", f"/traits/{trait}", None, "1.39"),
        ("DELETE", f"/traits/{trait}", None, "1.39"),
        ("PUT", f"/resource_classes/{name}", None, "1.7"),
        ("PUT", f"/resource_classes/{name}", None, "1.39"),
        ("POST", "/resource_classes", {"name": name}, "1.39"),
        ("POST", "/resource_classes", {"name": "SMALL"}, "1.39"),
        ("POST", "/resource_classes", {"name": ""}, "1.39"),
        ("POST", "/resource_classes", {}, "1.39"),
        ("PUT", f"/resource_classes/{name}", {"name": names.classes[1]}, "1.6"),
        ("PUT", f"/resource_classes/{name}", {"name": names.classes[1]}, "1.6"),
        ("PUT", "/resource_classes/VCPU", {"name": name}, "1.6"),
        ("GET", f"/resource_classes/{names.classes[1]}", None, "1.39"),
        ("DELETE", "/resource_classes/VCPU", None, "1.39"),
        ("DELETE", f"/resource_classes/{names.classes[1]}", None, "1.39"),
        ("DELETE", f"/resource_classes/{names.classes[1]}", None, "1.39"),
    ):
        play(method, where, body, version)


def test_a_user_without_the_role_gets_403(play: Play, names: Names) -> None:
    (host,) = make(play, names)
    for method, path, body in (
        ("GET", "/resource_providers", None),
        ("GET", f"/resource_providers/{host}", None),
        ("DELETE", f"/resource_providers/{host}", None),
        ("GET", "/usages?project_id=x", None),
        ("POST", "/reshaper", {}),
    ):
        assert play(method, path, body, headers=(*ROLES, ("X-Auth-Token", "user:project"))).status == 403


def test_invalid_json_gets_400(play: Play) -> None:
    for raw in (
        b"",
        b"{",
        b"{}{}",
        b"[",
        b"\xff",
        b'\xef\xbb\xbf{"name": "a"}',
        '{"name": "a"}'.encode("utf-16"),
    ):
        assert play("POST", "/resource_providers", raw=raw).status == 400
    for body in (None, [], 1, "x", True):
        sent = b"null" if body is None else None
        assert play("POST", "/resource_providers", body, raw=sent).status == 400
    assert play("POST", "/resource_providers", {}, headers=(("Content-Type", "text/plain"),)).status == 415
    for method in ("PATCH", "DELETE", "PUT", "OPTIONS"):
        assert play(method, "/resource_providers").status == 405
