"""Everything that decisions depend on beside the guests themselves, as one frozen value."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from compute_agent.host.topology import Topology
from compute_agent.inventory.tree import ProviderNode, ProviderTree
from compute_agent.model.allocation import Allocation
from compute_agent.model.cpu_sets import CpuSets
from compute_agent.model.guest import Guest
from compute_agent.model.memory_type import MemoryType
from compute_agent.model.naming import called
from compute_agent.policy import leave_in_place, place_nowhere
from compute_agent.policy.base import Demand, Policy, Request, Supply


@dataclass(frozen=True, slots=True)
class World:
    """The host as read and configured; replaced as a whole when the host or the configuration changes.

    ``former`` are the zones that have a provider in other shapes of the tree only: what a guest holds there
    keeps it in the zone until it is moved. ``place_unallocated``: guests without an allocation of this host
    go to the shared CPUs; else they stay. ``refuse_unplaced``: a guest that starts and has no place is
    stopped. ``root_known``: it is known whose the root provider is, and which; until then nobody can say what
    of an allocation is of this host. ``rebalance_gain`` is what moving a running guest has to gain (see
    :mod:`compute_agent.policy.rebalance`); None: none is moved.
    """

    topology: Topology
    cpu_sets: CpuSets
    tree: ProviderTree
    policy: Policy
    place_unallocated: bool = True
    former: tuple[ProviderNode, ...] = ()
    rebalance_gain: float | None = None
    refuse_unplaced: bool = False
    root_known: bool = True

    @property
    def zones(self) -> tuple[ProviderNode, ...]:
        """All zones of the host that have or had a provider, those of the tree first."""
        return (*self.tree.nodes, *self.former)

    @property
    def zone_cpus(self) -> dict[str, frozenset[int]]:
        """The CPUs of each of these zones, by the uuid of its provider."""
        return {zone.uuid: zone.cpus for zone in self.zones}

    @property
    def pins(self) -> bool:
        """Whether the policy says where guests run."""
        return self.policy not in (place_nowhere, leave_in_place)

    @property
    def follows(self) -> bool:
        """Whether somebody else says where guests run, and the agent goes by that."""
        return self.policy is leave_in_place

    def supply(self, holdings: Mapping[str, frozenset[int]]) -> Supply:
        """What there is to give when ``holdings`` (dedicated CPUs by guest) are taken."""
        return Supply(self.topology, self.cpu_sets, holdings)

    def own_part(self, allocation: Allocation) -> dict[str, dict[str, int]]:
        """The part of an allocation that is on this host's providers."""
        ours = {zone.uuid for zone in self.zones}
        return {uuid: dict(amounts) for uuid, amounts in allocation.items() if uuid in ours}

    def in_words(self, allocation: Allocation) -> str:
        """An allocation of this host in words: ``2 PCPU, 1024 MEMORY_MB of host_NUMA_0 (uuid)``."""
        names = {zone.uuid: zone.name for zone in self.zones}
        parts = (
            ", ".join(f"{amount} {name}" for name, amount in sorted(amounts.items()))
            + f" of {called(names.get(uuid, ''), uuid)}"
            for uuid, amounts in sorted(allocation.items())
        )
        return "; ".join(parts) or "nothing"


def request_for(world: World, guest: Guest, allocation: Allocation) -> Request:
    """What a guest needs, from its settings and from what it holds on this host's providers.

    With the legacy ``vcpu_pin_set`` VCPU is what guests with dedicated CPUs were allocated before there was
    PCPU, and still are by the fall-back query of nova-scheduler: where it backs both classes they get CPUs of
    their own for it.
    """
    settings = guest.settings
    asked = demands(world.zones, allocation)
    vcpu, pcpu = sum(one.vcpu for one in asked), sum(one.pcpu for one in asked)
    if world.cpu_sets.both and not pcpu and guest.dedicated and guest.dedicated == vcpu:
        asked = tuple(replace(one, pcpu=one.vcpu, vcpu=0) for one in asked)
    return Request(
        guest=guest.uuid,
        vcpus=settings.vcpus,
        demands=asked,
        thread_policy=settings.thread_policy,
        emulator_policy=settings.emulator_policy,
        dedicated=0 if world.cpu_sets.legacy else guest.dedicated,
        constraints=guest.constraints,
        mems=memory_nodes(world, guest, allocation),
    )


def memory_nodes(world: World, guest: Guest, allocation: Allocation) -> frozenset[int]:
    """The NUMA nodes that a guest is to have its memory of; empty: that is not told by node.

    Those that it holds memory of, and of these, or else of all, those with the kind of memory that it asks
    for. Where that leaves none, what it holds counts.
    """
    held, wanted = held_nodes(world, allocation), guest.settings.memory_type
    if wanted is MemoryType.ANY:
        return held
    kinds = world.topology.memory_types
    of_kind = frozenset(node for node, kind in kinds.items() if kind is wanted)
    return (held & of_kind if held else of_kind) or held


def held_nodes(world: World, allocation: Allocation) -> frozenset[int]:
    """The NUMA nodes that a guest holds memory of; empty where its allocation tells none.

    That of the root is memory of any node. A node that has none (any more) cannot give it.
    """
    held = [zone for zone in world.zones if allocation.get(zone.uuid, {}).get("MEMORY_MB")]
    if any(zone.parent is None for zone in held):
        return frozenset()
    present = {node.id for node in world.topology.numa_nodes if node.memory_kib}
    return frozenset[int]().union(*(zone.numa_nodes for zone in held)) & present


def demands(zones: Iterable[ProviderNode], allocation: Allocation) -> tuple[Demand, ...]:
    """The CPUs that an allocation asks of each zone, in the order of the zones."""
    found = []
    for node in zones:
        amounts = allocation.get(node.uuid, {})
        demand = Demand(node.name, node.cpus, amounts.get("PCPU", 0), amounts.get("VCPU", 0))
        if demand.pcpu or demand.vcpu:
            found.append(demand)
    return tuple(found)
