"""Watermarks: touched guests and the fewest possible, rounds to recover and to restore, and the cost.

From 1 to 50 best-effort guests bring a simulated host above its line. The fewest possible are those that can
release most, in any order. The agent acts in the order of use, which the manual describes.

The cost is that of the library alone, and that of the daemon's loop with the guests of a pipeline, its worker
and the state file. `watermark_guests` measures a whole daemon.
"""

import argparse
import json
import os
import resource
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from prometheus_client import CollectorRegistry

from compute_agent.model.resource import ThrottleControl
from compute_agent.throttling.executor import ThrottleExecutor
from compute_agent.throttling.levers import ThrottleSteps, lowest_limit
from compute_agent.throttling.samplers import MetricSampler
from compute_agent.throttling.telemetry import ThrottleTelemetry
from compute_agent.throttling.triggers import WatermarkTrigger
from compute_agent.throttling.watermarks.breaches import observe_usage
from compute_agent.throttling.watermarks.metrics import MetricRegistry
from compute_agent.throttling.watermarks.plan import make_plan
from compute_agent.throttling.watermarks.sections import WatermarkRules
from compute_agent.throttling.watermarks.state import ThrottleAction, ThrottledGuest, WatermarkState
from compute_agent.usage.rounds import MeasuredGuest
from compute_agent.usage.snapshot import GuestAllotment, GuestUsage
from tests.compute_agent.loops.overload import TOPOLOGY, Overload, StubbornDriver
from tests.compute_agent.throttling.watermarks.builders import line, rules
from tests.compute_agent.throttling.watermarks.simulate import Loop, SimulatedGuest, SimulatedHost
from tests.compute_agent.throttling.watermarks.worlds import cpu_rules, host, picture

_SAMPLES, _COOL_DOWN, _CALM = 3, 30, 200
_MARGIN = 0.1
_LINE = 0.75
"""The line as a share of the host's CPUs."""


@dataclass(frozen=True)
class SimulatedRecovery:
    """One host: the number of touched guests, and the rounds. Rounds are seconds."""

    guests: int
    over_percent: float
    touched: int
    fewest: int
    fewest_with_margin: int
    rounds_to_recover: int
    rounds_to_restore: int


@dataclass(frozen=True)
class RoundCost:
    """Medians of milliseconds of CPU time for one round with some guests."""

    guests: int
    sampling: float
    calm: float
    planning: float
    core_percent: float
    memory_mib: float


@dataclass(frozen=True)
class LoopCost:
    """Medians of milliseconds of CPU time for a round of the daemon, without and with throttled guests.

    ``core_percent`` is that of the larger one, at a round a second.
    """

    guests: int
    calm: float
    throttled: float
    core_percent: float


def simulate_recovery(guests: int, over: float) -> SimulatedRecovery:
    """Simulate a host that becomes calm after some time.

    Its best-effort guests want between 1 and 4 cores. With all of them the host is above its line by the
    share ``over``.
    """
    wants = {f"guest-{number:02}": 1.0 + 3.0 * ((number * 37) % 50) / 49 for number in range(guests)}
    total = sum(wants.values())
    gap = total * over
    cpus = (total * 2 - gap) / _LINE  # dedicated guests use the same amount
    loop = Loop(
        SimulatedHost(
            cpus,
            1.0,
            {uuid: SimulatedGuest(uuid, 4.0, _cores_until(_CALM, cores)) for uuid, cores in wants.items()},
            own_use=total,
        ),
        _line_rules(cpus),
    )
    history = loop.run(_CALM)
    touched = {
        action.guest for seen in history for action in seen.actions if isinstance(action, ThrottleAction)
    }
    recovered = next(number for number, seen in enumerate(history) if seen.usage <= cpus * _LINE)
    loop.host.own_use = total / 2
    later = loop.run(500)
    restored = next(number for number, seen in enumerate(later) if seen.throttled == 0)
    lowest = lowest_limit(GuestAllotment(4.0), ThrottleSteps())
    gains = [cores - lowest for cores in wants.values()]
    fewest, with_margin = (_fewest_guests(gains, widened) for widened in (gap, gap * (1 + _MARGIN)))
    return SimulatedRecovery(guests, 100 * over, len(touched), fewest, with_margin, recovered, restored)


def measure_round(guests: int, rounds: int, folder: Path) -> RoundCost:
    """Measure rounds over folders like cgroups and the real /proc, then plans far above the line."""
    subjects = _measured_guests(guests, folder)
    by = rules(
        line("cpu", throttle_down=1e6, throttle_up=1e5),
        line("psi", "cpu_pressure", throttle_down=101, throttle_up=50),
        line("memory", "memory_usage", evict=1e18),
        margin=0.1,
    )
    sampler = MetricSampler()
    hands = SimulatedHost(1.0, 1.0, {})
    executor = ThrottleExecutor(
        by.registry, hands, hands, hands.switch_scheduling, _make_telemetry(), hands.reclaim_memory
    )
    trigger = WatermarkTrigger(by, WatermarkState(scheduling_off=False), executor, lambda state: None)
    sampling, calm = [], []
    begun, began = time.process_time(), time.monotonic()
    for number in range(rounds):
        started = time.process_time()
        snapshot = sampler.take_snapshot(by, subjects, began + number)
        sampling.append(time.process_time() - started)
        started = time.process_time()
        trigger.run_round(snapshot)
        calm.append(time.process_time() - started)
        time.sleep(0.02)  # two clock ticks, so that /proc/stat moves
    spent = time.process_time() - begun
    planning = _time_work(lambda: _plan_far_above(guests), 5)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    medians = [1000 * statistics.median(times) for times in (sampling, calm, planning)]
    return RoundCost(guests, *medians, core_percent=100 * spent / rounds, memory_mib=peak)


class _GroupDriver(StubbornDriver):
    """A driver with guests in the folders of `_make_group`."""

    def __init__(self, cpus, folder: Path) -> None:
        super().__init__(cpus)
        self._folder = folder

    def create_guest(self, guest_uuid, name, settings, command, cwd="/", environment=None, declared=()):
        guest = super().create_guest(guest_uuid, name, settings, command, cwd, environment, declared)
        self.running[guest_uuid] = replace(guest, cgroup=str(_make_group(self._folder, guest_uuid)))
        return self.running[guest_uuid]


_LOOP_LINES = """
[watermark:cpu]
metric = cpu_usage
throttle_down = {line}
throttle_up = {up}
for_samples = 1

[watermark:pressure]
metric = cpu_pressure
throttle_down = 100%
throttle_up = 50%

[watermark:memory]
metric = memory_usage
evict = 100%
"""


def loop_cost(guests: int, rounds: int, folder: Path) -> LoopCost:
    """Measure rounds of the daemon's loop over idle guests, first below the line, then above it.

    Above the line all guests have the lowest limit, so that no guest is left to throttle.
    """
    host = Overload(folder)
    host.registry, host.driver = MetricRegistry(), _GroupDriver(TOPOLOGY.online, folder)
    host.lines = _LOOP_LINES.format(line="100%", up="50%")
    host.boot()
    names = [f"guest-{number}" for number in range(guests)]
    for name in names:
        host.run(name, 0.0)
    calm = _round_milliseconds(host, rounds)
    host.crash()
    lowest = lowest_limit(GuestAllotment(4.0), ThrottleSteps())
    host.file.keep_watermarks(
        WatermarkState(tuple(ThrottledGuest(name, ThrottleControl("cpu_quota"), lowest) for name in names))
    )
    host.lines = _LOOP_LINES.format(line="0.01%", up="0.001%")
    host.boot()
    throttled = _round_milliseconds(host, rounds)
    assert len(host.limits()) == guests
    host.crash()
    return LoopCost(guests, calm, throttled, max(calm, throttled) / 10)


def _round_milliseconds(host: Overload, rounds: int) -> float:
    """Return the milliseconds of CPU time of all threads for one round."""
    host.rounds(2)
    spent = []
    for _ in range(rounds):
        spent += _time_work(host.watermarks.run_round, 1)
        time.sleep(0.02)
    return 1000 * statistics.median(spent)


def _plan_far_above(guests: int) -> None:
    """Make a plan in which each guest gets its lowest limit and the host is still above its line."""
    greedy = {f"g{number}": SimulatedGuest(f"g{number}", 4.0, lambda second: 3.9) for number in range(guests)}
    by = rules(line(throttle_down=1, throttle_up=0.5), margin=0.1)
    snapshot = SimulatedHost(4.0 * guests, 1.0, greedy).snapshot()
    make_plan(by, snapshot, observe_usage({}, by.watermarks, snapshot), WatermarkState(scheduling_off=False))


def _fewest_guests(gains: Sequence[float], gap: float) -> int:
    total = 0.0
    for count, gain in enumerate(sorted(gains, reverse=True), 1):
        total += gain
        if total >= gap:
            return count
    return len(gains)


def _cores_until(last: int, cores: float) -> Callable[[int], float]:
    return lambda number: cores if number < last else cores / 2


def _line_rules(cpus: float) -> WatermarkRules:
    return rules(
        line(
            throttle_down=cpus * _LINE,
            throttle_up=cpus * (_LINE - 0.05),
            for_samples=_SAMPLES,
            cool_down=_COOL_DOWN,
        ),
        margin=_MARGIN,
    )


def _measured_guests(guests: int, folder: Path) -> list[MeasuredGuest]:
    """Return guests in separate groups."""
    subjects = []
    for number in range(guests):
        facts = GuestUsage(
            f"guest-{number}", "BE", 0, allotments={ThrottleControl("cpu_quota"): GuestAllotment(4.0)}
        )
        subjects.append(MeasuredGuest(facts, cgroup=str(_make_group(folder, facts.uuid))))
    return subjects


def _make_group(folder: Path, guest: str) -> Path:
    """Create a folder with the files of a guest's cgroup, in their usual length."""
    group = folder / guest
    group.mkdir()
    (group / "cpu.stat").write_text(
        "".join(f"{name} 123456789\n" for name in ("usage_usec", "user_usec", "system_usec", "nr_periods"))
    )
    (group / "memory.current").write_text("1234567890\n")
    (group / "memory.stat").write_text(
        "".join(f"{name} 12345678\n" for name in ("anon", "file", "kernel", "shmem"))
        + "".join(f"counter_{index} 123456\n" for index in range(40))
    )
    return group


def _time_work(work: Callable[[], None], times: int) -> list[float]:
    spent = []
    for _ in range(times):
        started = time.process_time()
        work()
        spent.append(time.process_time() - started)
    return spent


def _make_telemetry() -> ThrottleTelemetry:
    return ThrottleTelemetry(CollectorRegistry())


def format_tables(
    recoveries: Sequence[SimulatedRecovery], costs: Sequence[RoundCost], loops: Sequence[LoopCost]
) -> str:
    """Return Markdown tables."""
    lines = [
        "| best-effort guests | above what they may use, % | touched | fewest possible | with the margin |"
        " rounds to recover | to restore |",
        "| ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    lines += [
        f"| {one.guests} | {one.over_percent:.0f} | {one.touched} | {one.fewest} | {one.fewest_with_margin} |"
        f" {one.rounds_to_recover} | {one.rounds_to_restore} |"
        for one in recoveries
    ]
    lines += [
        "",
        "| guests | sampling, ms | round without breach, ms | plan for all, ms | of a core, % | peak MiB |",
        "| ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    lines += [
        f"| {one.guests} | {one.sampling:.2f} | {one.calm:.2f} | {one.planning:.1f} |"
        f" {one.core_percent:.2f} | {one.memory_mib:.0f} |"
        for one in costs
    ]
    lines += [
        "",
        "| guests | round of the daemon, ms | with all throttled, ms | of a core, % |",
        "| ---: | ---: | ---: | ---: |",
    ]
    lines += [
        f"| {one.guests} | {one.calm:.2f} | {one.throttled:.2f} | {one.core_percent:.2f} |" for one in loops
    ]
    return "\n".join(lines)


def main() -> None:
    """Measure and print."""
    top = argparse.ArgumentParser(prog="python -m benchmarks.watermarks", description=__doc__)
    top.add_argument("--json", type=Path, metavar="FILE", help="also write all numbers to this file")
    top.add_argument(
        "--svg", type=Path, metavar="FILE", help="draw 10,000 rounds of a simulated host to this file"
    )
    top.add_argument("--quick", action="store_true", help="few guests, to test the program")
    arguments = top.parse_args()
    counts = (1, 5) if arguments.quick else (1, 2, 5, 10, 20, 30, 40, 50)
    recoveries = [simulate_recovery(count, over) for over in (0.1, 0.3, 0.6) for count in counts]
    folder = Path(tempfile.mkdtemp(prefix="watermarks-"))
    try:
        costs, loops = [], []
        rounds = 5 if arguments.quick else 60
        for count in (10,) if arguments.quick else (100, 200):
            (home := folder / str(count)).mkdir()
            costs.append(measure_round(count, rounds, home))
            (home := folder / f"loop-{count}").mkdir()
            loops.append(loop_cost(count, rounds, home))
    finally:
        shutil.rmtree(folder)
    print(format_tables(recoveries, costs, loops))
    if arguments.json:
        found = {"recoveries": recoveries, "costs": costs, "loops": loops}
        document = {name: [*map(asdict, rows)] for name, rows in found.items()}
        arguments.json.write_text(json.dumps(document | {"cpus": os.cpu_count()}, indent=1))
    if arguments.svg:
        loop = Loop(host(day=2500, until=9000), cpu_rules())
        loop.run(10_000)
        arguments.svg.write_text(picture(loop, "10,000 rounds of a simulated host"))


if __name__ == "__main__":
    main()
