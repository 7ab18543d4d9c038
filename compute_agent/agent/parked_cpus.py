"""Determines the offline CPUs of this host that count as present, and the topology that includes them.

A CPU of ``[compute] cpu_dedicated_set`` that the agent has seen online counts as present while it is offline.
Thus the inventory does not depend on the moment of a start or a reload.

A power manager may have taken the CPU offline because no guest holds the CPU. If nova-compute owns the root
provider, nova-compute is the power manager. Otherwise the agent is the power manager if its configuration has
``[cpu_class:idle] park = offline``, or if its state file shows that it had this option before. If a CPU is
offline for another reason, an operator has to bring it online.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from oslo_config import cfg

from compute_agent.agent.host_access import STATE_FILE
from compute_agent.classes.cpu_classes import parse_cpu_classes
from compute_agent.conf.cpu_class import CPU_CLASS
from compute_agent.conf.policy import FOLLOW
from compute_agent.controllers.cpu_class_plan import ParkingRules, parked_offline
from compute_agent.files import UnsafeFileError
from compute_agent.host.cpus import read_online
from compute_agent.host.kernel_files import read_boot_id
from compute_agent.host.topology import HostTopology
from compute_agent.inventory.offline_cpus import recall_topology, remember_topology, with_parked
from compute_agent.model import cpuset
from compute_agent.model.cpuset import IDLE, CpuSet, CpuSets, ParkMode, named_cpus
from compute_agent.model.messages import ConfigError
from compute_agent.pipeline.state import look_up

_LEAVING: Final = (FOLLOW, "none")
"""The policies that pin no guest. With these policies, the agent cannot know which CPUs are idle."""


def parkable_cpus(conf: cfg.ConfigOpts, beside: bool) -> CpuSet:
    """The CPUs that a power manager of this configuration can take offline.

    :param beside: whether nova-compute owns the root provider.
    """
    dedicated = dedicated_cpus(conf)
    try:
        parks = beside or park_mode(conf) is ParkMode.OFFLINE
    except ConfigError:  # the caller reads the classes of CPUs as well, and reports the error there
        return frozenset()
    return dedicated if parks else dedicated & _parked_before(conf)


def dedicated_cpus(conf: cfg.ConfigOpts) -> CpuSet:
    """The CPUs that ``[compute] cpu_dedicated_set`` names, online or not."""
    # If the option is wrong, there are no CPUs: resolve_cpu_sets() reports the error.
    return cpuset.parse_or_empty(conf.compute.cpu_dedicated_set)


def park_mode(conf: cfg.ConfigOpts) -> ParkMode | None:
    """The way in which the agent parks idle cores; None if it parks no cores.

    The agent parks only with a policy that pins guests.

    :raises ConfigError: a section ``[cpu_class:NAME]`` is wrong.
    """
    idle = parse_cpu_classes(conf).get(IDLE)
    return None if idle is None or conf.policy.name in _LEAVING else idle.park


def parking_rules(
    conf: cfg.ConfigOpts, topology: HostTopology, cpu_sets: CpuSets, beside: bool
) -> ParkingRules | None:
    """The rules by which the agent parks idle cores of this host; None if it parks no cores.

    Shared CPUs, emulator CPUs and the CPUs of pools are never parked.

    :param beside: whether nova-compute owns the root provider, so that the agent parks no CPUs.
    :raises ConfigError: a section ``[cpu_class:NAME]`` is wrong.
    """
    mode = park_mode(conf)
    if mode is None or beside:
        return None
    cpus = cpu_sets.dedicated - cpu_sets.shared - cpu_sets.emulator - cpu_sets.pooled
    if mode is not ParkMode.OFFLINE:  # other modes set idle states, and sysfs has none for offline CPUs
        cpus -= topology.parked
    after = parse_cpu_classes(conf)[IDLE].park_after
    return ParkingRules(mode, after, topology, cpus, cpu_sets.offline)


def park_warnings(conf: cfg.ConfigOpts, beside: bool) -> list[str]:
    """Return one warning if ``[cpu_class:idle] park`` has no effect; an empty list if it has an effect.

    :param beside: whether nova-compute owns the root provider.
    :raises ConfigError: a section ``[cpu_class:NAME]`` is wrong.
    """
    idle = parse_cpu_classes(conf).get(IDLE)
    if idle is None or idle.park is None:
        return []
    option = f"[{CPU_CLASS}{IDLE}] park = {idle.park} has no effect"
    if beside:
        return [f"{option} beside nova-compute, which has cpu_power_management for that: remove it"]
    if conf.policy.name in _LEAVING:
        return [f"{option} with [policy] name = {conf.policy.name}, which pins no guest: remove one of them"]
    return []


def _parked_before(conf: cfg.ConfigOpts) -> CpuSet:
    """The CPUs that the agent has taken offline since the last boot, according to its state file."""
    try:
        former = look_up(Path(conf.state_path) / STATE_FILE).former_values
    except UnsafeFileError:  # the start of the agent reports this error
        return frozenset()
    # After a reboot, all CPUs are online again, and the entries of the state file are out of date.
    boot = read_boot_id(Path(conf.host.root))
    return parked_offline(former) if boot and former.boot == boot else frozenset()


def known_topology(conf: cfg.ConfigOpts, topology: HostTopology) -> HostTopology:
    """Add the offline CPUs that the state folder lists to ``topology``. The state folder stays unchanged."""
    dedicated = dedicated_cpus(conf)
    if not dedicated & topology.offline:
        return topology
    return with_parked(topology, recall_topology(Path(conf.state_path)), dedicated)


def learned_topology(conf: cfg.ConfigOpts, topology: HostTopology) -> HostTopology:
    """Like known_topology(), but also store the online CPUs of ``topology`` in the state folder."""
    dedicated = dedicated_cpus(conf)
    # If a CPU went offline while sysfs was read, some of its files were missing. An incomplete topology must
    # not be stored.
    if not dedicated or read_online(Path(conf.host.root)) != topology.online:
        return known_topology(conf, topology)
    return with_parked(topology, remember_topology(Path(conf.state_path), topology), dedicated)


def stopped_cpus(conf: cfg.ConfigOpts, topology: HostTopology, beside: bool) -> CpuSet:
    """The offline CPUs that count as present, but need an operator to bring them online."""
    return topology.parked - parkable_cpus(conf, beside)


def stopped_warning(stopped: CpuSet) -> str:
    """The warning about CPUs that only an operator can bring online; empty without such CPUs."""
    if not stopped:
        return ""
    return (
        f"[compute] cpu_dedicated_set: {named_cpus(stopped)} offline: reported as before, and no guest is"
        " placed there until online; bring them online, or take them out of the option"
    )
