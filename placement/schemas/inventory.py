"""Has the bodies of inventories."""

from typing import Any, Final

from marshmallow import post_load

from placement.read_model.provider import Inventory
from placement.schemas.base import (
    MAX_INT,
    IntegerField,
    MapField,
    NumberField,
    ObjectField,
    StrictSchema,
    StringField,
)

RESOURCE_CLASS: Final = "^[A-Z0-9_]+$"
"""The pattern of the names of resource classes."""
# the number is the largest float of single precision, as in OpenStack Placement (SQL_SP_FLOAT_MAX)
_MAX_RATIO: Final = 3.40282e38


class InventorySchema(StrictSchema):
    """The fields of an inventory, loaded as :class:`~placement.read_model.provider.Inventory`."""

    total = IntegerField(1, MAX_INT, required=True)
    reserved = IntegerField(0, MAX_INT, load_default=0)
    min_unit = IntegerField(1, MAX_INT, load_default=1)
    max_unit = IntegerField(1, MAX_INT, load_default=MAX_INT)
    step_size = IntegerField(1, MAX_INT, load_default=1)
    allocation_ratio = NumberField(maximum=_MAX_RATIO, load_default=1.0)
    # clients are allowed to send this field, but the field has no effect
    resource_provider_generation = IntegerField()

    @post_load
    def _values(self, data: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        others: dict[str, Any] = {
            name: data.pop(name)
            for name in ("resource_class", "resource_provider_generation")
            if name in data
        }
        return {"values": Inventory(**data), **others}


_INTEGERS: Final = {"total": 1, "reserved": 0, "min_unit": 1, "max_unit": 1, "step_size": 1}
"""The minimum of each integer field, which is also its default."""
_PLAIN: Final = {*_INTEGERS, "allocation_ratio"}


def _plain_values(data: Any) -> Inventory | None:
    """Return the values of an inventory with common fields and types; None if the schema has to load it."""
    # the exact type is compared, so that a subclass does not pass unchecked
    if type(data) is not dict or not data.keys() <= _PLAIN or "total" not in data:
        return None
    for name, least in _INTEGERS.items():
        value = data.get(name, least)
        # the exact type is compared, because a boolean is an instance of int, too
        if type(value) is not int or not least <= value <= MAX_INT:
            return None
    ratio = data.get("allocation_ratio", 1.0)
    if type(ratio) not in (int, float) or not ratio <= _MAX_RATIO:
        return None
    return Inventory(
        data["total"],
        data.get("reserved", 0),
        data.get("min_unit", 1),
        data.get("max_unit", MAX_INT),
        data.get("step_size", 1),
        float(ratio),
    )


class InventoryObject(ObjectField):
    """A field for an inventory.

    The schema loads only unusual inventories, because loading by the schema takes ten times as long.
    """

    def __init__(self) -> None:
        super().__init__(InventorySchema)

    def _deserialize(self, value: Any, attr: str | None, data: Any, **kwargs: Any) -> Any:
        values = _plain_values(value)
        return super()._deserialize(value, attr, data, **kwargs) if values is None else {"values": values}


class InventoryCreation(InventorySchema):
    """The body of ``POST /resource_providers/{uuid}/inventories``."""

    resource_class = StringField(required=True, pattern=RESOURCE_CLASS, max_length=255)


class InventoryUpdate(InventorySchema):
    """The body of ``PUT /resource_providers/{uuid}/inventories/{resource_class}``."""

    resource_provider_generation = IntegerField(required=True)


class ReplaceAll(StrictSchema):
    """The body of ``PUT /resource_providers/{uuid}/inventories``, and a part of ``POST /reshaper``."""

    resource_provider_generation = IntegerField(required=True)
    inventories = MapField(RESOURCE_CLASS, InventoryObject(), required=True)
