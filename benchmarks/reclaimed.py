"""Offers of reclaimed capacity on simulated hosts, compared with an oracle.

``python -m benchmarks.reclaimed [--hosts 1000] [--days 14] [--seed 1] [--svg FILE]`` prints a table and draws
a picture. The first day is for learning and does not count. ``reclaimed.md`` describes the results.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from pathlib import Path

from benchmarks.reclaimed_traces import DAY, HostTrace, make_host, noise_table
from compute_agent.drawing.svg import COLOURS, ChartCurve, ChartPanel, draw_chart
from compute_agent.reclaim.estimate import (
    PERIOD,
    SYSTEM,
    EstimateLimits,
    ZoneHistory,
    ZoneReading,
    estimate_use,
)
from compute_agent.reclaim.offers import CapacityOffer, HeldBackShare, missing_cpus

HOUR = 12
"""Samples in an hour."""

EPOCH = 1_000_000 * 3600.0


@dataclass
class ReclaimResult:
    """Sums over host-hours: CPU-hours promised by the agent and by the oracle, and broken promises."""

    hours: int = 0
    broken: int = 0
    promised: float = 0.0
    oracle: float = 0.0
    capacity: float = 0.0
    used: float = 0.0
    days: int = 0
    writes: int = 0
    most_writes: int = 0
    shortage: Counter[int] = field(default_factory=Counter)
    """Broken hours by the number of missing CPUs."""

    def add(self, other: ReclaimResult) -> None:
        for name in ("hours", "broken", "promised", "oracle", "capacity", "used", "days", "writes"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.most_writes = max(self.most_writes, other.most_writes)
        self.shortage += other.shortage


def publish_promises(trace: HostTrace, limits: EstimateLimits) -> list[int]:
    """Return the CPUs that the agent publishes after each sample."""
    history, offer, breach, published = ZoneHistory(), CapacityOffer(), HeldBackShare(), list[int]()
    starts: dict[int, list[int]] = {}
    ends: dict[int, list[int]] = {}
    for index, guest in enumerate(trace.guests):
        starts.setdefault(guest.begin, []).append(index)
        ends.setdefault(guest.end_sample, []).append(index)
    running: dict[int, tuple[str, int, list[float]]] = {}
    entitlements: dict[str, float] = {}
    for n, total in enumerate(trace.total):
        for index in ends.get(n, ()):
            running.pop(index, None)
            entitlements.pop(trace.guests[index].uuid, None)
        for index in starts.get(n, ()):
            guest = trace.guests[index]
            running[index] = (guest.uuid, guest.begin, guest.samples)
            entitlements[guest.uuid] = guest.entitlement
        used = {uuid: samples[n - begin] for uuid, begin, samples in running.values()}
        used[SYSTEM] = trace.system[n]
        now = EPOCH + n * PERIOD
        history = history.with_reading(ZoneReading(now, total, used), limits.percentile)
        left = estimate_use(history, entitlements, trace.capacity, limits, now).free_amount
        missing = missing_cpus(total, offer.published, trace.capacity)
        breach = breach.after_breaches(missing, missing > 0, now)
        offer = offer.next_offer(max(0.0, left - breach.held_back(trace.capacity)), trace.capacity, now)
        published.append(offer.published)
    return published


def judge_host(trace: HostTrace, published: list[int]) -> ReclaimResult:
    """Judge the promises on a host.

    An hour is broken if the other guests need a promised CPU at any time in it. The promise is that of its
    begin.
    """
    result = ReclaimResult()
    for hour in range(DAY // HOUR, len(trace.total) // HOUR):
        begin = hour * HOUR
        promised = published[begin - 1]
        peak = max(trace.total[begin : begin + HOUR])
        result.hours += 1
        result.promised += promised
        result.oracle += trace.capacity - peak
        result.capacity += trace.capacity
        result.used += sum(trace.total[begin : begin + HOUR]) / HOUR
        missing = peak + promised - trace.capacity
        if missing > 1e-9:
            result.broken += 1
            result.shortage[int(missing)] += 1
    for day in range(1, len(trace.total) // DAY):
        part = published[day * DAY - 1 : (day + 1) * DAY]
        writes = sum(a != b for a, b in pairwise(part))
        result.days += 1
        result.writes += writes
        result.most_writes = max(result.most_writes, writes)
    return result


def simulate_hosts(seed: int, hosts: range, days: int, limits: EstimateLimits) -> ReclaimResult:
    noise = noise_table(random.Random(f"{seed} noise"))
    found = ReclaimResult()
    for number in hosts:
        trace = make_host(random.Random(f"{seed} {number}"), noise, days)
        found.add(judge_host(trace, publish_promises(trace, limits)))
    return found


def draw_picture(seed: int, days: int, limits: EstimateLimits) -> str:
    """Draw three hosts: the use of the other guests, and the line above which CPUs are promised."""
    noise, panels = noise_table(random.Random(f"{seed} noise")), []
    for number in range(3):
        trace = make_host(random.Random(f"{seed} {number}"), noise, days)
        published = publish_promises(trace, limits)
        times = [EPOCH + n * PERIOD for n in range(len(trace.total))]
        kept = [float(trace.capacity - one) for one in published]
        curves = [
            ChartCurve("others use", COLOURS[0], list(zip(times, trace.total, strict=True))),
            ChartCurve("reserved for them", COLOURS[1], list(zip(times, kept, strict=True))),
        ]
        panels.append(
            ChartPanel(f"Host of {trace.capacity} shared CPUs (cores): what is above is promised", curves)
        )
    return draw_chart("Reclaimed capacity, simulated", panels, EPOCH, EPOCH + days * DAY * PERIOD, 2 * PERIOD)


def table_row(name: str, result: ReclaimResult) -> str:
    shares = (
        result.used / result.capacity,
        result.promised / result.capacity,
        result.promised / result.oracle,
    )
    of_hours = f"{100 * result.broken / result.hours:.3f} %"
    writes = f"{result.writes / result.days:.2f} | {result.most_writes}"
    return f"| {name} | {' | '.join(f'{100 * one:.1f} %' for one in shares)} | {of_hours} | {writes} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hosts", type=int, default=1000)
    parser.add_argument("--days", type=int, default=14)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--sigma", type=float, default=EstimateLimits().sigma)
    parser.add_argument("--percentile", type=float, default=EstimateLimits().percentile)
    parser.add_argument("--margin", type=float, default=EstimateLimits().margin)
    parser.add_argument("--burst", type=float, default=EstimateLimits().burst)
    parser.add_argument(
        "--svg", type=Path, metavar="FILE", help="draw a few days of three hosts to this file"
    )
    parser.add_argument("--jobs", type=int, default=min(2, os.cpu_count() or 1))
    arguments = parser.parse_args()
    limits = EstimateLimits(arguments.sigma, arguments.percentile, arguments.margin, arguments.burst)
    parts = [range(first, arguments.hosts, 20) for first in range(20)]
    result = ReclaimResult()
    with ProcessPoolExecutor(arguments.jobs) as pool:
        for part in pool.map(
            partial(simulate_hosts, arguments.seed, days=arguments.days, limits=limits),
            [p for p in parts if p],
        ):
            result.add(part)
    print("| limits | others use | promised | of the oracle | hours broken | writes a day | most |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    names = f"{limits.sigma:g} sigma, p{limits.percentile:g}, {limits.margin:g} %, burst {limits.burst:g} %"
    print(table_row(names, result))
    if arguments.svg:
        arguments.svg.write_text(draw_picture(arguments.seed, min(arguments.days, 5), limits))
    print(f"broken by CPUs missing: {sorted(result.shortage.items())}", file=sys.stderr)


if __name__ == "__main__":
    main()
