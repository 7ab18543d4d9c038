"""Frequencies and idle states of the CPUs: cpufreq, cpuidle and intel_uncore_frequency in /sys.

The file formats are those of Documentation/admin-guide/pm of the kernel (cpufreq, intel_pstate, amd-pstate,
cpuidle, intel_uncore_frequency_scaling).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from compute_agent.host.cpus import CPU_FOLDER, CpuInfo, base_frequency_khz, read_cpuinfo
from compute_agent.host.kernel_files import SysFiles

GOVERNOR: Final = "scaling_governor"
MIN_FREQUENCY: Final = "scaling_min_freq"
MAX_FREQUENCY: Final = "scaling_max_freq"
PREFERENCE: Final = "energy_performance_preference"
DISABLE: Final = "disable"
MIN_UNCORE: Final = "min_freq_khz"
MAX_UNCORE: Final = "max_freq_khz"

_POLICIES: Final = f"{CPU_FOLDER}/cpufreq"
_UNCORE: Final = f"{CPU_FOLDER}/intel_uncore_frequency"
_PACKAGE_DIE: Final = re.compile(r"package_([0-9]+)_die_([0-9]+)", re.ASCII)
_TURBO_STEP: Final = 1000
"""The difference in kHz between the entry for turbo and the next entry, in acpi-cpufreq's table on Intel
processors.
"""


@dataclass(frozen=True, slots=True)
class FrequencyDomain:
    """A set of CPUs that always have the same frequency (a policy of cpufreq), and the possible settings.

    :ivar folder: the folder of the policy, relative to the root.
    :ivar preferences: the energy preferences that the driver offers; empty if it offers none.
    :ivar min_khz: the lowest frequency of the hardware.
    :ivar base_khz: the guaranteed frequency without turbo; None if unknown.
    :ivar max_khz: the highest frequency of the hardware.
    """

    folder: str
    cpus: frozenset[int]
    driver: str = ""
    governors: tuple[str, ...] = ()
    preferences: tuple[str, ...] = ()
    min_khz: int | None = None
    base_khz: int | None = None
    max_khz: int | None = None


@dataclass(frozen=True, slots=True)
class UncoreDomain:
    """The uncore (mesh and caches) of a set of CPUs, which has a frequency of its own.

    :ivar folder: the folder of its files, relative to the root.
    :ivar min_khz: the lower limit of the frequency when the kernel booted.
    :ivar max_khz: the upper limit of the frequency when the kernel booted.
    """

    folder: str
    cpus: frozenset[int]
    min_khz: int | None = None
    max_khz: int | None = None


@dataclass(frozen=True, slots=True)
class CpuPower:
    """The CPUs and uncore parts of a host with frequencies or idle states that the agent can set.

    :ivar idle_states: the folder of each idle state, by the CPU and the name of the state.
    """

    frequency_domains: tuple[FrequencyDomain, ...] = ()
    idle_states: Mapping[int, Mapping[str, str]] = field(default_factory=dict)
    uncore_domains: tuple[UncoreDomain, ...] = ()

    @property
    def cpus(self) -> frozenset[int]:
        """All CPUs with frequencies or idle states that can be set."""
        return frozenset(self.idle_states).union(
            *(domain.cpus for domain in self.frequency_domains),
            *(domain.cpus for domain in self.uncore_domains),
        )


def read_cpu_power(root: Path) -> CpuPower:
    """Read the possible settings of the host with its files below ``root``.

    The result is empty if the files are missing.
    """
    files = SysFiles(root)
    info = read_cpuinfo(files)
    online = files.cpu_list(f"{CPU_FOLDER}/online") or frozenset()
    return CpuPower(
        tuple(_frequency_domains(files, info)),
        {cpu: states for cpu in sorted(online) if (states := _idle_states(files, cpu))},
        tuple(_uncore_domains(files, online)),
    )


def _frequency_domains(files: SysFiles, info: CpuInfo) -> Iterator[FrequencyDomain]:
    for number in files.list_numbers(_POLICIES, "policy"):
        folder = f"{_POLICIES}/policy{number}"
        # The file has numbers with blanks between them and no ranges; the file is empty if all CPUs of the
        # policy are offline.
        cpus = _read_numbers(files, f"{folder}/affected_cpus")
        if cpus:
            yield FrequencyDomain(
                folder,
                frozenset(cpus),
                files.text(f"{folder}/scaling_driver") or "",
                _read_words(files, f"{folder}/scaling_available_governors"),
                _read_words(files, f"{folder}/energy_performance_available_preferences"),
                files.read_number(f"{folder}/cpuinfo_min_freq"),
                base_frequency_khz(files, info, min(cpus)) or _table_base(files, folder),
                files.read_number(f"{folder}/cpuinfo_max_freq"),
            )


def _table_base(files: SysFiles, folder: str) -> int | None:
    """The base frequency from acpi-cpufreq's table, in kHz; None if there is no table.

    The highest entry of the table is the turbo frequency, if there is turbo; the base frequency is then the
    next entry. Without turbo, the base frequency is the highest entry.
    """
    table = sorted(_read_numbers(files, f"{folder}/scaling_available_frequencies"), reverse=True)
    if len(table) > 1 and table[0] - table[1] == _TURBO_STEP:
        return table[1]
    return table[0] if table else None


def _idle_states(files: SysFiles, cpu: int) -> dict[str, str]:
    folder = f"{CPU_FOLDER}/cpu{cpu}/cpuidle"
    states = {}
    for number in files.list_numbers(folder, "state"):
        if name := files.text(f"{folder}/state{number}/name"):
            states[name] = f"{folder}/state{number}"
    return states


def _uncore_domains(files: SysFiles, online: frozenset[int]) -> Iterator[UncoreDomain]:
    """The uncore domains: one per die, or one per package if the kernel lists only clusters (TPMI)."""
    places = {cpu: _die_of(files, cpu) for cpu in online}
    try:
        names = sorted(entry.name for entry in (files.root / _UNCORE).iterdir())
    except OSError:
        # Only the driver intel_uncore_frequency makes this folder.
        return
    dies = {name: match for name in names if (match := _PACKAGE_DIE.fullmatch(name))}
    for name in dies or [name for name in names if name.startswith("uncore")]:
        folder = f"{_UNCORE}/{name}"
        match = dies.get(name)
        package = int(match[1]) if match else files.read_number(f"{folder}/package_id")
        cpus = frozenset(cpu for cpu, (one, _) in places.items() if one == package)
        if match:
            # The firmware can number dies in another way than the topology. If no CPU matches, the CPUs of
            # the whole package count.
            cpus = frozenset(cpu for cpu in cpus if places[cpu][1] == int(match[2])) or cpus
        # The limits at boot are read, because the present limits may come from the agent.
        least, most = (files.read_number(f"{folder}/initial_{file}") for file in (MIN_UNCORE, MAX_UNCORE))
        yield UncoreDomain(folder, cpus, least, most)


def _die_of(files: SysFiles, cpu: int) -> tuple[int | None, int | None]:
    folder = f"{CPU_FOLDER}/cpu{cpu}/topology"
    return files.read_number(f"{folder}/physical_package_id"), files.read_number(f"{folder}/die_id")


def _read_words(files: SysFiles, path: str) -> tuple[str, ...]:
    return tuple((files.text(path) or "").split())


def _read_numbers(files: SysFiles, path: str) -> list[int]:
    return [int(word) for word in _read_words(files, path) if word.isascii() and word.isdecimal()]
