"""Tests that a write to one provider, consumer, project or name is right, and does not affect any other.

The database has three objects of each kind. All requests concern the second object. The first has smaller
ids, uuids and names, and the third has larger ones.
"""

import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.placement.builders import claim_body, inventories_body
from tests.placement.running import Admin, application

NUMBERS = (1, 2, 3)
NAMES = {1: "A", 2: "B", 3: "C"}
PROJECTS = {1: "blue", 2: "green", 3: "red"}
USERS = {1: "ann", 2: "bob", 3: "cid"}
TYPES = {1: "INSTANCE", 2: "MIGRATION", 3: "VOLUME"}
SHARED_TRAIT = "HW_CPU_X86_AVX2"


def host_uuid(number: int) -> str:
    return f"{number}0000000-0000-4000-8000-00000000000a"


def child(number: int) -> str:
    return f"{number}0000000-0000-4000-8000-00000000000b"


def consumer(number: int) -> str:
    return f"{number}0000000-0000-4000-8000-00000000000c"


def aggregate(number: int) -> str:
    return f"{number}0000000-0000-4000-8000-00000000000d"


def numbered_claim(number: int, on: int, generation: int | None, amount: int) -> dict[str, Any]:
    owner = {"project_id": PROJECTS[number], "user_id": USERS[number], "consumer_type": TYPES[number]}
    return claim_body({host_uuid(on): {"VCPU": amount, f"CUSTOM_{NAMES[on]}": 1}}, generation, **owner)


def numbered_inventories(number: int, generation: int, *names: str) -> dict[str, Any]:
    return inventories_body(generation, **dict.fromkeys(names, 10 * number))


@pytest.fixture(scope="module")
def filled(migrated_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database with three hosts that all have a consumer. The first and the third host have a child
    provider.
    """
    file = tmp_path_factory.mktemp("neighbours") / "placement.sqlite"
    shutil.copy(migrated_file, file)
    admin = Admin(application(f"sqlite:///{file}"))

    def ask(method: str, path: str, body: Any = None) -> None:
        answer = admin(method, path, **({} if body is None else {"json": body}))
        assert answer.status_code < 300, (path, answer.text)

    for number in NUMBERS:
        ask("PUT", f"/resource_classes/CUSTOM_{NAMES[number]}")
        ask("PUT", f"/resource_classes/CUSTOM_UNUSED_{NAMES[number]}")
        ask("PUT", f"/traits/CUSTOM_{NAMES[number]}")
        ask("PUT", f"/traits/CUSTOM_UNUSED_{NAMES[number]}")
        ask("POST", "/resource_providers", {"name": f"host{number}", "uuid": host_uuid(number)})
    for number in NUMBERS:
        path = f"/resource_providers/{host_uuid(number)}"
        ask(
            "PUT",
            f"{path}/inventories",
            numbered_inventories(number, 0, "VCPU", "DISK_GB", f"CUSTOM_{NAMES[number]}"),
        )
        named = [SHARED_TRAIT, f"CUSTOM_{NAMES[number]}"]
        ask("PUT", f"{path}/traits", {"resource_provider_generation": 1, "traits": named})
        both = [aggregate(number), aggregate(9)]
        ask("PUT", f"{path}/aggregates", {"resource_provider_generation": 2, "aggregates": both})
        ask("PUT", f"/allocations/{consumer(number)}", numbered_claim(number, number, None, number))
    for number in (1, 3):
        body = {"name": f"child{number}", "uuid": child(number), "parent_provider_uuid": host_uuid(number)}
        ask("POST", "/resource_providers", body)
        ask(
            "PUT", f"/resource_providers/{child(number)}/inventories", numbered_inventories(number, 0, "PCPU")
        )
    return file


@pytest.fixture(scope="module")
def before(filled: Path) -> dict[int, dict[str, Any]]:
    """The state of one of the three objects before the write, as the API shows it."""
    return shown(f"sqlite:///{filled}")


@pytest.fixture
def url(filled: Path, tmp_path: Path) -> str:
    """The URL of a copy of the database."""
    file = tmp_path / "placement.sqlite"
    with closing(sqlite3.connect(filled)) as source, closing(sqlite3.connect(file)) as target:
        source.backup(target)
    return f"sqlite:///{file}"


def shown(url: str) -> dict[int, dict[str, Any]]:
    """The state of each of the three objects in a new worker, by request."""
    admin = Admin(application(url))
    return {number: _shown(admin, number) for number in NUMBERS}


def neighbours(everything: dict[int, dict[str, Any]]) -> list[dict[str, Any]]:
    """The states of the first and the third object."""
    return [everything[1], everything[3]]


def _shown(admin: Admin, number: int) -> dict[str, Any]:
    provider = f"/resource_providers/{host_uuid(number)}"
    parts = ("inventories", "traits", "aggregates", "usages", "allocations")
    paths = [
        provider,
        *(f"{provider}/{part}" for part in parts),
        f"/resource_providers?in_tree={host_uuid(number)}",
        f"/resource_providers?member_of={aggregate(number)}",
        f"/resource_providers?required=CUSTOM_{NAMES[number]}",
        f"/allocations/{consumer(number)}",
        f"/usages?project_id={PROJECTS[number]}",
        f"/usages?project_id={PROJECTS[number]}&user_id={USERS[number]}",
        f"/resource_classes/CUSTOM_{NAMES[number]}",
        f"/resource_classes/CUSTOM_UNUSED_{NAMES[number]}",
        f"/traits/CUSTOM_{NAMES[number]}",
        f"/traits/CUSTOM_UNUSED_{NAMES[number]}",
    ]
    answers = {path: admin("GET", path) for path in paths}
    return {
        path.replace(host_uuid(number), "host").replace(consumer(number), "consumer"): _in_order(answer.json)
        if answer.is_json
        else answer.status_code
        for path, answer in answers.items()
    }


def _in_order(document: Any) -> Any:
    if isinstance(document, dict):
        return {key: _in_order(value) for key, value in document.items() if key not in ("links", "errors")}
    return sorted(map(repr, map(_in_order, document))) if isinstance(document, list) else document


def test_each_of_three_is_shown_with_its_own_state(before: dict[int, dict[str, Any]]) -> None:
    for number, found in before.items():
        assert found["/resource_providers/host/traits"]["traits"] == sorted(
            [repr(SHARED_TRAIT), repr(f"CUSTOM_{NAMES[number]}")]
        )
        assert totals(found) == dict.fromkeys(("VCPU", "DISK_GB", f"CUSTOM_{NAMES[number]}"), 10 * number)
        held = {TYPES[number]: {"VCPU": number, f"CUSTOM_{NAMES[number]}": 1, "consumer_count": 1}}
        assert found[f"/usages?project_id={PROJECTS[number]}"]["usages"] == held
        assert found[f"/usages?project_id={PROJECTS[number]}&user_id={USERS[number]}"]["usages"] == held
        assert len(found["/resource_providers?in_tree=host"]["resource_providers"]) == (
            1 if number == 2 else 2
        )


def test_a_user_of_another_project_has_no_usage_in_it(url: str) -> None:
    admin = Admin(application(url))
    for number in NUMBERS:
        for other in NUMBERS:
            query = f"/usages?project_id={PROJECTS[number]}&user_id={USERS[other]}"
            assert bool(admin("GET", query).json["usages"]) == (number == other)


SECOND = f"/resource_providers/{host_uuid(2)}"
GENERATION = 4  # for each host: inventories, traits, aggregates, a claim

Changed = Callable[[dict[str, Any]], Any]
"""The changes of the state of the second."""


def part(name: str, *keys: str) -> Changed:
    def find(found: dict[str, Any]) -> Any:
        value = found[name]
        for key in keys:
            value = value[key]
        return value

    return find


def totals(found: dict[str, Any]) -> dict[str, int]:
    inventories = found["/resource_providers/host/inventories"]["inventories"]
    return {name: each["total"] for name, each in inventories.items()}


WRITES: dict[str, tuple[str, str, Any, Changed, Any]] = {
    "inventories, one of which goes": (
        "PUT", f"{SECOND}/inventories", numbered_inventories(4, GENERATION, "VCPU", "CUSTOM_B"),
        totals,
        {"VCPU": 40, "CUSTOM_B": 40},
    ),
    "an inventory": (
        "PUT", f"{SECOND}/inventories/DISK_GB", {"resource_provider_generation": GENERATION, "total": 7},
        totals,
        {"VCPU": 20, "DISK_GB": 7, "CUSTOM_B": 20},
    ),
    "an inventory more": (
        "POST", f"{SECOND}/inventories",
        {"resource_provider_generation": GENERATION, "resource_class": "CUSTOM_A", "total": 7},
        totals,
        {"VCPU": 20, "DISK_GB": 20, "CUSTOM_B": 20, "CUSTOM_A": 7},
    ),
    "an inventory less": (
        "DELETE", f"{SECOND}/inventories/DISK_GB", None,
        totals,
        {"VCPU": 20, "CUSTOM_B": 20},
    ),
    "other traits": (
        "PUT", f"{SECOND}/traits",
        {"resource_provider_generation": GENERATION, "traits": [SHARED_TRAIT, "CUSTOM_UNUSED_A"]},
        part("/resource_providers/host/traits", "traits"),
        [repr("CUSTOM_UNUSED_A"), repr(SHARED_TRAIT)],
    ),
    "no traits": ("DELETE", f"{SECOND}/traits", None, part("/resource_providers/host/traits", "traits"), []),
    "other aggregates": (
        "PUT", f"{SECOND}/aggregates",
        {"resource_provider_generation": GENERATION, "aggregates": [aggregate(8)]},
        part("/resource_providers/host/aggregates", "aggregates"),
        [repr(aggregate(8))],
    ),
    "another name": (
        "PUT", SECOND, {"name": "renamed"}, part("/resource_providers/host", "name"), "renamed"
    ),
    "more of a claim": (
        "PUT", f"/allocations/{consumer(2)}", numbered_claim(2, 2, 1, 5),
        part("/resource_providers/host/usages", "usages"), {"VCPU": 5, "CUSTOM_B": 1, "DISK_GB": 0},
    ),
    "no claim": (
        "DELETE", f"/allocations/{consumer(2)}", None,
        part("/resource_providers/host/usages", "usages"), {"VCPU": 0, "CUSTOM_B": 0, "DISK_GB": 0},
    ),
    "the name of a class": (
        "PUT", "/resource_classes/CUSTOM_B", {"name": "CUSTOM_OTHER"},
        part("/resource_providers/host/usages", "usages"), {"VCPU": 2, "CUSTOM_OTHER": 1, "DISK_GB": 0},
    ),
    "no class": (
        "DELETE", "/resource_classes/CUSTOM_UNUSED_B", None,
        part("/resource_classes/CUSTOM_UNUSED_B"), {},
    ),
    "no trait": (
        "DELETE", "/traits/CUSTOM_UNUSED_B", None, part("/traits/CUSTOM_UNUSED_B"), {},
    ),
    "a reshape": (
        "POST", "/reshaper",
        {
            "inventories": {host_uuid(2): numbered_inventories(3, GENERATION, "VCPU", "CUSTOM_B")},
            "allocations": {consumer(2): numbered_claim(2, 2, 1, 6)},
        },
        part("/resource_providers/host/usages", "usages"), {"VCPU": 6, "CUSTOM_B": 1},
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", WRITES)
def test_a_write_changes_its_subject_and_no_neighbour(
    url: str, before: dict[int, dict[str, Any]], what: str
) -> None:
    method, path, body, changed, expected = WRITES[what]
    version = "1.6" if path.startswith("/resource_classes") and method == "PUT" else "1.39"
    headers = {"OpenStack-API-Version": f"placement {version}"}
    answer = Admin(application(url))(
        method, path, headers=headers, **({} if body is None else {"json": body})
    )
    assert answer.status_code < 300, answer.text
    after = shown(url)
    assert changed(after[2]) == expected
    assert neighbours(after) == neighbours(before)


def test_writing_the_present_traits_changes_nothing(url: str, before: dict[int, dict[str, Any]]) -> None:
    body = {"resource_provider_generation": GENERATION, "traits": [SHARED_TRAIT, "CUSTOM_B"]}
    answer = Admin(application(url))("PUT", f"{SECOND}/traits", json=body)
    assert (answer.status_code, answer.json["resource_provider_generation"]) == (200, GENERATION)
    assert shown(url) == before


def test_an_empty_provider_can_be_deleted_beside_used_ones(
    url: str, before: dict[int, dict[str, Any]]
) -> None:
    """Children, allocations and usage of other providers do not prevent the deletion."""
    admin = Admin(application(url))
    assert admin("DELETE", SECOND).status_code == 409
    assert admin("DELETE", "/resource_classes/CUSTOM_B").status_code == 409
    assert admin("DELETE", "/traits/CUSTOM_B").status_code == 409
    assert admin("DELETE", f"/allocations/{consumer(2)}").status_code == 204
    assert admin("DELETE", SECOND).status_code == 204
    assert admin("DELETE", "/resource_classes/CUSTOM_B").status_code == 204
    assert admin("DELETE", "/traits/CUSTOM_B").status_code == 204
    assert admin("GET", SECOND).status_code == 404
    for number in (1, 3):
        assert admin("DELETE", f"/resource_providers/{host_uuid(number)}").status_code == 409
    assert neighbours(shown(url)) == neighbours(before)


def test_a_host_moved_below_another_joins_its_tree(url: str, before: dict[int, dict[str, Any]]) -> None:
    admin = Admin(application(url))
    body = {"name": "host2", "parent_provider_uuid": host_uuid(3)}
    assert admin("PUT", SECOND, json=body).status_code == 200
    assert shown(url)[1] == before[1]
    for app in (admin, Admin(application(url))):
        tree = app("GET", f"/resource_providers?in_tree={host_uuid(2)}").json["resource_providers"]
        assert {each["uuid"]: each["parent_provider_uuid"] for each in tree} == {
            host_uuid(3): None, child(3): host_uuid(3), host_uuid(2): host_uuid(3)
        }  # fmt: skip
        assert {each["root_provider_uuid"] for each in tree} == {host_uuid(3)}
