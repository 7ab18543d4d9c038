"""/proc/cpuinfo: architecture, model and flags, whose lines differ from one architecture to the next.

/sys/devices/system/cpu: which CPUs there are, and their cores, clusters, dies and packages.

File formats: Documentation/admin-guide/cputopology.rst of the kernel.
"""

from __future__ import annotations

import logging
import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from compute_agent.host.kernel_files import SysFiles
from compute_agent.host.topology import CpuCluster, CpuCore, CpuDie, CpuPackage

_NOMINAL: Final = re.compile(r"@\s*([0-9.]+)\s*GHz", re.IGNORECASE)
_FLAG_KEYS: Final = ("flags", "features")


@dataclass(frozen=True, slots=True)
class CpuInfo:
    """What /proc/cpuinfo tells, by CPU number; keys of the records are in lower case."""

    records: Mapping[int, Mapping[str, str]]
    machine: Mapping[str, str]
    """Lines that belong to no CPU, such as ``platform`` on POWER."""

    def first(self, *keys: str) -> str | None:
        """The first value of one of ``keys`` that any CPU has."""
        values = (record[key] for key in keys for record in self.records.values() if record.get(key))
        return next(values, None)


def read_cpuinfo(files: SysFiles) -> CpuInfo:
    """The records of /proc/cpuinfo; no records where the file is missing."""
    records: dict[int, dict[str, str]] = {}
    machine: dict[str, str] = {}
    current = machine
    for line in (files.text("proc/cpuinfo") or "").splitlines():
        key, colon, value = line.partition(":")
        key, value = key.strip().lower(), value.strip()
        if not colon:
            current = machine
        elif key == "processor" and value.isdecimal():
            current = records.setdefault(int(value), {})
        else:
            current[key] = value
    return CpuInfo(records, machine)


def flags_of(info: CpuInfo, online: Collection[int]) -> frozenset[str]:
    """The flags that all online CPUs have: on hybrid processors they differ, and a guest may run on any."""
    sets = [
        frozenset(record[key].split())
        for cpu, record in info.records.items()
        if not online or cpu in online
        for key in _FLAG_KEYS
        if key in record
    ]
    # ARM kernels before 3.8 and some s390x list the features once for the machine.
    sets = sets or [frozenset(info.machine[key].split()) for key in _FLAG_KEYS if key in info.machine]
    return frozenset.intersection(*sets) if sets else frozenset()


def architecture_of(files: SysFiles, info: CpuInfo) -> str:
    """The architecture as ``uname -m`` names it; ``unknown`` where no file tells."""
    machine = files.text("proc/sys/kernel/arch")  # since Linux 6.1
    if machine:
        return machine
    if info.first("arch") == "IA-64":
        return "ia64"
    if info.first("cpu implementer"):
        return "aarch64" if info.first("cpu architecture") in ("8", "AArch64") else "armv7l"
    if (model := info.first("cpu")) and ("POWER" in model or "Cell" in model):
        # The byte order is in no file; distributions with OpenStack are little-endian since POWER8.
        return "ppc64le" if re.search(r"POWER([89]|1[0-9])", model) else "ppc64"
    if info.first("vendor_id"):
        return "x86_64" if "lm" in (info.first("flags") or "").split() else "i686"
    return "unknown"


def model_of(info: CpuInfo) -> str | None:
    """The model as the kernel prints it: ``Intel(R) Xeon(R) ...``, ``POWER9, altivec supported``."""
    return info.first("model name", "cpu")


def base_frequency_khz(files: SysFiles, info: CpuInfo, cpu: int) -> int | None:
    """The guaranteed frequency of a CPU without turbo, None where the kernel does not tell.

    From cpufreq/base_frequency (intel_pstate, kHz), acpi_cppc/nominal_freq (AMD and ARM, MHz), or the model
    name (``@ 2.10GHz``).
    """
    folder = f"sys/devices/system/cpu/cpu{cpu}"
    if base := files.number(f"{folder}/cpufreq/base_frequency"):
        return base
    if nominal := files.number(f"{folder}/acpi_cppc/nominal_freq"):
        return nominal * 1000
    named = _NOMINAL.search(info.records.get(cpu, {}).get("model name", ""))
    return round(float(named[1]) * 1_000_000) if named else None


LOG = logging.getLogger(__name__)

CPU_FOLDER: Final = "sys/devices/system/cpu"

_UNKNOWN_ID: Final = 0xFFFF
"""What some kernels print, besides -1, for an id that the firmware does not tell."""

_SIBLING_FILES: Final = ("core_cpus_list", "core_cpus", "thread_siblings_list", "thread_siblings")
"""The threads of a core: the names since Linux 5.3, then the older ones."""

_PACKAGE_FILES: Final = ("package_cpus_list", "package_cpus", "core_siblings_list", "core_siblings")
"""The CPUs of a package: the names since Linux 5.3, then the older ones."""

_HYBRID_PMUS: Final = {"cpu_core": "performance", "cpu_atom": "efficiency", "cpu_lowpower": "low-power"}
"""Performance monitoring units of hybrid x86 processors; the CPUs of each are those of one kind of core."""


@dataclass(frozen=True, slots=True)
class CpuStates:
    """Which CPUs are there, and which of them the kernel schedules on."""

    present: frozenset[int]
    online: frozenset[int]

    @property
    def offline(self) -> frozenset[int]:
        """CPUs that are there but switched off."""
        return self.present - self.online


def read_states(files: SysFiles, info: CpuInfo) -> CpuStates:
    """The CPUs of the machine, whatever a cpuset or the affinity of the agent's own process leaves to it."""
    folders = frozenset(files.numbered(CPU_FOLDER, "cpu"))
    online = files.cpu_list(f"{CPU_FOLDER}/online")
    present = files.cpu_list(f"{CPU_FOLDER}/present")
    if online is None:
        # Kernels before 2.6.26 have a file for each CPU that can be switched off, and none for the others.
        online = frozenset(cpu for cpu in folders if files.number(f"{CPU_FOLDER}/cpu{cpu}/online") != 0)
    if not online:
        online = frozenset(info.records)
        LOG.warning("No CPUs are listed in %s: using those of /proc/cpuinfo", files.root / CPU_FOLDER)
    return CpuStates(present=(folders if present is None else present) | online, online=online)


def read_online(root: Path) -> frozenset[int]:
    """The CPUs that are online now; empty where the kernel does not tell."""
    return SysFiles(root).cpu_list(f"{CPU_FOLDER}/online") or frozenset()


def read_packages(files: SysFiles, online: frozenset[int]) -> tuple[CpuPackage, ...]:
    """The packages; CPUs whose package the kernel does not tell are on package 0.

    Ids are the kernel's. Where CPUs of one id do not list each other as siblings, as on old Itanium machines
    that number the boards instead, there are several packages of that id.
    """
    ids = {cpu: _known(files.number(f"{_topology(cpu)}/physical_package_id")) for cpu in online}
    if unknown := [cpu for cpu, package in ids.items() if package is None]:
        LOG.info("The package of %d CPUs is not known: they count as package 0", len(unknown))
    packages: list[CpuPackage] = []
    for package, cpus in sorted(_grouped(online, lambda cpu: ids[cpu] or 0).items()):
        packages += [
            CpuPackage(package, members)
            for members in _split(cpus, lambda cpu: files.peers(cpu, _topology(cpu), *_PACKAGE_FILES))
        ]
    return tuple(packages)


def read_dies(files: SysFiles, packages: Iterable[CpuPackage]) -> tuple[CpuDie, ...]:
    """The dies where the kernel tells them (since 5.2)."""
    return tuple(
        CpuDie(die, package.id, cpus)
        for package in packages
        for die, cpus in _parts(files, package, "die_id")
    )


def read_clusters(files: SysFiles, packages: Iterable[CpuPackage]) -> tuple[CpuCluster, ...]:
    """The clusters where the kernel tells them (since 5.16)."""
    return tuple(
        CpuCluster(cluster, package.id, cpus)
        for package in packages
        for cluster, cpus in _parts(files, package, "cluster_id")
    )


def read_cores(files: SysFiles, info: CpuInfo, packages: Iterable[CpuPackage]) -> tuple[CpuCore, ...]:
    """The cores with their online threads, by package and id.

    A CPU without topology files is a core of its own.
    """
    package_of = {cpu: package.id for package in packages for cpu in package.cpus}
    online = frozenset(package_of)
    kinds = read_kinds(files, online)
    ids = {cpu: _known(files.number(f"{_topology(cpu)}/core_id")) for cpu in online}

    def siblings(cpu: int) -> frozenset[int]:
        # AMD's family 15h lists both cores of a module as siblings, and gives each a core_id of its own.
        listed = files.peers(cpu, _topology(cpu), *_SIBLING_FILES) or frozenset()
        return frozenset(sibling for sibling in listed & online if ids[sibling] == ids[cpu])

    cores = []
    for threads in _split(online, siblings):
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
    """The kind of core of each CPU; empty where all are alike."""
    by_pmu = {
        cpu: kind
        for pmu, kind in _HYBRID_PMUS.items()
        for cpu in files.cpu_list(f"sys/devices/{pmu}/cpus") or ()
        if cpu in online
    }
    if len(set(by_pmu.values())) > 1:
        return by_pmu
    by_capacity = {cpu: f"capacity-{each}" for cpu, each in read_capacities(files, online).items()}
    return by_capacity if len(set(by_capacity.values())) > 1 else {}


def read_capacities(files: SysFiles, online: frozenset[int]) -> Mapping[int, int]:
    """How much each CPU does, with 1024 for the fastest kind of core, where the kernel tells (not on x86)."""
    found = {cpu: files.number(f"{CPU_FOLDER}/cpu{cpu}/cpu_capacity") for cpu in online}
    return {cpu: capacity for cpu, capacity in found.items() if capacity is not None}


def _parts(files: SysFiles, package: CpuPackage, name: str) -> Iterable[tuple[int, frozenset[int]]]:
    ids = {cpu: _known(files.number(f"{_topology(cpu)}/{name}")) for cpu in package.cpus}
    groups = _grouped((cpu for cpu in package.cpus if ids[cpu] is not None), lambda cpu: ids[cpu] or 0)
    return sorted(groups.items())


def _grouped(cpus: Iterable[int], key: Callable[[int], int]) -> Mapping[int, frozenset[int]]:
    groups: dict[int, set[int]] = defaultdict(set)
    for cpu in cpus:
        groups[key(cpu)].add(cpu)
    return {group: frozenset(members) for group, members in groups.items()}


def _split(cpus: frozenset[int], peers: Callable[[int], frozenset[int] | None]) -> Iterable[frozenset[int]]:
    """The groups of ``cpus`` that list each other as peers, by lowest CPU.

    All of them are one group where no peers are listed.

    The groups are disjoint even where the files of several CPUs contradict each other: the lowest CPU
    decides.
    """
    placed: frozenset[int] = frozenset()
    for cpu in sorted(cpus):
        if cpu in placed:
            continue
        listed = peers(cpu)
        members = (cpus if listed is None else listed & cpus | {cpu}) - placed
        placed |= members
        yield members


def _known(number: int | None) -> int | None:
    return None if number is None or number < 0 or number == _UNKNOWN_ID else number


def _topology(cpu: int) -> str:
    return f"{CPU_FOLDER}/cpu{cpu}/topology"
