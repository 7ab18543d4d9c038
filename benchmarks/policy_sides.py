"""The sides that place guests: our policies, and Nova behind a pipe.

Nova tries one NUMA cell after the other, the fullest or the emptiest first (``pack`` or not). Placement
chooses the zone for our policies, and it knows amounts only. So this module tries zones with enough free CPUs
in Nova's order until one accepts the guest. The order is by free CPUs, by guests, which stand for memory, and
by number. All attempts count as one decision.
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
    """The CPUs that a guest uses, or None, and the CPU time of the decision in nanoseconds."""

    cpus: CpuSet | None
    nanoseconds: int


class PolicySide(Protocol):
    """Places guests on one host, which is empty at first."""

    def place_guest(self, guest: StreamGuest) -> PlacementDecision:
        """Place a guest, or refuse it."""

    def remove_guest(self, name: str) -> None:
        """Release the CPUs of an accepted guest."""


class OurPolicy:
    """One of our policies."""

    def __init__(self, topology: HostTopology, policy: Policy, zones: Sequence[CpuSet], pack: bool) -> None:
        self._topology, self._policy, self._zones = topology, policy, zones
        self._sets = CpuSets(topology.online, frozenset(), frozenset())
        self._pack = pack
        self._holdings: dict[str, CpuSet] = {}

    def place_guest(self, guest: StreamGuest) -> PlacementDecision:
        """Place a guest, or refuse it."""
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
        """Release the CPUs of an accepted guest."""
        del self._holdings[name]

    def _zones_with(self, needed: int) -> list[CpuSet]:
        free = self._topology.online.difference(*self._holdings.values())

        def zone_fullness(zone: CpuSet) -> tuple[int, int]:
            guests = sum(not zone.isdisjoint(cpus) for cpus in self._holdings.values())
            return -len(zone & free), guests

        with_room = [zone for zone in self._zones if len(zone & free) >= needed]
        return sorted(with_room, key=zone_fullness, reverse=self._pack)


class NovaPolicy:
    """Nova's fitting of guests to NUMA cells, as a context manager that ends its process."""

    def __init__(self, python: Path) -> None:
        # -P excludes the modules beside the program, because some have names of the standard library
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
        """Begin with an empty host."""
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
        """Place a guest, or refuse it."""
        answer = self._ask_nova(
            {"arrive": guest.name, "vcpus": guest.vcpus, "thread_policy": str(guest.thread_policy)}
        )
        cpus = answer["cpus"]
        return PlacementDecision(None if cpus is None else frozenset(cpus), answer["nanoseconds"])

    def remove_guest(self, name: str) -> None:
        """Release the CPUs of an accepted guest."""
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
