"""Classes for a flavor, its image and the options of translation; functions for sets of CPUs.

A set of CPUs is an integer, in which bit N stands for CPU N.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from placement.exceptions import InvalidRequest

INVALID_FLAVOR: Final = "placement.ext.invalid_flavor"
"""The code, in the error of the API, of a refused flavor."""

Pairs = tuple[tuple[str, str], ...]
"""Pairs of a name and a value, in the order of the request. Each name occurs once."""


@dataclass(frozen=True, slots=True)
class ImageProperties:
    """An image, with Glance's names of fields: ``min_ram`` in MiB, ``min_disk`` in GiB, ``size`` in bytes.

    A guest that boots from a volume has the properties of the image from which the volume was made.
    """

    disk_format: str | None = None
    min_ram: int = 0
    min_disk: int = 0
    size: int = 0
    properties: Pairs = ()


@dataclass(frozen=True, slots=True)
class NovaFlavor:
    """A flavor, with Nova's names: ``ram`` and ``swap`` in MiB, ``disk`` (root) and ``ephemeral`` in GiB."""

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
    """A PCI alias: its NUMA policy, and the resource class and the traits of its devices in Placement."""

    name: str
    resource_class: str
    traits: frozenset[str] = frozenset()
    numa_policy: str | None = None


@dataclass(frozen=True, slots=True)
class TranslationRules:
    """The options of translation, mostly with Nova's names, and the resource classes of the service.

    The defaults are Nova's, except for ``disable_fallback_pcpu_query``: Nova checks each host after the
    query, and this service does not. With ``require_owner_nova``, hosts and devices need the trait
    OWNER_NOVA. Nova 34 requires this trait as soon as all nova-compute services of the cloud are new enough.
    The aliases in ``pci_aliases`` have distinct names. Their devices are in Placement only if Nova reports
    PCI devices to Placement. ``own_classes`` has the resource classes that only this service has. Nova does
    not request them.

    Two options do not exist in Nova: ``numa_affinity`` requests CPUs, memory and devices from one NUMA node,
    and ``huge_pages`` requests pages by their resource class.
    """

    query_placement_for_image_type_support: bool = False
    image_metadata_prefilter: bool = False
    require_owner_nova: bool = False
    disable_fallback_pcpu_query: bool = True
    pci_aliases: tuple[PciAlias, ...] = ()
    own_classes: frozenset[str] = frozenset()
    numa_affinity: bool = False
    huge_pages: bool = False


def refusal_error(why: str) -> InvalidRequest:
    """Return the error for a flavor and an image that no guest can have; ``why`` is the reason."""
    return InvalidRequest(f"No guest can have this flavor and image: {why}.", INVALID_FLAVOR)


MAX_CPUS: Final = 1 << 12
"""Maximum number of CPUs of a guest. Without a maximum, a hostile list of CPUs could create a very large
integer.
"""


def first_cpus(number: int) -> int:
    """Return a set with the CPUs from 0 to ``number - 1``."""
    return (1 << number) - 1


def parse_cpus(text: str) -> int:
    """Parse a list of CPUs such as ``0-3,^2,7``.

    A CPU or range after ``^`` is excluded, at any position in the list. Each number above :data:`MAX_CPUS`
    counts as :data:`MAX_CPUS`.

    :raises ValueError: the text is not a list of CPUs.
    """
    included = excluded = 0
    for rule in filter(None, (part.strip() for part in text.split(","))):
        bounds = [int(bound) for bound in rule.removeprefix("^").split("-", 1)]
        low, high = bounds[0], bounds[-1]
        if not 0 <= low <= high:
            raise ValueError(rule)
        # without the maximum, a range such as 0-9999999999 would create an integer with 9999999999 bits
        named = first_cpus(min(high, MAX_CPUS) + 1) & ~first_cpus(min(low, MAX_CPUS))
        if rule.startswith("^"):
            excluded |= named
        else:
            included |= named
    # exclusions are applied last, because Nova ignores their position in the list
    return included & ~excluded


def parse_mask(text: str, vcpus: int) -> int:
    """Parse a mask that selects CPUs of a guest.

    A mask that begins with ``^`` selects all CPUs of the guest except the CPUs in the mask.

    :raises ValueError: see :func:`parse_cpus`.
    """
    return parse_cpus(f"0-{vcpus - 1},{text}" if text.strip().startswith("^") else text)
