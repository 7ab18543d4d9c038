"""Tests of the errors of refused requests. The texts that clients of OpenStack Placement search for are
unchanged.
"""

from typing import Any
from uuid import uuid4

import pytest

from tests.placement.builders import make_provider, put_allocation
from tests.placement.running import Admin

IN_USE = "Inventory for 'VCPU' on resource provider '{host}' in use."
CHANGED = "Resource provider's generation already changed. Please update the generation and try again."
CONCURRENT = "placement.concurrent_update"
UNDEFINED = "placement.undefined_code"
#: what OpenStack Placement says of each status before the message (Nova's tests look for it)
GENERAL = {
    400: "The server could not comply with the request since it is either malformed or otherwise incorrect.",
    404: "The resource could not be found.",
    409: "There was a conflict when trying to complete your request.",
}


@pytest.fixture
def host(admin: Admin) -> str:
    """A provider at generation 2 with eight VCPU, one of which is allocated."""
    uuid = str(uuid4())
    host = make_provider(admin, uuid, provider=uuid, VCPU=8)
    assert put_allocation(admin, {host: {"VCPU": 1}}).status_code == 204
    return host


def refusal(
    admin: Admin, method: str, path: str, body: Any = None, version: str = "1.39"
) -> tuple[int, str, str]:
    """Status, code and message of an answer. The detail begins with the general text of the status, which is
    left out.
    """
    headers = {"OpenStack-API-Version": f"placement {version}"}
    answer = admin(method, path, headers=headers, **({} if body is None else {"json": body}))
    (error,) = answer.json["errors"]
    general, message = error["detail"].split("\n\n ")
    assert general == GENERAL[answer.status_code]
    return answer.status_code, error.get("code", ""), message


def test_removal_of_an_inventory_in_use_is_refused_in_the_words_of_each_request(
    admin: Admin, host: str
) -> None:
    path = f"/resource_providers/{host}/inventories"
    none = {"resource_provider_generation": 2, "inventories": {}}
    in_use = IN_USE.format(host=host)
    inuse = "placement.inventory.inuse"
    assert refusal(admin, "DELETE", path) == (409, inuse, in_use)
    assert refusal(admin, "PUT", path, none) == (409, inuse, f"update conflict: {in_use}")
    reshape = {"inventories": {host: none}, "allocations": {}}
    assert refusal(admin, "POST", "/reshaper", reshape) == (409, inuse, f"update conflict: {in_use}")
    one = (409, CONCURRENT, f"Unable to delete inventory of class VCPU: {in_use}")
    assert refusal(admin, "DELETE", f"{path}/VCPU") == one


def test_a_second_inventory_of_a_class_is_a_concurrent_update(admin: Admin, host: str) -> None:
    body = {"resource_class": "VCPU", "total": 1}
    status, code, detail = refusal(admin, "POST", f"/resource_providers/{host}/inventories", body)
    assert (status, code) == (409, CONCURRENT)
    assert detail == f"Update conflict: Inventory for 'VCPU' already exists on {host}."


def test_a_stale_generation_is_reported_before_other_errors(admin: Admin, host: str) -> None:
    path = f"/resource_providers/{host}"
    too_much = {"total": 8, "reserved": 9}
    for where, body, words in (
        ("aggregates", {"aggregates": []}, CHANGED),
        ("traits", {"traits": ["CUSTOM_UNKNOWN"]}, CHANGED),
        ("inventories", {"inventories": {"VCPU": too_much}}, "resource provider generation conflict"),
        (
            "inventories",
            {"inventories": {"CUSTOM_UNKNOWN": too_much}},
            "resource provider generation conflict",
        ),
        ("inventories/VCPU", too_much, "resource provider generation conflict"),
    ):
        stale = {**body, "resource_provider_generation": 1}
        status, code, detail = refusal(admin, "PUT", f"{path}/{where}", stale)
        assert (status, code) == (409, CONCURRENT)
        assert words in detail


def test_an_empty_reshape_is_refused(admin: Admin) -> None:
    status, _, detail = refusal(admin, "POST", "/reshaper", {"inventories": {}, "allocations": {}})
    assert (status, "{} should be non-empty" in detail) == (400, True)


@pytest.mark.parametrize(
    ("values", "capacity"),
    [
        ({"total": 8, "allocation_ratio": -1.0}, -8),
        ({"total": 8, "reserved": 9}, -1),
        ({"total": 16, "reserved": 18, "allocation_ratio": 0.5}, -1),
        ({"total": 16, "reserved": 17, "allocation_ratio": 0.5}, 0),
        ({"total": 16, "reserved": 15, "allocation_ratio": 0.5}, 0),
        ({"total": 1, "allocation_ratio": 0.5}, 0),
        ({"total": 8, "allocation_ratio": 0}, 0),
        ({"total": 8, "reserved": 8}, 0),
        ({"total": 8, "reserved": 7}, 1),
    ],
)
@pytest.mark.parametrize("version", ["1.25", "1.39"])
def test_a_capacity_is_not_negative_and_before_1_26_not_zero(
    admin: Admin, host: str, values: dict[str, Any], capacity: int, version: str
) -> None:
    path = f"/resource_providers/{host}/inventories"
    least = 0 if version == "1.39" else 1
    headers = {"OpenStack-API-Version": f"placement {version}"}
    for method, where, body in (
        ("POST", path, {"resource_class": "DISK_GB", **values}),
        ("PUT", f"{path}/VCPU", values),
        ("PUT", path, {"inventories": {"VCPU": values}}),
    ):
        generation = admin("GET", f"/resource_providers/{host}").json["generation"]
        sent = body if method == "POST" else {**body, "resource_provider_generation": generation}
        answer = admin(method, where, json=sent, headers=headers)
        if capacity < least:
            assert answer.status_code == 400
            assert "The reserved value is greater than" in answer.json["errors"][0]["detail"]
        else:
            assert answer.status_code < 300
            assert admin("DELETE", f"{path}/DISK_GB").status_code in (204, 404)


def test_a_missing_class_is_not_found(admin: Admin, host: str) -> None:
    path = f"/resource_providers/{host}/inventories"
    body = {"resource_provider_generation": 2, "total": 8}
    for name in ("CUSTOM_UNKNOWN", "no_class"):
        answer = refusal(admin, "PUT", f"{path}/{name}", body)
        assert answer == (404, UNDEFINED, f"No such resource class {name}.")
    status, _, detail = refusal(admin, "PUT", f"{path}/DISK_GB", body)
    assert (status, "No inventory record with resource class" in detail) == (400, True)


def test_a_loop_is_reported_before_a_taken_name(admin: Admin, host: str) -> None:
    child, other = str(uuid4()), str(uuid4())
    for body in (
        {"name": child, "uuid": child, "parent_provider_uuid": host},
        {"name": other, "uuid": other},
    ):
        assert admin("POST", "/resource_providers", json=body).status_code == 200
    body = {"name": other, "parent_provider_uuid": child}
    status, _, detail = refusal(admin, "PUT", f"/resource_providers/{host}", body)
    assert (status, "creating loop in the provider tree is not allowed." in detail) == (400, True)
    status, code, detail = refusal(admin, "PUT", f"/resource_providers/{host}", {"name": other})
    assert (status, code) == (409, "placement.duplicate_name")


def test_a_provider_needs_a_name(admin: Admin) -> None:
    assert refusal(admin, "POST", "/resource_providers", {"name": ""})[0] == 400


@pytest.mark.parametrize(
    ("method", "path", "body", "text"),
    [
        (
            "POST",
            "/resource_providers",
            {"name": "a", "uuid": "x"},
            "JSON does not validate: 'x' is not a 'uuid'",
        ),
        ("GET", "/resource_providers?uuid=x", None, "'x' is not a 'uuid'"),
        ("GET", "/allocation_candidates?foo=1", None, "'foo' does not match any of the regexes"),
        (
            "POST",
            "/resource_providers",
            {"name": "a", "parent_provider_uuid": "x\ny"},
            "uuid",
        ),
        ("GET", "/traits?name=a%0Ab%0D%0Ac", None, "a b c"),
        ("GET", "/resource_classes/a%E2%80%A8b", None, "No such resource class a b."),
    ],
)
def test_the_message_is_one_line(admin: Admin, method: str, path: str, body: Any, text: str) -> None:
    """Some clients show only the last line of the detail, which has to be the message."""
    _, _, message = refusal(admin, method, path, body)
    assert text in message
    assert message.splitlines() == [message]


@pytest.mark.parametrize(
    ("method", "path", "status", "detail"),
    [
        ("GET", "/nothing", 404, GENERAL[404]),
        ("DELETE", "/resource_providers", 405, "The method DELETE is not allowed for this resource."),
        ("GET", "/ext/v1/nothing", 404, GENERAL[404]),
    ],
)
def test_errors_without_a_message_are_one_sentence(
    admin: Admin, method: str, path: str, status: int, detail: str
) -> None:
    answer = admin(method, path)
    assert (answer.status_code, answer.json["errors"][0]["detail"]) == (status, detail)


def test_errors_of_our_own_api_are_the_message_alone(admin: Admin) -> None:
    answer = admin("POST", "/ext/v1/claims", json={"claims": 1})
    assert answer.status_code == 400
    assert answer.json["errors"][0]["detail"].startswith("JSON does not validate: ")


def test_a_required_property_is_missing_in_the_object(admin: Admin) -> None:
    detail = refusal(admin, "POST", "/resource_providers", {})[2]
    assert (
        detail
        == "JSON does not validate: 'name' is a required property Failed validating 'required' in schema"
    )


@pytest.mark.parametrize(
    ("header", "version"),
    [
        ("placement 1.10, placement 1.20", "1.20"),
        ("placement 1.99, compute 2.1, placement 1.10", "1.10"),
        ("placement 1.10, placement", "1.10"),
        ("placement", "1.0"),
        ("placement\t1.10 ,", "1.10"),
        ("Placement latest", "1.39"),
    ],
)
def test_the_last_of_several_versions_in_the_header_counts(admin: Admin, header: str, version: str) -> None:
    answer = admin("GET", "/resource_providers", headers={"OpenStack-API-Version": header})
    assert answer.status_code == 200
    assert answer.headers["OpenStack-API-Version"] == f"placement {version}"
