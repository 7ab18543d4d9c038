"""Which CPUs back ``PCPU`` and ``VCPU`` and which serve emulator threads: the options, checked on the host.

The option names and their legacy combinations are Nova's (``[compute] cpu_dedicated_set``,
``cpu_shared_set``, ``[DEFAULT] vcpu_pin_set``, ``reserved_host_cpus``).
"""

from dataclasses import dataclass

from compute_agent.host.topology import HostTopology
from compute_agent.inventory.split_cores import split_warning
from compute_agent.model import cpuset
from compute_agent.model.cpuset import CpuSets, named
from compute_agent.model.messages import ConfigError


@dataclass(frozen=True, slots=True)
class CpuOptions:
    """The options as written; None is an option that is not set, an empty text one that is set to nothing."""

    cpu_dedicated_set: str | None = None
    cpu_shared_set: str | None = None
    vcpu_pin_set: str | None = None
    reserved_host_cpus: int = 0


def resolve(options: CpuOptions, topology: HostTopology) -> CpuSets:
    """The CPU sets that ``options`` mean on the host.

    | options set | dedicated | shared | emulator | | --- | --- | --- | --- | | none | | all online | all
    online | | ``cpu_dedicated_set`` | it | | | | ``cpu_shared_set`` | | it | it | | both |
    ``cpu_dedicated_set`` | ``cpu_shared_set`` | ``cpu_shared_set`` | | ``vcpu_pin_set`` (deprecated) | it |
    it | it | | ``vcpu_pin_set``, ``cpu_shared_set`` (deprecated) | | ``vcpu_pin_set`` | ``cpu_shared_set`` |

    :raises ConfigError: that names options and CPUs.
    """
    # nova-compute may keep dedicated CPUs offline as long as no guest holds them.
    named_dedicated = _cpus(
        "[compute] cpu_dedicated_set", options.cpu_dedicated_set, topology, may_be_offline=True
    )
    dedicated = None if named_dedicated is None else named_dedicated - topology.offline
    shared = _cpus("[compute] cpu_shared_set", options.cpu_shared_set, topology)
    pinned = _cpus("[DEFAULT] vcpu_pin_set", options.vcpu_pin_set, topology)
    nothing: frozenset[int] = frozenset()
    warnings: list[str] = []

    if dedicated is not None and pinned is not None:
        raise ConfigError(
            "[compute] cpu_dedicated_set and [DEFAULT] vcpu_pin_set are both set: unset vcpu_pin_set"
        )
    if named_dedicated is not None and shared is not None and (both := named_dedicated & shared):
        raise ConfigError(f"[compute] cpu_dedicated_set and cpu_shared_set overlap: both name {named(both)}")
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
        shared = topology.online
    if split := split_warning(dedicated or nothing, shared or nothing, topology):
        warnings.append(split)
    return CpuSets(
        dedicated=dedicated or nothing,
        shared=shared or nothing,
        emulator=shared or nothing,
        reserved_vcpus=options.reserved_host_cpus,
        warnings=tuple(warnings),
        offline=(named_dedicated or nothing) & topology.offline,
    )


def _cpus(
    option: str, text: str | None, topology: HostTopology, may_be_offline: bool = False
) -> frozenset[int] | None:
    """The CPUs that ``option`` names; None where it is not set.

    :raises ConfigError: one is absent, or offline where it must not be.
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
