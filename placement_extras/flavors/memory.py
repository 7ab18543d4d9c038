"""Checks the memory of a guest: page sizes, locked and encrypted memory, and NUMA nodes.

A request does not contain the NUMA nodes of a guest. But this module checks that the CPUs and the memory of
these nodes add up to the CPUs and the memory of the flavor.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from placement.exceptions import InvalidRequest
from placement_extras.flavors.flavor import first_cpus, parse_cpus, refusal_error
from placement_extras.flavors.guest import FlavorGuest, by_node, contradiction_error
from placement_extras.flavors.pinning import DEDICATED, MIXED, CpuPinning

PAGE_CLASSES: Final[Mapping[int, str]] = {
    64: "CUSTOM_HUGE_PAGES_64KB",
    2048: "CUSTOM_HUGE_PAGES_2MB",
    32_768: "CUSTOM_HUGE_PAGES_32MB",
    524_288: "CUSTOM_HUGE_PAGES_512MB",
    1_048_576: "CUSTOM_HUGE_PAGES_1GB",
    16_777_216: "CUSTOM_HUGE_PAGES_16GB",
}
"""For each size of huge pages, in KiB, the resource class that agents report."""
_UNITS: Final = " KMGTPEZYRQ"
"""Prefixes of units in ascending order. Each prefix means 1024 times the previous prefix; the blank means no
prefix.
"""
_SIZE_TEXT: Final = re.compile(r"([-+]?\d*\.?\d+)(?:([KMGTPEZYRQ])i?)?(b|bit|B)")
_BY_WORDS: Final = ("any", "large", "small")
"""Words for page sizes. With such a word, the host chooses the size."""


@dataclass(frozen=True, slots=True)
class MemoryEncryption:
    """A kind of memory encryption, with its trait.

    ``is_stateless`` is set if the encryption needs stateless firmware, and ``has_no_video`` if it needs a
    guest without a video device.
    """

    trait: str
    is_stateless: bool = False
    has_no_video: bool = False


_ENCRYPTIONS: Final[Mapping[str, MemoryEncryption]] = {
    "amd-sev": MemoryEncryption("HW_CPU_X86_AMD_SEV"),
    "amd-sev-es": MemoryEncryption("HW_CPU_X86_AMD_SEV_ES"),
    "amd-sev-snp": MemoryEncryption("HW_CPU_X86_AMD_SEV_SNP", is_stateless=True),
    "intel-tdx": MemoryEncryption("HW_CPU_X86_INTEL_TDX", is_stateless=True, has_no_video=True),
}


def find_encryption(guest: FlavorGuest) -> MemoryEncryption | None:
    """Return the encryption of a guest's memory, or None.

    :raises InvalidRequest: flavor and image contradict each other, or do not meet the conditions of the
        encryption.
    """
    flavor, image = guest.both_flags("mem_encryption")
    if not flavor and not image:
        return None
    # this call only refuses a contradiction between flavor and image; its result is not needed
    guest.agreed_flag("mem_encryption")
    by_flavor, by_image = guest.both_texts("mem_encryption_model")
    if by_flavor is not None and by_image is not None and by_flavor != by_image:
        raise contradiction_error("hw", "mem_encryption_model", by_flavor, by_image)
    model = by_image or by_flavor or "amd-sev"  # Nova's default
    found = _ENCRYPTIONS.get(model)
    if found is None:
        raise refusal_error(
            f"hw:mem_encryption_model cannot be {model!r}, only one of {', '.join(_ENCRYPTIONS)}"
        )
    texts = guest.image.texts
    if texts.get("hw_firmware_type") != "uefi":
        raise refusal_error("encrypted memory needs the image property hw_firmware_type=uefi")
    # an image without a machine type is accepted, because only the host knows the default type
    if "q35" not in texts.get("hw_machine_type", "q35"):
        raise refusal_error(
            "encrypted memory needs a machine of type q35, but the image has another hw_machine_type"
        )
    if found.is_stateless and not has_stateless_firmware(guest):
        raise refusal_error(f"{model} needs the image property hw_firmware_stateless=true")
    if found.has_no_video and texts.get("hw_video_model") != "none":
        raise refusal_error(f"{model} needs the image property hw_video_model=none")
    return found


def has_stateless_firmware(guest: FlavorGuest) -> bool:
    """Return whether the guest's firmware stores no state, which is possible only with UEFI."""
    return (
        guest.image.flags.get("hw_firmware_stateless", False)
        and guest.image.texts.get("hw_firmware_type") == "uefi"
    )


def check_locked(guest: FlavorGuest) -> None:
    """Check that locked memory comes with a page size.

    :raises InvalidRequest: the flavor has no page size, or flavor and image contradict each other.
    """
    if guest.agreed_flag("locked_memory") and not any(guest.both_texts("mem_page_size")):
        raise refusal_error("locked memory needs hw:mem_page_size")


def page_size(guest: FlavorGuest) -> str | int:
    """Return the page size that the guest asks for, in KiB or as a word such as ``large``.

    Return 0 if the guest asks for no page size.

    :raises InvalidRequest: the size is invalid, or the flavor does not allow the size of the image.
    """
    flavor, image = guest.both_texts("mem_page_size")
    if not flavor:
        if image:
            raise refusal_error(
                f"hw_mem_page_size of the image is {image!r}, but the flavor has no hw:mem_page_size"
            )
        return 0
    size = _page_size(flavor)
    if image:
        # an image is allowed to choose a size only if the flavor has one of these words
        if size not in ("any", "large"):
            raise refusal_error(
                f"hw_mem_page_size of the image is {image!r}, but hw:mem_page_size of the flavor is"
                f" {flavor!r}"
            )
        size = _page_size(image)
    return size


def huge_pages(guest: FlavorGuest) -> tuple[str, int] | None:
    """Return the resource class and the number of the guest's huge pages.

    Return None if the guest asks for no particular size of huge pages.

    :raises InvalidRequest: the memory of the flavor is not a multiple of the size.
    """
    size = page_size(guest)
    if isinstance(size, str) or size not in PAGE_CLASSES:
        return None
    # the memory of a flavor is in MiB, and sizes of pages are in KiB
    pages, left = divmod(guest.flavor.ram * 1024, size)
    if left:
        raise refusal_error(
            f"{guest.flavor.ram} MiB of memory are not a multiple of the page size of {size} KiB"
        )
    return PAGE_CLASSES[size], pages


def _page_size(text: str) -> str | int:
    """Return a page size in KiB, rounded up, or a word such as ``large``; refuse any other text."""
    if text in _BY_WORDS:
        return text
    try:
        # a number without a unit is in KiB
        if text.isdigit():
            return int(text)
        match = _SIZE_TEXT.fullmatch(text)
        if match:
            number, unit, kind = match.groups()
            # "b" and "bit" count bits, "B" counts bytes
            size = float(number) * 1024.0 ** _UNITS.index(unit or " ")
            return math.ceil((size if kind == "B" else size / 8) / 1024)
    except (OverflowError, ValueError):
        # the text has digits that int() refuses, or its number is too large for a float
        pass
    raise refusal_error(f"a size of memory pages cannot be {text!r}")


# maximum number of digits of hw:numa_nodes. For very long texts, int() would raise an error of another kind.
_MAX_DIGITS: Final = 9


def check_nodes(guest: FlavorGuest, pinning: CpuPinning) -> None:
    """Check that CPUs and memory of the guest can be divided among its NUMA nodes.

    :raises InvalidRequest: the CPUs or the memory of the nodes do not add up to those of the flavor, or
        flavor and image contradict each other.
    """
    nodes = node_count(guest, pinning)
    if not nodes:
        return
    if pinning.threads == "":  # Nova refuses an empty thread policy only for guests with a NUMA topology
        raise refusal_error("hw:cpu_thread_policy cannot be ''")
    node_cpus = _either_text(
        "numa_cpus", by_node(guest.specs, "hw:numa_cpus", parse_cpus), guest.image.node_cpus
    )
    node_memory = _either_text("numa_mem", by_node(guest.specs, "hw:numa_mem", int), guest.image.node_memory)
    if node_cpus is None and node_memory is None:
        # flavor and image assign no CPUs or memory to nodes, so each node gets an equal share
        if guest.flavor.vcpus % nodes or guest.flavor.ram % nodes:
            raise refusal_error(
                f"{guest.flavor.vcpus} CPUs and {guest.flavor.ram} MiB cannot be divided into {nodes} nodes"
            )
    elif node_cpus is None or node_memory is None or len(node_cpus) != nodes or len(node_memory) != nodes:
        raise refusal_error(
            f"hw:numa_cpus and hw:numa_mem must be given for each of {nodes} NUMA nodes, or for none"
        )
    else:
        _check_parts(guest, node_cpus, node_memory)


def node_count(guest: FlavorGuest, pinning: CpuPinning) -> int:
    """Return the number of the guest's NUMA nodes; 0 if Nova gives the guest no NUMA topology.

    :raises InvalidRequest: the number or the page size is invalid.
    """
    nodes = _node_count(guest)
    # Nova gives a guest with any of these features a NUMA topology of at least one node
    has_topology = page_size(guest) or persistent_labels(guest) or pinning.effective in (DEDICATED, MIXED)
    return nodes or (1 if has_topology else 0)


def persistent_labels(guest: FlavorGuest) -> list[str]:
    """Return the labels of a guest's persistent memory: one label for each namespace that the guest gets."""
    return [label for label in map(str.strip, guest.specs.get("hw:pmem", "").split(",")) if label]


def _node_count(guest: FlavorGuest) -> int:
    spec = guest.specs.get("hw:numa_nodes")
    image = guest.image.numbers.get("hw_numa_nodes")
    if spec and image:
        raise _twice_error("numa_nodes")
    if not spec:
        if image is not None and image < 1:
            raise refusal_error(f"hw_numa_nodes cannot be {image}")
        return image or 0
    if not (spec.isascii() and spec.isdigit()) or spec.startswith("0") or len(spec) > _MAX_DIGITS:
        raise refusal_error(f"hw:numa_nodes cannot be {spec!r}")
    return int(spec)


def _check_parts(guest: FlavorGuest, node_cpus: tuple[int, ...], node_memory: tuple[int, ...]) -> None:
    everything = first_cpus(guest.flavor.vcpus)
    given = 0
    for each in node_cpus:
        if each & ~everything:
            raise refusal_error(f"hw:numa_cpus names CPUs beyond the {guest.flavor.vcpus} of the flavor")
        if each & given:
            raise refusal_error("hw:numa_cpus gives a CPU to more than one NUMA node")
        given |= each
    if given != everything:
        raise refusal_error("hw:numa_cpus does not give each CPU to a NUMA node")
    if sum(node_memory) != guest.flavor.ram:
        raise refusal_error(f"hw:numa_mem does not add up to the {guest.flavor.ram} MiB of the flavor")


def _either_text(
    name: str, flavor: tuple[int, ...] | None, image: tuple[int, ...] | None
) -> tuple[int, ...] | None:
    if flavor is not None and image is not None:
        raise _twice_error(name)
    return image if flavor is None else flavor


def _twice_error(name: str) -> InvalidRequest:
    return refusal_error(f"image and flavor both have hw_{name}: remove it from one of them")
