"""A delegated cgroup v2 group for tests.

If the variable CGROUP_ROOT names a folder of the kernel's cgroup file system, the group is there. Otherwise
it is a folder that behaves like one: the fake knows which process is in which group, and checks values as the
kernel does.
"""

import errno
import os
import shutil
import uuid
from pathlib import Path

from compute_agent.drivers import cgroup, procfs
from compute_agent.model import cpuset

ROOT = os.environ.get("CGROUP_ROOT")
PAGE = os.sysconf("SC_PAGE_SIZE")
CONTROLLERS = ("cpuset", "cpu", "memory", "io", "hugetlb")
FILES = {
    "cgroup.procs": "",
    "cpu.weight": "100\n",
    "cpu.max": "max 100000\n",
    "cpu.max.burst": "0\n",
    "cpu.idle": "0\n",
    "memory.current": "4096\n",
    "memory.max": "max\n",
    "memory.high": "max\n",
    "memory.low": "0\n",
    "memory.events": "low 0\nhigh 0\nmax 0\noom 0\noom_kill 0\noom_group_kill 0\n",
    "hugetlb.2MB.max": "max\n",
    "hugetlb.2MB.current": "0\n",
    "hugetlb.2MB.rsvd.max": "max\n",
    "hugetlb.2MB.rsvd.current": "0\n",
    "io.weight": "default 100\n",
    "io.max": "",
    "cpuset.cpus": "\n",
    "cpuset.mems": "\n",
    "cpuset.mems.effective": f"{cpuset.format(procfs.nodes_with_memory())}\n",
}


class FakeCgroups:
    """Patches `cgroup.Group`, so that groups below an ordinary folder behave like the kernel's groups."""

    def __init__(self, folder, monkeypatch):
        folder.mkdir(exist_ok=True)
        self.folder = folder
        self.members = {}
        """Folder by process id."""
        self.make_files(folder)
        for name in ("add", "process_ids", "remove", "remove_empty", "write_file"):
            monkeypatch.setattr(cgroup.GuestCgroup, name, self._method(name))
        make = cgroup.CgroupRoot.make_group
        monkeypatch.setattr(
            cgroup.CgroupRoot, "make_group", lambda root, name: self.make_files(make(root, name))
        )

    def _method(self, name):
        fake = getattr(self, f"_{name.lstrip('_')}")
        return lambda *arguments, **options: fake(*arguments)

    def make(self, path):
        """Make a group, as a program other than the agent does."""
        folder = self.folder / path
        folder.mkdir(parents=True)
        self.make_files(folder)
        return folder

    def make_files(self, group):
        folder = getattr(group, "folder", group)
        for name in ("cgroup.controllers", "cgroup.subtree_control"):
            (folder / name).write_text(" ".join(CONTROLLERS))
        for name, text in FILES.items():
            if not (folder / name).exists():
                (folder / name).write_text(text)
        return group

    def _add(self, group, pid):
        if procfs.identify_process(pid) is None:
            raise ProcessLookupError(errno.ESRCH, "No such process")
        self.members[pid] = group.folder

    def _process_ids(self, group):
        return [
            pid
            for pid, folder in list(self.members.items())
            if folder.is_relative_to(group.folder) and procfs.identify_recent(pid)
        ]

    def _remove(self, group):
        for pid in self._process_ids(group):
            os.kill(pid, 9)
        shutil.rmtree(group.folder, ignore_errors=True)

    def _remove_empty(self, group):
        assert self._process_ids(group) == []
        shutil.rmtree(group.folder)

    def _write_file(self, group, name, value):
        match name:
            case "cpu.weight":
                is_idle = group.has_file("cpu.idle") and (group.folder / "cpu.idle").read_text() == "1\n"
                valid = 1 <= int(value) <= 10_000 and not is_idle
            case "cpu.idle":
                valid = value in ("0", "1")
                if valid and f"{value}\n" != (group.folder / name).read_text():
                    # An idle group shows no weight, and one that leaves it has the default.
                    (group.folder / "cpu.weight").write_text("0\n" if value == "1" else "100\n")
            case "cpu.max":
                quota, period = value.split()
                valid = (quota == "max" or int(quota) >= 1000) and 1000 <= int(period) <= 1_000_000
                burst = group.folder / "cpu.max.burst"
                if quota != "max" and burst.exists() and int(burst.read_text()) > int(quota):
                    valid = False
            case "cpu.max.burst":
                quota = (group.folder / "cpu.max").read_text().split()[0]
                valid = quota == "max" or int(value) <= int(quota)
            case "memory.max" | "memory.high" | "memory.low":
                valid = value == "max" or int(value) >= 0
                if value != "max":
                    value = int(value) // PAGE * PAGE
            case "hugetlb.2MB.max" | "hugetlb.2MB.rsvd.max":
                used = int((group.folder / name.replace("max", "current")).read_text())
                if value != "max" and int(value) < used:
                    raise OSError(errno.EBUSY, "Device or resource busy", str(group.folder / name))
                valid = True
            case "io.max":
                value, valid = _io_max((group.folder / name).read_text(), value), True
            case "io.latency":
                value, valid = _io_latency((group.folder / name).read_text(), value), True
            case "cpuset.mems":
                if not value and self._process_ids(group):
                    raise OSError(errno.ENOSPC, "No space left on device", str(group.folder / name))
                valid = cpuset.parse(value) <= procfs.nodes_with_memory()
            case _:
                valid = True
        if not valid:
            raise OSError(errno.EINVAL, "Invalid argument", str(group.folder / name))
        (group.folder / name).write_text(f"{value}\n")


class KernelCgroups:
    """The operations of FakeCgroups on the kernel's cgroup file system."""

    def __init__(self):
        self.folder = Path(ROOT) / f"test-{uuid.uuid4()}"
        self.folder.mkdir()
        for folder in (self.folder.parent, self.folder):
            cgroup.CgroupRoot.open(folder)  # hands the controllers down

    def make(self, path):
        """Make a group, as a program other than the agent does."""
        folder = self.folder / path
        folder.mkdir(parents=True)
        return folder

    def close(self):
        cgroup.GuestCgroup(self.folder).remove()


def _io_latency(text, line):
    """The content of io.latency after a line was written. Devices without a target are not in the file."""
    has = dict(one.split(" ", 1) for one in (*text.splitlines(), line) if one)
    return "\n".join(f"{device} {target}" for device, target in has.items() if target != "target=0")


def _io_max(text, line):
    """The content of io.max after a line was written. Devices without a limit are not in the file."""
    has = dict(one.split(" ", 1) for one in text.splitlines() if one)
    device, _, rest = line.partition(" ")
    limits = dict(one.split("=") for one in has.get(device, "rbps=max wbps=max riops=max wiops=max").split())
    limits |= dict(one.split("=") for one in rest.split())
    has[device] = " ".join(f"{key}={amount}" for key, amount in limits.items())
    return "\n".join(
        f"{one} {rest}" for one, rest in has.items() if set(limits.values()) != {"max"} or one != device
    )
