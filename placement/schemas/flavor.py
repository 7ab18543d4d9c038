"""A flavor with its image, in bodies that take one instead of a query."""

from itertools import chain
from typing import Any, Final

from placement.exceptions import InvalidRequest
from placement.flavors.cpus import MAX_CPUS
from placement.flavors.flavor import ImageProperties, NovaFlavor
from placement.schemas.base import (
    MAX_INT,
    BooleanField,
    IntegerField,
    MapField,
    ObjectField,
    StrictSchema,
    StringField,
)

MAX_TEXT: Final = 65_535
"""Characters of all names and values of extra specs and properties."""
MAX_SPEC: Final = 255
MAX_BYTES: Final = (1 << 63) - 1
NAMES: Final = "^.{1,255}$"


class _ImageSchema(StrictSchema):
    """What the guest boots."""

    disk_format = StringField(min_length=1, max_length=MAX_SPEC, load_default=None)
    min_ram = IntegerField(0, MAX_INT, load_default=0)
    min_disk = IntegerField(0, MAX_INT, load_default=0)
    size = IntegerField(0, MAX_BYTES, load_default=0)
    properties = MapField(NAMES, StringField(max_length=MAX_TEXT), load_default=dict)


class FlavorAsked(StrictSchema):
    """A guest in Nova's words."""

    vcpus = IntegerField(1, MAX_CPUS, required=True)
    ram = IntegerField(0, MAX_INT, required=True)
    disk = IntegerField(0, MAX_INT, load_default=0)
    ephemeral = IntegerField(0, MAX_INT, load_default=0)
    swap = IntegerField(0, MAX_INT, load_default=0)
    extra_specs = MapField(NAMES, StringField(max_length=MAX_SPEC), load_default=dict)
    image = ObjectField(_ImageSchema, load_default=dict)
    is_volume_backed = BooleanField(load_default=False)


def parse(body: dict[str, Any]) -> NovaFlavor:
    """The flavor of such a body.

    :raises InvalidRequest: it says too much.
    """
    image = body["image"]
    specs, properties = body["extra_specs"], image.get("properties", {})
    if sum(map(len, chain(*specs.items(), *properties.items()))) > MAX_TEXT:
        raise InvalidRequest(f"Extra specs and image properties may have {MAX_TEXT} characters together.")
    boots = ImageProperties(**{**image, "properties": tuple(properties.items())})
    return NovaFlavor(**{**body, "extra_specs": tuple(specs.items()), "image": boots})
