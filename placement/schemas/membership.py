"""Bodies that say what a provider belongs to (aggregates, traits) and that name a resource class."""

from typing import Final

from placement.schemas.base import ArrayField, IntegerField, StrictSchema, StringField, UuidField

CUSTOM_NAME: Final = "^CUSTOM_[A-Z0-9_]+$"
MAX_NAME: Final = 255


class AggregateList(StrictSchema):
    """``PUT /resource_providers/{uuid}/aggregates`` to 1.18, whose body is the bare array."""

    aggregates = ArrayField(UuidField(), unique=True, required=True)


class AggregatesBody(AggregateList):
    """``PUT /resource_providers/{uuid}/aggregates`` from 1.19."""

    resource_provider_generation = IntegerField(required=True)


class TraitsBody(StrictSchema):
    """``PUT /resource_providers/{uuid}/traits``; a name that no trait can have is one that there is not."""

    traits = ArrayField(StringField(min_length=1, max_length=MAX_NAME), required=True)
    resource_provider_generation = IntegerField(required=True)


class ResourceClassBody(StrictSchema):
    """``POST /resource_classes``, and ``PUT`` up to 1.6; from 1.7 the name in the path."""

    name = StringField(required=True, max_length=MAX_NAME, pattern=CUSTOM_NAME)


class CustomTrait(StrictSchema):
    """The name in the path of ``PUT /traits/{name}``."""

    name = StringField(required=True, max_length=MAX_NAME, pattern=CUSTOM_NAME)
