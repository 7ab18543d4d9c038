"""The guests: files of cgroup v2 (Documentation/admin-guide/cgroup-v2.rst), else of /proc/PID."""

from __future__ import annotations

import os
from collections.abc import Hashable
from typing import Final

from compute_agent.host.proc_stat import parse_process_stat
from compute_agent.qos.rounds import MeasuredGuest, MeasuringRound

_PAGE: Final = os.sysconf("SC_PAGE_SIZE")


def parse_cpu_stat(text: str) -> float:
    """CPU time in seconds from cpu.stat."""
    for line in text.splitlines():
        name, _, number = line.partition(" ")
        if name == "usage_usec":
            return int(number) / 1e6
    raise ValueError("there is no usage_usec")


def parse_resident(text: str) -> int:
    """Resident bytes from /proc/PID/statm."""
    return int(text.split()[1]) * _PAGE


def parse_page_cache(text: str) -> int:
    """Bytes of cached files from memory.stat: what the host can take back without ending the guest."""
    sizes = {name: number for name, _, number in (line.partition(" ") for line in text.splitlines())}
    return int(sizes["file"]) - int(sizes.get("shmem", 0))


def cpu(now: MeasuringRound, before: MeasuringRound | None) -> dict[str, float]:
    """CPU use of each guest since the round before, in cores."""
    # Read whether there is an earlier round or not: it is the earlier one of the next.
    last = {subject.facts.uuid: _cpu_seconds(now, subject) for subject in now.subjects}
    if before is None or now.time <= before.time:
        return {}
    first = {subject.facts.uuid: _cpu_seconds(before, subject) for subject in before.subjects}
    grown = {guest: _grown(first.get(guest, {}), counted) for guest, counted in last.items()}
    elapsed = now.time - before.time
    return {guest: seconds / elapsed for guest, seconds in grown.items() if seconds is not None}


def memory(now: MeasuringRound) -> dict[str, float]:
    """What each guest holds of the host's memory, in bytes."""
    found = {subject.facts.uuid: _memory(now, subject) for subject in now.subjects}
    return {guest: float(held) for guest, held in found.items() if held is not None}


def _cpu_seconds(now: MeasuringRound, subject: MeasuredGuest) -> dict[Hashable, float]:
    """CPU time by where it was counted: the cgroup, or each process, which a start time tells from others."""
    if subject.cgroup:
        seconds = now.parsed(f"{subject.cgroup}/cpu.stat", parse_cpu_stat)
        if seconds is not None:
            return {subject.cgroup: seconds}
    counted: dict[Hashable, float] = {}
    for pid in subject.pids:
        process = now.parsed(f"{now.root}/proc/{pid}/stat", parse_process_stat)
        if process is not None:
            counted[pid, process.start_time] = process.cpu_seconds
    return counted


def _grown(first: dict[Hashable, float], last: dict[Hashable, float]) -> float | None:
    common = first.keys() & last.keys()
    return sum(max(0.0, last[key] - first[key]) for key in common) if common else None


def _memory(now: MeasuringRound, subject: MeasuredGuest) -> int | None:
    if subject.cgroup:
        held = now.parsed(f"{subject.cgroup}/memory.current", int)
        if held is not None:
            return max(0, held - (now.parsed(f"{subject.cgroup}/memory.stat", parse_page_cache) or 0))
    resident = [now.parsed(f"{now.root}/proc/{pid}/statm", parse_resident) for pid in subject.pids]
    known = [size for size in resident if size is not None]
    return sum(known) if known else None
