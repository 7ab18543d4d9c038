"""The host state: one frozen object with the hardware and the configuration, for the worker's decisions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
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
from compute_agent.policy.load_profiles import LoadProfile, use_per_cpu
from compute_agent.policy.shared_cpus import PoolBorrower, lend_cpus


@dataclass(frozen=True, slots=True)
class HostState:
    """The hardware and the configuration of the host; replaced as a whole when one of them changes.

    :ivar cpu_sets: which CPUs are dedicated, which are shared, and which belong to pools.
    :ivar tree: the tree of resource providers that the agent reports for the host.
    :ivar policy: the function that assigns CPUs to guests, selected by ``[policy] name``.
    :ivar place_unallocated: whether guests without an allocation run on the shared CPUs. If not, the agent
        does not place these guests.
    :ivar former: zones of an earlier shape of the provider tree. A guest with an allocation in a former zone
        stays in this zone until the guest is moved.
    :ivar rebalance_gain: the minimum gain of a move of a running guest (see
        :mod:`compute_agent.policy.running_guests`); None means that guests are not moved.
    :ivar refuse_unplaced: whether a guest that is refused at its start is stopped.
    :ivar root_known: whether the root provider is known. While the root provider is unknown, the agent cannot
        recognise allocations on this host.
    :ivar pools: the CPU pools of the configuration.
    :ivar warnings: warnings about the configuration on this host, such as options without effect.
    :ivar classification: the rules that choose settings of guests.
    :ivar powered: the dedicated CPUs that a power manager may take offline and bring online.
    :ivar wakes: whether the agent itself takes the ``powered`` CPUs offline and brings them online.
    :ivar set_apart: CPUs in the boot options ``isolcpus`` and ``nohz_full``.
    :ivar alone_classes: the names of classes of guests with the isolation level ``alone``.
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
        """The CPUs on which guests can run: online CPUs, and parked CPUs that the agent brings online."""
        return self.topology.online | self.woken_cpus

    @property
    def woken_cpus(self) -> CpuSet:
        """The parked CPUs that the agent brings online for a guest."""
        return self.topology.parked & self.powered if self.wakes else frozenset()

    @property
    def stopped_cpus(self) -> CpuSet:
        """The offline CPUs in the agent's inventories of PCPU that no power manager has taken offline."""
        # If nova-compute owns the root provider, nova-compute reports the CPUs, and takes unused CPUs
        # offline.
        if self.tree.beside:
            return frozenset()
        return (self.topology.parked & self.cpu_sets.dedicated | self.cpu_sets.offline) - self.powered

    def with_online(self, online: CpuSet) -> HostState:
        """A copy in which ``online`` decides which of the power manager's CPUs are online."""
        topology = self.topology.with_online(online, self.powered)
        # If nothing has changed, the same object is returned. So comparisons of host states are fast.
        return self if topology is self.topology else replace(self, topology=topology)

    @property
    def all_zones(self) -> tuple[ProviderNode, ...]:
        """The zones of the present provider tree, and then the zones of its former shapes."""
        # Each round reads the zones for each guest, and usually there are no former zones.
        return (*self.tree.nodes, *self.former) if self.former else self.tree.nodes

    @property
    def zone_cpus(self) -> dict[str, frozenset[int]]:
        """The result of own_cpus() for each zone in ``all_zones``, by uuid of its provider."""
        return {zone.uuid: self.own_cpus(zone) for zone in self.all_zones}

    def own_cpus(self, zone: ProviderNode) -> frozenset[int]:
        """The CPUs of a zone, except those of pools inside the zone. For a pool, all of its CPUs."""
        return zone.cpus if zone.pool else zone.cpus - self.cpu_sets.pooled

    @property
    def places_guests(self) -> bool:
        """Whether the policy assigns CPUs to guests."""
        return self.policy not in (place_nowhere, leave_in_place)

    @property
    def follows_kernel(self) -> bool:
        """Whether another program pins guests, and the agent reads their CPUs from the kernel."""
        return self.policy is leave_in_place

    @property
    def has_pools(self) -> bool:
        """Whether the tree has CPU pools, or had pools of which guests perhaps still hold CPUs."""
        return any(zone.pool for zone in self.all_zones)

    def surrounding_cpus(self, zone: ProviderNode) -> frozenset[int]:
        """The CPUs of a zone. For a pool, the CPUs of the zone that contains the pool."""
        if not zone.pool:
            return zone.cpus
        return next((outer.cpus for outer in self.all_zones if outer.uuid == zone.parent), zone.cpus)

    def cpu_supply(
        self, holdings: Mapping[str, frozenset[int]], use: Mapping[str, LoadProfile] = MappingProxyType({})
    ) -> CpuSupply:
        """The CPUs from which the policy can choose.

        :param holdings: the dedicated CPUs that guests hold, by uuid.
        :param use: the CPU use of guests in cores by hour of the week, by uuid.
        """
        lent = self._lent_cpus(holdings) if self.lends_cpus else {}
        # The use of single CPUs is not known. So the use of a guest is spread evenly over its CPUs.
        busy = {
            cpu: use_per_cpu(cores, len(held))
            for guest, cores in use.items()
            for held in [holdings.get(guest, frozenset())]
            for cpu in held
        }
        return CpuSupply(
            self.topology, self.cpu_sets, holdings, lent, use, busy, self.woken_cpus, self.set_apart
        )

    @property
    def pools_only(self) -> bool:
        """Whether guests without an allocation of a pool's CPUs are refused."""
        return self.policy is STATIC_POOLS

    @property
    def lends_cpus(self) -> bool:
        """Whether guests may also float on dedicated CPUs that no guest holds."""
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
        """The part of an allocation that is on resource providers of this host."""
        ours = {zone.uuid for zone in self.all_zones}
        return {uuid: dict(amounts) for uuid, amounts in allocation.items() if uuid in ours}

    def in_words(self, allocation: Allocation) -> str:
        """An allocation on this host as text: ``2 PCPU, 1024 MEMORY_MB of host_NUMA_0 (uuid)``."""
        names = {zone.uuid: zone.name for zone in self.all_zones}
        parts = (
            ", ".join(f"{amount} {name}" for name, amount in sorted(amounts.items()))
            + f" of {full_name(names.get(uuid, ''), uuid)}"
            for uuid, amounts in sorted(allocation.items())
        )
        return "; ".join(parts) or "nothing"


def request_for(host_state: HostState, guest: Guest, allocation: Allocation) -> GuestRequest:
    """Build the placement request of a guest from its settings and its allocation on this host.

    With the legacy option ``vcpu_pin_set``, the agent offers the same CPUs as PCPU and as VCPU. A guest with
    a flavor for dedicated CPUs can hold VCPU in place of PCPU: then the allocation is older than PCPU, or
    nova-scheduler used its fall-back query. The guest then gets dedicated CPUs for its VCPU.
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
    """Whether a guest has the isolation level ``alone``, from its own setting or from its class."""
    if settings.isolation:
        return settings.isolation is IsolationLevel.ALONE
    return settings.qos_class in host_state.alone_classes


PCI_AFFINITY: Final = "hw:pci_numa_affinity_policy"
"""The extra spec of Nova's flavors for the NUMA affinity of a guest to its PCI devices."""


def device_nodes(host_state: HostState, guest: Guest, allocation: Allocation) -> frozenset[int]:
    """The NUMA nodes with the CPUs nearest to the PCI devices in a guest's allocation or definition."""
    tree = host_state.tree
    told = [node.attributes for node in tree.nodes if node.device and node.uuid in allocation]
    told += [tree.device_attributes.get(address, {}) for address in sorted(guest.devices or ())]
    numbers = (attributes.get(NUMA_NODE) for attributes in told)
    return frozenset(int(number) for number in numbers if isinstance(number, float))


def memory_nodes(host_state: HostState, guest: Guest, allocation: Allocation) -> frozenset[int]:
    """The NUMA nodes for the memory of a guest; empty means any node.

    The settings of the guest can name a memory type. The result contains the nodes of the guest's allocation
    that have this type. If the allocation names no node, the result contains all nodes of the type. If no
    node has the type, the result contains the nodes of the allocation.
    """
    held, wanted = held_nodes(host_state, allocation), guest.settings.memory_type
    if wanted is MemoryType.ANY:
        return held
    kinds = host_state.topology.memory_types
    of_kind = frozenset(node for node, kind in kinds.items() if kind is wanted)
    return (held & of_kind if held else of_kind) or held


def held_nodes(host_state: HostState, allocation: Allocation) -> frozenset[int]:
    """The NUMA nodes of an allocation's memory; empty if the memory is allocated from the root provider."""
    classes = (MEMORY, RECLAIMED_MEMORY)
    held = [
        zone
        for zone in host_state.all_zones
        if any(allocation.get(zone.uuid, {}).get(name) for name in classes)
    ]
    if any(zone.parent is None for zone in held):
        return frozenset()
    # A node with CPUs only is left out, because memory cannot be bound to it.
    present = {node.id for node in host_state.topology.numa_nodes if node.memory_kib}
    return frozenset[int]().union(*(zone.numa_nodes for zone in held)) & present


def cpu_demands(host_state: HostState, allocation: Allocation) -> tuple[ProviderDemand, ...]:
    """The demands of an allocation for CPUs, one for each zone; reclaimed CPUs count as VCPU."""
    found, pools = [], host_state.has_pools
    for node in host_state.all_zones:
        amounts = allocation.get(node.uuid, {})
        pcpu, vcpu = amounts.get("PCPU", 0), amounts.get("VCPU", 0) + amounts.get(RECLAIMED_VCPU, 0)
        if pcpu or vcpu:
            around = host_state.surrounding_cpus(node) if pools else frozenset()
            found.append(ProviderDemand(node.name, host_state.own_cpus(node), pcpu, vcpu, node.pool, around))
    return tuple(found)
