"""Bodies of ``/allocations`` and ``/reshaper``, by microversion."""

from functools import cache
from typing import Any, Final

from marshmallow import post_load

from placement import microversion
from placement.microversion import Microversion
from placement.schemas.base import (
    Array,
    Integer,
    Map,
    Object,
    Schema,
    String,
    Uuid,
    canonical_uuid,
)
from placement.schemas.inventory import RESOURCE_CLASS, ReplaceAll

_UUID: Final = "^[0-9a-fA-F-]{36}$"
_SUFFIX: Final = "^([a-zA-Z0-9_-]{1,64})?$"

_resources = Map(RESOURCE_CLASS, Integer(1), min_properties=1, required=True)


class _Provider(Schema):
    uuid = Uuid(required=True)


class _ListItem(Schema):
    resource_provider = Object(_Provider, required=True)
    resources = _resources


class _OfProvider(Schema):
    resources = _resources
    # What GET /allocations shows may be sent back as it is.
    generation = Integer()


def _identity() -> String:
    return String(required=True, min_length=1, max_length=255)


def _by_provider(min_properties: int) -> Map:
    return Map(
        _UUID, Object(_OfProvider), min_properties=min_properties, canonical=canonical_uuid, required=True
    )


@cache
def put(version: Microversion) -> Schema:
    """``PUT /allocations/{consumer_uuid}``; loaded as a mapping by provider in any version."""
    if version < microversion.ALLOCATIONS_BY_PROVIDER:
        return _schema(_Listed, version)
    fields: dict[str, Any] = {
        "allocations": _by_provider(0 if version >= microversion.CONSUMER_GENERATIONS else 1)
    }
    return _schema(Schema, version, **fields)


@cache
def post(version: Microversion) -> Schema:
    """``POST /allocations`` as the one field ``allocations``: what :func:`put` takes, by consumer."""
    return _made(Schema, {"allocations": _by_consumer(version, min_properties=1)})


@cache
def reshaper(version: Microversion) -> Schema:
    """``POST /reshaper``."""
    fields: dict[str, Any] = {
        "inventories": Map(
            _UUID, Object(ReplaceAll), min_properties=1, canonical=canonical_uuid, required=True
        ),
        "allocations": _by_consumer(version, min_properties=0),
    }
    return _made(Schema, fields)


def _by_consumer(version: Microversion, min_properties: int) -> Map:
    consumer = _schema(Schema, version, allocations=_by_provider(0))
    return Map(
        _UUID, Object(type(consumer)), min_properties=min_properties, canonical=canonical_uuid, required=True
    )


class _Listed(Schema):
    allocations = Array(Object(_ListItem), min_items=1, required=True)

    @post_load
    def _by_provider(self, data: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        """Of a provider that is listed twice, the last item counts."""
        by_provider = {
            item["resource_provider"]["uuid"]: {"resources": item["resources"]}
            for item in data["allocations"]
        }
        return {**data, "allocations": by_provider}


def _schema(base: type[Schema], version: Microversion, **fields: Any) -> Schema:
    """The schema of one consumer's allocations, with what each microversion added."""
    if version >= microversion.CONSUMER_OWNERS:
        fields |= {"project_id": _identity(), "user_id": _identity()}
    if version >= microversion.CONSUMER_GENERATIONS:
        fields["consumer_generation"] = Integer(required=True, allow_none=True)
    if version >= microversion.MAPPINGS:
        fields["mappings"] = Map(_SUFFIX, Array(Uuid(), min_items=1), min_properties=1)
    if version >= microversion.CONSUMER_TYPES:
        fields["consumer_type"] = String(required=True, min_length=1, max_length=255, pattern="^[A-Z0-9_]+$")
    return _made(base, fields)


def _made(base: type[Schema], fields: dict[str, Any]) -> Schema:
    schema = base.from_dict(fields, name=base.__name__)()
    assert isinstance(schema, Schema)
    return schema
