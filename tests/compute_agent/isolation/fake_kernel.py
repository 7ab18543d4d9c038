"""Fake masks of a host as files, with the answers of real kernels to writes, and devices that come and go."""

import errno
import os
import shutil
from collections import Counter
from pathlib import Path

from compute_agent.isolation.control_groups import GroupReader
from compute_agent.isolation.facts import DEFAULT_MASK, WATCHDOG_MASK, WORKQUEUE_MASK, MaskReader
from compute_agent.isolation.originals import OriginalMasks, OriginalsFile
from compute_agent.isolation.partitions import PartitionFiles
from compute_agent.isolation.shell import HostIsolator
from compute_agent.model import cpuset

BOOT = "proc/sys/kernel/random/boot_id"
ONLINE = "sys/devices/system/cpu/online"


class Killed(BaseException):
    """The agent ends at this moment, in the middle of its work."""


class FakeKernel(MaskReader):
    """A reader of masks, with the answers of a kernel of one version to writes."""

    def __init__(self, root, cpus=8, version=(6, 12), vectors=200):
        super().__init__(root)
        self.cpus, self.version, self.vectors = frozenset(range(cpus)), version, vectors
        self.online, self.managed, self.writes, self.kill_at = self.cpus, set(), [], None
        self.bound, self.devices = {}, {"/dev/vfio/12"}
        self.put(BOOT, "boot-1")
        self.put(ONLINE, cpuset.format(self.online))
        self.put(DEFAULT_MASK, self.hexadecimal(self.cpus))
        self.put(WORKQUEUE_MASK, self.hexadecimal(self.cpus))
        self.put("sys/devices/virtual/workqueue/writeback/cpumask", self.hexadecimal(self.cpus))
        self.put(WATCHDOG_MASK, cpuset.format(self.cpus))
        self.put("sys/devices/system/cpu/possible", cpuset.format(self.cpus))
        self.groups = FakeGroupReader(root, lambda: None)
        self.cgroups = FakeGroups(self)
        self.partitions = self.cgroups

    def hexadecimal(self, cpus):
        """The mask in hexadecimal digits, padded as by the kernel: two digits for eight CPUs."""
        return cpuset.format_mask(cpus).zfill(-(-len(self.cpus) // 4))

    def put(self, path, text):
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        if file.exists():
            if file.read_text() == f"{text}\n":
                return
            os.chmod(file, 0o644)
        file.write_text(f"{text}\n")

    def text(self, path):
        return (self.root / path).read_text().strip()

    @staticmethod
    def irq(number):
        return f"proc/irq/{number}/smp_affinity_list"

    def add_interrupt(self, number, name, cpus=None, node=-1, managed=False):
        """Give a device an interrupt, with the default mask unless its driver sets another mask."""
        mask = cpuset.parse_mask(self.text(DEFAULT_MASK)) if cpus is None else frozenset(cpus)
        (self.root / f"proc/irq/{number}/{name}").mkdir(parents=True)
        self.put(f"proc/irq/{number}/node", str(node))
        if managed:
            self.managed.add(self.irq(number))
        self._set_interrupt(number, mask)

    def remove_interrupt(self, number):
        folder = self.root / f"proc/irq/{number}"
        for path in sorted(folder.rglob("*"), reverse=True):
            path.rmdir() if path.is_dir() else path.unlink()
        folder.rmdir()
        self.managed.discard(self.irq(number))

    def reset_interrupt(self, number):
        """Reset a device, as its driver does: the interrupt has the default mask again."""
        self._set_interrupt(number, cpuset.parse_mask(self.text(DEFAULT_MASK)))

    def change(self, path, cpus):
        """Write a mask, as a program other than the agent does."""
        if "/irq/" in path and path.endswith("_list"):
            self._set_interrupt(int(path.split("/")[2]), frozenset(cpus))
        elif path.endswith("/status"):
            self.bound[int(path.split("/")[1])] = frozenset(cpus)
            self._bind(int(path.split("/")[1]), cpus)
        else:
            self.put(path, self.as_kernel(path, cpus))
            if path == WORKQUEUE_MASK:
                self.cgroups.unbound = frozenset(cpus)
            self.cgroups.settle()

    def as_kernel(self, path, cpus):
        is_list = path.endswith(("_list", "cpuset.cpus")) or path == WATCHDOG_MASK
        return cpuset.format(cpus) if is_list else self.hexadecimal(cpus)

    def set_online(self, cpus):
        """Take CPUs offline or online. An interrupt without an online CPU may then use all online CPUs."""
        self.online = frozenset(cpus)
        self.put(ONLINE, cpuset.format(self.online))
        for path, mask in self.masks().items():
            if path.endswith("_list") and not mask & self.online:
                self.change(path, self.online)
            elif path.endswith("/status") and not mask & self.online:
                self.change(path, self.cpus)

    def add_thread(self, number, name, cpus=None, flags=0, start=0):
        """Add a kernel thread, which may run on all CPUs unless others are given."""
        before = "S 2 0 0 0 -1"
        fields = " ".join("0" * 12)
        text = f"{number} ({name}) {before} {0x208040 | flags} {fields} {start or number} 0 0"
        self.put(f"proc/{number}/stat", text)
        self._bind(number, self.cpus if cpus is None else cpus)
        self._list_threads()

    def remove_thread(self, number):
        self.bound.pop(number, None)
        for file in (self.root / f"proc/{number}").iterdir():
            file.unlink()
        (self.root / f"proc/{number}").rmdir()
        self._list_threads()

    def _list_threads(self):
        threads = sorted(int(file.parent.name) for file in (self.root / "proc").glob("[0-9]*/stat"))
        self.put("proc/2/task/2/children", " ".join(map(str, threads)))

    def _bind(self, number, cpus):
        listed = cpuset.format(cpus)
        self.put(f"proc/{number}/status", f"Name:\tx\nCpus_allowed:\tff\nCpus_allowed_list:\t{listed}")

    def bind_thread(self, thread, cpus):
        self.note_write(f"proc/{thread}/status", cpuset.format(cpus))
        if not cpus & self.online:
            raise OSError(errno.EINVAL, "no CPU of the mask is online")
        self.bound[thread] = cpus
        self._bind(thread, cpus)

    def _is_device(self, opened, path):
        return path in self.devices

    def note_write(self, path, text):
        if self.kill_at is not None and len(self.writes) >= self.kill_at:
            raise Killed
        self.writes.append((path, text))

    def replace_threads(self, partitioned):
        """Change the CPUs of kernel threads, as the kernel does when a partition is made or removed."""
        for folder in self.threads():
            number = int(folder.split("/")[1])
            if int(self.text(f"{folder}/stat").split()[8]) & 0x04000000:
                continue
            # From Linux 6.2 on, what sched_setaffinity(2) has set survives.
            own = self.bound.get(number, self.cpus) if self.version >= (6, 2) else self.cpus
            self._bind(number, (own & (self.cpus - partitioned)) or self.cpus - partitioned)

    def add_queue(self, device, queue, cpus=()):
        self.put(f"sys/class/net/{device}/queues/rx-{queue}/rps_cpus", self.hexadecimal(cpus))

    def masks(self):
        """The CPUs in all masks, by path."""
        found = {}
        for folder in (
            *self.threads(),
            "proc/irq",
            "proc/sys/kernel",
            "sys/devices/virtual/workqueue",
            "sys/class/net",
            "sys/fs/cgroup",
        ):
            for file in (self.root / folder).rglob("*"):
                path = str(file.relative_to(self.root))
                if path.endswith("/status"):
                    found[path] = self.read_cpus(path)
                elif file.name in ("smp_affinity_list", "watchdog_cpumask"):
                    found[path] = cpuset.parse(self.text(path))
                elif file.name == "cpuset.cpus":
                    cpus = cpuset.parse(self.text(path))
                    found[path] = frozenset() if cpus == self.cpus else cpus
                elif file.name in ("default_smp_affinity", "cpumask", "rps_cpus", "xps_cpus"):
                    found[path] = cpuset.parse_mask(self.text(path))
        return found

    def threads(self):
        return [f"proc/{file.parent.name}" for file in (self.root / "proc").glob("[0-9]*/stat")]

    def texts(self):
        found = {path: self.text(path) for path in self.masks()}
        # A group with all CPUs has no mask.
        every = cpuset.format(self.cpus)
        for path in found:
            if path.endswith("cpuset.cpus") and found[path] == every:
                found[path] = ""
        for file in (self.root / "sys/fs/cgroup").rglob("cpuset.cpus.*"):
            found[str(file.relative_to(self.root))] = file.read_text().strip()
        return found

    def effective(self, number):
        return cpuset.parse(self.text(f"proc/irq/{number}/effective_affinity_list"))

    def write_mask(self, path, text, names=""):
        """Answer as the kernel does.

        :raises OSError: the kernel would refuse the mask.
        """
        if path.endswith("/status"):
            super().write_mask(path, text, names)
            return
        self.note_write(path, text)
        if path.startswith("sys/fs/cgroup"):
            super().write_mask(path, text, names)
            self.cgroups.settle()
            return
        if not (self.root / path).exists():
            raise FileNotFoundError(path)
        if path in self.managed:
            raise OSError(errno.EPERM if self.version >= (6, 12) else errno.EIO, "managed")
        is_list = path.endswith("_list") or path == WATCHDOG_MASK
        cpus = cpuset.parse(text) if is_list else cpuset.parse_mask(text)
        if not cpus & self.online:
            raise OSError(errno.EINVAL, "no CPU of the mask is online")
        if "/irq/" in path and is_list:
            self._set_interrupt(int(path.split("/")[2]), cpus, check=True)
        else:
            self.put(path, self.as_kernel(path, cpus))
            if path == WORKQUEUE_MASK:
                self.cgroups.unbound = cpus
                self.cgroups.settle()

    def _set_interrupt(self, number, cpus, check=False):
        path = self.irq(number)
        taken = Counter(
            cpu
            for file in (self.root / "proc/irq").glob("*/effective_affinity_list")
            if file.parent.name != str(number)
            for cpu in cpuset.parse(file.read_text().strip())
        )
        room = [cpu for cpu in cpus & self.online if taken[cpu] < self.vectors]
        if check and not room:
            raise OSError(errno.ENOSPC, "no vector")
        chosen = min(room or cpus, key=lambda cpu: (taken[cpu], cpu))
        self.put(f"proc/irq/{number}/effective_affinity_list", str(chosen))
        self.put(path, cpuset.format(cpus))
        if path in self.managed and self.version >= (6, 11):
            os.chmod(self.root / path, 0o444)


class FakeGroupReader(GroupReader):
    """A reader of control groups that, like the kernel, refuses to take away all CPUs of a group with
    processes.
    """

    def _write_file(self, file, text):
        events = Path(file).with_name("cgroup.events")
        if not text.strip() and Path(file).read_text().strip() and "populated 1" in events.read_text():
            raise OSError(errno.ENOSPC, "processes without a CPU")
        super()._write_file(file, text)


class FakeGroups(PartitionFiles):
    """Fake control groups with the kernel's answers to partitions, and its reasons to refuse them."""

    ROOT = "sys/fs/cgroup"

    def __init__(self, kernel):
        super().__init__(kernel.root)
        self.kernel, self.unbound, self.partitioned = kernel, kernel.cpus, frozenset()
        self.permitted = True
        kernel.put(f"{self.ROOT}/cgroup.controllers", "cpuset cpu io memory")
        kernel.put(f"{self.ROOT}/cgroup.procs", "")
        if kernel.version >= (6, 8):
            kernel.put(f"{self.ROOT}/cpuset.cpus.isolated", "")

    def add(self, group, cpus="", populated=True):
        """Add a group with the controller cpuset."""
        folder = f"{self.ROOT}/{group}"
        self.kernel.put(f"{folder}/cgroup.events", f"populated {int(populated)}\nfrozen 0")
        self.kernel.put(f"{folder}/cpuset.cpus", cpus)
        self.kernel.put(f"{folder}/cpuset.cpus.partition", "member")
        if self.kernel.version >= (6, 7):
            self.kernel.put(f"{folder}/cpuset.cpus.exclusive", "")
            self.kernel.put(f"{folder}/cpuset.cpus.exclusive.effective", "")
        self.settle()

    def remove(self, group):
        shutil.rmtree(self.root / self.ROOT / group)
        self.settle()

    def add_process(self, pid, group):
        self.kernel.put(f"proc/{pid}/cgroup", f"0::/{group}")

    def text(self, group, file):
        path = self.root / self.ROOT / group / file
        return path.read_text().strip() if path.exists() else ""

    def state(self, group):
        return self.text(group, "cpuset.cpus.partition")

    def groups(self):
        base = self.root / self.ROOT
        return sorted(
            str(file.parent.relative_to(base)) for file in base.rglob("cpuset.cpus") if file.parent != base
        )

    def write_text(self, path, text):
        self.kernel.note_write(path, text)
        folder, _, file = path.rpartition("/")
        if not (self.root / path).exists():
            raise FileNotFoundError(path)
        group = folder.removeprefix(f"{self.ROOT}/")
        if file == "cpuset.cpus.exclusive":
            parent = group.rpartition("/")[0]
            for other in self.groups():
                taken = cpuset.parse(self.text(other, file))
                if other != group and other.rpartition("/")[0] == parent and taken & cpuset.parse(text):
                    raise OSError(errno.EINVAL, "not exclusive")
        self.kernel.put(path, text)
        self.settle()

    def settle(self):
        """Pass exclusive CPUs down the tree, and compute which partitions are valid."""
        passed, valid = {"": self.kernel.cpus}, {}
        for group in self.groups():
            parent = group.rpartition("/")[0]
            own = cpuset.parse(self.text(group, "cpuset.cpus"))
            passed[group] = cpuset.parse(self.text(group, "cpuset.cpus.exclusive")) & passed[parent]
            if self.kernel.version < (6, 11):
                passed[group] &= own
            if self.kernel.version >= (6, 7):
                file = f"{self.ROOT}/{group}/cpuset.cpus.exclusive.effective"
                self.kernel.put(file, cpuset.format(passed[group]))
            kind = self.state(group).split()[0]
            if kind == "member":
                continue
            taken = frozenset().union(*valid.values())
            cpus = passed[group] or (frozenset() if parent else own)
            if reason := self._refuse(group, parent, own, cpus, taken):
                self.kernel.put(f"{self.ROOT}/{group}/cpuset.cpus.partition", f"{kind} invalid ({reason})")
            else:
                self.kernel.put(f"{self.ROOT}/{group}/cpuset.cpus.partition", kind)
                valid[group] = cpus
        partitioned = frozenset().union(*valid.values())
        isolated = [cpus for group, cpus in valid.items() if self.state(group) == "isolated"]
        if self.kernel.version >= (6, 8):
            shown = self.unbound - frozenset().union(*isolated)
            self.kernel.put(WORKQUEUE_MASK, self.kernel.hexadecimal(shown))
        if partitioned != self.partitioned:
            self.partitioned = partitioned
            self.kernel.replace_threads(partitioned)

    def _refuse(self, group, parent, own, cpus, taken):
        """The reason why the kernel refuses a partition; empty if it does not."""
        if self.kernel.version < (6, 7):
            if parent:
                return "Parent is not a partition root"
            others = [other for other in self.groups() if "/" not in other and other != group]
            if any(cpuset.parse(self.text(other, "cpuset.cpus")) & own for other in others):
                return "Cpu list in cpuset.cpus not exclusive"
        elif parent and not self.permitted:
            return "Enable partition not permitted"
        if not cpus & self.kernel.online or cpus & taken or cpus | taken >= self.kernel.online:
            return "Invalid cpu list in cpuset.cpus.exclusive"
        return ""


class IsolationHost:
    """A fake kernel, and the agent's objects, which a test can kill and start again."""

    def __init__(self, tmp_path, **options):
        self.kernel = FakeKernel(tmp_path / "root", **options)
        self.file = tmp_path / "isolation.json"
        self.drifts = 0
        self.start()

    def start(self):
        self.store = OriginalsFile(self.file)
        self.isolator = HostIsolator(self.kernel, self.store, self._count)

    def _count(self):
        self.drifts += 1

    def kept(self):
        return OriginalsFile(self.file).kept_originals if self.file.exists() else OriginalMasks()

    def count_changes(self):
        """The number of masks, partition files and bans that differ from their originals."""
        kept = self.kept()
        written = (*kept.masks.values(), *kept.bans.values())
        return sum(bool(one.written) for one in written) + len(kept.groups)

    def bring_about(self, demand):
        return self.isolator.bring_about(demand)
