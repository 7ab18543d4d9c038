"""The body of ``PUT /ext/v1/resource_providers/{uuid}/attributes``."""

import math
from typing import Any, Final

from placement.read_model.provider import Attribute
from placement.schemas.base import (
    IntegerField,
    MapField,
    SchemaField,
    StrictSchema,
    StringField,
    shown,
    violation,
)

MAX_ATTRIBUTES: Final = 256
"""Of one provider: the distances of each zone to each other one of a large host, and as much again."""
NAME: Final = "[A-Za-z][A-Za-z0-9_.-]{0,63}"


class AttributeValue(SchemaField):
    """A JSON string of up to 255 characters, or a number."""

    json_type = "string"
    _text = StringField(max_length=255)

    def _deserialize(self, value: Any, attr: str | None, data: Any, **kwargs: Any) -> Attribute:
        if isinstance(value, str):
            text: str = self._text.deserialize(value)
            return text
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise violation("type", f"{shown(value)} is not of type 'string', 'number'")
        try:
            number = float(value)
        except OverflowError:
            number = math.inf
        if not math.isfinite(number):
            raise violation("maximum", f"{shown(value)} is more than can be kept")
        return number


class AttributesBody(StrictSchema):
    """All attributes of a provider."""

    attributes = MapField(f"^{NAME}$", AttributeValue(), max_properties=MAX_ATTRIBUTES, required=True)
    resource_provider_generation = IntegerField(required=True)
