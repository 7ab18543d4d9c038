"""Determines the CPUs for ``PCPU``, ``VCPU`` and emulator threads from options and hardware.

The options and their deprecated combinations are the same as in Nova (``[compute] cpu_dedicated_set``,
``cpu_shared_set``, ``[DEFAULT] vcpu_pin_set``, ``reserved_host_cpus``).

A core is *split* if some of its threads are dedicated and others shared. For example, on a host with 48 CPUs
the threads of a core are ``n`` and ``n + 24``. On this host ``cpu_dedicated_set = 2-17`` and ``cpu_shared_set
= 18-47`` split the 16 cores of CPUs 2-17: a guest with CPU 2 shares its core with floating guests, which run
on CPU 26. The sets ``2-9,26-33`` and ``10-25,34-47`` have the same numbers of CPUs and split no core.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from compute_agent.host.topology import HostTopology
from compute_agent.model import cpuset
from compute_agent.model.cpuset import CpuSet, CpuSets, named_cpus
from compute_agent.model.messages import ConfigError


def split_cores(dedicated: CpuSet, shared: CpuSet, topology: HostTopology) -> list[CpuSet]:
    """The threads of each split core; the core with the lowest CPU comes first."""
    return sorted(
        (core.cpus for core in topology.cores if core.cpus & dedicated and core.cpus & shared), key=min
    )


def better_sets(dedicated: CpuSet, shared: CpuSet, topology: HostTopology) -> tuple[CpuSet, CpuSet]:
    """Return dedicated and shared CPUs that split no core. The two sets contain the same CPUs as before.

    Each NUMA node has at least as many dedicated CPUs as before, rounded up to whole cores.
    """
    ours = dedicated | shared
    by_node: dict[int | None, list[CpuSet]] = defaultdict(list)
    for threads in split_cores(dedicated, shared, topology):
        # Threads that are in neither set belong to the host, and stay so.
        by_node[topology.node_of(min(threads))].append(threads & ours)
    for cores in by_node.values():
        # Split cores become dedicated as a whole until the node has as many dedicated CPUs as before. The
        # other split cores become shared.
        missing = sum(len(threads & dedicated) for threads in cores)
        for threads in cores:
            dedicated = dedicated | threads if missing > 0 else dedicated - threads
            missing -= len(threads)
    return dedicated, ours - dedicated


def split_warning(dedicated: CpuSet, shared: CpuSet, topology: HostTopology) -> str:
    """A warning for the operator about split cores; empty if there are no split cores."""
    cores = split_cores(dedicated, shared, topology)
    if not cores:
        return ""
    better, rest = better_sets(dedicated, shared, topology)
    instead = f"cpu_dedicated_set = {cpuset.format(better)}"
    instead += f" and cpu_shared_set = {cpuset.format(rest)}" if rest else " and no cpu_shared_set"
    return (
        f"[compute] cpu_dedicated_set and cpu_shared_set split {len(cores)} cores, such as that of CPUs"
        f" {cpuset.format(cores[0])}: a guest with a dedicated CPU then shares the core with floating guests."
        f" {instead} split none"
    )


@dataclass(frozen=True, slots=True)
class CpuOptions:
    """The options that name CPUs, as texts: None if an option is not set, empty if it names no CPU."""

    cpu_dedicated_set: str | None = None
    cpu_shared_set: str | None = None
    vcpu_pin_set: str | None = None
    reserved_host_cpus: int = 0


def resolve_cpu_sets(options: CpuOptions, topology: HostTopology) -> CpuSets:
    """The CPU sets of this host that result from the options.

    - No option: all online CPUs are shared, and serve emulator threads.
    - ``cpu_dedicated_set``: its CPUs are dedicated, and none is shared.
    - ``cpu_shared_set``: its CPUs are shared, and serve emulator threads.
    - ``vcpu_pin_set`` (deprecated): its CPUs are both dedicated and shared, and serve emulator threads.
    - ``vcpu_pin_set`` with ``cpu_shared_set`` (deprecated): the CPUs of ``vcpu_pin_set`` are shared. The CPUs
      of ``cpu_shared_set`` serve emulator threads.

    :raises ConfigError: the options contradict each other or the host. The message names options and CPUs.
    """
    # Dedicated CPUs are allowed to be offline, because a power manager can turn CPUs off while no guest holds
    # them.
    named_dedicated = _cpus(
        "[compute] cpu_dedicated_set", options.cpu_dedicated_set, topology, may_be_offline=True
    )
    dedicated = None if named_dedicated is None else named_dedicated & topology.usable
    shared = _cpus("[compute] cpu_shared_set", options.cpu_shared_set, topology)
    pinned = _cpus("[DEFAULT] vcpu_pin_set", options.vcpu_pin_set, topology)
    nothing: frozenset[int] = frozenset()
    warnings: list[str] = []

    if dedicated is not None and pinned is not None:
        raise ConfigError(
            "[compute] cpu_dedicated_set and [DEFAULT] vcpu_pin_set are both set: unset vcpu_pin_set"
        )
    # Offline CPUs count here, too, because they can come online while the agent runs.
    if named_dedicated is not None and shared is not None and (both := named_dedicated & shared):
        raise ConfigError(
            f"[compute] cpu_dedicated_set and cpu_shared_set overlap: both name {named_cpus(both)}"
        )
    if options.reserved_host_cpus:
        _check_reserved(options, topology, pinned)
        warnings.append(
            "[DEFAULT] reserved_host_cpus is deprecated: name the CPUs of guests in [compute] cpu_shared_set"
            " and cpu_dedicated_set, those in neither belong to the host"
        )
    if pinned is not None:
        meaning = (
            "it counts as VCPU and as PCPU: keep such hosts apart by aggregates"
            if shared is None
            else "VCPU comes from it, [compute] cpu_shared_set serves emulator threads only"
        )
        warnings.append(
            "[DEFAULT] vcpu_pin_set is deprecated, use [compute] cpu_dedicated_set and cpu_shared_set;"
            f" {meaning}"
        )
        return CpuSets(
            dedicated=pinned if shared is None else nothing,
            shared=pinned,
            emulator=pinned if shared is None else shared,
            reserved_vcpus=options.reserved_host_cpus,
            warnings=tuple(warnings),
        )
    if dedicated is None and shared is None:
        # Nova, too, uses all CPUs for VCPU if no option names CPUs.
        shared = topology.online
    if split := split_warning(dedicated or nothing, shared or nothing, topology):
        warnings.append(split)
    return CpuSets(
        dedicated=dedicated or nothing,
        shared=shared or nothing,
        emulator=shared or nothing,
        reserved_vcpus=options.reserved_host_cpus,
        warnings=tuple(warnings),
        offline=(named_dedicated or nothing) - topology.usable,
    )


def _cpus(
    option: str, text: str | None, topology: HostTopology, may_be_offline: bool = False
) -> frozenset[int] | None:
    """The CPUs that an option names; None if the option is not set.

    :raises ConfigError: a CPU is absent, or it is offline and ``may_be_offline`` is False.
    """
    if text is None:
        return None
    try:
        cpus = cpuset.parse(text)
    except cpuset.BadCpuSet as error:
        raise ConfigError(f"{option}: {error}") from error
    if not cpus:
        raise ConfigError(
            f"{option} = {text!r} names no CPU: unset it, or name CPUs of {cpuset.format(topology.online)}"
        )
    problems = [
        f"CPUs {cpuset.format(wrong)} are {state}"
        for wrong, state in (
            (frozenset[int]() if may_be_offline else cpus & topology.offline, "offline"),
            (cpus - topology.online - topology.offline, "absent"),
        )
        if wrong
    ]
    if problems:
        raise ConfigError(
            f"{option} = {text!r}: {', '.join(problems)}; online CPUs are {cpuset.format(topology.online)}"
        )
    return cpus


def _check_reserved(options: CpuOptions, topology: HostTopology, pinned: frozenset[int] | None) -> None:
    reserved = options.reserved_host_cpus
    new = [
        name
        for name, text in (
            ("cpu_dedicated_set", options.cpu_dedicated_set),
            ("cpu_shared_set", options.cpu_shared_set),
        )
        if text is not None
    ]
    if new:
        raise ConfigError(
            f"[DEFAULT] reserved_host_cpus = {reserved} cannot be combined with [compute]"
            f" {' and '.join(new)}: unset reserved_host_cpus, CPUs in neither set belong to the host"
        )
    available = topology.online if pinned is None else pinned
    if not 0 <= reserved <= len(available):
        raise ConfigError(
            f"[DEFAULT] reserved_host_cpus = {reserved} is not within 0 and the {len(available)} CPUs for"
            f" guests, {cpuset.format(available)}"
        )
