"""Usage of the built-in metrics."""

from __future__ import annotations

from compute_agent.qos.rounds import MeasuringRound
from compute_agent.qos.sources import guests, host
from compute_agent.qos.sources.base import Measure, MetricUsage, whole


def cpu_usage(now: MeasuringRound, before: MeasuringRound | None) -> MetricUsage:
    """In cores."""
    used, cpus = host.cpu(now, before)
    return whole(used, guests.cpu(now, before), cpus)


def cpu_steal(now: MeasuringRound, before: MeasuringRound | None) -> MetricUsage:
    """In percent of the time of all CPUs."""
    return whole(host.stolen(now, before), None, 100.0)


def memory_usage(now: MeasuringRound, before: MeasuringRound | None) -> MetricUsage:
    """In bytes."""
    memory = host.memory(now)
    if memory is None:
        return MetricUsage()
    return whole(memory.used, guests.memory(now), memory.total)


def memory_bandwidth(now: MeasuringRound, before: MeasuringRound | None) -> MetricUsage:
    """In bytes a second, by L3 cache."""
    cache = now.cache()
    return MetricUsage(cache.bandwidth, cache.guest_bandwidth, cache.bandwidth_capacity)


def llc_occupancy(now: MeasuringRound, before: MeasuringRound | None) -> MetricUsage:
    """In bytes, by L3 cache."""
    cache = now.cache()
    return MetricUsage(cache.occupancy, cache.guest_occupancy, cache.cache_size)


def best_effort_cpu(now: MeasuringRound, before: MeasuringRound | None) -> MetricUsage:
    """CPU use of the guests that may be acted on, in percent of the CPUs that they were promised.

    The use of each is its part of that percentage.
    """
    promised = {
        subject.facts.uuid: sum(
            one.full for knob, one in subject.facts.entitlements.items() if knob.lever == "cpu_quota"
        )
        for subject in now.subjects
        if not subject.facts.protected
    }
    used = {guest: cores for guest, cores in guests.cpu(now, before).items() if promised.get(guest)}
    total = sum(promised[guest] for guest in used)
    shares = {guest: 100 * cores / total for guest, cores in used.items()}
    return whole(sum(shares.values()) if shares else None, shares, 100.0)


def pressure(resource: str) -> Measure:
    """The pressure on ``resource`` (cpu, memory, io), in percent of the time.

    What a guest has of it, told by its cgroup, is how much it suffers, not how much it causes.
    """

    def measure(now: MeasuringRound, before: MeasuringRound | None) -> MetricUsage:
        return whole(host.pressure(f"{now.root}/proc/pressure/{resource}", now, before), None, 100.0)

    return measure
