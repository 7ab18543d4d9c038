"""Bodies of ``/allocations`` and ``/reshaper``, by microversion."""

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
    # What GET /allocations shows may be sent back as it is.
    generation = IntegerField()


def _identity() -> StringField:
    return StringField(required=True, min_length=1, max_length=255)


def _by_provider(min_properties: int) -> MapField:
    return MapField(
        _UUID,
        ObjectField(_OfProvider),
        min_properties=min_properties,
        canonical=canonical_uuid,
        required=True,
    )


@cache
def put(version: Microversion) -> StrictSchema:
    """``PUT /allocations/{consumer_uuid}``; loaded as a mapping by provider in any version."""
    if version < microversion.ALLOCATIONS_BY_PROVIDER:
        return _schema(_ListedAllocation, version)
    fields: dict[str, Any] = {
        "allocations": _by_provider(0 if version >= microversion.CONSUMER_GENERATIONS else 1)
    }
    return _schema(StrictSchema, version, **fields)


@cache
def post(version: Microversion) -> StrictSchema:
    """``POST /allocations`` as the one field ``allocations``: what :func:`put` takes, by consumer."""
    return _made(StrictSchema, {"allocations": _by_consumer(version, min_properties=1)})


@cache
def reshaper(version: Microversion) -> StrictSchema:
    """``POST /reshaper``."""
    fields: dict[str, Any] = {
        "inventories": MapField(
            _UUID, ObjectField(ReplaceAll), min_properties=1, canonical=canonical_uuid, required=True
        ),
        "allocations": _by_consumer(version, min_properties=0),
    }
    return _made(StrictSchema, fields)


def _by_consumer(version: Microversion, min_properties: int) -> MapField:
    consumer = _schema(StrictSchema, version, allocations=_by_provider(0))
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
        """Of a provider that is listed twice, the last item counts."""
        by_provider = {
            item["resource_provider"]["uuid"]: {"resources": item["resources"]}
            for item in data["allocations"]
        }
        return {**data, "allocations": by_provider}


def _schema(base: type[StrictSchema], version: Microversion, **fields: Any) -> StrictSchema:
    """The schema of one consumer's allocations, with what each microversion added."""
    if version >= microversion.CONSUMER_OWNERS:
        fields |= {"project_id": _identity(), "user_id": _identity()}
    if version >= microversion.CONSUMER_GENERATIONS:
        fields["consumer_generation"] = IntegerField(required=True, allow_none=True)
    if version >= microversion.MAPPINGS:
        fields["mappings"] = MapField(_SUFFIX, ArrayField(UuidField(), min_items=1), min_properties=1)
    if version >= microversion.CONSUMER_TYPES:
        fields["consumer_type"] = StringField(
            required=True, min_length=1, max_length=255, pattern="^[A-Z0-9_]+$"
        )
    return _made(base, fields)


def _made(base: type[StrictSchema], fields: dict[str, Any]) -> StrictSchema:
    schema = base.from_dict(fields, name=base.__name__)()
    assert isinstance(schema, StrictSchema)
    return schema
