"""All that decisions depend on beside the guests, as one frozen value."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from compute_agent.classification.resolution import NO_CLASSIFICATION, ClassificationPolicy
from compute_agent.host.topology import HostTopology
from compute_agent.inventory.provider_tree import ProviderNode, ProviderTree
from compute_agent.model.cpuset import CpuPool, CpuSet, CpuSets
from compute_agent.model.guest import Allocation, Guest
from compute_agent.model.guest_settings import MemoryType
from compute_agent.model.messages import full_name
from compute_agent.model.resource import MEMORY, RECLAIMED_MEMORY, RECLAIMED_VCPU
from compute_agent.policy import STATIC_PLUS, STATIC_POOLS, leave_in_place, place_nowhere
from compute_agent.policy.base import CpuSupply, GuestRequest, Policy, ProviderDemand
from compute_agent.policy.shared_cpus import PoolBorrower, lend_cpus


@dataclass(frozen=True, slots=True)
class HostState:
    """The host as read and configured; replaced as a whole when the host or the configuration changes.

    ``former`` are the zones that have a provider in other shapes of the tree only: what a guest holds there
    keeps it in the zone until it is moved. ``place_unallocated``: guests without an allocation of this host
    go to the shared CPUs; else they stay. ``refuse_unplaced``: a guest that starts and has no place is
    stopped. ``root_known``: it is known whose the root provider is, and which; until then nobody can say what
    of an allocation is of this host. ``rebalance_gain`` is what moving a running guest has to gain (see
    :mod:`compute_agent.policy.running_guests`); None: none is moved. ``pools`` are the pools of CPUs,
    ``warnings`` what files that add to providers say to no effect. ``classification`` says which settings
    guests have.
    ``powered`` are the dedicated CPUs that a
    power manager takes offline and brings online; with ``wakes`` that is the agent.
    """

    topology: HostTopology
    cpu_sets: CpuSets
    tree: ProviderTree
    policy: Policy
    place_unallocated: bool = True
    former: tuple[ProviderNode, ...] = ()
    rebalance_gain: float | None = None
    refuse_unplaced: bool = False
    root_known: bool = True
    pools: tuple[CpuPool, ...] = ()
    warnings: tuple[str, ...] = ()
    classification: ClassificationPolicy = NO_CLASSIFICATION
    powered: CpuSet = frozenset()
    wakes: bool = False

    @property
    def reachable(self) -> CpuSet:
        """The CPUs that guests can run on: those that are online, and those that the agent brings online."""
        return self.topology.online | self.woken

    @property
    def woken(self) -> CpuSet:
        """The parked CPUs that the agent brings online for a guest."""
        return self.topology.parked & self.powered if self.wakes else frozenset()

    @property
    def stopped(self) -> CpuSet:
        """The dedicated CPUs of the agent's own inventory that are offline for another reason than power."""
        if self.tree.beside:  # nova-compute reports them, and keeps those offline that no guest holds
            return frozenset()
        return (self.topology.parked & self.cpu_sets.dedicated | self.cpu_sets.offline) - self.powered

    def with_online(self, online: CpuSet) -> HostState:
        """The same host when these CPUs are online, as far as a power manager may have changed that."""
        topology = self.topology.with_online(online, self.powered)
        return self if topology is self.topology else replace(self, topology=topology)

    @property
    def zones(self) -> tuple[ProviderNode, ...]:
        """All zones of the host that have or had a provider, those of the tree first."""
        return (*self.tree.nodes, *self.former)

    @property
    def zone_cpus(self) -> dict[str, frozenset[int]]:
        """The CPUs of each of these zones that are its own, by the uuid of its provider."""
        return {zone.uuid: self.own_cpus(zone) for zone in self.zones}

    def own_cpus(self, zone: ProviderNode) -> frozenset[int]:
        """The CPUs of a zone without those of pools in it; those of a pool."""
        return zone.cpus if zone.pool else zone.cpus - self.cpu_sets.pooled

    @property
    def pins(self) -> bool:
        """Whether the policy says where guests run."""
        return self.policy not in (place_nowhere, leave_in_place)

    @property
    def follows(self) -> bool:
        """Whether somebody else says where guests run, and the agent goes by that."""
        return self.policy is leave_in_place

    @property
    def has_pools(self) -> bool:
        """Whether there are pools of CPUs, or guests may still hold CPUs of one that is gone."""
        return any(zone.pool for zone in self.zones)

    def around(self, zone: ProviderNode) -> frozenset[int]:
        """The CPUs of a zone; of that around a pool."""
        if not zone.pool:
            return zone.cpus
        return next((outer.cpus for outer in self.zones if outer.uuid == zone.parent), zone.cpus)

    def supply(
        self, holdings: Mapping[str, frozenset[int]], use: Mapping[str, float] | None = None
    ) -> CpuSupply:
        """What there is to give when ``holdings`` (dedicated CPUs by guest) are taken.

        ``use`` is what guests use of CPUs, in cores, as far as it is to count.
        """
        lent = self._lent(holdings) if self.lends else {}
        busy = {
            cpu: min(1.0, cores / len(held))
            for guest, cores in (use or {}).items()
            for held in [holdings.get(guest, frozenset())]
            for cpu in held
        }
        return CpuSupply(self.topology, self.cpu_sets, holdings, lent, busy, self.woken)

    @property
    def pools_only(self) -> bool:
        """Whether guests that hold CPUs of no pool are refused."""
        return self.policy is STATIC_POOLS

    @property
    def lends(self) -> bool:
        """Whether guests float on dedicated CPUs that nobody holds."""
        return self.policy is STATIC_PLUS or any(pool.max_cpus is not None for pool in self.pools)

    def _lent(self, holdings: Mapping[str, frozenset[int]]) -> Mapping[str, frozenset[int]]:
        borrowers = []
        for pool in self.pools:
            if pool.max_cpus is not None:
                mine = [node for node in self.tree.nodes if node.pool == pool.name]
                cpus, zones = (
                    frozenset[int]().union(*each)
                    for each in ((node.cpus for node in mine), map(self.around, mine))
                )
                borrowers.append(PoolBorrower(pool.name, cpus, zones, pool.max_cpus))
        held = frozenset[int]().union(*holdings.values())
        return lend_cpus(self.topology, self.cpu_sets, held, borrowers, self.policy is STATIC_PLUS)

    def own_part(self, allocation: Allocation) -> dict[str, dict[str, int]]:
        """The part of an allocation that is on this host's providers."""
        ours = {zone.uuid for zone in self.zones}
        return {uuid: dict(amounts) for uuid, amounts in allocation.items() if uuid in ours}

    def in_words(self, allocation: Allocation) -> str:
        """An allocation of this host in words: ``2 PCPU, 1024 MEMORY_MB of host_NUMA_0 (uuid)``."""
        names = {zone.uuid: zone.name for zone in self.zones}
        parts = (
            ", ".join(f"{amount} {name}" for name, amount in sorted(amounts.items()))
            + f" of {full_name(names.get(uuid, ''), uuid)}"
            for uuid, amounts in sorted(allocation.items())
        )
        return "; ".join(parts) or "nothing"


def request_for(world: HostState, guest: Guest, allocation: Allocation) -> GuestRequest:
    """What a guest needs, from its settings and from what it holds on this host's providers.

    With the legacy ``vcpu_pin_set`` VCPU is what guests with dedicated CPUs were allocated before there was
    PCPU, and still are by the fall-back query of nova-scheduler: where it backs both classes they get CPUs of
    their own for it.
    """
    settings = guest.settings
    asked = demands(world, allocation)
    vcpu, pcpu = sum(one.vcpu for one in asked), sum(one.pcpu for one in asked)
    if world.cpu_sets.is_both and not pcpu and guest.dedicated and guest.dedicated == vcpu:
        asked = tuple(replace(one, pcpu=one.vcpu, vcpu=0) for one in asked)
    return GuestRequest(
        guest=guest.uuid,
        vcpus=settings.vcpus,
        demands=asked,
        thread_policy=settings.core_policy,
        emulator_policy=settings.emulator_policy,
        dedicated=0 if world.cpu_sets.is_legacy else guest.dedicated,
        constraints=guest.constraints,
        mems=memory_nodes(world, guest, allocation),
        dedicated_vcpus=guest.dedicated_vcpus,
    )


def memory_nodes(world: HostState, guest: Guest, allocation: Allocation) -> frozenset[int]:
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


def held_nodes(world: HostState, allocation: Allocation) -> frozenset[int]:
    """The NUMA nodes that a guest holds memory of; empty where its allocation tells none.

    That of the root is memory of any node. A node that has none (any more) cannot give it.
    """
    classes = (MEMORY, RECLAIMED_MEMORY)
    held = [zone for zone in world.zones if any(allocation.get(zone.uuid, {}).get(name) for name in classes)]
    if any(zone.parent is None for zone in held):
        return frozenset()
    present = {node.id for node in world.topology.numa_nodes if node.memory_kib}
    return frozenset[int]().union(*(zone.numa_nodes for zone in held)) & present


def demands(world: HostState, allocation: Allocation) -> tuple[ProviderDemand, ...]:
    """The CPUs that an allocation asks of each zone, in the order of the zones."""
    found, pools = [], world.has_pools
    for node in world.zones:
        amounts = allocation.get(node.uuid, {})
        pcpu, vcpu = amounts.get("PCPU", 0), amounts.get("VCPU", 0) + amounts.get(RECLAIMED_VCPU, 0)
        if pcpu or vcpu:
            around = world.around(node) if pools else frozenset()
            found.append(ProviderDemand(node.name, world.own_cpus(node), pcpu, vcpu, node.pool, around))
    return tuple(found)
