"""Has the body of ``POST /ext/v1/trees``, and the query of ``GET /ext/v1/trees/{uuid}``."""

from collections.abc import Mapping
from typing import Any, Final

from placement.microversion import Microversion
from placement.schemas.base import (
    ArrayField,
    IntegerField,
    MapField,
    SchemaField,
    StrictSchema,
    StringField,
    UuidField,
    load,
    violation_error,
)
from placement.schemas.inventory import RESOURCE_CLASS, InventoryObject
from placement.schemas.resource_provider import (
    ATTRIBUTE_NAME,
    MAX_ATTRIBUTES,
    MAX_NAME,
    NAME_LENGTH,
    AttributeValue,
)
from placement.schemas.terms import Params, load_query
from placement.store.trees import ProviderDescription

# a host has dozens of providers, or hundreds of providers if each device is a provider
MAX_PROVIDERS: Final = 1000
"""The maximum number of providers in a request."""
MAX_PARTS: Final = 5000
"""The maximum number of inventories, traits, aggregates and attributes of all providers in a request."""
_PARTS: Final = ("inventories", "traits", "aggregates", "attributes")


class _TreeProvider(StrictSchema):
    uuid = UuidField(required=True)
    name = StringField(required=True, min_length=1, max_length=NAME_LENGTH)
    parent_provider_uuid = UuidField(required=True, allow_none=True)
    generation = IntegerField(0, required=True, allow_none=True)
    inventories = MapField(RESOURCE_CLASS, InventoryObject(), max_properties=MAX_PARTS)
    traits = ArrayField(StringField(min_length=1, max_length=MAX_NAME), max_items=MAX_PARTS)
    aggregates = ArrayField(UuidField(), unique=True, max_items=MAX_PARTS)
    attributes = MapField(f"^{ATTRIBUTE_NAME}$", AttributeValue(), max_properties=MAX_ATTRIBUTES)


class _BoundedProviders(ArrayField):
    """A field for an array of descriptions of providers, with a limit for the number of all parts."""

    def _deserialize(self, value: Any, attr: str | None, data: Any, **kwargs: Any) -> list[Any]:
        # the parts are counted before they are read, because reading them takes much longer
        if isinstance(value, list) and (count := _count_parts(value)) > MAX_PARTS:
            raise violation_error(
                "maxItems",
                f"{count} inventories, traits, aggregates and attributes are too many, "
                f"the maximum is {MAX_PARTS}",
            )
        return super()._deserialize(value, attr, data, **kwargs)


class TreeBody(StrictSchema):
    """The body with the descriptions of all providers, which :func:`parse_descriptions` reads."""

    # each description is read separately later, so that an error message can have the provider's uuid
    resource_providers = _BoundedProviders(SchemaField(), required=True, min_items=1, max_items=MAX_PROVIDERS)


_PROVIDER: Final = _TreeProvider()


class _ShowQuery(StrictSchema):
    """The parameters of ``GET /ext/v1/trees/{uuid}``."""

    allocations = StringField(choices=["true", "false"])


def parse_show(params: Params, version: Microversion) -> bool:
    """Return whether a query of ``GET .../trees/{uuid}`` asks for allocations.

    :raises InvalidRequest: the query is invalid.
    """
    shown: str = load_query(_ShowQuery, params, version).get("allocations", "false")
    return shown == "true"


def _count_parts(providers: list[Any]) -> int:
    parts = (each.get(name) for each in providers if isinstance(each, Mapping) for name in _PARTS)
    return sum(len(part) for part in parts if isinstance(part, list | Mapping))


def parse_descriptions(body: Mapping[str, Any]) -> list[ProviderDescription]:
    """Convert a body to descriptions of providers.

    :raises InvalidRequest: a description is wrong; the message has the provider's uuid or its number.
    """
    return [
        _make_description(load(_PROVIDER, each, f"{_provider_name(number, each)}: JSON does not validate: "))
        for number, each in enumerate(body["resource_providers"], start=1)
    ]


def _provider_name(number: int, provider: Any) -> str:
    uuid = provider.get("uuid") if isinstance(provider, Mapping) else None
    return (
        f"Resource provider {uuid}" if isinstance(uuid, str) and len(uuid) <= MAX_NAME else f"Item {number}"
    )


def _make_description(each: Mapping[str, Any]) -> ProviderDescription:
    inventories, traits, aggregates = each.get("inventories"), each.get("traits"), each.get("aggregates")
    return ProviderDescription(
        each["uuid"],
        each["name"],
        each["parent_provider_uuid"],
        each["generation"],
        None if inventories is None else {name: one["values"] for name, one in inventories.items()},
        None if traits is None else frozenset(traits),
        None if aggregates is None else frozenset(aggregates),
        each.get("attributes"),
    )
