"""Warns about valid options that have no effect, or an unexpected effect, on this host.

Watermarks and interference sections are checked against the metrics that the host can measure, and against
the levers (kinds of limits) that can throttle its guests.

QoS classes are checked for options that this host or the agent's privileges do not allow.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Final

from oslo_config import cfg

from compute_agent.agent.host_access import HostResctrl
from compute_agent.agent.parked_cpus import park_mode
from compute_agent.classes.blockio_classes import blockio_warnings, parse_blockio_classes
from compute_agent.classes.cpu_classes import parse_cpu_classes
from compute_agent.classes.guest_classes import QosClass, parse_classes
from compute_agent.conf import DEFAULT_FILE, find_unknown_options, written
from compute_agent.conf.containers import ENGINE_OPTS
from compute_agent.conf.cpu_class import CPU_CLASS
from compute_agent.conf.guest_rule import GUEST_RULE
from compute_agent.conf.interference import INTERFERENCE
from compute_agent.conf.isolation import MOVE
from compute_agent.conf.metric_source import METRIC_SOURCE
from compute_agent.conf.policy import FOLLOW
from compute_agent.conf.qos import (
    QOS_CLASS,
    family_sections,
)
from compute_agent.conf.systemd import SYSTEMD_OPTS
from compute_agent.controllers.cpu_class_plan import CpuClassClaim, decide_files
from compute_agent.drivers.base import split_names
from compute_agent.drivers.factory import limits_fault, unlimited_reason
from compute_agent.drivers.libvirt import hook
from compute_agent.drivers.libvirt.hook import HookState
from compute_agent.host import kernel_files
from compute_agent.host.block_devices import read_block_devices
from compute_agent.host.cpu_power import CpuPower, read_cpu_power
from compute_agent.host.cycles import PerfEvents
from compute_agent.host.proc_stat import has_capability
from compute_agent.inventory.options import name_warning
from compute_agent.isolation.surroundings import writer_warnings
from compute_agent.loops.offers import ACT, OFF
from compute_agent.model.cpuset import IDLE, SHARED, CpuClass, ParkMode
from compute_agent.model.guest_settings import IsolationLevel
from compute_agent.model.resource import (
    BLOCKIO,
    CACHE_WAYS,
    CPU_QUOTA,
    MEMORY_BANDWIDTH,
    MEMORY_HIGH,
    CoreScope,
)
from compute_agent.resctrl.monitoring import LOCAL_BYTES, OCCUPANCY, TOTAL_BYTES
from compute_agent.resctrl.mount import ResctrlHandle
from compute_agent.throttling.guest_command import missing_program
from compute_agent.throttling.interference.signals import SIGNALS
from compute_agent.throttling.watermarks.sections import WatermarkRules, find_unenforceable
from compute_agent.usage.subjects import has_swap

_CPI: Final = "cpi"

_METRICS: Final[Mapping[str, tuple[str, ...]]] = {
    "run_delay": (),
    "cpu_pressure": ("cpu_pressure",),
    "io_pressure": ("io_pressure",),
    _CPI: (),
    "memory_bandwidth": ("memory_bandwidth",),
    "llc_occupancy": ("memory_bandwidth", "llc_occupancy"),
}
"""The watermark metrics that need the same kernel features, by signal of interference."""


def interference_warnings(
    conf: cfg.ConfigOpts, unmeasured_metrics: Mapping[str, str], unusable_levers: Mapping[str, str]
) -> Iterator[str]:
    """Warnings about interference sections that limit no guest on this host, or call a missing program.

    :param unmeasured_metrics: the metrics that this host cannot measure, each with the reason.
    :param unusable_levers: the reason for each lever that cannot throttle a guest on this host.
    """
    for name, options in family_sections(conf, INTERFERENCE):
        section, signal = f"[{INTERFERENCE}{name}]", SIGNALS.get(options.signal or "")
        if options.escalate_command and (reason := missing_program(options.escalate_command)):
            yield f"{section} escalate_command: it will fail, because {reason}"
        if signal is None:
            continue  # the code that reads the sections refuses an unknown signal
        reasons = [unmeasured_metrics.get(metric, "") for metric in _METRICS[signal.name]]
        reasons += [_without_counters()] if signal.name == _CPI else []
        if reason := next(filter(None, reasons), ""):
            yield f"{section} signal = {signal.name}: no guest is ever limited for it, because {reason}"
        elif options.mode == "act" and (reason := unusable_levers.get(signal.lever.name, "")):
            yield f"{section} mode = act: no guest is limited, because {reason}"


def _without_counters() -> str:
    """The reason why the agent cannot read hardware counters of cycles; empty if it can read them."""
    counters = PerfEvents()
    try:
        counters.read((os.getpid(),))
        return counters.missing_reason
    finally:
        counters.read(())  # this closes the counters, which are open file descriptors


def cold_memory_warnings(conf: cfg.ConfigOpts, unusable_levers: Mapping[str, str]) -> Iterator[str]:
    """Yield a sentence for each reason why ``[capacity] cold_memory`` has no effect on this host.

    :param unusable_levers: the reason for each lever that cannot throttle a guest on this host.
    """
    if not conf.capacity.cold_memory:
        return
    # The search for cold memory needs the same as the lever: a cgroup v2 of each guest, and swap.
    if reason := unusable_levers.get(MEMORY_HIGH):
        yield f"[capacity] cold_memory: no memory is found, because {reason}"
    elif conf.capacity.mode == OFF or not conf.capacity.memory:
        yield "[capacity] cold_memory: cold memory is not offered, because [capacity] mode or memory is off"


def source_warnings(conf: cfg.ConfigOpts) -> Iterator[str]:
    """One warning for each metric source with a command that cannot be run."""
    for name, options in family_sections(conf, METRIC_SOURCE):
        if options.command and (reason := missing_program(options.command)):
            yield f"[{METRIC_SOURCE}{name}] command: it will fail, because {reason}"


_EVENTS: Final = {"memory_bandwidth": {TOTAL_BYTES, LOCAL_BYTES}, "llc_occupancy": {OCCUPANCY}}
"""The resctrl counters that can measure a metric, by metric; one of the counters is enough."""

_PRESSURES: Final = ("cpu", "memory", "io")
"""The files of /proc/pressure that watermarks read."""


def unmeasured_metrics(conf: cfg.ConfigOpts, control: ResctrlHandle | None) -> dict[str, str]:
    """The metrics of watermarks that this host cannot measure, each with the reason and the remedy as text.

    :param control: the resctrl mount; None means that the host has no usable mount.
    """
    found = {}
    monitoring = control.platform.monitoring if control is not None and control.writable else None
    for metric, events in _EVENTS.items():
        if monitoring is None or not events & monitoring.features:
            found[metric] = "resctrl is not mounted, or does not measure it (see [resctrl] mount)"
        elif conf.monitoring.interval == 0:
            found[metric] = "[monitoring] interval is 0, so it is not measured"
    if conf.capacity.mode != ACT:
        found["reclaimed_cpu_oversold"] = "[capacity] mode is not act, so nothing is offered"
    if conf.capacity.mode != ACT or not conf.capacity.memory:
        found["reclaimed_memory_oversold"] = "[capacity] memory or mode = act is not set, so none is offered"
    for resource in _PRESSURES:
        path = str(Path(conf.host.root) / "proc/pressure" / resource)
        try:
            kernel_files.read(path)
        except OSError as error:
            found[f"{resource}_pressure"] = (
                f"the kernel reports no pressures ({path}: {error.strerror}): it needs CONFIG_PSI, and psi=1"
            )
    return found


def unusable_levers(conf: cfg.ConfigOpts, resctrl: HostResctrl, driver: str) -> dict[str, str]:
    """The levers that cannot throttle guests on this host, each with a text about the reason and the remedy.

    :param driver: the name of the driver of guests; several names are separated by commas.
    """
    found = {}
    platform = None if resctrl.control is None or resctrl.off else resctrl.control.platform
    why = f" ({resctrl.off})" if resctrl.off else ""
    if platform is None or platform.l3 is None:
        found[CACHE_WAYS] = f"cache ways cannot be limited here{why}"
    if platform is None or platform.mb is None:
        found[MEMORY_BANDWIDTH] = f"memory bandwidth cannot be limited here{why}"
    if not has_swap(Path(conf.host.root)):
        found[MEMORY_HIGH] = "the host has no swap, so memory of guests has nowhere to go: add a swap device"
    if reason := unlimited_reason(driver, conf):
        found[CPU_QUOTA] = reason
        found[BLOCKIO] = reason
        found[MEMORY_HIGH] = reason
    return found


def cpu_class_warnings(
    classes: Mapping[str, CpuClass], power: CpuPower, named: Collection[str]
) -> Iterator[str]:
    """The warnings about sections ``[cpu_class:NAME]`` that have no effect on this host.

    :param named: the names of the classes that guests can have.
    """
    for name, one in classes.items():
        if name not in (IDLE, SHARED) and name not in named:
            yield (
                f"[{CPU_CLASS}{name}] applies to no CPU: name it in cpu_class of a [qos_class:NAME] or"
                f" [guest_rule:NAME], or call it {IDLE} or {SHARED}"
            )
        # The check gives the class to all CPUs, because a guest with the class can get any of them.
        for reasons in decide_files(
            power, [CpuClassClaim(power.cpus, one, parked=one.park is not None)]
        ).missing.values():
            yield from reasons


def _named_cpu_classes(conf: cfg.ConfigOpts, classes: Mapping[str, CpuClass], driver: str) -> set[str]:
    """The names of the classes of CPUs that QoS classes, guest rules or flavors can give to guests."""
    # The flavors are not known before a guest starts, so a flavor can name any class.
    if "libvirt" in split_names(driver) and "cpu_class" in conf.guests.flavor_settings:
        return set(classes)
    by_rules = {options.cpu_class for _, options in family_sections(conf, GUEST_RULE)}
    return by_rules | {one.cpu_class for one in parse_classes(conf).classes.values()}


def _asks_quiet(conf: cfg.ConfigOpts) -> bool:
    """Whether a QoS class or a guest rule has an isolation level that keeps other work off guests' CPUs."""
    sections = (*family_sections(conf, QOS_CLASS), *family_sections(conf, GUEST_RULE))
    return any(IsolationLevel(options.isolation or "").is_quiet for _, options in sections)


def claim_warnings(conf: cfg.ConfigOpts, driver: str) -> Iterator[str]:
    """The warnings about options for claims, containers and services that have no effect on this host.

    :param driver: the name of the driver of guests; several names are separated by commas.
    """
    names, classes = split_names(driver), parse_classes(conf).classes
    options = {**ENGINE_OPTS, "systemd": SYSTEMD_OPTS}
    for name in sorted(options.keys() - set(names)):
        for one in options[name]:
            if not one.dest.endswith("socket") and conf[name][one.dest] != one.default:
                yield f"[{name}] {one.name} has no effect: add {name} to [guests] drivers, or remove it"
    if not conf.guests.claim:
        return
    if not options.keys() & set(names):
        yield (
            "[guests] claim has no effect: the agent claims only for guests of the drivers podman, docker and"
            " systemd; add one of them to [guests] drivers, or remove it"
        )
    for name in conf.guests.claim_dedicated:
        if name not in classes:
            yield (
                f"[guests] claim_dedicated: there is no class {name!r}: add a section for it, or name one of"
                f" {', '.join(classes)}"
            )


def missing_credentials(conf: cfg.ConfigOpts) -> str:
    """A warning if the configuration has no credentials for Placement; otherwise empty."""
    if conf.placement.auth_type or conf.placement.auth_section:
        return ""
    return (
        "[placement] auth_type is not set: the agent cannot reach Placement, so it reports nothing and starts"
        " no guest. Set the options of [placement] as in nova.conf"
    )


def missing_file(conf: cfg.ConfigOpts) -> str:
    """A warning if the configuration has been read from no file; otherwise empty."""
    if any(written.files_of(conf)):
        return ""
    return (
        f"No configuration file was read, because there is no {DEFAULT_FILE}: create it, or name another file"
        " with --config-file"
    )


def config_warnings(
    conf: cfg.ConfigOpts, rules: WatermarkRules | None, resctrl: HostResctrl, driver: str
) -> list[str]:
    """The warnings about the options of a configuration; each names the section, the option and the remedy.

    :param rules: the watermarks; None if their sections are wrong, which another check reports.
    :param resctrl: the resctrl mount of this host.
    :param driver: the name of the driver of guests; several names are separated by commas.
    :raises cfg.Error: an option has an invalid value.
    :raises ConfigError: a class of block I/O or of CPUs is wrong.
    :raises OSError: a file of the host has disappeared.
    """
    found = find_unknown_options(conf)
    found += filter(None, [missing_file(conf), missing_credentials(conf), name_warning(conf)])
    if "process" in split_names(driver) and conf.cgroup.root and (fault := limits_fault(conf)):
        found.append(
            f"{fault}, so process guests have no weights and no CPU limits: name a delegated group. systemd"
            " makes the group of a unit when it starts the unit"
        )
    if conf.policy.name == FOLLOW and conf.guests.unallocated == "ignore":
        found.append(
            "[guests] unallocated = ignore has no effect with [policy] name = follow, which leaves all guests"
            " where they are: remove it"
        )
    if conf.isolation.emulator == MOVE and conf.policy.name not in (None, FOLLOW):
        found.append(
            f"[isolation] emulator = {MOVE} has no effect with [policy] name = {conf.policy.name}: it is for"
            f" hosts with name = {FOLLOW}; remove it"
        )
    if _asks_quiet(conf):
        found += writer_warnings(Path(conf.host.root))
    devices = read_block_devices(Path(conf.host.root))
    found += blockio_warnings(parse_blockio_classes(conf), devices)
    classes, power = parse_cpu_classes(conf), read_cpu_power(Path(conf.host.root))
    found += cpu_class_warnings(classes, power, _named_cpu_classes(conf, classes, driver))
    offline = park_mode(conf) is ParkMode.OFFLINE
    if offline and "libvirt" in split_names(driver) and hook.state(hook.HOOKS) is HookState.ABSENT:
        found.append(
            f"[{CPU_CLASS}{IDLE}] park = offline: a domain does not start if its definition pins it to a"
            " parked CPU, because the agent learns of the start too late: run compute-agent libvirt hook"
            " install, and restart libvirtd"
        )
    measures = unmeasured_metrics(conf, resctrl.control), unusable_levers(conf, resctrl, driver)
    found += interference_warnings(conf, *measures)
    found += source_warnings(conf)
    found += claim_warnings(conf, driver)
    found += cold_memory_warnings(conf, measures[1])
    if conf.qos.evict_command and (reason := missing_program(conf.qos.evict_command)):
        found.append(f"[qos] evict_command: it will fail, because {reason}")
    if rules is not None:
        found += find_unenforceable(rules.watermarks, rules.registry, *measures)
    return found


_CAP_SYS_PTRACE: Final = 19
"""The number of CAP_SYS_PTRACE in linux/capability.h."""


def class_warnings(classes: Mapping[str, QosClass], realtime_limit: str, status: str) -> list[str]:
    """The warnings about options of QoS classes that cannot be applied here, or that delay the host's work.

    :param classes: the QoS classes by name.
    :param realtime_limit: a message about the kernel's limit for realtime threads; empty if there is no
        limit.
    :param status: the content of /proc/self/status.
    """
    found = [
        f"[{QOS_CLASS}{one.name}] realtime_priority: interrupts and other work of the host on the CPUs of a"
        " busy guest wait for the guest; set isolation = quiet or alone for the class"
        for one in classes.values()
        if one.cpu.realtime_priority and not one.isolation.is_quiet
    ]
    if realtime_limit and any(one.cpu.realtime_priority for one in classes.values()):
        found.append(realtime_limit)
    if not has_capability(status, _CAP_SYS_PTRACE):
        found += [
            f"[{QOS_CLASS}{one.name}] core_scheduling: the agent lacks CAP_SYS_PTRACE, which core cookies"
            " need; add it to CapabilityBoundingSet= of the unit"
            for one in classes.values()
            if one.cpu.core_scheduling is not CoreScope.NONE
        ]
    return found
