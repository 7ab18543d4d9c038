"""Simulates a host with guests of changing demand, and runs watermarks and the executor on it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from prometheus_client import CollectorRegistry

from compute_agent.model.resource import ThrottleControl
from compute_agent.throttling.executor import ThrottleExecutor
from compute_agent.throttling.telemetry import ThrottleTelemetry
from compute_agent.throttling.triggers import WatermarkTrigger
from compute_agent.throttling.watermarks.sections import WatermarkRules
from compute_agent.throttling.watermarks.state import WatermarkAct, WatermarkState
from compute_agent.usage.snapshot import GuestAllotment, GuestUsage, MetricSeries, UsageSnapshot

CPU = ThrottleControl("cpu_quota")

Demand = Callable[[int], float]
"""Cores (or bytes) wanted in a round."""


@dataclass
class SimulatedGuest:
    """A simulated guest. ``cores`` and ``memory`` are the amounts that it uses without limits."""

    uuid: str
    vcpus: float
    cores: Demand
    memory: Demand = lambda number: 1.0
    qos_class: str = "BE"
    rank: int = 0
    priority: int = 0
    protected: bool = False
    started: float = 0.0
    limit: float | None = None

    def wanted(self, number: int) -> float:
        """The cores that the guest wants from the kernel."""
        return min(self.cores(number), self.vcpus, self.vcpus if self.limit is None else self.limit)


@dataclass(frozen=True)
class Seen:
    """The record of one round."""

    usage: float
    demand: float
    memory: float
    pressure: float
    throttled: int
    actions: tuple[WatermarkAct, ...]


@dataclass
class SimulatedHost:
    """The kernel and Placement of the simulation. Usage is in cores of ``cpus``, and in bytes of ``memory``.

    An evicted guest is gone ``grace`` rounds later.
    """

    cpus: float
    memory: float
    guests: dict[str, SimulatedGuest]
    own_use: float = 0.0
    grace: int = 5
    number: int = 0
    scheduling_off: bool = False
    leaving: dict[str, int] = field(default_factory=dict)
    evicted: list[str] = field(default_factory=list)

    # Arbiter and switch

    def set_limit(self, owner: str, guest: str, knob: ThrottleControl, limit: float | None) -> None:
        assert knob == CPU
        self.guests[guest].limit = limit

    def switch_scheduling(self, off: bool) -> None:
        self.scheduling_off = off

    def reclaim_memory(self, guest: str, amount: int) -> None:
        raise AssertionError("memory of these guests does not go to swap")

    # Evictor

    def begin_eviction(self, guest: str, stop: object = None, grace: float | None = None) -> None:
        self.leaving.setdefault(guest, self.number + self.grace)

    def finished_evictions(self) -> dict[str, Exception | None]:
        over = [guest for guest, at in self.leaving.items() if at <= self.number]
        for guest in over:
            del self.leaving[guest]
            self.guests.pop(guest, None)
            self.evicted.append(guest)
        return dict.fromkeys(over)

    # What is measured

    def snapshot(self) -> UsageSnapshot:
        """The measurement of this round. If guests want more than all CPUs, each guest waits for the same
        part of its demand.
        """
        wanted = {uuid: guest.wanted(self.number) for uuid, guest in self.guests.items()}
        total = sum(wanted.values()) + self.own_use
        squeeze = min(1.0, self.cpus / total)
        used = {uuid: cores * squeeze for uuid, cores in wanted.items()}
        held = {uuid: guest.memory(self.number) for uuid, guest in self.guests.items()}
        host = {
            MetricSeries("cpu_usage"): total * squeeze,
            MetricSeries("memory_usage"): sum(held.values()),
            # Waiting begins a while before all CPUs are busy.
            MetricSeries("cpu_pressure"): 100 * min(1.0, max(0.0, total / self.cpus - 0.7)),
        }
        capacity = {
            MetricSeries("cpu_usage"): self.cpus,
            MetricSeries("memory_usage"): self.memory,
            MetricSeries("cpu_pressure"): 100.0,
        }
        guests = {
            uuid: GuestUsage(
                uuid,
                guest.qos_class,
                guest.rank,
                guest.priority,
                guest.protected,
                guest.started,
                {CPU: GuestAllotment(guest.vcpus)},
                {MetricSeries("cpu_usage"): used[uuid], MetricSeries("memory_usage"): held[uuid]},
            )
            for uuid, guest in self.guests.items()
        }
        return UsageSnapshot(float(self.number), host, guests, capacity)


class Loop:
    """The simulated host and the executor, in rounds of one second."""

    def __init__(
        self, host: SimulatedHost, rules: WatermarkRules, state: WatermarkState | None = None
    ) -> None:
        self.host = host
        self.rules = rules
        self.saved = state or WatermarkState()
        self.history: list[Seen] = []
        self.restart()

    def restart(self) -> None:
        """Replace the agent by another one, which reads the saved state."""
        telemetry = ThrottleTelemetry(CollectorRegistry())
        executor = ThrottleExecutor(
            self.rules.registry,
            self.host,
            self.host,
            self.host.switch_scheduling,
            telemetry,
            self.host.reclaim_memory,
        )
        self.trigger = WatermarkTrigger(self.rules, self.saved, executor, self._save)
        self.trigger.resume_actions()

    def run(self, rounds: int) -> Sequence[Seen]:
        """Run a number of rounds and return their records."""
        for _ in range(rounds):
            snapshot = self.host.snapshot()
            actions = self.trigger.run_round(snapshot)
            demand = sum(min(one.cores(self.host.number), one.vcpus) for one in self.host.guests.values())
            self.history.append(
                Seen(
                    snapshot.host[MetricSeries("cpu_usage")],
                    demand + self.host.own_use,
                    snapshot.host[MetricSeries("memory_usage")],
                    snapshot.host[MetricSeries("cpu_pressure")],
                    sum(one.limit is not None for one in self.host.guests.values()),
                    actions,
                )
            )
            self.host.number += 1
        return self.history[-rounds:]

    def _save(self, state: WatermarkState) -> None:
        self.saved = state
