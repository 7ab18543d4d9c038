"""The input of decisions apart from the guests, as one frozen value."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from compute_agent.classification.resolution import NO_CLASSIFICATION, ClassificationPolicy
from compute_agent.host.topology import HostTopology
from compute_agent.inventory.attributes import NUMA_NODE
from compute_agent.inventory.provider_tree import ProviderNode, ProviderTree
from compute_agent.model.cpuset import CpuPool, CpuSet, CpuSets
from compute_agent.model.guest import Allocation, Guest
from compute_agent.model.guest_settings import GuestSettings, IsolationLevel, MemoryType
from compute_agent.model.messages import full_name
from compute_agent.model.resource import MEMORY, RECLAIMED_MEMORY, RECLAIMED_VCPU
from compute_agent.policy import STATIC_PLUS, STATIC_POOLS, leave_in_place, place_nowhere
from compute_agent.policy.base import CpuSupply, GuestRequest, Policy, ProviderDemand
from compute_agent.policy.shared_cpus import PoolBorrower, lend_cpus


@dataclass(frozen=True, slots=True)
class HostState:
    """The host as read and configured; replaced as a whole when the host or the configuration changes.

    :ivar place_unallocated: whether guests without an allocation go to the shared CPUs. Otherwise such guests
        stay where they are.
    :ivar former: zones with a provider in other shapes of the tree only. A guest with an allocation from such
        a provider stays in that zone until the guest is moved.
    :ivar rebalance_gain: the least gain for which a running guest moves (see
        :mod:`compute_agent.policy.running_guests`); None: guests do not move.
    :ivar refuse_unplaced: whether a guest that starts and has no place is stopped.
    :ivar root_known: whether the root provider is known. Until then no part of an allocation counts as this
        host's.
    :ivar pools: the pools of CPUs.
    :ivar warnings: sentences about parts of provider files that have no effect.
    :ivar classification: the rules for settings of guests.
    :ivar powered: the dedicated CPUs that a power manager takes offline and brings online.
    :ivar wakes: whether the agent is that power manager.
    :ivar set_apart: CPUs of the boot options ``isolcpus`` and ``nohz_full``.
    :ivar alone_classes: the classes of guests with the level of isolation ``alone``.
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
    set_apart: CpuSet = frozenset()
    alone_classes: frozenset[str] = frozenset()

    @property
    def reachable_cpus(self) -> CpuSet:
        """The CPUs on which guests can run: online ones, and those that the agent brings online."""
        return self.topology.online | self.woken_cpus

    @property
    def woken_cpus(self) -> CpuSet:
        """The parked CPUs that the agent brings online for a guest."""
        return self.topology.parked & self.powered if self.wakes else frozenset()

    @property
    def stopped_cpus(self) -> CpuSet:
        """The dedicated CPUs of the agent's own inventory that are offline for another reason than power."""
        if self.tree.beside:  # nova-compute reports them, and keeps those offline that no guest holds
            return frozenset()
        return (self.topology.parked & self.cpu_sets.dedicated | self.cpu_sets.offline) - self.powered

    def with_online(self, online: CpuSet) -> HostState:
        """The same host with these CPUs online. Only CPUs of the power manager change."""
        topology = self.topology.with_online(online, self.powered)
        # The same object where nothing changed, so that comparisons of host states end at identity.
        return self if topology is self.topology else replace(self, topology=topology)

    @property
    def all_zones(self) -> tuple[ProviderNode, ...]:
        """All zones of the host that have or had a provider; those of the present tree come first."""
        return (*self.tree.nodes, *self.former)

    @property
    def zone_cpus(self) -> dict[str, frozenset[int]]:
        """The own CPUs of each of these zones, by the uuid of its provider."""
        return {zone.uuid: self.own_cpus(zone) for zone in self.all_zones}

    def own_cpus(self, zone: ProviderNode) -> frozenset[int]:
        """The CPUs of a zone without those of the pools in it; all CPUs of a pool."""
        return zone.cpus if zone.pool else zone.cpus - self.cpu_sets.pooled

    @property
    def places_guests(self) -> bool:
        """Whether the policy decides where guests run."""
        return self.policy not in (place_nowhere, leave_in_place)

    @property
    def follows_kernel(self) -> bool:
        """Whether another program decides where guests run, and the agent reads that from the kernel."""
        return self.policy is leave_in_place

    @property
    def has_pools(self) -> bool:
        """Whether there are pools of CPUs, or guests may still hold CPUs of one that is gone."""
        return any(zone.pool for zone in self.all_zones)

    def surrounding_cpus(self, zone: ProviderNode) -> frozenset[int]:
        """The CPUs of a zone; for a pool those of the zone around it."""
        if not zone.pool:
            return zone.cpus
        return next((outer.cpus for outer in self.all_zones if outer.uuid == zone.parent), zone.cpus)

    def cpu_supply(
        self, holdings: Mapping[str, frozenset[int]], use: Mapping[str, float] | None = None
    ) -> CpuSupply:
        """The CPUs from which the policy may choose.

        :param holdings: the dedicated CPUs that guests hold, by uuid.
        :param use: the CPU use of guests in cores; None: the choice does not depend on the use.
        """
        lent = self._lent_cpus(holdings) if self.lends_cpus else {}
        # The use of a guest is spread evenly over its CPUs: it is not known of single CPUs.
        busy = {
            cpu: min(1.0, cores / len(held))
            for guest, cores in (use or {}).items()
            for held in [holdings.get(guest, frozenset())]
            for cpu in held
        }
        return CpuSupply(self.topology, self.cpu_sets, holdings, lent, busy, self.woken_cpus, self.set_apart)

    @property
    def pools_only(self) -> bool:
        """Whether guests without an allocation of a pool's CPUs are refused."""
        return self.policy is STATIC_POOLS

    @property
    def lends_cpus(self) -> bool:
        """Whether guests may float on dedicated CPUs that no guest holds."""
        return self.policy is STATIC_PLUS or any(pool.max_cpus is not None for pool in self.pools)

    def _lent_cpus(self, holdings: Mapping[str, frozenset[int]]) -> Mapping[str, frozenset[int]]:
        borrowers = []
        for pool in self.pools:
            if pool.max_cpus is not None:
                mine = [node for node in self.tree.nodes if node.pool == pool.name]
                cpus, zones = (
                    frozenset[int]().union(*each)
                    for each in ((node.cpus for node in mine), map(self.surrounding_cpus, mine))
                )
                borrowers.append(PoolBorrower(pool.name, cpus, zones, pool.max_cpus))
        held = frozenset[int]().union(*holdings.values())
        return lend_cpus(self.topology, self.cpu_sets, held, borrowers, self.policy is STATIC_PLUS)

    def own_part(self, allocation: Allocation) -> dict[str, dict[str, int]]:
        """The part of an allocation that is of this host's providers."""
        ours = {zone.uuid for zone in self.all_zones}
        return {uuid: dict(amounts) for uuid, amounts in allocation.items() if uuid in ours}

    def in_words(self, allocation: Allocation) -> str:
        """An allocation of this host in words: ``2 PCPU, 1024 MEMORY_MB of host_NUMA_0 (uuid)``."""
        names = {zone.uuid: zone.name for zone in self.all_zones}
        parts = (
            ", ".join(f"{amount} {name}" for name, amount in sorted(amounts.items()))
            + f" of {full_name(names.get(uuid, ''), uuid)}"
            for uuid, amounts in sorted(allocation.items())
        )
        return "; ".join(parts) or "nothing"


def request_for(host_state: HostState, guest: Guest, allocation: Allocation) -> GuestRequest:
    """The request of a guest, from its settings and its allocation of this host's providers.

    Before PCPU existed, guests with dedicated CPUs were allocated VCPU; the fall-back query of nova-scheduler
    still does that. So with the legacy ``vcpu_pin_set``, which backs both classes, such guests get dedicated
    CPUs for their VCPU.
    """
    settings = guest.settings
    asked = cpu_demands(host_state, allocation)
    vcpu, pcpu = sum(one.vcpu for one in asked), sum(one.pcpu for one in asked)
    if host_state.cpu_sets.is_both and not pcpu and guest.dedicated and guest.dedicated == vcpu:
        asked = tuple(replace(one, pcpu=one.vcpu, vcpu=0) for one in asked)
    return GuestRequest(
        guest=guest.uuid,
        vcpus=settings.vcpus,
        demands=asked,
        thread_policy=settings.core_policy,
        emulator_policy=settings.emulator_policy,
        dedicated=0 if host_state.cpu_sets.is_legacy else guest.dedicated,
        constraints=guest.constraints,
        mems=memory_nodes(host_state, guest, allocation),
        dedicated_vcpus=guest.dedicated_vcpus,
        alone=is_alone(host_state, settings),
        near=device_nodes(host_state, guest, allocation),
        near_only=guest.identity.extra_specs.get(PCI_AFFINITY, "") == "required",
    )


def is_alone(host_state: HostState, settings: GuestSettings) -> bool:
    """Whether the level of a guest, its own or that of its class, is ``alone``."""
    if settings.isolation:
        return settings.isolation is IsolationLevel.ALONE
    return settings.qos_class in host_state.alone_classes


PCI_AFFINITY: Final = "hw:pci_numa_affinity_policy"
"""The extra spec of Nova's flavors for the distance of a guest from its PCI devices."""


def device_nodes(host_state: HostState, guest: Guest, allocation: Allocation) -> frozenset[int]:
    """The NUMA nodes with CPUs that are nearest to the PCI devices of a guest.

    These are devices in its allocation of this host, and devices of nova-compute in its definition.
    """
    tree = host_state.tree
    told = [node.attributes for node in tree.nodes if node.device and node.uuid in allocation]
    told += [tree.device_attributes.get(address, {}) for address in sorted(guest.devices or ())]
    numbers = (attributes.get(NUMA_NODE) for attributes in told)
    return frozenset(int(number) for number in numbers if isinstance(number, float))


def memory_nodes(host_state: HostState, guest: Guest, allocation: Allocation) -> frozenset[int]:
    """The NUMA nodes for the memory of a guest; empty: the allocation names no node.

    The result has the nodes of its allocation that have the type of memory in its settings. An allocation
    that names no node leaves all nodes of that type. If no node is left, the nodes of the allocation count.
    """
    held, wanted = held_nodes(host_state, allocation), guest.settings.memory_type
    if wanted is MemoryType.ANY:
        return held
    kinds = host_state.topology.memory_types
    of_kind = frozenset(node for node, kind in kinds.items() if kind is wanted)
    return (held & of_kind if held else of_kind) or held


def held_nodes(host_state: HostState, allocation: Allocation) -> frozenset[int]:
    """The NUMA nodes that a guest's allocation of memory names; empty if it names none.

    Memory of the root provider may come from any node. Nodes without memory are left out.
    """
    classes = (MEMORY, RECLAIMED_MEMORY)
    held = [
        zone
        for zone in host_state.all_zones
        if any(allocation.get(zone.uuid, {}).get(name) for name in classes)
    ]
    if any(zone.parent is None for zone in held):
        return frozenset()
    # No memory can be bound to a node that has CPUs alone.
    present = {node.id for node in host_state.topology.numa_nodes if node.memory_kib}
    return frozenset[int]().union(*(zone.numa_nodes for zone in held)) & present


def cpu_demands(host_state: HostState, allocation: Allocation) -> tuple[ProviderDemand, ...]:
    """The CPUs that an allocation has of each zone, in the order of the zones."""
    found, pools = [], host_state.has_pools
    for node in host_state.all_zones:
        amounts = allocation.get(node.uuid, {})
        pcpu, vcpu = amounts.get("PCPU", 0), amounts.get("VCPU", 0) + amounts.get(RECLAIMED_VCPU, 0)
        if pcpu or vcpu:
            around = host_state.surrounding_cpus(node) if pools else frozenset()
            found.append(ProviderDemand(node.name, host_state.own_cpus(node), pcpu, vcpu, node.pool, around))
    return tuple(found)
