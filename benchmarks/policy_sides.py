"""Those who place guests: our policies, and Nova behind a pipe.

Nova tries one NUMA cell after the other, the fullest or the emptiest first (``pack`` or not). Ours is told
its zone by Placement, which knows amounts only: here zones with enough free CPUs are tried in Nova's order
(free CPUs, then guests, which stand for its memory, then number) until one does not refuse. All tries count
as one decision.
"""

import json
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

from benchmarks.policy_streams import StreamGuest, claimed_cpus
from compute_agent.host.topology import HostTopology
from compute_agent.model.cpuset import CpuSets
from compute_agent.model.guest import CpuAssignment
from compute_agent.policy.base import CpuSupply, GuestRequest, Policy, ProviderDemand

CpuSet = frozenset[int]

PROGRAM = Path(__file__).with_name("nova_fitting.py")


@dataclass(frozen=True, slots=True)
class PlacementDecision:
    """The CPUs that a guest uses, or None; and what it took to decide, in nanoseconds of CPU time."""

    cpus: CpuSet | None
    nanoseconds: int


class PolicySide(Protocol):
    """Places guests on one host, which is empty at first."""

    def place_guest(self, guest: StreamGuest) -> PlacementDecision:
        """CpuLocation a guest, or refuse it."""

    def remove_guest(self, name: str) -> None:
        """A guest that was accepted gives back what it had."""


class OurPolicy:
    """One of our policies."""

    def __init__(self, topology: HostTopology, policy: Policy, zones: Sequence[CpuSet], pack: bool) -> None:
        self._topology, self._policy, self._zones = topology, policy, zones
        self._sets = CpuSets(topology.online, frozenset(), frozenset())
        self._pack = pack
        self._holdings: dict[str, CpuSet] = {}

    def place_guest(self, guest: StreamGuest) -> PlacementDecision:
        """CpuLocation a guest, or refuse it."""
        supply = CpuSupply(self._topology, self._sets, dict(self._holdings))
        needed = claimed_cpus(self._topology, guest)
        nanoseconds = 0
        for zone in self._zones_with(needed):
            demand = ProviderDemand("zone", zone, pcpu=needed)
            request = GuestRequest(guest.name, guest.vcpus, (demand,), guest.thread_policy)
            started = time.process_time_ns()
            found = self._policy(supply, request)
            nanoseconds += time.process_time_ns() - started
            if isinstance(found, CpuAssignment):
                self._holdings[guest.name] = found.held_cpus
                return PlacementDecision(found.cpus, nanoseconds)
        return PlacementDecision(None, nanoseconds)

    def remove_guest(self, name: str) -> None:
        """A guest that was accepted gives back what it had."""
        del self._holdings[name]

    def _zones_with(self, needed: int) -> list[CpuSet]:
        free = self._topology.online.difference(*self._holdings.values())

        def zone_fullness(zone: CpuSet) -> tuple[int, int]:
            guests = sum(not zone.isdisjoint(cpus) for cpus in self._holdings.values())
            return -len(zone & free), guests

        with_room = [zone for zone in self._zones if len(zone & free) >= needed]
        return sorted(with_room, key=zone_fullness, reverse=self._pack)


class NovaPolicy:
    """Nova's fitting of guests to NUMA cells; a context manager, which ends its process."""

    def __init__(self, python: Path) -> None:
        # -P: the modules beside the program are not for it, and some have names of the standard library
        self._process = subprocess.Popen(
            [str(python), "-P", str(PROGRAM)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()

    def begin_host(self, topology: HostTopology, pack: bool) -> None:
        """Go to an empty host."""
        cells = [
            {
                "id": node.id,
                "cpus": sorted(node.cpus),
                "siblings": [sorted(core.cpus) for core in topology.cores if core.cpus <= node.cpus],
            }
            for node in topology.numa_nodes
            if node.cpus
        ]
        self._ask_nova({"host": cells, "pack": pack})

    def place_guest(self, guest: StreamGuest) -> PlacementDecision:
        """CpuLocation a guest, or refuse it."""
        answer = self._ask_nova(
            {"arrive": guest.name, "vcpus": guest.vcpus, "thread_policy": str(guest.thread_policy)}
        )
        cpus = answer["cpus"]
        return PlacementDecision(None if cpus is None else frozenset(cpus), answer["nanoseconds"])

    def remove_guest(self, name: str) -> None:
        """A guest that was accepted gives back what it had."""
        self._ask_nova({"depart": name})

    def _ask_nova(self, question: Mapping[str, Any]) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(json.dumps(question), file=self._process.stdin, flush=True)
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"{PROGRAM.name} ended with {self._process.wait()}")
        answer: dict[str, Any] = json.loads(line)
        return answer
