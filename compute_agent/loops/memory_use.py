"""How much memory host and guests use, from one read of both."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from compute_agent.drivers.base import GuestDriver
from compute_agent.host.memory import NODE_FOLDER
from compute_agent.loops.host_use import holds_of_rest_alone
from compute_agent.loops.subjects import SubjectFactory
from compute_agent.model.resource import MEMORY, RECLAIMED_MEMORY
from compute_agent.pipeline.view import GuestView
from compute_agent.pipeline.worker import GuestPipeline
from compute_agent.qos.classes import QosClasses
from compute_agent.qos.rounds import MeasuredGuest, MeasuringRound
from compute_agent.qos.sources.guests import parse_resident
from compute_agent.reclaim.zone import (
    MIB,
    GuestUse,
    HostUse,
    parse_inactive_file,
    parse_node_use,
    parse_parts,
    parse_swap_use,
    parse_swapped,
    used_part,
)


@dataclass(frozen=True, slots=True)
class _MemoryHeld:
    """What a guest has in memory (None: not known) and in swap, in MiB, and the parts of it by NUMA node."""

    mib: float | None = None
    swapped: float = 0.0
    parts: Mapping[int, float] = field(default_factory=dict)


class MemoryReader:
    """Reads in one thread."""

    def __init__(
        self, pipeline: GuestPipeline, driver: GuestDriver, classes: Callable[[], QosClasses], root: str = "/"
    ) -> None:
        """``root`` is the folder that /proc and /sys are below; those of cgroups are taken as they are."""
        self._pipeline = pipeline
        self._subjects = SubjectFactory(driver)
        self._classes = classes
        self._root = root

    def read(self, wall: float) -> HostUse:
        """What is used now, at ``wall`` (seconds since the epoch): MiB, by NUMA node in place of CPUs.

        A node that does not tell is not in it.
        """
        views = self._pipeline.views()
        nodes = [node.id for node in self._pipeline.world.topology.numa_nodes]
        now = MeasuringRound(time.monotonic(), self._root, self._subjects.build(views, self._classes()))
        # The host first: who ends before its turn is not known, and with it not what the others use.
        paths = {node: f"{now.root}/{NODE_FOLDER}/node{node}/meminfo" for node in nodes}
        found = {node: now.parsed(path, parse_node_use) for node, path in paths.items()}
        if len(nodes) == 1 and found[nodes[0]] is None:
            found[nodes[0]] = now.parsed(f"{now.root}/proc/meminfo", parse_node_use)
        swapped = now.parsed(f"{now.root}/proc/meminfo", parse_swap_use) or 0.0
        guests = [
            self._use(view, _held_by(now, subject, swapped > 0))
            for view, subject in zip(views, now.subjects, strict=True)
        ]
        now.close()
        used = {node: mib for node, mib in found.items() if mib is not None}
        return HostUse(wall, _with_swapped(used, swapped, guests), tuple(use for use, _ in guests))

    def _use(self, view: GuestView, held: _MemoryHeld) -> tuple[GuestUse, float]:
        """What a guest uses, and MiB of it in swap."""
        topology = self._pipeline.world.topology
        nodes = frozenset(node.id for node in topology.numa_nodes)
        mems = frozenset[int]() if view.assignment is None else view.assignment.mems & nodes
        # Who holds none may use all.
        entitlement = (
            float(_amount(view, MEMORY)) or sum(one.memory_kib for one in topology.numa_nodes) / 1024
        )
        of_rest, mib = has_memory_of_rest(view), held.mib
        if mib is not None:
            # What it uses beyond what it holds is nobody's to offer again.
            mib = min(mib, _amount(view, RECLAIMED_MEMORY)) if of_rest else mib + held.swapped
        parts = {node: part for node, part in held.parts.items() if node in nodes}
        return GuestUse(view.guest.uuid, entitlement, mems or nodes, mib, of_rest, parts), held.swapped


def _with_swapped(
    used: Mapping[int, float], swapped: float, guests: Sequence[tuple[GuestUse, float]]
) -> dict[int, float]:
    """What is used of each node, with what of it is in swap but for that of guests that live on the rest.

    Nobody knows where what is no guest's was: it lies evenly.
    """
    of_none = max(0.0, swapped - sum(mib for _, mib in guests)) / max(1, len(used))
    return {
        node: mib
        + of_none
        + sum(part * used_part(guest, frozenset({node})) for guest, part in guests if not guest.reclaimed)
        for node, mib in used.items()
    }


def _amount(view: GuestView, name: str) -> int:
    return sum(amounts.get(name, 0) for amounts in (view.allocation or {}).values())


def has_memory_of_rest(view: GuestView) -> bool:
    """Whether a guest has no other memory than what others leave."""
    return holds_of_rest_alone(view, RECLAIMED_MEMORY, {MEMORY})


def _held_by(now: MeasuringRound, subject: MeasuredGuest, swaps: bool) -> _MemoryHeld:
    """``swaps``: whether anything of the host is in swap."""
    group = subject.cgroup
    if group and (held := now.parsed(f"{group}/memory.current", int)) is not None:
        files = now.parsed(f"{group}/memory.stat", parse_inactive_file) or 0
        swapped = (now.parsed(f"{group}/memory.swap.current", int) or 0) if swaps else 0
        parts = now.parsed(f"{group}/memory.numa_stat", parse_parts) or {}
        return _MemoryHeld(max(0, held - files) / MIB, swapped / MIB, parts)
    resident = [now.parsed(f"{now.root}/proc/{pid}/statm", parse_resident) for pid in subject.pids]
    known = [size for size in resident if size is not None]
    if not known:
        return _MemoryHeld()
    status = (now.parsed(f"{now.root}/proc/{pid}/status", parse_swapped) for pid in subject.pids if swaps)
    return _MemoryHeld(sum(known) / MIB, sum(one or 0 for one in status) / MIB)
