"""A machine of eight CPUs with as much use as a test says, on which real guests run."""

import os
import threading
import time
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from compute_agent.host.proc_stat import parse_process_stat
from tests.openstack.two_hosts import play_power

_CPUS: Final = 8
_SECONDS: Final = 0.2
_HERTZ: Final = 100.0


class PlayedUse:
    """Writes ``proc/stat`` below a folder as time passes, while the context lasts.

    Guests use their real CPU time, which counts for the first CPU. :attr:`cores` is the use by all else,
    evenly on all CPUs.
    """

    def __init__(self, root: Path, libvirtd: Any) -> None:
        self.cores = 0.5
        self._root = root
        self._libvirtd = libvirtd
        self._guests = 0.0
        self._others = 0.0
        self._seen: dict[int, float] = {}
        self._begin = time.monotonic()
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._play, name="played-use")
        play_power(root, _CPUS)
        self._write()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._end.set()
        self._thread.join()

    def _play(self) -> None:
        last = time.monotonic()
        while not self._end.wait(_SECONDS):
            now = time.monotonic()
            self._others += (now - last) * self.cores
            last = now
            for process in Path(self._libvirtd.folder, "root/run/libvirt/qemu").glob("instance-*.pid"):
                with suppress(OSError, ValueError):  # it ends just now
                    self._count(int(process.read_text()))
            self._write()

    def _count(self, pid: int) -> None:
        link = self._root / "proc" / str(pid)
        if not link.is_symlink():
            link.symlink_to(f"/proc/{pid}")
        used = parse_process_stat(Path(f"/proc/{pid}/stat").read_text()).cpu_seconds
        self._guests += used - self._seen.get(pid, used)
        self._seen[pid] = used

    def _write(self) -> None:
        passed = time.monotonic() - self._begin
        ticks = []
        for cpu in range(_CPUS):
            busy = self._others / _CPUS + (self._guests if cpu == 0 else 0.0)
            ticks.append([round(_HERTZ * each) for each in (busy, max(passed - busy, 0.0))])
        rows = {"cpu": map(sum, zip(*ticks, strict=True))}
        rows |= {f"cpu{cpu}": iter(each) for cpu, each in enumerate(ticks)}
        lines = [f"{name} {busy} 0 0 {idle} 0 0 0 0" for name, (busy, idle) in rows.items()]
        whole = self._root / "proc/stat.new"
        whole.write_text("\n".join([*lines, "intr 0\n"]))
        os.replace(whole, self._root / "proc/stat")
