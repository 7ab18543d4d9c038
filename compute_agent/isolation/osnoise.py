"""Runs the kernel's tracer osnoise (Documentation/trace/osnoise-tracer.rst; instances since Linux 5.17).

The tracer runs a busy thread on each CPU, and measures the interruptions of this thread. So the tracer is
only for CPUs that no guest holds. Each instance of the tracer has its own buffer, but the kernel has a single
list of CPUs to trace. The list is restored at the end of a run. If a run was killed, the next run, or the
next start of the agent, restores the list.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import astuple, dataclass, replace
from operator import add
from pathlib import Path
from typing import Final

from compute_agent.files import LockedError, hold_lock, write_durably
from compute_agent.host import kernel_files
from compute_agent.model import cpuset
from compute_agent.model.cpuset import CpuSet

_FOLDERS: Final = ("sys/kernel/tracing", "sys/kernel/debug/tracing")
_NAME: Final = "osnoise"
_INSTANCE: Final = "instances/compute_agent_noise"
_CPUS: Final = "osnoise/cpus"

ORIGINAL_FILE: Final = "osnoise.json"
"""The file in the state folder that keeps the kernel's list of CPUs during a run."""

MAX_SECONDS: Final = 60
_MAX_TRACE: Final = 16 << 20
"""Maximum bytes of a trace that are read. A trace has one line for each CPU and second."""

_SAMPLE: Final = re.compile(
    r"\[(?P<cpu>[0-9]+)\]\s+\S+\s+[0-9.]+:\s+(?P<runtime>[0-9]+)\s+(?P<noise>[0-9]+)\s+[0-9.]+\s+"
    r"(?P<longest>[0-9]+)\s+(?P<hardware>[0-9]+)\s+(?P<nmi>[0-9]+)\s+(?P<interrupts>[0-9]+)\s+"
    r"(?P<softirqs>[0-9]+)\s+(?P<threads>[0-9]+)\s*$",
    re.MULTILINE | re.ASCII,
)


class TracerError(Exception):
    """The tracer cannot run. The text has the reason."""


@dataclass(frozen=True, slots=True)
class TracedNoise:
    """The noise of a CPU while the tracer ran on it.

    Times are in microseconds, and ``runtime_us`` is the measured time. The fields without ``_us`` are numbers
    of interruptions: by hardware (and firmware), NMIs, interrupts (including the tick), softirqs and threads.
    """

    runtime_us: int = 0
    noise_us: int = 0
    longest_us: int = 0
    hardware: int = 0
    nmi: int = 0
    interrupts: int = 0
    softirqs: int = 0
    threads: int = 0

    def joined_with(self, other: TracedNoise) -> TracedNoise:
        """The sums of two measurements, with the longest interruption of the two."""
        sums = map(add, astuple(self), astuple(other))
        return replace(TracedNoise(*sums), longest_us=max(self.longest_us, other.longest_us))


def parse_trace(text: str) -> dict[int, TracedNoise]:
    """The noise of each CPU, from all samples of the CPU in a trace."""
    found: dict[int, TracedNoise] = {}
    for match in _SAMPLE.finditer(text):
        cpu, *values = map(int, match.groups())
        found[cpu] = found.get(cpu, TracedNoise()).joined_with(TracedNoise(*values))
    return found


def keep_cpus(path: Path, cpus: str) -> None:
    """Save the kernel's list of CPUs in a file, from which it is restored after the run.

    :raises OSError: the file cannot be written.
    """
    write_durably(path, json.dumps({"cpus": cpus}).encode())


def read_kept(path: Path) -> str | None:
    """The kernel's list of CPUs that a run has saved in the file; None if the file is damaged.

    :raises OSError: the file cannot be read.
    """
    try:
        return str(json.loads(path.read_text())["cpus"])
    except (ValueError, KeyError, TypeError):
        return None


class OsNoiseTracer:
    """Runs the tracer of the host with the files below a root folder.

    Only one process at a time can run the tracer.
    """

    def __init__(self, root: Path, kept: Path, sleep: Callable[[float], object] = time.sleep) -> None:
        """``kept`` is the file for the kernel's list of CPUs during a run."""
        self._folder = next(
            (root / folder for folder in _FOLDERS if (root / folder / "trace").exists()), None
        )
        self._kept = kept
        self._sleep = sleep

    def trace_cpus(self, cpus: CpuSet, seconds: int) -> dict[int, TracedNoise]:
        """Measure the noise of CPUs with a busy thread on each CPU; return the noise by CPU.

        :param seconds: the duration of the measurement, limited to ``MAX_SECONDS``.
        :raises TracerError: the kernel has no such tracer, or another program uses it.
        """
        with self._errors_of_kernel(), self._only_run():
            self._restore_leftover()
            return self._trace_once(self._usable_folder(), cpus, seconds)

    def _trace_once(self, folder: Path, cpus: CpuSet, seconds: int) -> dict[int, TracedNoise]:
        instance = folder / _INSTANCE
        with self._changed_cpus(folder, cpus):
            instance.mkdir()
            try:
                kernel_files.write_text(f"{instance}/current_tracer", _NAME)
                kernel_files.write_text(f"{instance}/tracing_on", "1")
                self._sleep(min(seconds, MAX_SECONDS))
                kernel_files.write_text(f"{instance}/tracing_on", "0")
                text = kernel_files.read(f"{instance}/trace", _MAX_TRACE).decode(errors="replace")
            finally:
                _end_instance(instance)
        return {cpu: noise for cpu, noise in parse_trace(text).items() if cpu in cpus}

    def stop_leftover(self) -> None:
        """End the run of a killed process, and restore the kernel's list of CPUs.

        :raises TracerError: the kernel refuses a write, or another command runs the tracer.
        """
        if self._folder is None or not self._kept.exists():
            return
        with self._errors_of_kernel(), self._only_run():
            self._restore_leftover()

    def _restore_leftover(self) -> None:
        """Remove the instance of a killed run, and restore the kernel's list of CPUs.

        :raises OSError: the kernel refuses a write.
        """
        if self._folder is None or not self._kept.exists():
            return
        _end_instance(self._folder / _INSTANCE)
        before = read_kept(self._kept)
        if before is not None:
            kernel_files.write_text(f"{self._folder}/{_CPUS}", before)
        self._kept.unlink(missing_ok=True)

    @contextlib.contextmanager
    def _only_run(self) -> Iterator[None]:
        """Prevent other processes of the agent from using the tracer within the context.

        :raises TracerError: another command runs the tracer.
        :raises OSError: the lock file cannot be opened.
        """
        try:
            lock = hold_lock(self._kept.with_suffix(".lock"), f"pid {os.getpid()}")
        except LockedError as error:
            raise TracerError(f"another command uses the tracer: {error}") from error
        try:
            yield
        finally:
            os.close(lock)

    def _usable_folder(self) -> Path:
        if self._folder is None:
            raise TracerError("the kernel shows no tracefs: mount it at /sys/kernel/tracing")
        tracers = (kernel_files.read_optional(f"{self._folder}/available_tracers") or "").split()
        if _NAME not in tracers:
            raise TracerError("the kernel has no tracer osnoise (CONFIG_OSNOISE_TRACER, Linux 5.17)")
        for path in (self._folder, *self._list_instances()):
            if (kernel_files.read_optional(f"{path}/current_tracer") or "").strip() in (_NAME, "timerlat"):
                raise TracerError(f"another program uses the tracer, in {path}")
        return self._folder

    def _list_instances(self) -> list[Path]:
        assert self._folder is not None
        with contextlib.suppress(OSError):
            return [
                path for path in (self._folder / "instances").iterdir() if path.name != Path(_INSTANCE).name
            ]
        return []

    @contextlib.contextmanager
    def _changed_cpus(self, folder: Path, cpus: CpuSet) -> Iterator[None]:
        """Set the tracer's list of CPUs within the context, and restore the former list at its end."""
        before = kernel_files.read_text(f"{folder}/{_CPUS}").strip()
        keep_cpus(self._kept, before)
        try:
            kernel_files.write_text(f"{folder}/{_CPUS}", cpuset.format(cpus))
            yield
        finally:
            kernel_files.write_text(f"{folder}/{_CPUS}", before)
            self._kept.unlink(missing_ok=True)

    @contextlib.contextmanager
    def _errors_of_kernel(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise TracerError(f"the kernel refuses the tracer: {error}") from error


def _end_instance(instance: Path) -> None:
    """Stop the tracer, and remove its instance.

    :raises OSError: the instance cannot be removed.
    """
    if not instance.exists():
        return
    with contextlib.suppress(OSError):
        kernel_files.write_text(f"{instance}/current_tracer", "nop")
    os.rmdir(instance)
