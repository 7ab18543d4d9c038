"""Tests of ``/ext/v1/trees``, which writes a host with all its providers in one request."""

import threading
import uuid
from typing import Any

import pytest
from werkzeug.test import TestResponse

from tests.placement.builders import new_claim, post_claims, read_error
from tests.placement.running import Admin, application

ROOT = "11111111-0000-4000-8000-000000000001"
NODE = "11111111-0000-4000-8000-000000000002"
CACHE = "11111111-0000-4000-8000-000000000003"
OTHER = "22222222-0000-4000-8000-000000000001"
AGGREGATE = "33333333-0000-4000-8000-000000000001"
STALE = "placement.concurrent_update"


def described(
    provider: str, parent: str | None = None, generation: int | None = None, **parts: Any
) -> dict[str, Any]:
    """The description of a provider in a request. Inventories are given as totals."""
    name = parts.pop("name", f"name of {provider}")
    if "inventories" in parts:
        parts["inventories"] = {each: {"total": total} for each, total in parts["inventories"].items()}
    place = {"uuid": provider, "name": name, "parent_provider_uuid": parent, "generation": generation}
    return {**place, **parts}


def post(admin: Admin, *providers: dict[str, Any]) -> TestResponse:
    return admin("POST", "/ext/v1/trees", json={"resource_providers": providers})


def host(generation: int | None = None) -> list[dict[str, Any]]:
    """The descriptions of a host's providers in an unusual order: the root comes last."""
    return [
        described(CACHE, NODE, generation, inventories={"LLC": 11}),
        described(
            NODE,
            ROOT,
            generation,
            inventories={"PCPU": 8, "VCPU": 4},
            traits=["HW_NUMA_ROOT"],
            attributes={"memory_tier": 4, "rack": "r1"},
        ),
        described(
            ROOT,
            None,
            generation,
            inventories={"DISK_GB": 100},
            traits=["COMPUTE_NODE"],
            aggregates=[AGGREGATE],
        ),
    ]


def shown(admin: Admin, provider: str = ROOT) -> dict[str, dict[str, Any]]:
    """The providers of the tree as the service shows them, by uuid."""
    answer = admin("GET", f"/ext/v1/trees/{provider}")
    assert answer.status_code == 200, answer.json
    return {each["uuid"]: each for each in answer.json["resource_providers"]}


def generations(answer: TestResponse) -> dict[str, int]:
    assert answer.status_code == 200, answer.json
    return {each["uuid"]: each["generation"] for each in answer.json["resource_providers"]}


def test_a_host_is_made_in_one_request_and_shown_by_ordinary_requests(admin: Admin, url: str) -> None:
    assert generations(post(admin, *host())) == {CACHE: 0, NODE: 0, ROOT: 0}
    other = Admin(application(url))
    listed = other("GET", f"/resource_providers?in_tree={ROOT}").json["resource_providers"]
    assert {each["uuid"]: each["parent_provider_uuid"] for each in listed} == {
        ROOT: None,
        NODE: ROOT,
        CACHE: NODE,
    }
    assert {each["root_provider_uuid"] for each in listed} == {ROOT}
    assert other("GET", f"/resource_providers/{ROOT}/aggregates").json["aggregates"] == [AGGREGATE]
    assert other("GET", f"/resource_providers/{NODE}/traits").json["traits"] == ["HW_NUMA_ROOT"]
    inventories = other("GET", f"/resource_providers/{NODE}/inventories").json["inventories"]
    assert {name: each["total"] for name, each in inventories.items()} == {"PCPU": 8, "VCPU": 4}
    kept = other("GET", f"/ext/v1/resource_providers/{NODE}/attributes").json["attributes"]
    assert kept == {"memory_tier": 4, "rack": "r1"}
    assert list(shown(other, CACHE)) == [ROOT, NODE, CACHE]
    assert post_claims(other, new_claim("resources=PCPU:2,DISK_GB:1", microversion="1.39")).status_code == 201


def test_the_same_description_changes_nothing_with_any_generation(admin: Admin) -> None:
    post(admin, *host())
    assert post_claims(admin, new_claim("resources=PCPU:2")).status_code == 201  # another generation
    before = shown(admin)
    assert before[NODE]["generation"] == 1
    for generation in (None, 0, 7):
        assert generations(post(admin, *host(generation))) == {CACHE: 0, NODE: 1, ROOT: 0}
    assert shown(admin) == before


def test_providers_and_fields_without_a_description_stay(admin: Admin) -> None:
    post(admin, *host())
    before = shown(admin)
    answer = post(admin, described(NODE, ROOT, 0, traits=[]))
    assert generations(answer) == {NODE: 1}
    assert shown(admin) == {**before, NODE: {**before[NODE], "traits": [], "generation": 1}}


def test_described_fields_are_replaced_and_the_generation_rises_by_one(admin: Admin) -> None:
    post(admin, *host())
    changed = described(
        NODE,
        ROOT,
        0,
        inventories={"PCPU": 9, "MEMORY_MB": 5},
        traits=["HW_CPU_X86_AVX2"],
        aggregates=[AGGREGATE],
        attributes={"rack": "r2"},
    )
    assert generations(post(admin, changed)) == {NODE: 1}
    found = shown(admin)[NODE]
    assert {name: each["total"] for name, each in found["inventories"].items()} == {"PCPU": 9, "MEMORY_MB": 5}
    assert (found["traits"], found["aggregates"]) == (["HW_CPU_X86_AVX2"], [AGGREGATE])
    assert found["attributes"] == {"rack": "r2"}


@pytest.mark.parametrize("generation", [None, 1, 2**40])
def test_a_stale_generation_of_one_provider_changes_nothing_at_all(
    admin: Admin, generation: int | None
) -> None:
    post(admin, *host())
    before = shown(admin)
    answer = post(
        admin,
        described(ROOT, None, 0, traits=[]),
        described(OTHER, ROOT),
        described(NODE, ROOT, generation, traits=[]),
    )
    status, code, detail = read_error(answer)
    assert (status, code) == (409, STALE)
    assert NODE in detail
    assert shown(admin) == before


def test_a_provider_that_went_away_is_not_made_again(admin: Admin) -> None:
    post(admin, *host())
    assert admin("DELETE", f"/resource_providers/{CACHE}").status_code == 204
    status, code, detail = read_error(post(admin, *host(0)))
    assert (status, code) == (409, STALE)
    assert CACHE in detail
    assert generations(post(admin, *host())) == {CACHE: 0, NODE: 0, ROOT: 0}


@pytest.mark.parametrize(
    "elsewhere",
    [
        described(NODE, None, 0),
        described(NODE, CACHE, 0),
        described(NODE, OTHER, 0),
        described(NODE, ROOT, 0, name="another"),
        described(ROOT, NODE, 0),
    ],
)
def test_providers_are_neither_moved_nor_renamed(admin: Admin, elsewhere: dict[str, Any]) -> None:
    post(admin, *host())
    post(admin, described(OTHER))
    before = shown(admin)
    status, code, detail = read_error(post(admin, elsewhere))
    assert (status, code) == (409, STALE)
    assert elsewhere["uuid"] in detail
    assert shown(admin) == before


def test_a_root_is_not_put_below_a_provider_that_is_to_be_made(admin: Admin) -> None:
    post(admin, *host())
    answer = post(admin, described(OTHER), described(ROOT, OTHER, 0))
    assert read_error(answer)[:2] == (409, STALE)
    assert admin("GET", f"/resource_providers/{OTHER}").status_code == 404


def test_a_host_beside_another_service_leaves_the_root_alone(admin: Admin) -> None:
    post(admin, described(ROOT, None, traits=["COMPUTE_NODE"]))
    before = shown(admin)[ROOT]
    below = [each for each in host() if each["uuid"] != ROOT]
    assert generations(post(admin, *below)) == {CACHE: 0, NODE: 0}
    assert shown(admin)[ROOT] == before


@pytest.mark.parametrize(
    ("providers", "sentence"),
    [
        ([described(NODE, ROOT)], f"its parent {ROOT} does not exist"),
        ([described(NODE, CACHE), described(CACHE, NODE)], "its ancestors in the request form a loop"),
        ([described(NODE, NODE)], "its ancestors in the request form a loop"),
        (
            [described(ROOT), described(NODE, CACHE), described(CACHE, NODE)],
            "its ancestors in the request form a loop",
        ),
        ([described(ROOT), described(OTHER)], "not in the same tree"),
        ([described(ROOT), described(ROOT)], "described twice"),
        ([described(ROOT, name="x"), described(NODE, ROOT, name="x")], "the same name"),
        ([described(ROOT, name="x"), described(NODE, ROOT, name="x ")], "the same name"),
        ([described(ROOT, inventories={"CUSTOM_NONE": 1})], "No such resource class CUSTOM_NONE"),
        ([described(ROOT, traits=["CUSTOM_NONE"])], "No such trait CUSTOM_NONE"),
        ([], "non-empty"),
        ([described(ROOT, generation=-1)], "less than the minimum"),
        (
            [described(ROOT, name="")],
            f"Resource provider {ROOT}: JSON does not validate: name: '' should be non-empty",
        ),
        ([described("none")], "uuid"),
        ([{"uuid": ROOT, "name": "x", "parent_provider_uuid": None}], "'generation' is a required property"),
        ([{**described(ROOT), "more": 1}], "unknown name 'more'"),
        ([described(ROOT, inventories={"VCPU": 0})], "less than the minimum"),
        ([described(ROOT, attributes={"a": None})], "not of type"),
        ([described(ROOT, inventories={"VCPU": 2**31})], "greater than the maximum"),
        ([described(ROOT, traits=[f"T{each}" for each in range(5001)])], "too many"),
        ([described(str(uuid.UUID(int=each)), traits=["T"] * 6) for each in range(1000)], "too many"),
        ([described(str(uuid.UUID(int=each))) for each in range(1001)], "too many"),
        ([1], "Item 1: JSON does not validate: 1 is not of type"),
    ],
)
def test_an_invalid_tree_is_refused_and_nothing_is_made(
    admin: Admin, providers: list[Any], sentence: str
) -> None:
    status, _, detail = read_error(post(admin, *providers))
    assert status == 400
    assert sentence in detail
    assert admin("GET", "/resource_providers").json["resource_providers"] == []


def test_a_negative_capacity_is_refused(admin: Admin) -> None:
    inventory = {"VCPU": {"total": 1, "reserved": 2}}
    answer = post(admin, described(ROOT), {**described(NODE, ROOT), "inventories": inventory})
    assert read_error(answer)[0] == 400
    assert NODE in read_error(answer)[2]
    assert admin("GET", "/resource_providers").json["resource_providers"] == []


@pytest.mark.parametrize("name", ["taken", "taken "])
def test_the_name_of_another_tree_is_refused(admin: Admin, url: str, name: str) -> None:
    post(admin, described(OTHER, name="taken"))
    answer = post(admin, described(ROOT), described(NODE, ROOT, name=name))
    if name != "taken" and not url.startswith("mysql"):
        assert answer.status_code == 200  # which is another name, except to MariaDB
        return
    status, code, detail = read_error(answer)
    assert (status, code) == (409, "placement.duplicate_name")
    assert NODE in detail
    assert OTHER in detail
    assert admin("GET", f"/resource_providers/{ROOT}").status_code == 404


def test_an_inventory_that_is_in_use_stays_and_with_it_all_else(admin: Admin) -> None:
    post(admin, *host())
    assert post_claims(admin, new_claim("resources=PCPU:2")).status_code == 201
    before = shown(admin)
    answer = post(
        admin, described(ROOT, None, 0, traits=[]), described(NODE, ROOT, 1, inventories={"VCPU": 4})
    )
    status, code, detail = read_error(answer)
    assert (status, code) == (409, "placement.inventory.inuse")
    assert f"Inventory for 'PCPU' on resource provider '{NODE}' in use" in detail
    assert shown(admin) == before


def test_a_chain_of_the_maximum_length_is_made(admin: Admin) -> None:
    chain = [str(uuid.UUID(int=each)) for each in range(1, 41)]
    parents = [None, *chain[:-1]]
    answer = post(admin, *(described(one, parent) for one, parent in zip(chain, parents, strict=True)))
    assert generations(answer) == dict.fromkeys(chain, 0)
    assert list(shown(admin, chain[7])) == chain


def test_one_of_two_concurrent_different_descriptions_is_refused(url: str) -> None:
    answers: list[TestResponse] = []

    def describe(number: int) -> None:
        providers = [described(ROOT, None, traits=["COMPUTE_NODE"])]
        providers += [
            described(str(uuid.UUID(int=each)), ROOT, inventories={"VCPU": number}) for each in range(1, 20)
        ]
        answers.append(post(Admin(application(url)), *providers))

    threads = [threading.Thread(target=describe, args=(number,)) for number in (1, 2)]
    for each in threads:
        each.start()
    for each in threads:
        each.join(60)
    assert sorted(each.status_code for each in answers) == [200, 409]
    (lost,) = (each for each in answers if each.status_code == 409)
    assert read_error(lost)[1] in (STALE, "placement.duplicate_name")
    totals = {
        each["inventories"]["VCPU"]["total"]
        for provider, each in shown(Admin(application(url))).items()
        if provider != ROOT
    }
    assert len(totals) == 1


def test_a_client_with_the_current_tag_gets_304(admin: Admin, url: str) -> None:
    post(admin, *host())
    tag = admin("GET", f"/ext/v1/trees/{ROOT}").headers["ETag"]
    other = Admin(application(url))
    known = other("GET", f"/ext/v1/trees/{NODE}", headers={"If-None-Match": tag})
    assert (known.status_code, known.data, known.headers["ETag"]) == (304, b"", tag)
    assert (
        other("GET", f"/ext/v1/trees/{NODE}", headers={"If-None-Match": f'"x", W/{tag}'}).status_code == 304
    )


@pytest.mark.parametrize(
    "what", ["claim", "traits", "aggregates before 1.19", "rename", "child", "attributes"]
)
def test_any_visible_change_changes_the_tag(admin: Admin, url: str, what: str) -> None:
    post(admin, *host())
    tag = admin("GET", f"/ext/v1/trees/{ROOT}").headers["ETag"]
    place = f"/resource_providers/{NODE}"
    generation = {"resource_provider_generation": 0}
    if what == "claim":
        answer = post_claims(admin, new_claim("resources=PCPU:2"))
    elif what == "traits":
        answer = admin("PUT", f"{place}/traits", json={**generation, "traits": []})
    elif what == "rename":
        answer = admin("PUT", place, json={"name": "new"})
    elif what == "child":
        answer = post(admin, described(OTHER, NODE))
    elif what == "attributes":
        answer = admin("PUT", f"/ext/v1{place}/attributes", json={**generation, "attributes": {"rack": "r2"}})
    else:
        answer = Admin(application(url), "1.10")("PUT", f"{place}/aggregates", json=[AGGREGATE])
    assert answer.status_code < 300, answer.json
    answer = admin("GET", f"/ext/v1/trees/{ROOT}", headers={"If-None-Match": tag})
    assert (answer.status_code, answer.headers["ETag"] == tag) == (200, False)


def test_allocations_are_shown_on_request_and_change_the_tag(admin: Admin) -> None:
    post(admin, *host())
    path = f"/ext/v1/trees/{ROOT}?allocations=true"
    first = admin("GET", path)
    assert [each["allocations"] for each in first.json["resource_providers"]] == [{}, {}, {}]
    wanted = new_claim("resources=PCPU:2")
    assert post_claims(admin, wanted).status_code == 201
    second = admin("GET", path, headers={"If-None-Match": first.headers["ETag"]})
    consumer = wanted["consumer_uuid"]
    shown_last = {each["uuid"]: each for each in second.json["resource_providers"]}
    assert shown_last[NODE]["allocations"] == {consumer: {"resources": {"PCPU": 2}}}
    assert admin("GET", path, headers={"If-None-Match": second.headers["ETag"]}).status_code == 304
    # giving back raises no generation
    assert admin("DELETE", f"/allocations/{consumer}").status_code == 204
    third = admin("GET", path, headers={"If-None-Match": second.headers["ETag"]})
    assert third.status_code == 200
    assert "allocations" not in shown(admin)[ROOT]
    assert read_error(admin("GET", f"{path}&more=1"))[0] == 400
    assert read_error(admin("GET", f"/ext/v1/trees/{ROOT}?allocations=yes"))[0] == 400


def test_there_is_no_tree_of_a_provider_that_does_not_exist(admin: Admin) -> None:
    assert read_error(admin("GET", f"/ext/v1/trees/{ROOT}"))[0] == 404
    assert read_error(admin("GET", "/ext/v1/trees/none"))[0] == 404
