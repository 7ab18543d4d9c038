"""Realistic clouds: nearly full hosts of many generations, with different traits and aggregates.

A host follows from its number and the seed of its cloud only: hosts 0 to 999 are the same in a cloud of 1,000
and in one of 50,000. Their use comes from a simulated life. Guests of usual flavors start and end at random,
each on one NUMA node, until the host is as full as intended.
"""

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from benchmarks.worlds import Tree, WorldProvider, inventory, uuid_of

#: traits and aggregates of random hosts; the first is rare, for hosts that are out of service
DISABLED: Final = "COMPUTE_STATUS_DISABLED"
TRAITS: Final = tuple(f"CUSTOM_MIXED_{number}" for number in range(60))
ZONES: Final = tuple(uuid_of(f"mixed-zone-{number}") for number in range(3))
TENANTS: Final = tuple(uuid_of(f"mixed-tenant-{number}") for number in range(24))
_POOLS: Final = tuple(uuid_of(f"mixed-pool-{number}") for number in range(3))
AGGREGATES: Final = (*ZONES, *TENANTS, *_POOLS)
"""All 30 aggregates."""

NIC, GPU, NVME = DEVICES = ("CUSTOM_PCI_NIC", "CUSTOM_PCI_GPU", "CUSTOM_PCI_NVME")
_POOL_SIZE: Final = 1_000_000_000
_FAILURES: Final = 12
"""Number of successive failed starts after which a host counts as full."""


@dataclass(frozen=True, slots=True)
class HostGeneration:
    """Hosts that were bought together: NUMA nodes, and the inventories of each node.

    With one node there is no provider for it, as Nova shows hosts. ``disk`` 0 stands for disk from a pool.
    """

    nodes: int
    cpus: int
    ratio: float
    gigabytes: int
    dedicated: int = 0
    disk: int = 0
    devices: Mapping[str, int] = field(default_factory=dict)


_GENERATIONS: Final = (
    HostGeneration(1, 16, 4.0, 192, 0, 4_000, {}),
    HostGeneration(1, 32, 2.0, 256, 0, 8_000, {NIC: 1}),
    HostGeneration(1, 48, 1.5, 256, 8, 0, {}),
    HostGeneration(2, 12, 3.0, 128, 0, 6_000, {NIC: 1}),
    HostGeneration(2, 16, 2.0, 128, 8, 0, {NIC: 2}),
    HostGeneration(2, 24, 2.0, 192, 8, 12_000, {NIC: 1, GPU: 1}),
    HostGeneration(2, 32, 1.0, 192, 16, 0, {NVME: 2}),
    HostGeneration(4, 12, 2.0, 96, 4, 16_000, {NIC: 1}),
    HostGeneration(4, 8, 1.0, 64, 8, 0, {GPU: 1}),
    HostGeneration(4, 16, 1.5, 96, 0, 24_000, {NIC: 1, NVME: 1}),
    HostGeneration(8, 8, 1.5, 64, 0, 0, {NIC: 1}),
    HostGeneration(8, 6, 2.0, 48, 2, 32_000, {GPU: 1}),
)


@dataclass(frozen=True, slots=True)
class MixedFlavor:
    """The resources of a guest: of a node, of disk, and a device of its node; and its frequency."""

    node: Mapping[str, int]
    disk: int
    device: str | None = None
    weight: int = 1


_FLAVORS: Final = (
    MixedFlavor({"VCPU": 1, "MEMORY_MB": 2048}, 20, weight=6),
    MixedFlavor({"VCPU": 2, "MEMORY_MB": 4096}, 40, weight=8),
    MixedFlavor({"VCPU": 4, "MEMORY_MB": 8192}, 80, weight=6),
    MixedFlavor({"VCPU": 8, "MEMORY_MB": 16384}, 160, weight=3),
    MixedFlavor({"VCPU": 2, "MEMORY_MB": 2048}, 20, weight=3),
    MixedFlavor({"VCPU": 2, "MEMORY_MB": 8192}, 20, weight=2),
    MixedFlavor({"PCPU": 2, "MEMORY_MB": 4096}, 40, weight=3),
    MixedFlavor({"PCPU": 4, "MEMORY_MB": 8192}, 80, weight=1),
    MixedFlavor({"VCPU": 2, "MEMORY_MB": 4096}, 40, NIC, weight=2),
    MixedFlavor({"VCPU": 4, "MEMORY_MB": 8192}, 80, GPU, weight=1),
    MixedFlavor({"VCPU": 4, "MEMORY_MB": 8192}, 20, NVME, weight=1),
)
_WEIGHTS: Final = [flavor.weight for flavor in _FLAVORS]

Guest = Mapping[str, Mapping[str, int]]
"""The amounts of a guest, by uuid of the provider and by resource class."""


@dataclass(frozen=True, slots=True)
class MixedCloud:
    """A kind of cloud.

    :param full: the approximate share of the used VCPU of a host.
    :param alike: whether hosts of a generation have the same sizes. Otherwise all hosts have different
        structures.
    """

    name: str
    full: float
    alike: bool = True
    seed: int = 18

    def storage_pools(self) -> Tree:
        """Return the pools of disk, each a separate tree."""
        return [
            WorldProvider(
                f"{self.name}-pool-{number}",
                None,
                {"DISK_GB": inventory(_POOL_SIZE)},
                ("MISC_SHARES_VIA_AGGREGATE",),
                (aggregate,),
            )
            for number, aggregate in enumerate(_POOLS)
        ]

    def make_host(self, number: int) -> tuple[Tree, list[Guest]]:
        """Return one host, and the guests that run there."""
        rng = random.Random(f"{self.seed} {self.name} {number}")
        generation = _GENERATIONS[number % len(_GENERATIONS)]
        if not self.alike:
            generation = _unlike_generation(generation, number, rng)
        tree = list(self._providers(number, generation, rng))
        pool = rng.randrange(len(_POOLS))
        if not generation.disk:
            tree[0] = replace(tree[0], aggregates=(*tree[0].aggregates, _POOLS[pool]))
        disk = tree[0].uuid if generation.disk else uuid_of(f"{self.name}-pool-{pool}")
        return tree, _HostHistory(tree, generation, disk, rng).fill_host(min(1.0, rng.gauss(self.full, 0.04)))

    def hosts(self, count: int) -> Iterator[tuple[Tree, list[Guest]]]:
        """Yield the first hosts."""
        return map(self.make_host, range(count))

    def _providers(
        self, number: int, generation: HostGeneration, rng: random.Random
    ) -> Iterator[WorldProvider]:
        name = f"{self.name}-{number}"
        traits = (
            "COMPUTE_IMAGE_TYPE_QCOW2",
            *rng.sample(TRAITS, rng.randrange(10, 25)),
            *([DISABLED] if rng.random() < 0.02 else []),
        )
        aggregates = (rng.choice(ZONES), *rng.sample(TENANTS, rng.randrange(1, 5)))
        disk = {"DISK_GB": inventory(generation.disk, reserved=20)} if generation.disk else {}
        nodes = [_node_of(generation) for _ in range(generation.nodes)]
        if generation.nodes == 1:
            nodes[0]["MEMORY_MB"] |= {"reserved": 512}
            disk |= nodes[0]
        root = WorldProvider(name, None, disk, traits, aggregates)
        yield root
        for at, inventories in enumerate(nodes):
            parent = root
            if generation.nodes > 1:
                parent = WorldProvider(f"{name}-numa{at}", root.uuid, inventories, ("HW_NUMA_ROOT",))
                yield parent
            for device, count in generation.devices.items():
                # a slot may be empty, so that hosts of one generation have several structures
                for slot in range(count if rng.random() < 0.75 else count - 1):
                    yield WorldProvider(f"{name}-{at}-{device}-{slot}", parent.uuid, {device: inventory(1)})


MIXED: Final = MixedCloud("mixed", 0.90)
CLOUDS: Final[Mapping[str, MixedCloud]] = {
    each.name: each
    for each in (
        MIXED,
        MixedCloud("mixed-full", 0.985),
        MixedCloud("unlike", 0.90, alike=False),
        MixedCloud("unlike-full", 0.985, alike=False),
    )
}


def _node_of(generation: HostGeneration) -> dict[str, dict[str, float]]:
    inventories = {
        "VCPU": inventory(generation.cpus, allocation_ratio=generation.ratio),
        "MEMORY_MB": inventory(generation.gigabytes * 1024),
    }
    if generation.dedicated:
        inventories["PCPU"] = inventory(generation.dedicated)
    return inventories


def _unlike_generation(generation: HostGeneration, number: int, rng: random.Random) -> HostGeneration:
    """Return a generation of one host only: its total of memory, and so its largest portion, is unique."""
    return replace(
        generation,
        nodes=rng.choice((1, 2, 2, 4, 8)),
        cpus=rng.randrange(8, 33),
        ratio=rng.choice((1.0, 1.5, 2.0)),
        gigabytes=100 + number,
        dedicated=rng.choice((0, 0, 2, 4, 8)),
        disk=rng.choice((0, rng.randrange(5_000, 50_000))),
        devices={device: rng.randrange(1, 3) for device in DEVICES if rng.random() < 0.4},
    )


class _HostHistory:
    """A host while guests start and end."""

    def __init__(
        self, tree: Sequence[WorldProvider], generation: HostGeneration, disk: str, rng: random.Random
    ) -> None:
        self._rng = rng
        self._disk = disk
        self._free = {
            each.uuid: {
                name: int((values["total"] - values.get("reserved", 0)) * values.get("allocation_ratio", 1.0))
                for name, values in each.inventories.items()
            }
            for each in tree
        }
        self._free.setdefault(disk, {"DISK_GB": _POOL_SIZE})
        self._nodes = [each.uuid for each in tree if "VCPU" in each.inventories]
        self._devices = {
            (each.parent, name): [
                other.uuid for other in tree if other.parent == each.parent and name in other.inventories
            ]
            for each in tree
            for name in each.inventories
            if name in DEVICES
        }
        self._guests: list[dict[str, dict[str, int]]] = []

    def fill_host(self, full: float) -> list[Guest]:
        """Start and end guests until the host is full enough or no guest fits; return the guests.

        :param full: share of the VCPU to use.
        """
        rng = self._rng
        wanted = full * self._free_vcpu()
        used = 0
        total, failed = self._free_vcpu(), 0
        while used < wanted and failed < _FAILURES:
            (flavor,) = rng.choices(_FLAVORS, _WEIGHTS)
            if used + flavor.node.get("VCPU", 0) > wanted or not self._start_guest(flavor):
                failed += 1
            else:
                failed = 0
            if self._guests and not failed and rng.random() < 0.3:
                self._end_guest(rng.randrange(len(self._guests)))
            used = total - self._free_vcpu()
        return list(self._guests)

    def _free_vcpu(self) -> int:
        return sum([self._free[node]["VCPU"] for node in self._nodes])

    def _start_guest(self, flavor: MixedFlavor) -> bool:
        nodes = self._rng.sample(self._nodes, len(self._nodes))
        for node in nodes:
            guest = {node: dict(flavor.node)}
            if flavor.device is not None:
                devices = self._devices.get((node, flavor.device), ())
                found = next((each for each in devices if self._free[each][flavor.device]), None)
                if found is None:
                    continue
                guest[found] = {flavor.device: 1}
            guest.setdefault(self._disk, {})["DISK_GB"] = flavor.disk
            if self._has_room(guest):
                self._take_amounts(guest, 1)
                self._guests.append(guest)
                return True
        return False

    def _has_room(self, guest: Guest) -> bool:
        return all(
            amount <= self._free[uuid].get(name, 0)
            for uuid, amounts in guest.items()
            for name, amount in amounts.items()
        )

    def _end_guest(self, at: int) -> None:
        self._take_amounts(self._guests.pop(at), -1)

    def _take_amounts(self, guest: Guest, sign: int) -> None:
        for uuid, amounts in guest.items():
            for name, amount in amounts.items():
                self._free[uuid][name] -= sign * amount
