"""Makes the schemas of the bodies of ``/allocations`` and ``/reshaper``, by microversion."""

from functools import cache
from typing import Any, Final

from marshmallow import post_load

from placement import microversion
from placement.microversion import Microversion
from placement.schemas.base import (
    ArrayField,
    IntegerField,
    MapField,
    ObjectField,
    StrictSchema,
    StringField,
    UuidField,
    canonical_uuid,
)
from placement.schemas.inventory import RESOURCE_CLASS, ReplaceAll

# error messages have this regular expression of OpenStack Placement, but canonical_uuid() does the exact
# check
_UUID: Final = "^[0-9a-fA-F-]{36}$"
_SUFFIX: Final = "^([a-zA-Z0-9_-]{1,64})?$"

_resources = MapField(RESOURCE_CLASS, IntegerField(1), min_properties=1, required=True)


class _AllocationProvider(StrictSchema):
    uuid = UuidField(required=True)


class _ListItem(StrictSchema):
    resource_provider = ObjectField(_AllocationProvider, required=True)
    resources = _resources


class _OfProvider(StrictSchema):
    resources = _resources
    # the field is accepted, because GET /allocations answers with this field, and clients send the answer
    # back
    generation = IntegerField()


def _owner_field() -> StringField:
    return StringField(required=True, min_length=1, max_length=255)


def _by_provider(min_properties: int) -> MapField:
    return allocations_field(min_properties=min_properties, required=True)


def allocations_field(**options: Any) -> MapField:
    """Return a field for amounts by provider; ``options`` are passed to the field."""
    return MapField(_UUID, ObjectField(_OfProvider), canonical=canonical_uuid, **options)


# the schemas are cached by microversion, because making a schema's classes takes longer than reading a body
@cache
def put_allocations(version: Microversion) -> StrictSchema:
    """Return the schema of ``PUT /allocations/{consumer_uuid}``, which loads amounts by provider."""
    if version < microversion.ALLOCATIONS_BY_PROVIDER:
        return _consumer_schema(_ListedAllocation, version)
    fields: dict[str, Any] = {
        # from microversion 1.28 on, an empty mapping releases all allocations of the consumer
        "allocations": _by_provider(0 if version >= microversion.CONSUMER_GENERATIONS else 1)
    }
    return _consumer_schema(StrictSchema, version, **fields)


@cache
def post_allocations(version: Microversion) -> StrictSchema:
    """Return the schema of ``POST /allocations``; its field ``allocations`` has a body for each consumer."""
    return _make_schema(StrictSchema, {"allocations": _by_consumer(version, min_properties=1)})


@cache
def reshaper_body(version: Microversion) -> StrictSchema:
    """Return the schema of ``POST /reshaper``."""
    fields: dict[str, Any] = {
        "inventories": MapField(
            _UUID, ObjectField(ReplaceAll), min_properties=1, canonical=canonical_uuid, required=True
        ),
        "allocations": _by_consumer(version, min_properties=0),
    }
    return _make_schema(StrictSchema, fields)


def _by_consumer(version: Microversion, min_properties: int) -> MapField:
    # an empty mapping releases all allocations of the consumer, so at least 0 providers are required
    consumer = _consumer_schema(StrictSchema, version, allocations=_by_provider(0))
    return MapField(
        _UUID,
        ObjectField(type(consumer)),
        min_properties=min_properties,
        canonical=canonical_uuid,
        required=True,
    )


class _ListedAllocation(StrictSchema):
    allocations = ArrayField(ObjectField(_ListItem), min_items=1, required=True)

    @post_load
    def _by_provider(self, data: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        # if two items have the same provider, the later item replaces the earlier one
        by_provider = {
            item["resource_provider"]["uuid"]: {"resources": item["resources"]}
            for item in data["allocations"]
        }
        return {**data, "allocations": by_provider}


def _consumer_schema(base: type[StrictSchema], version: Microversion, **fields: Any) -> StrictSchema:
    """Return the schema of a consumer's allocations, with the fields that microversions have added."""
    if version >= microversion.CONSUMER_OWNERS:
        fields |= {"project_id": _owner_field(), "user_id": _owner_field()}
    if version >= microversion.CONSUMER_GENERATIONS:
        # null is allowed, because it stands for the generation of a new consumer
        fields["consumer_generation"] = IntegerField(required=True, allow_none=True)
    if version >= microversion.MAPPINGS:
        # the service does not use the field, but accepts it so that clients can send a candidate back
        fields["mappings"] = MapField(_SUFFIX, ArrayField(UuidField(), min_items=1), min_properties=1)
    if version >= microversion.CONSUMER_TYPES:
        fields["consumer_type"] = StringField(
            required=True, min_length=1, max_length=255, pattern="^[A-Z0-9_]+$"
        )
    return _make_schema(base, fields)


def _make_schema(base: type[StrictSchema], fields: dict[str, Any]) -> StrictSchema:
    schema = base.from_dict(fields, name=base.__name__)()
    # the type checker does not know that from_dict() makes a subclass of the base
    assert isinstance(schema, StrictSchema)
    return schema
