"""The field ``flavor`` in bodies of requests: a flavor with its image, which replaces a query."""

import logging
from itertools import chain
from typing import Any, ClassVar, Final

from oslo_config import cfg

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
from placement_extras.flavors.translation import translate_flavor

LOG = logging.getLogger(__name__)

MAX_TEXT: Final = 65_535
"""Maximum number of characters in the names and values of all extra specs and properties together."""
# the next limits are those of the columns in the databases of Nova and Glance
MAX_SPEC: Final = 255
"""Maximum number of characters in the value of an extra spec."""
MAX_BYTES: Final = (1 << 63) - 1
"""Maximum size of an image in bytes."""
NAMES: Final = "^.{1,255}$"
"""The pattern of the names of extra specs and properties."""


class _ImageSchema(StrictSchema):
    """Schema of the image that the guest boots."""

    disk_format = StringField(min_length=1, max_length=MAX_SPEC, load_default=None)
    min_ram = IntegerField(0, MAX_INT, load_default=0)
    min_disk = IntegerField(0, MAX_INT, load_default=0)
    size = IntegerField(0, MAX_BYTES, load_default=0)
    properties = MapField(NAMES, StringField(max_length=MAX_TEXT), load_default=dict)


class FlavorAsked(StrictSchema):
    """Schema of a flavor with its image; the fields have Nova's names."""

    vcpus = IntegerField(1, MAX_CPUS, required=True)
    ram = IntegerField(0, MAX_INT, required=True)
    disk = IntegerField(0, MAX_INT, load_default=0)
    ephemeral = IntegerField(0, MAX_INT, load_default=0)
    swap = IntegerField(0, MAX_INT, load_default=0)
    extra_specs = MapField(NAMES, StringField(max_length=MAX_SPEC), load_default=dict)
    image = ObjectField(_ImageSchema, load_default=dict)
    is_volume_backed = BooleanField(load_default=False)


def parse(body: dict[str, Any]) -> NovaFlavor:
    """Return the flavor of a valid body.

    :raises InvalidRequest: extra specs and properties together have more than :data:`MAX_TEXT` characters.
    """
    image = body["image"]
    specs, properties = body["extra_specs"], image.get("properties", {})
    # the total length is limited, because a translation reads each character
    if sum(map(len, chain(*specs.items(), *properties.items()))) > MAX_TEXT:
        raise InvalidRequest(
            f"Extra specs and image properties together may have at most {MAX_TEXT} characters."
        )
    # pairs are stored in tuples, so that the flavor is hashable and can be the key of a cached translation
    boots = ImageProperties(**{**image, "properties": tuple(properties.items())})
    return NovaFlavor(**{**body, "extra_specs": tuple(specs.items()), "image": boots})


def configured_rules(conf: cfg.ConfigOpts) -> TranslationRules:
    """Return the rules of translation, from the options in ``[flavors]``.

    :raises ValueError: two PCI aliases have the same name, or two options contradict each other.
    """
    if conf.flavors.numa_affinity and not conf.flavors.disable_fallback_pcpu_query:
        # each of the two options would make a fallback, but a translation has only one fallback
        raise ValueError("[flavors] numa_affinity needs disable_fallback_pcpu_query = true")
    return TranslationRules(
        query_placement_for_image_type_support=conf.flavors.query_placement_for_image_type_support,
        image_metadata_prefilter=conf.flavors.image_metadata_prefilter,
        require_owner_nova=conf.flavors.require_owner_nova,
        disable_fallback_pcpu_query=conf.flavors.disable_fallback_pcpu_query,
        pci_aliases=groups.pci_aliases(conf.flavors.pci_alias or ()),
        own_classes=frozenset(conf.placement.additional_resource_classes),
        numa_affinity=conf.flavors.numa_affinity,
        huge_pages=conf.flavors.huge_pages,
    )


class FlavorForm:
    """The form ``flavor`` of requests, which translates flavors as Nova does."""

    schema: ClassVar[type[StrictSchema]] = FlavorAsked

    def __init__(self, conf: cfg.ConfigOpts) -> None:
        self._rules = configured_rules(conf)

    def translate(self, given: dict[str, Any], *, strict: bool) -> AskedCandidates:
        """Translate a flavor.

        :param strict: whether a flavor is refused if its translation has warnings.
        :raises InvalidRequest: the guest is impossible, or ``strict`` is set and the translation has
            warnings.
        """
        translation = translate_flavor(parse(given), self._rules)
        if translation.warnings:
            said = "; ".join(translation.warnings)
            if strict:
                raise InvalidRequest(
                    f"The flavor is not understood: {said}. Correct it, or leave out 'strict'.",
                    INVALID_FLAVOR,
                )
            LOG.warning("A part of a flavor was ignored, as in Nova: %s", said)
        return translation
