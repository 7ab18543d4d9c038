"""The agent on a host with folders in place of cgroups and resctrl. They behave like those of the kernel.

    python -m benchmarks.agent_on_fakes CGROUPS --config-file FILE run
    python -m benchmarks.agent_on_fakes CGROUPS --all-cpus --config-file FILE run
    python -m benchmarks.agent_on_fakes CGROUPS --peers FOLDER --config-file FILE run

The option ``--all-cpus`` is for a host with CPUs that this machine lacks, ``--peers`` for a host with the
guests of :mod:`benchmarks.kind_fakes`. The programs :mod:`benchmarks.agent_everything` and
:mod:`benchmarks.agent_kinds` start it. Reading a file costs as much as usual. Writing one, which the agent
    does when guests start, costs more than a file of the kernel.
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
"""Files of a cgroup that the fakes of the tests lack. The kernel's memory.stat has some 60 lines."""


class PlainPatch:
    """Sets attributes for the fakes like pytest's monkeypatch, but never restores them."""

    setattr = staticmethod(setattr)


def add_process(group, pid):
    """Add a process to the ``cgroup.procs`` of a group, as the kernel does."""
    with open(group.folder / "cgroup.procs", "a") as file:
        file.write(f"{pid}\n")


class LockedResctrl(FakeResctrl):
    """A fake of resctrl with a lock, because the kernel serialises the accesses of concurrent threads."""

    lock = threading.RLock()

    def write_file(self, path, text):
        """Write a file with the lock held."""
        with self.lock:
            super().write_file(path, text)

    def make_folder(self, path):
        """Create a folder with the lock held."""
        with self.lock:
            super().make_folder(path)

    def remove_folder(self, path):
        """Remove a folder with the lock held."""
        with self.lock:
            super().remove_folder(path)


class FileMasks(MaskReader):
    """Writes affinities of the kernel's threads also to files."""

    def bind_thread(self, thread, cpus):
        """Write the affinity of a thread in the format of the kernel."""
        text = f"Cpus_allowed_list:\t{cpuset.format(cpus)}"
        kernel_files.write_text(f"{self.root}/proc/{thread}/status", text)


class TableAffinity:
    """Affinities in memory, because this machine has fewer CPUs.

    Each access also calls the kernel, so that it costs as much.
    """

    def __init__(self):
        self._table, self._read = {}, os.sched_getaffinity
        os.sched_getaffinity, os.sched_setaffinity = self.read, self.write

    def read(self, pid):
        """Return the CPUs of a thread."""
        found = self._read(pid)
        return self._table.get(pid, found)

    def write(self, pid, cpus):
        """Set the CPUs of a thread."""
        self._read(pid)
        self._table[pid] = frozenset(cpus)


class TableCookies(KernelCookies):
    """Cookies in memory, because this kernel may lack them.

    Each read also calls the kernel, so that it costs as much.
    """

    def __init__(self):
        self._table = {}

    def clear_own_cookie(self):
        """Do nothing: the agent has no cookie."""

    def read_cookie(self, tid):
        """Return the cookie of a thread."""
        with contextlib.suppress(CookieError, NoSiblingsError):
            super().read_cookie(tid)
        return self._table.get(tid, 0)

    def create_cookie(self, pid):
        """Set one cookie for all threads of a process."""
        self._table.update(dict.fromkeys(procfs.thread_ids(pid), pid))


def have_all_cpus():
    """Allow isolation, core scheduling and pins on CPUs that this machine lacks."""
    TableAffinity()
    configured_host.MaskReader = configured_controllers.MaskReader = FileMasks
    configured_controllers.KernelCookies = TableCookies
    files = ("cpuset.cpus.partition", "cpuset.cpus.exclusive", "cpuset.cpus.exclusive.effective")
    cgroups.FILES.update(dict.fromkeys(files, ""), **{"cpuset.cpus.partition": "member\n"})


def use_peers(folder):
    """Read the paths of fake containers' cgroups from files, and apply a written cpuset to the processes."""

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
