"""Tests that inventories read without the schema, for speed, are the same as those read with it."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from marshmallow import ValidationError

from placement.schemas.base import MAX_INT, ObjectField
from placement.schemas.inventory import InventoryObject, InventorySchema

FIELDS = ["total", "reserved", "min_unit", "max_unit", "step_size", "allocation_ratio", "more"]
VALUES = st.one_of(
    st.sampled_from(
        [-1, 0, 1, 2, MAX_INT, MAX_INT + 1, 2**70, 1.0, 1.5, 4e38, float("nan"), True, None, "1"]
    ),
    st.integers(),
    st.floats(),
)


def read(field: ObjectField, data: Any) -> Any:
    try:
        values = field.deserialize(data)["values"]
    except ValidationError as error:
        return error.messages
    return [(type(each), each) for each in (getattr(values, name) for name in FIELDS[:-1])]


@given(st.dictionaries(st.sampled_from([*FIELDS, "resource_provider_generation"]), VALUES))
def test_inventories_are_read_as_their_schema_reads_them(data: dict[str, Any]) -> None:
    assert repr(read(InventoryObject(), data)) == repr(read(ObjectField(InventorySchema), data))


@pytest.mark.parametrize("data", [None, 1, "x", [], {}])
def test_the_schema_refuses_values_that_are_no_inventory(data: Any) -> None:
    assert read(InventoryObject(), data) == read(ObjectField(InventorySchema), data)
