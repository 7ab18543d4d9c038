"""The agent on a host whose cgroups and resctrl are folders that behave like the kernel's.

    python -m benchmarks.agent_on_fakes CGROUPS --config-file FILE run
    python -m benchmarks.agent_on_fakes CGROUPS --all-cpus --config-file FILE run
    python -m benchmarks.agent_on_fakes CGROUPS --peers FOLDER --config-file FILE run

The option ``--all-cpus`` is for a host with CPUs that this machine lacks, ``--peers`` for one with the guests
of :mod:`benchmarks.kind_fakes`.

For :mod:`benchmarks.agent_everything` and :mod:`benchmarks.agent_kinds`. What is read is read from files as
ever; what is written costs more than a kernel's file does, and is written when guests start.
"""

import contextlib
import os
import sys
import threading
from pathlib import Path

from compute_agent.agent import configured_controllers, configured_host
from compute_agent.cmd.main import main
from compute_agent.drivers import cgroup, procfs
from compute_agent.host import kernel_files
from compute_agent.isolation.facts import MaskReader
from compute_agent.model import cpuset
from compute_agent.resctrl import mount
from compute_agent.schedules.cookies import CookieError, KernelCookies, NoSiblingsError
from tests.compute_agent import cgroups
from tests.compute_agent.cgroups import FakeCgroups
from tests.compute_agent.resctrl.fake import FakeResctrl

COUNTERS = {
    "cpu.stat": "usage_usec 1000000\nuser_usec 600000\nsystem_usec 400000\nnr_periods 0\nnr_throttled 0\n",
    "memory.stat": "".join(f"{name} 4096\n" for name in ("anon", "file", "kernel", "shmem"))
    + "".join(f"counter_{number} 0\n" for number in range(55)),
}
"""Files of a group that the kernel has and the fakes of the tests have not; memory.stat has some 60 lines."""


class PlainPatch:
    """What the fakes need of pytest, without its memory."""

    setattr = staticmethod(setattr)


def add_process(group, pid):
    """As the kernel: a process in a group is in its cgroup.procs."""
    with open(group.folder / "cgroup.procs", "a") as file:
        file.write(f"{pid}\n")


class LockedResctrl(FakeResctrl):
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


class FileMasks(MaskReader):
    """Affinities of the kernel's threads are written into files as well."""

    def bind_thread(self, thread, cpus):
        """As the kernel shows it."""
        text = f"Cpus_allowed_list:\t{cpuset.format(cpus)}"
        kernel_files.write_text(f"{self.root}/proc/{thread}/status", text)


class TableAffinity:
    """Affinities in memory, as this machine has fewer CPUs; each answer costs the kernel's call as well."""

    def __init__(self):
        self._table, self._read = {}, os.sched_getaffinity
        os.sched_getaffinity, os.sched_setaffinity = self.read, self.write

    def read(self, pid):
        """The CPUs of a thread."""
        found = self._read(pid)
        return self._table.get(pid, found)

    def write(self, pid, cpus):
        """Set them."""
        self._read(pid)
        self._table[pid] = frozenset(cpus)


class TableCookies(KernelCookies):
    """Cookies in memory, as this kernel may have none; each answer costs the kernel's call as well."""

    def __init__(self):
        self._table = {}

    def clear_own_cookie(self):
        """The agent has none."""

    def read_cookie(self, tid):
        """The cookie of a thread."""
        with contextlib.suppress(CookieError, NoSiblingsError):
            super().read_cookie(tid)
        return self._table.get(tid, 0)

    def create_cookie(self, pid):
        """Give one to all threads of a process."""
        self._table.update(dict.fromkeys(procfs.thread_ids(pid), pid))


def have_all_cpus():
    """Isolation, core scheduling and pins on CPUs that this machine lacks."""
    TableAffinity()
    configured_host.MaskReader = configured_controllers.MaskReader = FileMasks
    configured_controllers.KernelCookies = TableCookies
    files = ("cpuset.cpus.partition", "cpuset.cpus.exclusive", "cpuset.cpus.exclusive.effective")
    cgroups.FILES.update(dict.fromkeys(files, ""), **{"cpuset.cpus.partition": "member\n"})


def use_peers(folder):
    """Containers of fake engines: the paths of their groups are in files, and groups move their processes."""

    real_path = procfs.cgroup_path

    def read_path(pid):
        with contextlib.suppress(FileNotFoundError):
            return (folder / "paths" / str(pid)).read_text()
        return real_path(pid)

    write = cgroup.GuestCgroup.write_file

    def write_and_move(group, name, line):
        write(group, name, line)
        if name == "cpuset.cpus":
            for pid in group.process_ids():
                os.sched_setaffinity(pid, cpuset.parse(line))

    cgroups.FILES.update(COUNTERS)
    procfs.cgroup_path = read_path
    cgroup.GuestCgroup.write_file = write_and_move


if __name__ == "__main__":
    arguments = sys.argv[2:]
    if "--all-cpus" in arguments:
        arguments.remove("--all-cpus")
        have_all_cpus()
    if "--peers" in arguments:
        at = arguments.index("--peers")
        use_peers(Path(arguments[at + 1]))
        del arguments[at : at + 2]
    processes = cgroup.GuestCgroup.process_ids
    FakeCgroups(Path(sys.argv[1]), PlainPatch)
    cgroup.GuestCgroup.add, cgroup.GuestCgroup.process_ids = add_process, processes
    mount.ResctrlFilesystem = LockedResctrl
    sys.exit(main(arguments))
