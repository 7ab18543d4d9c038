"""How much memory host and guests use, from one read of both."""

from __future__ import annotations

import time
from collections.abc import Callable

from compute_agent.capacity.memory import MIB, parse_inactive_file, parse_node_use
from compute_agent.capacity.zone import GuestUse, HostUse
from compute_agent.drivers.base import Driver
from compute_agent.host.memory import NODE_FOLDER
from compute_agent.loops.host_use import holds_of_rest_alone
from compute_agent.loops.subjects import Subjects
from compute_agent.model.resource_class import MEMORY, RECLAIMED_MEMORY
from compute_agent.pipeline.view import GuestView
from compute_agent.pipeline.worker import Pipeline
from compute_agent.qos.classes import Classes
from compute_agent.qos.rounds import Round, Subject
from compute_agent.qos.sources.guests import parse_resident


class MemoryReader:
    """Reads in one thread."""

    def __init__(
        self, pipeline: Pipeline, driver: Driver, classes: Callable[[], Classes], root: str = "/"
    ) -> None:
        """``root`` is the folder that /proc and /sys are below; those of cgroups are taken as they are."""
        self._pipeline = pipeline
        self._subjects = Subjects(driver)
        self._classes = classes
        self._root = root

    def read(self, wall: float) -> HostUse:
        """What is used now, at ``wall`` (seconds since the epoch): MiB, by NUMA node in place of CPUs.

        A node that does not tell is not in it.
        """
        views = self._pipeline.views()
        nodes = [node.id for node in self._pipeline.world.topology.numa_nodes]
        now = Round(time.monotonic(), self._root, self._subjects.build(views, self._classes()))
        # The host first: who ends before its turn is not known, and with it not what the others use.
        paths = {node: f"{now.root}/{NODE_FOLDER}/node{node}/meminfo" for node in nodes}
        found = {node: now.parsed(path, parse_node_use) for node, path in paths.items()}
        if len(nodes) == 1 and found[nodes[0]] is None:
            found[nodes[0]] = now.parsed(f"{now.root}/proc/meminfo", parse_node_use)
        guests = tuple(
            self._use(view, _working_set(now, subject))
            for view, subject in zip(views, now.subjects, strict=True)
        )
        now.close()
        return HostUse(wall, {node: mib for node, mib in found.items() if mib is not None}, guests)

    def _use(self, view: GuestView, mib: float | None) -> GuestUse:
        topology = self._pipeline.world.topology
        nodes = frozenset(node.id for node in topology.numa_nodes)
        mems = frozenset[int]() if view.assignment is None else view.assignment.mems & nodes
        held = _held(view, MEMORY)
        # Who holds none may use all.
        entitlement = float(held) or sum(node.memory_kib for node in topology.numa_nodes) / 1024
        of_rest = has_memory_of_rest(view)
        if of_rest and mib is not None:
            # What it uses beyond what it holds is nobody's to offer again.
            mib = min(mib, _held(view, RECLAIMED_MEMORY))
        return GuestUse(view.guest.uuid, entitlement, mems or nodes, mib, of_rest)


def _held(view: GuestView, name: str) -> int:
    return sum(amounts.get(name, 0) for amounts in (view.allocation or {}).values())


def has_memory_of_rest(view: GuestView) -> bool:
    """Whether a guest has no other memory than what others leave."""
    return holds_of_rest_alone(view, RECLAIMED_MEMORY, {MEMORY})


def _working_set(now: Round, subject: Subject) -> float | None:
    if subject.cgroup and (held := now.parsed(f"{subject.cgroup}/memory.current", int)) is not None:
        files = now.parsed(f"{subject.cgroup}/memory.stat", parse_inactive_file) or 0
        return max(0, held - files) / MIB
    resident = [now.parsed(f"{now.root}/proc/{pid}/statm", parse_resident) for pid in subject.pids]
    known = [size for size in resident if size is not None]
    return sum(known) / MIB if known else None
