"""Bodies of ``/resource_providers``."""

from functools import cache
from typing import Final

from placement import microversion
from placement.microversion import Microversion
from placement.schemas.base import Schema, String, Uuid

NAME_LENGTH: Final = 200


class _Update(Schema):
    name = String(required=True, max_length=NAME_LENGTH)


class _Create(Schema):
    name = String(required=True, min_length=1, max_length=NAME_LENGTH)
    uuid = Uuid()


class _NestedUpdate(_Update):
    parent_provider_uuid = Uuid(allow_none=True)


class _NestedCreate(_Create):
    parent_provider_uuid = Uuid(allow_none=True)


@cache
def create(version: Microversion) -> Schema:
    """``POST /resource_providers``; a parent can be given from 1.14."""
    return _NestedCreate() if version >= microversion.NESTED_PROVIDERS else _Create()


@cache
def update(version: Microversion) -> Schema:
    """``PUT /resource_providers/{uuid}``; a parent can be given from 1.14."""
    return _NestedUpdate() if version >= microversion.NESTED_PROVIDERS else _Update()
