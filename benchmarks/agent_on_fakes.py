"""The agent on a host whose cgroups and resctrl are folders that behave like the kernel's.

    python -m benchmarks.agent_on_fakes CGROUPS --config-file FILE run

For :mod:`benchmarks.agent_everything`. What is read is read from files as ever; what is written costs more
than a kernel's file does, and is written when guests start.
"""

import sys
import threading
from pathlib import Path

from compute_agent.cmd.main import main
from compute_agent.drivers import cgroup
from compute_agent.resctrl import mount
from tests.compute_agent.cgroups import FakeCgroups
from tests.compute_agent.resctrl.fake import FakeResctrl


class Patch:
    """What the fakes need of pytest, without its memory."""

    setattr = staticmethod(setattr)


def add(group, pid):
    """As the kernel: a process in a group is in its cgroup.procs."""
    with open(group.folder / "cgroup.procs", "a") as file:
        file.write(f"{pid}\n")


class Locked(FakeResctrl):
    """The kernel does one thing after the other; the agent's threads write at the same time."""

    lock = threading.RLock()

    def write_file(self, path, text):
        """One at a time."""
        with self.lock:
            super().write_file(path, text)

    def make_folder(self, path):
        """One at a time."""
        with self.lock:
            super().make_folder(path)

    def remove_folder(self, path):
        """One at a time."""
        with self.lock:
            super().remove_folder(path)


if __name__ == "__main__":
    processes = cgroup.GuestCgroup.process_ids
    FakeCgroups(Path(sys.argv[1]), Patch)
    cgroup.GuestCgroup.add, cgroup.GuestCgroup.process_ids = add, processes
    mount.ResctrlFilesystem = Locked
    sys.exit(main(sys.argv[2:]))
