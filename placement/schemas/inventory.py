"""Bodies of inventories."""

from typing import Any, Final

from marshmallow import post_load

from placement.schemas.base import MAX_INT, Integer, Map, Number, Object, Schema, String
from placement.store.inventories import Values

RESOURCE_CLASS: Final = "^[A-Z0-9_]+$"
_MAX_RATIO: Final = 3.40282e38


class Inventory(Schema):
    """The values of one inventory, read as :class:`~placement.store.inventories.Values`."""

    total = Integer(1, MAX_INT, required=True)
    reserved = Integer(0, MAX_INT, load_default=0)
    min_unit = Integer(1, MAX_INT, load_default=1)
    max_unit = Integer(1, MAX_INT, load_default=MAX_INT)
    step_size = Integer(1, MAX_INT, load_default=1)
    allocation_ratio = Number(maximum=_MAX_RATIO, load_default=1.0)
    # Never meant anything here, but clients send it.
    resource_provider_generation = Integer()

    @post_load
    def _values(self, data: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        others: dict[str, Any] = {
            name: data.pop(name)
            for name in ("resource_class", "resource_provider_generation")
            if name in data
        }
        return {"values": Values(**data), **others}


class Create(Inventory):
    """``POST /resource_providers/{uuid}/inventories``."""

    resource_class = String(required=True, pattern=RESOURCE_CLASS, max_length=255)


class Update(Inventory):
    """``PUT /resource_providers/{uuid}/inventories/{resource_class}``."""

    resource_provider_generation = Integer(required=True)


class ReplaceAll(Schema):
    """``PUT /resource_providers/{uuid}/inventories``; a part of ``POST /reshaper``."""

    resource_provider_generation = Integer(required=True)
    inventories = Map(RESOURCE_CLASS, Object(Inventory), required=True)
