"""Bodies of ``/resource_providers``."""

from functools import cache
from typing import Final

from placement import microversion
from placement.microversion import Microversion
from placement.schemas.base import StrictSchema, StringField, UuidField

NAME_LENGTH: Final = 200


class _ProviderUpdate(StrictSchema):
    name = StringField(required=True, max_length=NAME_LENGTH)


class _ProviderCreation(StrictSchema):
    name = StringField(required=True, min_length=1, max_length=NAME_LENGTH)
    uuid = UuidField()


class _NestedUpdate(_ProviderUpdate):
    parent_provider_uuid = UuidField(allow_none=True)


class _NestedCreate(_ProviderCreation):
    parent_provider_uuid = UuidField(allow_none=True)


@cache
def create(version: Microversion) -> StrictSchema:
    """``POST /resource_providers``; a parent can be given from 1.14."""
    return _NestedCreate() if version >= microversion.NESTED_PROVIDERS else _ProviderCreation()


@cache
def update(version: Microversion) -> StrictSchema:
    """``PUT /resource_providers/{uuid}``; a parent can be given from 1.14."""
    return _NestedUpdate() if version >= microversion.NESTED_PROVIDERS else _ProviderUpdate()
