"""The measured worlds: trees of resource providers as plain data, the same for each service.

All uuids follow from the names, so that the answers of two services can be compared directly.
"""

import random
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

_NAMESPACE: Final = uuid.UUID("6f0b0e0e-6c1a-4c0f-9d0b-6d2f6f6c7a11")
_FLAT_TRAITS: Final = ("HW_CPU_X86_AVX2", "HW_CPU_X86_AVX512F", "STORAGE_DISK_SSD", "CUSTOM_GOLD")

#: resource classes of cache and memory bandwidth, custom because the reference lacks the standard ones
LLC: Final = "CUSTOM_LLC"
MBA: Final = "CUSTOM_MBA"


def uuid_of(name: str) -> str:
    """Return the uuid for a name."""
    return str(uuid.uuid5(_NAMESPACE, name))


def random_uuid(rng: random.Random) -> str:
    """Return a random uuid that follows from the state of the generator."""
    return str(uuid.UUID(int=rng.getrandbits(128), version=4))


@dataclass(frozen=True, slots=True)
class WorldProvider:
    """One resource provider. ``parent`` is a uuid, and ``inventories`` have the format of the API."""

    name: str
    parent: str | None = None
    inventories: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    traits: tuple[str, ...] = ()
    aggregates: tuple[str, ...] = ()

    @property
    def uuid(self) -> str:
        """Return the uuid, which follows from the name."""
        return uuid_of(self.name)


Tree = list[WorldProvider]


@dataclass(frozen=True, slots=True)
class ProviderWorld:
    """A kind of world: ``tree(n)`` is its n-th tree, the root first; ``trees`` is the full size."""

    name: str
    trees: int
    tree: Callable[[int], Tree]
    classes: tuple[str, ...] = ()
    traits: tuple[str, ...] = ()

    def size(self, scale: float) -> int:
        """Return the number of trees at a scale; 1 is the full size."""
        return max(1, round(self.trees * scale))


def aggregate_uuid(number: int) -> str:
    """Return the uuid of one of the three aggregates (0 to 2) of the hosts."""
    return uuid_of(f"aggregate-{number}")


def _nested_tree(number: int) -> Tree:
    """Return a compute node with disk, two NUMA nodes, and below each an FPGA and a GPU: 7 providers."""
    root = WorldProvider(
        f"nested-{number}",
        inventories={"DISK_GB": inventory(2000)},
        traits=("COMPUTE_NODE", "STORAGE_DISK_SSD") if number % 2 else ("COMPUTE_NODE",),
        aggregates=(aggregate_uuid(number % 3),),
    )
    tree = [root]
    for node in range(2):
        cpus = {
            "VCPU": inventory(32, allocation_ratio=4.0),
            "MEMORY_MB": inventory(131072, reserved=1024, step_size=16),
        }
        numa = WorldProvider(
            f"nested-{number}-numa{node}", root.uuid, cpus, ("HW_NUMA_ROOT", "HW_CPU_X86_AVX512F")
        )
        vendor = "CUSTOM_FPGA_INTEL" if (number + node) % 2 else "CUSTOM_FPGA_XILINX"
        tree += [
            numa,
            WorldProvider(f"nested-{number}-fpga{node}", numa.uuid, {"FPGA": inventory(4)}, (vendor,)),
            WorldProvider(
                f"nested-{number}-gpu{node}", numa.uuid, {"VGPU": inventory(16)}, ("HW_GPU_API_VULKAN",)
            ),
        ]
    return tree


def _flat_tree(number: int) -> Tree:
    """Return a host that is one provider, with some of four traits, in one of three aggregates."""
    inventories = {
        "VCPU": inventory(64, allocation_ratio=16.0),
        "MEMORY_MB": inventory(262144, reserved=512, allocation_ratio=1.5),
        "DISK_GB": inventory(10000),
    }
    traits = tuple(trait for every, trait in enumerate(_FLAT_TRAITS, start=1) if number % every == 0)
    return [WorldProvider(f"flat-{number}", None, inventories, traits, (aggregate_uuid(number % 3),))]


def _numa_tree(number: int) -> Tree:
    """Return a root, two NUMA nodes with dedicated and shared CPUs, an L3 domain below each: 5 providers."""
    root = WorldProvider(
        f"numa-{number}",
        inventories={"MEMORY_MB": inventory(262144), "DISK_GB": inventory(4000)},
        traits=("COMPUTE_NODE", "CUSTOM_RESCTRL_L3_CAT") if number % 4 else ("COMPUTE_NODE",),
        aggregates=(aggregate_uuid(number % 3),),
    )
    tree = [root]
    for node in range(2):
        cpus = {"PCPU": inventory(24), "VCPU": inventory(8, allocation_ratio=8.0)}
        traits = ("HW_CPU_HYPERTHREADING", "HW_NUMA_ROOT")
        numa = WorldProvider(f"numa-{number}-numa{node}", root.uuid, cpus, traits)
        cache = {LLC: inventory(15, reserved=1), MBA: inventory(100, min_unit=10, step_size=10)}
        tree += [numa, WorldProvider(f"numa-{number}-l3-{node}", numa.uuid, cache, ("CUSTOM_L3",))]
    return tree


def _wide_tree(number: int) -> Tree:
    """Return a host with 16 devices, each a provider of one unit."""
    root = WorldProvider(f"wide-{number}", inventories={"VCPU": inventory(2000)})
    return [
        root,
        *(
            WorldProvider(f"wide-{number}-device{device}", root.uuid, {"PCI_DEVICE": inventory(1)})
            for device in range(16)
        ),
    ]


def inventory(total: int, **other: float) -> dict[str, float]:
    """Return an inventory in the format of the API; one allocation may take all of it."""
    return {"total": total, "max_unit": total, **other}


WORLDS: Final[Mapping[str, ProviderWorld]] = {
    world.name: world
    for world in (
        ProviderWorld("nested", 1000, _nested_tree, traits=("CUSTOM_FPGA_INTEL", "CUSTOM_FPGA_XILINX")),
        ProviderWorld("flat", 1000, _flat_tree, traits=("CUSTOM_GOLD",)),
        ProviderWorld(
            "numa", 1000, _numa_tree, classes=(LLC, MBA), traits=("CUSTOM_L3", "CUSTOM_RESCTRL_L3_CAT")
        ),
        ProviderWorld("wide", 1, _wide_tree),
    )
}
