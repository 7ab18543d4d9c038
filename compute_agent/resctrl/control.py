"""A mount with all that is needed to work on it: what the hardware can do, and the operator's choices."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from compute_agent.resctrl import host
from compute_agent.resctrl.engine import Engine, choose
from compute_agent.resctrl.filesystem import Filesystem, read_text
from compute_agent.resctrl.mount import Mount
from compute_agent.resctrl.platform import Platform
from compute_agent.resctrl.reader import Present, read_platform


@dataclass(frozen=True, slots=True)
class Options:
    """The operator's choices: see section [resctrl] of the configuration."""

    prefix: str = "compute-agent."
    shared_ways: int = 2
    memory_bandwidth_gbps: float | None = None


@dataclass(frozen=True, slots=True)
class Control:
    """One mount. ``writable`` is False for a tree that was captured on another machine."""

    files: Filesystem
    platform: Platform
    engine: Engine | None
    options: Options
    writable: bool = True

    def host(self, present: Present) -> host.Host:
        """The host with its caches divided, when these groups are there."""
        return host.describe(
            self.platform, self.engine, present, self.options.prefix, self.options.shared_ways
        )

    def is_ours(self, group: str) -> bool:
        """Whether the name of a group is one that we give."""
        return group.startswith(self.options.prefix)


def open_control(mount: Mount, options: Options, root: Path = Path("/")) -> Control:
    """Read what the mount of the machine with its files below ``root`` offers.

    :raises ResctrlError:
    :raises BadSchemataError: where it cannot be read.
    """
    files = Filesystem(mount.path)
    cpuinfo = read_text(root / "proc/cpuinfo")
    platform = read_platform(files, cpuinfo, mount.options)
    engine = choose(platform, options.memory_bandwidth_gbps)
    return Control(files, platform, engine, options, not mount.captured)
