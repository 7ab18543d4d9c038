"""Builds the host state from the configuration and the hardware of this host.

A configuration is read and checked completely before any part of the agent uses it.
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from oslo_config import cfg

from compute_agent.agent.config_warnings import class_warnings
from compute_agent.agent.host_access import HostResctrl, offered_platform, open_resctrl
from compute_agent.agent.parked_cpus import (
    known_topology,
    learned_topology,
    park_warnings,
    parkable_cpus,
    stopped_cpus,
    stopped_warning,
)
from compute_agent.classes.cpu_classes import parse_cpu_pools
from compute_agent.classes.guest_classes import parse_classes
from compute_agent.classification.resolution import parse_policy
from compute_agent.conf.policy import DEFAULT_POLICY, FOLLOW
from compute_agent.conf.qos import family_sections
from compute_agent.controllers.base import KernelController
from compute_agent.host import kernel_files
from compute_agent.host.pci_devices import read_pci_devices
from compute_agent.host.reader import read_topology
from compute_agent.host.topology import HostTopology
from compute_agent.inventory import cpu_pools, host_identity, options
from compute_agent.inventory.cpu_pools import Positions, lay_out_pools
from compute_agent.inventory.cpu_sets import resolve_cpu_sets
from compute_agent.inventory.derive import BESIDE, SHAPES, derive_provider_tree
from compute_agent.inventory.device_providers import foreign_attributes, offer_devices, with_devices
from compute_agent.inventory.device_sets import parse_device_sets, with_device_sets
from compute_agent.inventory.device_spec import parse_device_specs, read_nova_devices, without_novas
from compute_agent.inventory.provider_files import with_additions
from compute_agent.inventory.provider_tree import ProviderTree
from compute_agent.inventory.resctrl import CachePlatform
from compute_agent.inventory.traits import with_isolation
from compute_agent.isolation.facts import MaskReader
from compute_agent.isolation.surroundings import boot_warnings, read_boot_isolation
from compute_agent.loops.base import ReloadedConfiguration
from compute_agent.model.cpuset import CPU_POOL, CpuPool, CpuSet, CpuSets
from compute_agent.model.guest_settings import IsolationLevel
from compute_agent.model.messages import ConfigError
from compute_agent.pipeline.host_state import HostState
from compute_agent.policy import POLICIES
from compute_agent.reclaim.collectors import check_collectors
from compute_agent.report.client import PlacementClient
from compute_agent.report.root_provider import NovaRoot, RootOwner, owner_of
from compute_agent.resctrl.mount import ResctrlHandle
from compute_agent.schedules.realtime import read_throttle
from compute_agent.throttling.settings import ThrottlingSettings, read_settings
from compute_agent.throttling.watermarks.metrics import MetricRegistry

LOG = logging.getLogger(__name__)


NO_UUID: Final = "00000000-0000-0000-0000-000000000000"
"""The placeholder for the uuid of nova-compute's root provider before that provider exists."""


def policy_of(conf: cfg.ConfigOpts, beside: bool) -> str:
    """The name of the policy: from ``[policy] name``, or the default for the owner of the root provider.

    :param beside: whether nova-compute owns the root provider.
    """
    return str(conf.policy.name or (FOLLOW if beside else DEFAULT_POLICY))


def check_options(conf: cfg.ConfigOpts) -> None:
    """Check that options do not contradict each other.

    :raises ConfigError: an option needs a collector or pool that does not exist, or an action that the policy
        never takes.
    """
    check_collectors(conf.capacity.collectors)
    if conf.policy.name == "static-pools" and not any(family_sections(conf, CPU_POOL)):
        raise ConfigError(
            "[policy] name = static-pools places guests in pools, but there is no pool: add a section"
            " [cpu_pool:NAME]"
        )
    if conf.policy.name != FOLLOW:
        return
    if conf.policy.rebalance:
        raise ConfigError(
            "[policy] rebalance = true moves guests, but [policy] name = follow never does: remove one of the"
            " two"
        )
    if conf.guests.unplaced == "refuse":
        raise ConfigError(
            "[guests] unplaced = refuse stops guests that the agent cannot place, but with [policy] name"
            " = follow another program places guests: remove one of the two"
        )


def steal_warnings(conf: cfg.ConfigOpts, beside: bool) -> list[str]:
    """Return one warning if ``[capacity] steal`` has no effect; an empty list if it has an effect.

    :param beside: whether nova-compute owns the root provider.
    """
    if not beside or conf.capacity.steal == "off":
        return []
    return [
        f"[capacity] steal = {conf.capacity.steal} has no effect beside nova-compute, which has VCPU on its"
        " own provider: remove it"
    ]


def move_warnings(conf: cfg.ConfigOpts, beside: bool) -> list[str]:
    """Return a warning for each option without effect, because another program chooses the CPUs of guests.

    :param beside: whether nova-compute owns the root provider.
    """
    # If the operator has chosen the policy "follow", check_options() has refused these options.
    if policy_of(conf, beside) != FOLLOW:
        return []
    without_effect = {
        "[policy] rebalance = true": conf.policy.rebalance,
        "[guests] unplaced = refuse": conf.guests.unplaced == "refuse",
    }
    return [
        f"{option} has no effect beside nova-compute, because Nova chooses the CPUs of guests: remove the"
        " option, or set [policy] name"
        for option, is_set in without_effect.items()
        if is_set
    ]


def pools_of(
    conf: cfg.ConfigOpts,
    guest_classes: Collection[str],
    cpu_sets: CpuSets,
    topology: HostTopology,
    beside: bool,
) -> tuple[tuple[CpuPool, ...], Positions, list[str]]:
    """Return the pools of the host, the CPUs of each pool by its name, and warnings about unusable pools.

    :param guest_classes: the names of the QoS classes that pools can name.
    :param beside: whether nova-compute owns the root provider, so that pools have no effect.
    :raises ConfigError: a pool is wrong; the error names section and option.
    """
    pools = parse_cpu_pools(conf, guest_classes)
    if not (pools and beside):
        return pools, lay_out_pools(pools, cpu_sets, topology), []
    warning = (
        f"[{CPU_POOL}{pools[0].name}] has no effect beside nova-compute, which divides the CPUs itself."
        " Remove the section"
    )
    return (), {}, [warning]


@dataclass(frozen=True, slots=True)
class DerivedTree:
    """The provider tree that a configuration makes on this host.

    :ivar pools: the CPU pools of the configuration.
    :ivar positions: the CPUs of each pool, by its name.
    :ivar warnings: warnings about options without effect, about devices, and about boot options of the
        kernel.
    """

    tree: ProviderTree
    pools: tuple[CpuPool, ...]
    positions: Positions
    warnings: tuple[str, ...]


def isolation_levels(conf: cfg.ConfigOpts, sinks: CpuSet) -> tuple[IsolationLevel, ...]:
    """The isolation levels above ``shared`` that dedicated CPUs of this host can have.

    :param sinks: the CPUs that are not dedicated. They take the interrupts and the kernel's own work.
    """
    reader = MaskReader(Path(conf.host.root))
    if not reader.has_masks or not sinks:
        return ()
    is_alone = reader.partitions.has_remote and reader.partitions.may_make
    return (IsolationLevel.QUIET, IsolationLevel.ALONE) if is_alone else (IsolationLevel.QUIET,)


def derive_tree(
    conf: cfg.ConfigOpts,
    topology: HostTopology,
    cpu_sets: CpuSets,
    guest_classes: Collection[str] | None,
    platform: CachePlatform | None,
    owner: RootOwner,
    own_uuid: str,
) -> DerivedTree:
    """Derive the provider tree that the agent reports.

    The function writes nothing, so checks of a configuration can call it.

    :param guest_classes: the names of the QoS classes that pools can name; None if the sections of classes
        are wrong. The tree then has no pools.
    :param platform: the caches and the memory bandwidth of resctrl; None if the tree offers neither.
    :param own_uuid: the uuid of the agent's own root provider; unused if nova-compute owns the root.
    :raises ConfigError: an option is wrong; the error names section and option.
    :raises IdentityError: the name of the agent's own root provider cannot be determined.
    """
    pools: tuple[CpuPool, ...] = ()
    positions: Positions = {}
    ignored: list[str] = []
    if guest_classes is not None:
        pools, positions, ignored = pools_of(conf, guest_classes, cpu_sets, topology, owner.beside)
    settings = options.settings(conf)
    if owner.beside:
        root = NovaRoot(NO_UUID, options.hypervisor_name(conf)) if owner.novas is None else owner.novas
        uuid, name, settings = root.uuid, root.name, replace(settings, provider_tree=BESIDE)
    else:
        uuid, name = own_uuid, options.root_name(conf)
    derived = derive_provider_tree(topology, cpu_sets, settings, uuid, name, platform, positions)
    offered, device_warnings = add_devices(conf, derived, topology, owner.beside)
    # Provider files come last, because they can add inventories and traits to any derived provider.
    files = options.provider_configs(conf)
    offered = with_isolation(offered, isolation_levels(conf, topology.online - cpu_sets.dedicated))
    tree, unused = with_additions(offered, files.configs)
    warnings = (
        *ignored,
        *device_warnings,
        *files.warnings,
        *unused,
        *steal_warnings(conf, owner.beside),
        *move_warnings(conf, owner.beside),
        *park_warnings(conf, owner.beside),
        *boot_warnings(read_boot_isolation(Path(conf.host.root)), cpu_sets),
    )
    return DerivedTree(tree, pools, positions, warnings)


def add_devices(
    conf: cfg.ConfigOpts, tree: ProviderTree, topology: HostTopology, beside: bool
) -> tuple[ProviderTree, tuple[str, ...]]:
    """Add the providers of the PCI devices that ``[pci] device_spec`` selects.

    :param beside: whether nova-compute owns the root provider.
    :returns: the new tree, and warnings about devices that need the operator's attention.
    :raises ConfigError: an option of ``[pci]`` is wrong.
    """
    specs = parse_device_specs(conf.pci.device_spec)
    sets = parse_device_sets(conf.pci.device_set)
    describes = beside and conf.pci.nodes == "attributes"
    if not (specs or describes):
        return tree, ()
    devices = read_pci_devices(Path(conf.host.root))
    novas = read_nova_devices(Path(each) for each in conf.pci.nova_config if each)
    others, twice = without_novas(novas, specs, devices)
    offer = offer_devices(specs, others)
    added, warnings = with_devices(tree, offer.providers, topology)
    added, unplaced = with_device_sets(added, sets)
    added = replace(added, cards={each.address: each.card_address for each in devices if each.is_virtual})
    if describes:
        added = replace(added, device_attributes=foreign_attributes(devices, topology))
    return added, (*twice, *offer.warnings, *warnings, *unplaced)


def build_host_state(
    conf: cfg.ConfigOpts,
    topology: HostTopology | None = None,
    root_uuid: str | None = None,
    control: ResctrlHandle | None = None,
    root: RootOwner | None = None,
) -> HostState:
    """Build the host state from the configuration and the hardware, and log the warnings.

    :param topology: the hardware; None means that the function reads the hardware.
    :param root_uuid: the uuid of the agent's own root provider. By default, the uuid is read from the state
        folder; a missing folder is made.
    :param control: the mount of resctrl; None means that the host has no usable mount.
    :param root: the owner of the root provider; by default, the owner that the configuration names.
    :raises ConfigError: the configuration is wrong, or does not fit this host.
    :raises IdentityError: the uuid or the name of the root provider cannot be determined.
    :raises OSError: the hardware cannot be read, or the state folder cannot be written.
    """
    check_options(conf)
    if topology is None:
        topology = read_topology(Path(conf.host.root))
    whose = root or owner_of(conf.compute.provider_tree)
    # Only the agent itself stores in the state folder which CPUs it has seen online. A check of a
    # configuration passes a uuid, and must not change the folder of an agent that perhaps runs.
    acting = root_uuid is None
    topology = (learned_topology if acting else known_topology)(conf, topology)
    cpu_sets = resolve_cpu_sets(options.cpu_options(conf), topology)
    for warning in cpu_sets.warnings:
        LOG.warning("The configured CPU sets need attention: %s", warning)
    name = options.root_name(conf)
    if root_uuid is None:
        root_uuid = host_identity.load_or_create(Path(conf.state_path))
        if conf.compute.resource_provider_name and (notice := options.name_warning(conf)):
            LOG.warning("The name of the root provider changes: %s", notice)
        host_identity.keep_name(Path(conf.state_path), name)
    classes = parse_classes(conf)
    platform = offered_platform(control, classes.share_specs)
    derived = derive_tree(conf, topology, cpu_sets, classes.classes.keys(), platform, whose, root_uuid)
    tree = derived.tree
    # The CPUs of pools are added only now, because they are chosen when the tree is derived.
    cpu_sets = replace(cpu_sets, pooled=frozenset[int]().union(*derived.positions.values()))
    stopped = stopped_cpus(conf, topology, whose.beside)
    offline = filter(None, [cpu_sets.offline_warning, stopped_warning(stopped)])
    limit = read_throttle(Path(conf.host.root))
    status = kernel_files.read_optional("/proc/self/status") or ""
    warnings = [*offline, *derived.warnings, *class_warnings(classes.classes, limit, status)]
    for warning in warnings:
        LOG.warning("The configuration needs attention: %s", warning)
    # Guests can still hold allocations on the providers of an earlier shape of the tree, so the host state
    # keeps these providers, without inventories.
    former = {
        node.uuid: replace(node, inventories={})
        for shape in SHAPES
        for node in derive_provider_tree(
            topology,
            cpu_sets,
            replace(options.settings(conf), provider_tree=shape),
            root_uuid,
            name,
            platform,
            derived.positions,
        ).nodes
        if tree.get(node.uuid) is None
    }
    if acting:
        cpu_pools.keep_pools(Path(conf.state_path), tree)
    for node in cpu_pools.recall_pools(Path(conf.state_path), tree, topology):
        former.setdefault(node.uuid, node)
    policy = policy_of(conf, whose.beside)
    may_move = policy != FOLLOW
    boot = read_boot_isolation(Path(conf.host.root))
    return HostState(
        topology=topology,
        cpu_sets=cpu_sets,
        tree=tree,
        policy=POLICIES[policy],
        place_unallocated=conf.guests.unallocated == "shared",
        former=tuple(former.values()),
        refuse_unplaced=may_move and conf.guests.unplaced == "refuse",
        root_known=whose.known,
        pools=derived.pools,
        warnings=tuple(warnings),
        classification=parse_policy(conf, follows=not may_move),
        powered=cpu_sets.dedicated & parkable_cpus(conf, whose.beside),
        wakes=not whose.beside,
        set_apart=boot.unbalanced | boot.tickless,
        alone_classes=frozenset(
            name for name, one in classes.classes.items() if one.isolation is IsolationLevel.ALONE
        ),
        rebalance_gain=conf.policy.rebalance_gain if may_move and conf.policy.rebalance else None,
    )


@dataclass(frozen=True, slots=True)
class ConfiguredHost:
    """The objects that are built from ``options`` and from this host, before the driver of guests is opened.

    Controllers are built later, because they need the driver.
    """

    options: cfg.ConfigOpts
    resctrl: HostResctrl
    host_state: HostState
    settings: ThrottlingSettings

    def with_controllers(
        self, client: PlacementClient, controllers: tuple[KernelController, ...]
    ) -> ReloadedConfiguration:
        """Add the client and the controllers, and return the complete configuration, which the loops use."""
        dedicated = self.host_state.cpu_sets.dedicated
        domains = self.host_state.topology.l3_domains
        return ReloadedConfiguration(
            self.options,
            client,
            self.settings,
            controllers,
            self.resctrl.control,
            {domain.id: domain.cpus - dedicated for domain in domains},
        )


def configured_host(
    options: cfg.ConfigOpts,
    registry: MetricRegistry,
    topology: HostTopology | None = None,
    *,
    root: RootOwner | None = None,
    root_uuid: str | None = None,
    acting: bool = False,
) -> ConfiguredHost:
    """Read this host according to ``options``, and check that the options fit the host.

    See :func:`build_host_state` for ``topology``, ``root`` and ``root_uuid``.

    :param registry: the metrics that watermarks can name.
    :param acting: whether the caller is the agent. Only the agent may mount resctrl and write there.
    :raises ConfigError: the configuration is wrong, or does not fit this host.
    :raises cfg.Error: an option has an invalid value.
    :raises IdentityError: the uuid or the name of the root provider cannot be determined.
    :raises OSError: the host cannot be read.
    """
    resctrl = open_resctrl(options, acting)
    host_state = build_host_state(options, topology, root_uuid=root_uuid, control=resctrl.control, root=root)
    settings = read_settings(options, registry)
    return ConfiguredHost(options, resctrl, host_state, settings)
