"""The NUMA nodes of a guest: they are no part of a query, but have to add up."""

from typing import Final

from placement.exceptions import InvalidRequest
from placement_extras.flavors import cpus, memory
from placement_extras.flavors.flavor import refused
from placement_extras.flavors.guest import FlavorGuest
from placement_extras.flavors.pinning import DEDICATED, MIXED, CpuPinning
from placement_extras.flavors.properties import by_node

_DIGITS: Final = 9


def check(guest: FlavorGuest, pinning: CpuPinning) -> None:
    """Make sure that the CPUs and the memory of the guest can be parted among its nodes.

    :raises InvalidRequest: what flavor and image say of it cannot be.
    """
    nodes = _nodes(guest)
    has_pages = memory.has_pages(guest)
    if not (nodes or has_pages or persistent(guest) or pinning.effective in (DEDICATED, MIXED)):
        return
    if pinning.threads == "":  # no policy otherwise, but here it is written down for each node
        raise refused("hw:cpu_thread_policy cannot be ''")
    nodes = nodes or 1
    node_cpus = _one_of("numa_cpus", by_node(guest.specs, "hw:numa_cpus", cpus.parse), guest.image.node_cpus)
    node_memory = _one_of("numa_mem", by_node(guest.specs, "hw:numa_mem", int), guest.image.node_memory)
    if node_cpus is None and node_memory is None:
        if guest.flavor.vcpus % nodes or guest.flavor.ram % nodes:
            raise refused(
                f"{guest.flavor.vcpus} CPUs and {guest.flavor.ram} MiB cannot be parted into {nodes} nodes"
            )
    elif node_cpus is None or node_memory is None or len(node_cpus) != nodes or len(node_memory) != nodes:
        raise refused(
            f"hw:numa_cpus and hw:numa_mem have to be there for each of {nodes} NUMA nodes, or for none"
        )
    else:
        _check_parts(guest, node_cpus, node_memory)


def persistent(guest: FlavorGuest) -> list[str]:
    """The labels of the persistent memory that is wanted, one of them for each namespace."""
    return [label for label in map(str.strip, guest.specs.get("hw:pmem", "").split(",")) if label]


def _nodes(guest: FlavorGuest) -> int:
    spec = guest.specs.get("hw:numa_nodes")
    image = guest.image.numbers.get("hw_numa_nodes")
    if spec and image:
        raise _twice("numa_nodes")
    if not spec:
        if image is not None and image < 1:
            raise refused(f"hw_numa_nodes cannot be {image}")
        return image or 0
    if not (spec.isascii() and spec.isdigit()) or spec.startswith("0") or len(spec) > _DIGITS:
        raise refused(f"hw:numa_nodes cannot be {spec!r}")
    return int(spec)


def _check_parts(guest: FlavorGuest, node_cpus: tuple[int, ...], node_memory: tuple[int, ...]) -> None:
    everything = cpus.first(guest.flavor.vcpus)
    given = 0
    for each in node_cpus:
        if each & ~everything:
            raise refused(f"hw:numa_cpus names CPUs beyond the {guest.flavor.vcpus} of the flavor")
        if each & given:
            raise refused("hw:numa_cpus gives a CPU to more than one NUMA node")
        given |= each
    if given != everything:
        raise refused("hw:numa_cpus does not give each CPU to a NUMA node")
    if sum(node_memory) != guest.flavor.ram:
        raise refused(f"hw:numa_mem does not add up to the {guest.flavor.ram} MiB of the flavor")


def _one_of(
    name: str, flavor: tuple[int, ...] | None, image: tuple[int, ...] | None
) -> tuple[int, ...] | None:
    if flavor is not None and image is not None:
        raise _twice(name)
    return image if flavor is None else flavor


def _twice(name: str) -> InvalidRequest:
    return refused(f"the image has hw_{name}, which the flavor has as well: one of them has to do without")
