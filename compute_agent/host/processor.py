"""/proc/cpuinfo: architecture, model and flags, whose lines differ from one architecture to the next."""

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final

from compute_agent.host.sysfiles import SysFiles

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
