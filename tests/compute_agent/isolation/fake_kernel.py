"""Masks of a host as files, with the answers of real kernels to writes, and devices that come and go."""

import errno
import os
from collections import Counter

from compute_agent.isolation.facts import DEFAULT_MASK, WATCHDOG_MASK, WORKQUEUE_MASK, MaskReader
from compute_agent.isolation.originals import OriginalMasks, OriginalsFile
from compute_agent.isolation.shell import HostIsolator
from compute_agent.model import cpuset

BOOT = "proc/sys/kernel/random/boot_id"
ONLINE = "sys/devices/system/cpu/online"


class Killed(BaseException):
    """The agent ends here, whatever it was about to do."""


class FakeKernel(MaskReader):
    """A reader of masks with the answers to writes of a kernel of one version."""

    def __init__(self, root, cpus=8, version=(6, 12), vectors=200):
        super().__init__(root)
        self.cpus, self.version, self.vectors = frozenset(range(cpus)), version, vectors
        self.online, self.managed, self.writes, self.kill_at = self.cpus, set(), [], None
        self.put(BOOT, "boot-1")
        self.put(ONLINE, cpuset.format(self.online))
        self.put(DEFAULT_MASK, self.hexadecimal(self.cpus))
        self.put(WORKQUEUE_MASK, self.hexadecimal(self.cpus))
        self.put("sys/devices/virtual/workqueue/writeback/cpumask", self.hexadecimal(self.cpus))
        self.put(WATCHDOG_MASK, cpuset.format(self.cpus))

    def hexadecimal(self, cpus):
        """Padded as by the kernel: two digits for eight CPUs."""
        return cpuset.format_mask(cpus).zfill(-(-len(self.cpus) // 4))

    def put(self, path, text):
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        if file.exists():
            os.chmod(file, 0o644)
        file.write_text(f"{text}\n")

    def text(self, path):
        return (self.root / path).read_text().strip()

    @staticmethod
    def irq(number):
        return f"proc/irq/{number}/smp_affinity_list"

    def add_interrupt(self, number, name, cpus=None, node=-1, managed=False):
        """A device gets an interrupt, with the default mask unless its driver says otherwise."""
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
        """A driver resets its device: the same interrupt, with the default mask."""
        self._set_interrupt(number, cpuset.parse_mask(self.text(DEFAULT_MASK)))

    def change(self, path, cpus):
        """Another program writes a mask."""
        if "/irq/" in path and path.endswith("_list"):
            self._set_interrupt(int(path.split("/")[2]), frozenset(cpus))
        elif path.endswith("/status"):
            self._bind(int(path.split("/")[1]), cpus)
        else:
            self.put(path, self.as_kernel(path, cpus))

    def as_kernel(self, path, cpus):
        is_list = path.endswith("_list") or path == WATCHDOG_MASK
        return cpuset.format(cpus) if is_list else self.hexadecimal(cpus)

    def set_online(self, cpus):
        """CPUs go offline or come online; an interrupt without an online CPU may use all that are."""
        self.online = frozenset(cpus)
        self.put(ONLINE, cpuset.format(self.online))
        for path, mask in self.masks().items():
            if path.endswith("_list") and not mask & self.online:
                self.change(path, self.online)
            elif path.endswith("/status") and not mask & self.online:
                self.change(path, self.cpus)

    def add_thread(self, number, name, cpus=None, flags=0, start=0):
        """A thread of the kernel, on all CPUs unless it says otherwise."""
        before = "S 2 0 0 0 -1"
        fields = " ".join("0" * 12)
        text = f"{number} ({name}) {before} {0x208040 | flags} {fields} {start or number} 0 0"
        self.put(f"proc/{number}/stat", text)
        self._bind(number, self.cpus if cpus is None else cpus)
        self._list_threads()

    def remove_thread(self, number):
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
        if self.kill_at is not None and len(self.writes) >= self.kill_at:
            raise Killed
        self.writes.append((f"proc/{thread}/status", cpuset.format(cpus)))
        if not cpus & self.online:
            raise OSError(errno.EINVAL, "no CPU of the mask is online")
        self._bind(thread, cpus)

    def add_queue(self, device, queue, cpus=()):
        self.put(f"sys/class/net/{device}/queues/rx-{queue}/rps_cpus", self.hexadecimal(cpus))

    def masks(self):
        """The CPUs of all masks by path."""
        found = {}
        for folder in (
            *self.threads(),
            "proc/irq",
            "proc/sys/kernel",
            "sys/devices/virtual/workqueue",
            "sys/class/net",
        ):
            for file in (self.root / folder).rglob("*"):
                path = str(file.relative_to(self.root))
                if path.endswith("/status"):
                    found[path] = self.read_cpus(path)
                elif file.name in ("smp_affinity_list", "watchdog_cpumask"):
                    found[path] = cpuset.parse(self.text(path))
                elif file.name in ("default_smp_affinity", "cpumask", "rps_cpus"):
                    found[path] = cpuset.parse_mask(self.text(path))
        return found

    def threads(self):
        return [f"proc/{file.parent.name}" for file in (self.root / "proc").glob("[0-9]*/stat")]

    def texts(self):
        return {path: self.text(path) for path in self.masks()}

    def effective(self, number):
        return cpuset.parse(self.text(f"proc/irq/{number}/effective_affinity_list"))

    def write_mask(self, path, text, names=""):
        """Answer as the kernel does.

        :raises OSError:
        """
        if path.endswith("/status"):
            super().write_mask(path, text, names)
            return
        if self.kill_at is not None and len(self.writes) >= self.kill_at:
            raise Killed
        self.writes.append((path, text))
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


class IsolationHost:
    """A fake kernel and the agent's side, which can be killed and started again."""

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

    def bring_about(self, demand):
        return self.isolator.bring_about(demand)
