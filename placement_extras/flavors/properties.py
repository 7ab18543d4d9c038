"""The properties of an image, read.

Nova refuses an image with a property that it knows and a value that it does not, whatever it is for.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from placement_extras.flavors import cpus
from placement_extras.flavors.flavor import Pairs, refused
from placement_extras.flavors.property_types import (
    CHOICES,
    COMPARED,
    FLAGS,
    FORMERLY,
    FREE,
    NUMBERS,
    check_comparisons,
)

MAX_NODES: Final = 128
"""NUMA nodes of a guest: properties of those with higher numbers say nothing."""

_TRUE: Final = frozenset(("1", "t", "true", "on", "y", "yes"))


@dataclass(frozen=True, slots=True)
class TypedProperties:
    """Those that say something here, by type.

    ``node_cpus`` and ``node_memory`` are by the number of the guest's NUMA node, as bits and in MiB, or None.
    """

    texts: Mapping[str, str]
    numbers: Mapping[str, int]
    flags: Mapping[str, bool]
    node_cpus: tuple[int, ...] | None
    node_memory: tuple[int, ...] | None
    traits: frozenset[str]


def flag(text: str) -> bool:
    """Whether such a text says yes; anything that is not understood says no."""
    return text.strip().lower() in _TRUE


def read(pairs: Pairs) -> TypedProperties:
    """The properties of an image.

    :raises InvalidRequest: naming one with a value that it cannot have.
    """
    texts: dict[str, str] = {}
    numbers: dict[str, int] = {}
    flags: dict[str, bool] = {}
    for name, text in _in_present_words(dict(pairs)):
        try:
            if name in FLAGS:
                flags[name] = flag(text)
            elif name in NUMBERS:
                numbers[name] = int(text)
            elif name in FREE:
                texts[name] = text
            elif name in COMPARED:
                check_comparisons(text)
            elif name in CHOICES:
                texts[name] = CHOICES[name].read(text)
        except ValueError:
            raise refused(f"the image property {name} cannot be {text!r}") from None
    given = dict(pairs)
    return TypedProperties(
        texts,
        numbers,
        flags,
        by_node(given, "hw_numa_cpus", cpus.parse),
        by_node(given, "hw_numa_mem", int),
        frozenset(name[6:] for name, text in pairs if name.startswith("trait:") and text == "required"),
    )


def by_node(given: Mapping[str, str], name: str, read_one: Callable[[str], int]) -> tuple[int, ...] | None:
    """The values of ``NAME.0``, ``NAME.1`` and so on, up to the first that is not there; None if none is.

    :raises InvalidRequest: one is not what it has to be.
    """
    found: list[int] = []
    for number in range(MAX_NODES):
        text = given.get(f"{name}.{number}")
        if text is None:
            break
        try:
            found.append(read_one(text))
        except ValueError:
            raise refused(f"{name}.{number} cannot be {text!r}") from None
    return tuple(found) or None


def _in_present_words(given: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """The properties; those with a former name come first, so that the present one counts where both are."""
    for former, name in FORMERLY.items():
        if former in given:
            yield name, given[former]
    if adapter := given.get("vmware_adaptertype"):
        yield "hw_disk_bus", "ide" if adapter == "ide" else "scsi"
        if adapter != "ide":
            yield "hw_scsi_model", adapter
    yield from given.items()
