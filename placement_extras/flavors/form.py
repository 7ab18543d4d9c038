"""The member ``flavor`` of bodies, in place of a query: a flavor with its image."""

import logging
from itertools import chain
from typing import Any, ClassVar, Final

from oslo_config import cfg

from placement import microversion
from placement.exceptions import InvalidRequest
from placement.schemas.base import (
    MAX_INT,
    BooleanField,
    IntegerField,
    MapField,
    ObjectField,
    StrictSchema,
    StringField,
)
from placement.schemas.request_form import AskedCandidates
from placement_extras.flavors import groups
from placement_extras.flavors.flavor import (
    INVALID_FLAVOR,
    MAX_CPUS,
    ImageProperties,
    NovaFlavor,
    TranslationRules,
)
from placement_extras.flavors.translation import translate

LOG = logging.getLogger(__name__)

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


def configured_rules(conf: cfg.ConfigOpts) -> TranslationRules:
    """The rules that the configuration names.

    :raises ValueError: two PCI aliases have the same name.
    """
    return TranslationRules(
        query_placement_for_image_type_support=conf.flavors.query_placement_for_image_type_support,
        image_metadata_prefilter=conf.flavors.image_metadata_prefilter,
        require_owner_nova=conf.flavors.require_owner_nova,
        disable_fallback_pcpu_query=conf.flavors.disable_fallback_pcpu_query,
        pci_aliases=groups.aliases(conf.flavors.pci_alias or ()),
        own_classes=frozenset(conf.placement.additional_resource_classes),
    )


class FlavorForm:
    """Translates flavors as Nova does; a :class:`placement.schemas.request_form.RequestForm`."""

    schema: ClassVar[type[StrictSchema]] = FlavorAsked

    def __init__(self, conf: cfg.ConfigOpts) -> None:
        self._rules = configured_rules(conf)

    def translate(self, given: dict[str, Any], *, strict: bool) -> AskedCandidates:
        """Translate a flavor.

        :param strict: whether a flavor with warnings is refused.
        :raises InvalidRequest: there is no such guest, or a warning where none may be.
        """
        translation = translate(parse(given), self._rules)
        if translation.warnings:
            said = "; ".join(translation.warnings)
            if strict:
                raise InvalidRequest(
                    f"The flavor is not understood: {said}. Correct it, or ask without 'strict'.",
                    INVALID_FLAVOR,
                )
            LOG.warning("Of a flavor was ignored, as Nova does: %s", said)
        return AskedCandidates(
            translation.request, microversion.MAX, translation.fallback, translation.warnings
        )
