"""A flavor with its image, the rules of translation, and sets of a guest's CPUs.

A set of CPUs is a number of which bit 0 is CPU 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from placement.exceptions import InvalidRequest

INVALID_FLAVOR: Final = "placement.ext.invalid_flavor"
"""The code of a refused flavor."""

Pairs = tuple[tuple[str, str], ...]
"""Names with their values, in the order in which they were given; no name twice."""


@dataclass(frozen=True, slots=True)
class ImageProperties:
    """What a guest boots, in Glance's words: ``min_ram`` in MiB, ``min_disk`` in GiB, ``size`` in bytes.

    Of a guest that boots from a volume these are the properties that the volume has of its image.
    """

    disk_format: str | None = None
    min_ram: int = 0
    min_disk: int = 0
    size: int = 0
    properties: Pairs = ()


@dataclass(frozen=True, slots=True)
class NovaFlavor:
    """A guest in Nova's words: ``ram`` and ``swap`` in MiB, ``disk`` (root) and ``ephemeral`` in GiB."""

    vcpus: int
    ram: int
    disk: int = 0
    ephemeral: int = 0
    swap: int = 0
    extra_specs: Pairs = ()
    image: ImageProperties = ImageProperties()
    is_volume_backed: bool = False


@dataclass(frozen=True, slots=True)
class PciAlias:
    """What the devices of an alias are in Placement: a resource class, and traits that they have."""

    name: str
    resource_class: str
    traits: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class TranslationRules:
    """What Nova makes depend on its configuration, by its names; and what this service has beside.

    The defaults are its own but for ``disable_fallback_pcpu_query``: it looks at hosts once more afterwards.
    ``require_owner_nova`` is what Nova 34 does as soon as no older nova-compute is left. ``pci_aliases``, no
    two of the same name, are those of a Nova that has PCI devices in Placement.
    ``own_classes`` are resource classes beside the standard ones, which Nova would not ask for.
    """

    query_placement_for_image_type_support: bool = False
    image_metadata_prefilter: bool = False
    require_owner_nova: bool = False
    disable_fallback_pcpu_query: bool = True
    pci_aliases: tuple[PciAlias, ...] = ()
    own_classes: frozenset[str] = frozenset()


def refused(why: str) -> InvalidRequest:
    """The error that says why there can be no such guest."""
    return InvalidRequest(f"No guest can have this flavor and image: {why}.", INVALID_FLAVOR)


MAX_CPUS: Final = 1 << 12
"""Of a guest: few enough that the longest list of them is read in milliseconds."""


def first_cpus(number: int) -> int:
    """The CPUs 0 to ``number - 1``."""
    return (1 << number) - 1


def parse_cpus(text: str) -> int:
    """The CPUs of a list such as ``0-3,^2,7``: those behind a ``^`` are none of it, wherever they stand.

    All beyond those that a guest can have are the one :data:`MAX_CPUS`.

    :raises ValueError: it is no such list.
    """
    included = excluded = 0
    for rule in filter(None, (part.strip() for part in text.split(","))):
        bounds = [int(bound) for bound in rule.removeprefix("^").split("-", 1)]
        low, high = bounds[0], bounds[-1]
        if not 0 <= low <= high:
            raise ValueError(rule)
        named = first_cpus(min(high, MAX_CPUS) + 1) & ~first_cpus(min(low, MAX_CPUS))
        if rule.startswith("^"):
            excluded |= named
        else:
            included |= named
    return included & ~excluded


def parse_mask(text: str, vcpus: int) -> int:
    """The CPUs of a mask, which may begin with those that are left out of all of a guest (``^0-1``).

    :raises ValueError: as :func:`parse_cpus`.
    """
    return parse_cpus(f"0-{vcpus - 1},{text}" if text.strip().startswith("^") else text)
