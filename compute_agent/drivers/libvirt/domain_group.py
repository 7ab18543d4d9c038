"""The cgroup that libvirt made for a domain, as the kernel shows it (https://libvirt.org/cgroups.html).

Limits are set through libvirt and read here: that works while libvirtd is away, costs a twentieth of a call,
and is what the kernel does.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from compute_agent.drivers.base import CpuLimits
from compute_agent.drivers.cgroup import GuestCgroup
from compute_agent.host.kernel_files import read, read_text

# Each domain has groups of its own below that of the whole domain, one of them for the main thread; cgroup v2
# under systemd has one more level between them.
_OF_MAIN_THREAD: Final = "emulator"
_BETWEEN: Final = "libvirt"

_DEFAULT_SHARES: Final = 1024
_DEFAULT_WEIGHT: Final = 100
_MIN_SHARES: Final = 2


@dataclass(frozen=True, slots=True)
class DomainGroup:
    """The group of a whole domain: ``folders`` are the outer one and those below it that hold all threads.

    ``unified`` is whether it is one of cgroup v2.
    """

    folders: tuple[Path, ...]
    unified: bool

    def limits(self) -> CpuLimits | None:
        """Weight and quota; None when they cannot be read, as when the domain has ended."""
        try:
            return self._unified_limits() if self.unified else self._legacy_limits()
        except OSError:
            return None

    def shares(self, weight: int) -> int:
        """What libvirt wants as ``cpu_shares`` for a weight: it hands the number to the kernel as it is."""
        if self.unified:
            return weight
        return max(round(weight * _DEFAULT_SHARES / _DEFAULT_WEIGHT), _MIN_SHARES)

    def _unified_limits(self) -> CpuLimits | None:
        found = [
            limits for folder in self.folders if (limits := GuestCgroup(folder).cpu_limits()) is not None
        ]
        quotas = [limits.quota for limits in found if limits.quota is not None]
        return CpuLimits(found[0].weight, min(quotas, default=None)) if found else None

    def _legacy_limits(self) -> CpuLimits:
        """Of cgroup v1 (Documentation/scheduler/sched-bwc.rst), in terms of version 2."""
        shares, quota = (self._number(name) for name in ("cpu.shares", "cpu.cfs_quota_us"))
        weight = max(round(shares * _DEFAULT_WEIGHT / _DEFAULT_SHARES), 1)
        return CpuLimits(weight, quota / self._number("cpu.cfs_period_us") if quota > 0 else None)

    def _number(self, name: str) -> int:
        return int(read(f"{self.folders[0]}/{name}"))


def find(pid: int) -> DomainGroup | None:
    """The group of the domain whose QEMU process this is; None if libvirt made none for CPUs."""
    try:
        lines = read_text(f"/proc/{pid}/cgroup").splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return None
    paths = {controllers: path for _, controllers, path in (line.split(":", 2) for line in lines)}
    legacy = next((key for key in paths if "cpu" in key.split(",")), None)
    mount = _mounts().get("cpu" if legacy is not None else "")
    leaf = Path(paths.get(legacy or "", "/"))
    if mount is None or leaf.name != _OF_MAIN_THREAD or ".." in leaf.parts:
        return None  # the last is a group outside of what the agent sees of the hierarchy
    inner = mount / leaf.parent.relative_to("/")
    folders = (inner.parent, inner) if inner.name == _BETWEEN else (inner,)
    return DomainGroup(folders, legacy is None)


@functools.cache
def _mounts() -> Mapping[str, Path]:
    """Where the hierarchies of the controller cpu (version 1) and "" (version 2) are mounted.

    The source is /proc/self/mountinfo, proc(5).
    """
    found: dict[str, Path] = {}
    for line in read_text("/proc/self/mountinfo").splitlines():
        mount, _, file_system = line.partition(" - ")
        kind, _, options = file_system.split(" ", 2)
        if kind == "cgroup2":
            found.setdefault("", Path(mount.split()[4]))
        elif kind == "cgroup" and "cpu" in options.split(","):
            found.setdefault("cpu", Path(mount.split()[4]))
    return found
