"""Has the bodies of ``/resource_providers`` and its sub-paths, and names of custom classes and traits."""

import math
from functools import cache
from typing import Any, Final

from placement import microversion
from placement.microversion import Microversion
from placement.read_model.provider import Attribute
from placement.schemas.base import (
    ArrayField,
    IntegerField,
    MapField,
    SchemaField,
    StrictSchema,
    StringField,
    UuidField,
    shown_value,
    violation_error,
)

NAME_LENGTH: Final = 200
"""The maximum number of characters in the name of a provider."""


class _ProviderUpdate(StrictSchema):
    name = StringField(required=True, max_length=NAME_LENGTH)


class _ProviderCreation(StrictSchema):
    name = StringField(required=True, min_length=1, max_length=NAME_LENGTH)
    uuid = UuidField()


class _NestedUpdate(_ProviderUpdate):
    parent_provider_uuid = UuidField(allow_none=True)


class _NestedCreate(_ProviderCreation):
    parent_provider_uuid = UuidField(allow_none=True)


# the schemas are cached, because making a schema takes longer than reading a body
@cache
def creation_schema(version: Microversion) -> StrictSchema:
    """Return the schema of ``POST /resource_providers``, with a parent from microversion 1.14 on."""
    return _NestedCreate() if version >= microversion.NESTED_PROVIDERS else _ProviderCreation()


@cache
def update_schema(version: Microversion) -> StrictSchema:
    """Return the schema of ``PUT /resource_providers/{uuid}``, with a parent from microversion 1.14 on."""
    return _NestedUpdate() if version >= microversion.NESTED_PROVIDERS else _ProviderUpdate()


CUSTOM_NAME: Final = "^CUSTOM_[A-Z0-9_]+$"
"""The pattern for names of custom resource classes and traits."""
MAX_NAME: Final = 255
"""The maximum number of characters in the name of a resource class or a trait."""


class AggregateList(StrictSchema):
    """The body of ``PUT /resource_providers/{uuid}/aggregates`` up to 1.18, which is a bare array."""

    aggregates = ArrayField(UuidField(), unique=True, required=True)


class AggregatesBody(AggregateList):
    """The body of ``PUT /resource_providers/{uuid}/aggregates`` from 1.19 on."""

    resource_provider_generation = IntegerField(required=True)


class TraitsBody(StrictSchema):
    """The body of ``PUT .../traits``; a later check reports names of another form as unknown traits."""

    traits = ArrayField(StringField(min_length=1, max_length=MAX_NAME), required=True)
    resource_provider_generation = IntegerField(required=True)


class CustomName(StrictSchema):
    """The name of a custom class or trait.

    It is the body of ``POST /resource_classes`` and, up to 1.6, of ``PUT``. In other requests, the schema
    checks the name in the path.
    """

    name = StringField(required=True, max_length=MAX_NAME, pattern=CUSTOM_NAME)


# the limit is enough for the distances of a NUMA node to all other nodes of a large host, and for as many
# other attributes
MAX_ATTRIBUTES: Final = 256
"""The maximum number of attributes of a provider."""
ATTRIBUTE_NAME: Final = "[A-Za-z][A-Za-z0-9_.-]{0,63}"


class AttributeValue(SchemaField):
    """A field for a JSON string of at most 255 characters, or a JSON number."""

    json_type = "string"
    _text = StringField(max_length=255)

    def _deserialize(self, value: Any, attr: str | None, data: Any, **kwargs: Any) -> Attribute:
        if isinstance(value, str):
            text: str = self._text.deserialize(value)
            return text
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise violation_error("type", f"{shown_value(value)} is not of type 'string', 'number'")
        try:
            number = float(value)
        # an integer in JSON can have too many digits for a float
        except OverflowError:
            number = math.inf
        if not math.isfinite(number):
            raise violation_error("maximum", f"{shown_value(value)} is too large for a number of 64 bits")
        return number


class AttributesBody(StrictSchema):
    """The body of ``PUT /ext/v1/resource_providers/{uuid}/attributes``, with all attributes of a provider."""

    attributes = MapField(
        f"^{ATTRIBUTE_NAME}$", AttributeValue(), max_properties=MAX_ATTRIBUTES, required=True
    )
    resource_provider_generation = IntegerField(required=True)
