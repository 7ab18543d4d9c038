"""Tests of the schemas of request bodies: the fields of each microversion, and the message about the first
error.
"""

from typing import Any

import pytest

from placement import microversion
from placement.exceptions import InvalidRequest
from placement.microversion import Microversion
from placement.schemas import allocation, inventory
from placement.schemas.base import load

HOST = "00000000-0000-4000-8000-00000000000a"
OTHER = "00000000-0000-4000-8000-00000000000b"

# A field of PUT /allocations/{consumer}, the microversion that brought it, and a value.
BROUGHT = [
    ("project_id", microversion.CONSUMER_OWNERS, "p"),
    ("user_id", microversion.CONSUMER_OWNERS, "u"),
    ("consumer_generation", microversion.CONSUMER_GENERATIONS, None),
    ("consumer_type", microversion.CONSUMER_TYPES, "INSTANCE"),
]


def claim(version: Microversion) -> dict[str, Any]:
    """A body of a claim with all fields that a microversion requires."""
    body: dict[str, Any] = {name: value for name, since, value in BROUGHT if version >= since}
    if version < microversion.ALLOCATIONS_BY_PROVIDER:
        return body | {"allocations": [{"resource_provider": {"uuid": HOST}, "resources": {"VCPU": 1}}]}
    return body | {"allocations": {HOST: {"resources": {"VCPU": 1}}}}


def before(version: Microversion) -> Microversion:
    return (version[0], version[1] - 1)


@pytest.mark.parametrize("minor", range(40))
def test_a_claim_is_the_same_in_every_version(minor: int) -> None:
    read = load(allocation.put_allocations((1, minor)), claim((1, minor)))
    assert read["allocations"] == {HOST: {"resources": {"VCPU": 1}}}


@pytest.mark.parametrize(("name", "since", "value"), BROUGHT)
def test_a_field_is_demanded_since_its_version_and_unknown_before(
    name: str, since: Microversion, value: object
) -> None:
    body = claim(since)
    del body[name]
    with pytest.raises(InvalidRequest, match=f"{name!r} is a required property"):
        load(allocation.put_allocations(since), body)
    with pytest.raises(InvalidRequest, match=rf"Additional properties are not allowed \({name!r} was"):
        load(allocation.put_allocations(before(since)), claim(before(since)) | {name: value})


def test_the_last_item_of_a_provider_listed_twice_counts() -> None:
    items = [{"resource_provider": {"uuid": HOST}, "resources": {"VCPU": amount}} for amount in (1, 5)]
    read = load(allocation.put_allocations((1, 0)), {"allocations": items})
    assert read["allocations"] == {HOST: {"resources": {"VCPU": 5}}}


def test_allocations_may_be_empty_since_consumers_have_generations() -> None:
    version = microversion.CONSUMER_GENERATIONS
    assert (
        load(allocation.put_allocations(version), claim(version) | {"allocations": {}})["allocations"] == {}
    )
    with pytest.raises(InvalidRequest, match="should be non-empty"):
        load(allocation.put_allocations(before(version)), claim(before(version)) | {"allocations": {}})


def test_uuids_are_read_in_their_usual_spelling() -> None:
    body = claim((1, 39)) | {"allocations": {HOST.upper(): {"resources": {"VCPU": 1}}}}
    assert set(load(allocation.put_allocations((1, 39)), body)["allocations"]) == {HOST}


def test_a_reshape_has_inventories_and_the_allocations_of_many() -> None:
    of_host = {"resource_provider_generation": 3, "inventories": {"PCPU": {"total": 4}}}
    consumer = claim((1, 30))
    body = {"inventories": {HOST: of_host}, "allocations": {OTHER: consumer}}
    read = load(allocation.reshaper_body((1, 30)), body)
    assert read["inventories"][HOST]["inventories"]["PCPU"]["values"].total == 4
    assert read["allocations"][OTHER]["allocations"] == {HOST: {"resources": {"VCPU": 1}}}
    with pytest.raises(InvalidRequest, match="should be non-empty"):
        load(allocation.reshaper_body((1, 30)), {"inventories": {}, "allocations": {}})


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"total": 0}, r"0 is less than the minimum of 1 Failed validating 'minimum' in .*\['total'\]"),
        ({"total": 2**31}, "greater than the maximum of 2147483647"),
        ({"total": True}, "True is not of type 'integer'"),
        ({"total": "4"}, "'4' is not of type 'integer'"),
        ({"total": None}, "None is not of type 'integer'"),
        ({"total": 4, "step_size": 0}, r"0 is less than the minimum of 1 .*\['step_size'\]"),
        ({"total": 4, "reserved": -1}, r"-1 is less than the minimum of 0 .*\['reserved'\]"),
        ({"total": 4, "surprise": 1}, r"Additional properties are not allowed \('surprise' was unexpected\)"),
        ({}, "'total' is a required property"),
    ],
)
def test_the_first_fault_of_an_inventory_is_named_with_its_place(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidRequest, match=words) as caught:
        load(inventory.InventoryUpdate(), {"resource_provider_generation": 0} | fields)
    assert "\n" not in str(caught.value)


def test_a_whole_number_may_be_written_as_a_fraction() -> None:
    total = load(inventory.InventoryUpdate(), {"resource_provider_generation": 0, "total": 4.0})[
        "values"
    ].total
    assert (total, type(total)) == (4, int)
