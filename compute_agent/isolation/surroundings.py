"""Finds boot options and programs of the host that affect quiet CPUs or shared CPUs.

Documentation/admin-guide/kernel-parameters.txt of Linux describes the boot options. ``isolcpus`` takes CPUs
out of load balancing, and ``nohz_full`` stops the timer tick of CPUs while one thread runs there. The kernel
shows both lists in /sys/devices/system/cpu. If the kernel does not have these files, the agent reads the
options in the boot line (/proc/cmdline).

TuneD runs as the process ``tuned``, and its profile is in /etc/tuned/active_profile.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from compute_agent.host import kernel_files
from compute_agent.host.kernel_files import SysFiles
from compute_agent.isolation.irqbalance import has_socket
from compute_agent.model import cpuset
from compute_agent.model.cpuset import CpuSet, CpuSets, named_cpus
from compute_agent.model.messages import printable_text

ISOLCPUS: Final = "isolcpus"
NOHZ_FULL: Final = "nohz_full"
_CPU_FILES: Final = {
    ISOLCPUS: "sys/devices/system/cpu/isolated",
    NOHZ_FULL: "sys/devices/system/cpu/nohz_full",
}
_BOOT_LINE: Final = "proc/cmdline"
_DOMAIN: Final = "domain"
_FLAGS: Final = frozenset({_DOMAIN, "nohz", "managed_irq"})

ACTIVE_PROFILE: Final = "etc/tuned/active_profile"
_PROFILE_BYTES: Final = 200
_TUNED: Final = "tuned"
_BALANCER: Final = "irqbalance"


@dataclass(frozen=True, slots=True)
class BootIsolation:
    """The CPUs that boot options of Linux isolate.

    :ivar unbalanced: CPUs of ``isolcpus``, among which the kernel moves no threads.
    :ivar tickless: CPUs of ``nohz_full``, on which the kernel stops the timer tick while one thread runs.
    """

    unbalanced: CpuSet = frozenset()
    tickless: CpuSet = frozenset()


def read_boot_isolation(root: Path) -> BootIsolation:
    """The CPUs in the boot options of the host below ``root``; empty if they cannot be read."""
    files = SysFiles(root)
    line = (files.text(_BOOT_LINE) or "").split()
    return BootIsolation(_option_cpus(files, line, ISOLCPUS), _option_cpus(files, line, NOHZ_FULL))


def _option_cpus(files: SysFiles, line: list[str], option: str) -> CpuSet:
    # A kernel that booted without the option shows "(null)".
    shown = files.text(_CPU_FILES[option])
    if shown is not None:
        return cpuset.parse_or_empty(shown)
    found: CpuSet = frozenset()
    for word in line:
        name, _, value = word.partition("=")
        if name == option:
            # isolcpus can have flags before its CPUs. Without flags, the kernel assumes the flag "domain".
            words = value.split(",") if option == ISOLCPUS else [value]
            flags = [word for word in words if word in _FLAGS]
            cpus = cpuset.parse_or_empty(",".join(word for word in words if word not in _FLAGS))
            # If an option occurs several times, the kernel uses its last value.
            found = cpus if not flags or _DOMAIN in flags else frozenset()
    return found


def boot_warnings(boot: BootIsolation, cpu_sets: CpuSets) -> Iterator[str]:
    """Warnings about shared CPUs in boot options that are meant for dedicated CPUs."""
    shared = (cpu_sets.shared | cpu_sets.emulator) - cpu_sets.dedicated
    remedy = "name them in [compute] cpu_dedicated_set, or remove them from the boot line"
    if cpus := shared & boot.unbalanced:
        yield (
            f"shared {named_cpus(cpus)} in {ISOLCPUS} of the boot line: the kernel does not balance threads"
            f" there, so that floating guests stay on one of them; {remedy}"
        )
    if cpus := shared & boot.tickless - boot.unbalanced:
        yield (
            f"shared {named_cpus(cpus)} in {NOHZ_FULL} of the boot line: the kernel is entered more slowly"
            f" there, which pays only for one busy thread a CPU; {remedy}"
        )


def writer_warnings(root: Path) -> list[str]:
    """Warnings about running programs that also write the masks of quiet CPUs."""
    names = _process_names(root)
    found = []
    if _TUNED in names:
        profile = _read_profile(root)
        active = f" with profile {profile}" if profile else ""
        found.append(
            f"TuneD runs{active} and may write the masks that the agent keeps off quiet CPUs: stop it, or"
            " leave the CPUs of [compute] cpu_dedicated_set out of its profile"
        )
    if _BALANCER in names and not has_socket(root):
        found.append(
            "irqbalance runs without a socket, so that it moves interrupts to quiet CPUs again: give it"
            " IRQBALANCE_BANNED_CPULIST with the CPUs of [compute] cpu_dedicated_set, or stop it"
        )
    return found


def _read_profile(root: Path) -> str:
    """The active profiles of TuneD; empty if there is no active profile."""
    try:
        content = kernel_files.read(f"{root}/{ACTIVE_PROFILE}", _PROFILE_BYTES)
    except OSError:
        return ""
    return printable_text(" ".join(content.decode(errors="replace").split()))


def _process_names(root: Path) -> set[str]:
    """The names of the running processes of the host that also write masks."""
    files = SysFiles(root)
    names = (files.text(f"proc/{number}/comm") for number in files.list_numbers("proc", ""))
    return {name for name in names if name in (_TUNED, _BALANCER)}
