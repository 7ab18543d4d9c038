"""A machine of eight CPUs with as much use as a test says, on which real guests run."""

import os
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, Self

from compute_agent.host.proc_stat import parse_process_stat
from tests.openstack.two_hosts import play_power

_CPUS: Final = 8
_SECONDS: Final = 0.2
_HERTZ: Final = 100.0


class PlayedUse:
    """Writes ``proc/stat`` below a folder as time passes, while the context lasts.

    Guests use their real CPU time, which counts for the first CPU. :attr:`cores` is the use by all else,
    evenly on all CPUs. A guest that runs waits for the other guests alone, whatever else keeps the real
    machine busy (``proc/THREAD/schedstat``).
    """

    def __init__(self, root: Path, libvirtd: Any) -> None:
        self.cores = 0.5
        self._root = root
        self._libvirtd = libvirtd
        self._guests = 0.0
        self._others = 0.0
        self._seen: dict[int, float] = {}
        self._waited: dict[int, float] = {}
        self._begin = time.monotonic()
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._play, name="played-use")
        play_power(root, _CPUS)
        self._write()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._end.set()
        self._thread.join()

    def _play(self) -> None:
        last = time.monotonic()
        while not self._end.wait(_SECONDS):
            now = time.monotonic()
            self._others += (now - last) * self.cores
            last = now
            used: dict[int, float] = {}
            for process in Path(self._libvirtd.folder, "root/run/libvirt/qemu").glob("instance-*.pid"):
                with suppress(OSError, ValueError):  # it ends just now
                    pid = int(process.read_text())
                    used[pid] = self._count(pid)
            for pid, own in used.items():
                others = sum(used.values()) - own if own else 0.0  # a guest that rests waits for no CPU
                with suppress(OSError):
                    self._wait(pid, others)
            self._write()

    def _count(self, pid: int) -> float:
        """The seconds of CPU that the guest has used since the last count."""
        link = self._root / "proc" / str(pid)
        if not link.is_symlink():
            link.symlink_to(f"/proc/{pid}")
        used = parse_process_stat(Path(f"/proc/{pid}/stat").read_text()).cpu_seconds
        grown = used - self._seen.get(pid, used)
        self._guests += grown
        self._seen[pid] = used
        return grown

    def _wait(self, pid: int, seconds: float) -> None:
        """Have the threads of a guest wait; the first one runs no guest CPU."""
        self._waited[pid] = self._waited.get(pid, 0.0) + seconds
        for thread in Path(f"/proc/{pid}/task").iterdir():
            if int(thread.name) != pid:
                folder = self._root / "proc" / thread.name
                folder.mkdir(exist_ok=True)
                _replace(folder / "schedstat", f"0 {round(self._waited[pid] * 1e9)} 0\n")

    def _write(self) -> None:
        passed = time.monotonic() - self._begin
        ticks = []
        for cpu in range(_CPUS):
            busy = self._others / _CPUS + (self._guests if cpu == 0 else 0.0)
            ticks.append([round(_HERTZ * each) for each in (busy, max(passed - busy, 0.0))])
        rows = {"cpu": map(sum, zip(*ticks, strict=True))}
        rows |= {f"cpu{cpu}": iter(each) for cpu, each in enumerate(ticks)}
        lines = [f"{name} {busy} 0 0 {idle} 0 0 0 0" for name, (busy, idle) in rows.items()]
        _replace(self._root / "proc/stat", "\n".join([*lines, "intr 0\n"]))


def _replace(path: Path, text: str) -> None:
    """Write a file that another program reads, never in part."""
    whole = path.with_suffix(".new")
    whole.write_text(text)
    os.replace(whole, path)
