"""CPUs with their cores, clusters, dies and packages, from /sys/devices/system/cpu and /proc/cpuinfo.

The file formats are those of Documentation/admin-guide/cputopology.rst of the kernel. The lines of
/proc/cpuinfo differ between architectures.
"""

from __future__ import annotations

import logging
import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from compute_agent.host.kernel_files import SysFiles
from compute_agent.host.topology import CpuCluster, CpuCore, CpuDie, CpuPackage
from compute_agent.model.cpuset import CpuSet

_NOMINAL: Final = re.compile(r"@\s*([0-9.]+)\s*GHz", re.IGNORECASE)
_FLAG_KEYS: Final = ("flags", "features")


@dataclass(frozen=True, slots=True)
class CpuInfo:
    """The content of /proc/cpuinfo.

    :ivar records: the lines of each CPU, by CPU number and by key in lower case.
    """

    records: Mapping[int, Mapping[str, str]]
    machine: Mapping[str, str]
    """The lines that belong to no CPU, such as ``platform`` on POWER."""

    def first_value(self, *keys: str) -> str | None:
        """The value of the first key in ``keys`` that any CPU has; None if no CPU has one of the keys."""
        values = (record[key] for key in keys for record in self.records.values() if record.get(key))
        return next(values, None)


def read_cpuinfo(files: SysFiles) -> CpuInfo:
    """Read /proc/cpuinfo. Without the file the result has no records."""
    records: dict[int, dict[str, str]] = {}
    machine: dict[str, str] = {}
    current = machine
    for line in (files.text("proc/cpuinfo") or "").splitlines():
        key, colon, value = line.partition(":")
        key, value = key.strip().lower(), value.strip()
        # A line without a colon, such as a blank line, ends the lines of a CPU.
        if not colon:
            current = machine
        elif key == "processor" and value.isdecimal():
            current = records.setdefault(int(value), {})
        else:
            current[key] = value
    return CpuInfo(records, machine)


def flags_of(info: CpuInfo, online: Collection[int]) -> frozenset[str]:
    """The flags that all ``online`` CPUs have."""
    # On hybrid processors flags differ between CPUs, and a guest may run on any CPU.
    sets = [
        frozenset(record[key].split())
        for cpu, record in info.records.items()
        if not online or cpu in online
        for key in _FLAG_KEYS
        if key in record
    ]
    # ARM kernels before 3.8 and some s390x kernels list the features once, for the whole machine.
    sets = sets or [frozenset(info.machine[key].split()) for key in _FLAG_KEYS if key in info.machine]
    return frozenset.intersection(*sets) if sets else frozenset()


def architecture_of(files: SysFiles, info: CpuInfo) -> str:
    """The architecture as ``uname -m`` names it; ``unknown`` if no file shows it."""
    machine = files.text("proc/sys/kernel/arch")  # The file exists since Linux 6.1.
    if machine:
        return machine
    if info.first_value("arch") == "IA-64":
        return "ia64"
    if info.first_value("cpu implementer"):
        return "aarch64" if info.first_value("cpu architecture") in ("8", "AArch64") else "armv7l"
    if (model := info.first_value("cpu")) and ("POWER" in model or "Cell" in model):
        # No file shows the byte order. Since POWER8, distributions with OpenStack are little-endian.
        return "ppc64le" if re.search(r"POWER([89]|1[0-9])", model) else "ppc64"
    if info.first_value("vendor_id"):
        # The flag "lm" (long mode) marks a processor with 64 bits.
        return "x86_64" if "lm" in (info.first_value("flags") or "").split() else "i686"
    return "unknown"


def base_frequency_khz(files: SysFiles, info: CpuInfo, cpu: int) -> int | None:
    """The guaranteed frequency of a CPU without turbo, in kHz; None if the kernel does not show it.

    The value comes from the first of these sources that exists: cpufreq/base_frequency (intel_pstate, kHz),
    acpi_cppc/nominal_freq (AMD and ARM, MHz), the model name (``@ 2.10GHz``).
    """
    folder = f"sys/devices/system/cpu/cpu{cpu}"
    if base := files.read_number(f"{folder}/cpufreq/base_frequency"):
        return base
    if nominal := files.read_number(f"{folder}/acpi_cppc/nominal_freq"):
        return nominal * 1000
    named = _NOMINAL.search(info.records.get(cpu, {}).get("model name", ""))
    return round(float(named[1]) * 1_000_000) if named else None


LOG = logging.getLogger(__name__)

CPU_FOLDER: Final = "sys/devices/system/cpu"

_UNKNOWN_ID: Final = 0xFFFF
"""The value, besides -1, that some kernels print for an id that the firmware does not have."""

_SIBLING_FILES: Final = ("core_cpus_list", "core_cpus", "thread_siblings_list", "thread_siblings")
"""The names of the file that lists the threads of a core: the name since Linux 5.3, then older names."""

_PACKAGE_FILES: Final = ("package_cpus_list", "package_cpus", "core_siblings_list", "core_siblings")
"""The names of the file that lists the CPUs of a package: the name since Linux 5.3, then older names."""

_HYBRID_PMUS: Final = {"cpu_core": "performance", "cpu_atom": "efficiency", "cpu_lowpower": "low-power"}
"""The performance monitoring units of hybrid x86 processors. Each one lists the CPUs of one kind of core."""


class CpuStates(NamedTuple):
    """The CPUs that the host has, and those of them that are online."""

    present: CpuSet
    online: CpuSet


def read_states(files: SysFiles, info: CpuInfo) -> CpuStates:
    """Read the present and the online CPUs, including those outside of the agent's cpuset and affinity."""
    folders = frozenset(files.list_numbers(CPU_FOLDER, "cpu"))
    online = files.cpu_list(f"{CPU_FOLDER}/online")
    present = files.cpu_list(f"{CPU_FOLDER}/present")
    if online is None:
        # Kernels before 2.6.26 have a file for each CPU that can be switched off, and none for the other
        # CPUs.
        online = frozenset(cpu for cpu in folders if files.read_number(f"{CPU_FOLDER}/cpu{cpu}/online") != 0)
    if not online:
        online = frozenset(info.records)
        LOG.warning(
            "The folder %s lists no CPUs, so the agent uses the CPUs of /proc/cpuinfo",
            files.root / CPU_FOLDER,
        )
    return CpuStates((folders if present is None else present) | online, online)


def read_online(root: Path) -> frozenset[int]:
    """The online CPUs of the host below ``root``; empty if the kernel does not list them."""
    return SysFiles(root).cpu_list(f"{CPU_FOLDER}/online") or frozenset()


def read_packages(files: SysFiles, online: frozenset[int]) -> tuple[CpuPackage, ...]:
    """Read the packages, with the kernel's ids. CPUs without a known package count as package 0.

    On old Itanium machines, the id is the number of the board, so several packages have the same id. On such
    machines, CPUs belong to one package only if they list each other as siblings.
    """
    ids = {cpu: _read_id(files, cpu, "physical_package_id") for cpu in online}
    if unknown := [cpu for cpu, package in ids.items() if package is None]:
        LOG.info(
            "The package of %d CPUs is not known, so the agent counts these CPUs as package 0", len(unknown)
        )
    packages: list[CpuPackage] = []
    for package, cpus in sorted(_group_cpus({cpu: one or 0 for cpu, one in ids.items()}).items()):
        packages += [
            CpuPackage(package, members)
            for members in _split_peers(
                cpus, lambda cpu: files.read_peers(cpu, _topology_folder(cpu), *_PACKAGE_FILES)
            )
        ]
    return tuple(packages)


def read_dies(files: SysFiles, packages: Iterable[CpuPackage]) -> tuple[CpuDie, ...]:
    """Read the dies; the result is empty before Linux 5.2."""
    return tuple(CpuDie(*part) for part in _package_parts(files, packages, "die_id"))


def read_clusters(files: SysFiles, packages: Iterable[CpuPackage]) -> tuple[CpuCluster, ...]:
    """Read the clusters; none before Linux 5.16."""
    return tuple(CpuCluster(*part) for part in _package_parts(files, packages, "cluster_id"))


def read_cores(files: SysFiles, info: CpuInfo, packages: Iterable[CpuPackage]) -> tuple[CpuCore, ...]:
    """Read the cores with their online threads, ordered by package and id.

    A CPU without topology files counts as a core of its own.
    """
    package_of = {cpu: package.id for package in packages for cpu in package.cpus}
    online = frozenset(package_of)
    kinds = read_kinds(files, online)
    ids = {cpu: _read_id(files, cpu, "core_id") for cpu in online}

    def listed_siblings(cpu: int) -> frozenset[int]:
        # AMD's family 15h lists both cores of a module as siblings, but gives each core its own core_id.
        listed = files.read_peers(cpu, _topology_folder(cpu), *_SIBLING_FILES) or frozenset()
        return frozenset(sibling for sibling in listed & online if ids[sibling] == ids[cpu])

    cores = []
    for threads in _split_peers(online, listed_siblings):
        cpu = min(threads)
        core_id = ids[cpu]
        cores.append(
            CpuCore(
                id=cpu if core_id is None else core_id,
                package=package_of[cpu],
                cpus=threads,
                kind=kinds.get(cpu),
                base_frequency_khz=base_frequency_khz(files, info, cpu),
            )
        )
    return tuple(sorted(cores, key=lambda core: (core.package, core.id, min(core.cpus))))


def read_kinds(files: SysFiles, online: frozenset[int]) -> Mapping[int, str]:
    """The kind of core of each CPU; empty if all cores are of one kind."""
    by_pmu = {
        cpu: kind
        for pmu, kind in _HYBRID_PMUS.items()
        for cpu in files.cpu_list(f"sys/devices/{pmu}/cpus") or ()
        if cpu in online
    }
    # If all online cores are of one kind, the kind distinguishes nothing.
    if len(set(by_pmu.values())) > 1:
        return by_pmu
    by_capacity = {cpu: f"capacity-{each}" for cpu, each in read_capacities(files, online).items()}
    return by_capacity if len(set(by_capacity.values())) > 1 else {}


def read_capacities(files: SysFiles, online: frozenset[int]) -> Mapping[int, int]:
    """The kernel's cpu_capacity of each CPU: 1024 for the fastest kind of core; empty on x86."""
    found = {cpu: files.read_number(f"{CPU_FOLDER}/cpu{cpu}/cpu_capacity") for cpu in online}
    return {cpu: capacity for cpu, capacity in found.items() if capacity is not None}


def _package_parts(
    files: SysFiles, packages: Iterable[CpuPackage], name: str
) -> Iterator[tuple[int, int, CpuSet]]:
    """Yield the id, the package and the CPUs of each part that has an id."""
    for package in packages:
        found = {cpu: _read_id(files, cpu, name) for cpu in package.cpus}
        ids = {cpu: part for cpu, part in found.items() if part is not None}
        for part, cpus in sorted(_group_cpus(ids).items()):
            yield part, package.id, cpus


def _group_cpus(ids: Mapping[int, int]) -> Mapping[int, CpuSet]:
    """The CPUs of each id."""
    groups: dict[int, set[int]] = defaultdict(set)
    for cpu, group in ids.items():
        groups[group].add(cpu)
    return {group: frozenset(members) for group, members in groups.items()}


def _split_peers(
    cpus: frozenset[int], peers: Callable[[int], frozenset[int] | None]
) -> Iterable[frozenset[int]]:
    """Divide CPUs into groups that list each other as peers, ordered by the lowest CPU of a group.

    If a CPU has no file with its peers, all remaining CPUs form one group with this CPU. If the files of
    several CPUs contradict each other, the file of the lowest CPU decides, so the groups never overlap.
    """
    placed: frozenset[int] = frozenset()
    for cpu in sorted(cpus):
        if cpu in placed:
            continue
        listed = peers(cpu)
        members = (cpus if listed is None else listed & cpus | {cpu}) - placed
        placed |= members
        yield members


def _read_id(files: SysFiles, cpu: int, name: str) -> int | None:
    """An id from the topology folder of a CPU; None if the firmware has no such id."""
    number = files.read_number(f"{_topology_folder(cpu)}/{name}")
    return None if number is None or number < 0 or number == _UNKNOWN_ID else number


def _topology_folder(cpu: int) -> str:
    return f"{CPU_FOLDER}/cpu{cpu}/topology"
