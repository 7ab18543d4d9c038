"""Guests that disturb others, in simulated worlds: found culprits, delays, and the cost for others.

``python -m benchmarks.interference [--worlds 500] [--seed 1] [--svg FILE]``. ``interference.md`` describes
the results.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
from collections import Counter
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from benchmarks.interference_worlds import KINDS, STEP, GuestWorld, Limits, StepUse, make_world
from compute_agent.drawing.svg import COLOURS, ChartCurve, ChartPanel, draw_chart
from compute_agent.model.resource import ThrottleControl
from compute_agent.throttling.interference.cases import CaseVerdict
from compute_agent.throttling.interference.decisions import CaseDecision, advance_state, observe_signals
from compute_agent.throttling.interference.signals import SIGNALS, GuestSamples, InterferenceWatch
from compute_agent.throttling.interference.state import InterferenceState
from compute_agent.throttling.levers import ThrottleSteps, lowest_limit

HARM = 0.1
"""A guest of the upper class is a victim of the culprit if the culprit slows it down by this share."""

RIGHT = 0.05
"""A limit of one guest for another is right if the other would be faster by this share without the one."""

IN_TIME = 300.0
"""Maximum seconds from the begin of a culprit to a timely verdict."""

AFTER = 1000
"""Maximum number of further steps until no limit is left."""

SIGNAL_NAMES = ("run_delay", "memory_bandwidth", "llc_occupancy")


def watches_of(names: Iterable[str]) -> tuple[InterferenceWatch, ...]:
    """Return active watches of these signals."""
    return tuple(InterferenceWatch(name, SIGNALS[name], preview=False) for name in names)


WATCHES = watches_of(SIGNAL_NAMES)


class IdleController:
    """A controller that never limits guests, and the base of the others."""

    decisions: tuple[CaseDecision, ...] = ()

    def __init__(self) -> None:
        self.limits: Limits = {}

    def decide_limits(self, sample: GuestSamples) -> None:
        """Set new limits after another sample."""


class AgentController(IdleController):
    """The decisions of the agent."""

    def __init__(self, watches: tuple[InterferenceWatch, ...] = WATCHES) -> None:
        super().__init__()
        self.watches = watches
        self.state, self.samples = InterferenceState(), ()

    def decide_limits(self, sample: GuestSamples) -> None:
        self.samples: tuple[GuestSamples, ...] = (*self.samples[-59:], sample)
        self.state, self.decisions = advance_state(self.watches, ThrottleSteps(), self.state, self.samples)
        self.limits = self.state.guest_limits()


class MinimumController(IdleController):
    """PRM's decisions: the minimum for all lower classes at once, and a step more after three clean rounds.

    It uses the signals and thresholds of the agent, so that only the reactions differ.
    """

    def __init__(self) -> None:
        super().__init__()
        self.state, self.steps, self.clean = InterferenceState(), ThrottleSteps(), Counter[str]()

    def decide_limits(self, sample: GuestSamples) -> None:
        self.state = InterferenceState(tracks=observe_signals(WATCHES, self.state, sample))
        limits = {guest: dict(found) for guest, found in self.limits.items()}
        for watch in WATCHES:
            lever = watch.signal.lever
            bad = any(
                track.suffers_lastingly(sample.time)
                for key, track in self.state.tracks.items()
                if key.signal == watch.signal.name and sample.readings[key.guest].facts.rank
            )
            self.clean[lever.name] = 0 if bad else self.clean[lever.name] + 1
            for guest, reading in sample.readings.items():
                for knob, allotment in reading.facts.allotments.items():
                    if reading.facts.rank or knob.lever != lever.name:
                        continue
                    of_guest = limits.setdefault(guest, {})
                    if bad:
                        of_guest[knob] = lowest_limit(allotment, self.steps)
                    elif knob in of_guest and self.clean[lever.name] % 3 == 0:
                        higher = lever.up(of_guest.pop(knob), allotment, self.steps)
                        if higher is not None:
                            of_guest[knob] = higher
        self.limits = {guest: found for guest, found in limits.items() if found}


@dataclass
class LimitAction:
    """A limit of one guest for another: its time, whether it was right, and whether it led to a verdict."""

    time: float
    suspect: str
    victim: str
    knob: ThrottleControl
    right: bool
    guilty: bool = False


@dataclass
class WorldTrace:
    """One world with one controller: the use in each step, and the actions."""

    uses: list[dict[str, StepUse]] = field(default_factory=list)
    limits: list[Limits] = field(default_factory=list)
    actions: list[LimitAction] = field(default_factory=list)
    returned: bool = True


def play_world(one: GuestWorld, controller: IdleController, quiet: bool = False) -> WorldTrace:
    """Simulate a world from its beginning until its end and until no guest has a limit."""
    one, trace = one.fresh_copy(), WorldTrace()
    for number in range(one.length + AFTER):
        if number >= one.length and not controller.limits:
            break
        uses = one.run_step(number, controller.limits, quiet=quiet)
        if number < one.length:
            trace.uses.append(uses)
            trace.limits.append(controller.limits)
        before = controller.limits
        controller.decide_limits(one.take_sample(number, uses, controller.limits))
        for decision in controller.decisions:
            case = decision.case
            if decision.what is CaseVerdict.TRY:
                found = one.step_without(number, before, case.suspect)[case.victim].speed
                right = found >= (1 + RIGHT) * uses[case.victim].speed
                action = LimitAction(STEP * (number + 1), case.suspect, case.victim, case.knob, right)
                trace.actions.append(action)
            elif decision.what is CaseVerdict.GUILTY:
                next(a for a in reversed(trace.actions) if a.suspect == case.suspect).guilty = True
    trace.returned = not controller.limits
    return trace


@dataclass
class InterferenceResult:
    """Sums over worlds."""

    worlds: int = 0
    disturbed: int = 0
    found: int = 0
    in_time: int = 0
    actions: int = 0
    right: int = 0
    verdicts: int = 0
    right_verdicts: int = 0
    calm_hours: float = 0.0
    calm_actions: int = 0
    kept: list[float] = field(default_factory=list)
    kept_minimum: list[float] = field(default_factory=list)
    speed: dict[str, list[float]] = field(default_factory=dict)
    delays: list[float] = field(default_factory=list)
    not_returned: int = 0
    wrong: Counter[str] = field(default_factory=Counter)

    def add(self, other: InterferenceResult) -> None:
        for name, value in vars(other).items():
            mine = getattr(self, name)
            if isinstance(value, dict) and not isinstance(value, Counter):
                for key, part in value.items():
                    mine.setdefault(key, []).extend(part)
            else:
                setattr(self, name, mine + value)


def judge_world(
    one: GuestWorld, compare: bool = True, watches: tuple[InterferenceWatch, ...] = WATCHES
) -> InterferenceResult:
    """Simulate a world with the agent. Compare a world with a culprit with other controllers."""
    result, agent = InterferenceResult(worlds=1), play_world(one, AgentController(watches))
    result.not_returned = not agent.returned
    result.actions, result.right = len(agent.actions), sum(a.right for a in agent.actions)
    result.verdicts = sum(a.guilty for a in agent.actions)
    result.right_verdicts = sum(a.guilty and a.right for a in agent.actions)
    for action in agent.actions:
        if not action.right:
            result.wrong[f"{one.kind}: {action.knob.lever} {'guilty' if action.guilty else 'undone'}"] += 1
    if not one.culprit:
        result.calm_hours = len(one.guests) * one.length * STEP / 3600
        result.calm_actions = sum(not a.right for a in agent.actions)
        return result
    calm_hours = len(one.guests) * one.begin * STEP / 3600
    result.calm_hours = calm_hours
    result.calm_actions = sum(not a.right and a.time <= one.begin * STEP for a in agent.actions)
    idle, quiet = play_world(one, IdleController()), play_world(one, IdleController(), quiet=True)
    victims = victims_of(one, idle, quiet)
    if not victims:
        return result
    result.disturbed = 1
    caught = [
        a.time for a in agent.actions if a.suspect == one.culprit and a.guilty and a.time > one.begin * STEP
    ]
    if caught:
        result.found = 1
        result.delays.append(caught[0] + 70 - one.begin * STEP)
        result.in_time = caught[0] + 70 - one.begin * STEP <= IN_TIME
    if compare:
        minimum = play_world(one, MinimumController())
        result.kept.append(kept_work(one, agent, quiet))
        result.kept_minimum.append(kept_work(one, minimum, quiet))
        for name, trace in (("no limits", idle), ("agent", agent), ("minimum", minimum)):
            result.speed.setdefault(name, []).append(victim_speed(one, trace, quiet, victims))
    return result


def victims_of(one: GuestWorld, idle: WorldTrace, quiet: WorldTrace) -> list[str]:
    """Return guests of the upper class that are slower by a tenth during the culprit's activity."""
    return [
        uuid
        for uuid, guest in one.guests.items()
        if guest.facts.rank
        and _mean_value(one, idle, uuid, lambda use: use.speed)
        <= (1 - HARM) * _mean_value(one, quiet, uuid, lambda use: use.speed)
    ]


def victim_speed(one: GuestWorld, trace: WorldTrace, quiet: WorldTrace, victims: list[str]) -> float:
    """Return the victims' speed during the culprit's activity, as a share of that without the culprit."""
    return statistics.fmean(
        _mean_value(one, trace, uuid, lambda use: use.speed)
        / _mean_value(one, quiet, uuid, lambda use: use.speed)
        for uuid in victims
    )


def kept_work(one: GuestWorld, trace: WorldTrace, quiet: WorldTrace) -> float:
    """Return the work of innocent guests of the lower class, as a share of that without the culprit."""
    innocent = [u for u, guest in one.guests.items() if not guest.facts.rank and u != one.culprit]
    work = [
        sum(_mean_value(one, found, uuid, lambda use: use.work) for uuid in innocent)
        for found in (trace, quiet)
    ]
    return work[0] / work[1]


def _mean_value(one: GuestWorld, trace: WorldTrace, guest: str, value: Callable[[StepUse], float]) -> float:
    return statistics.fmean(value(uses[guest]) for uses in trace.uses[one.begin : one.end])


def simulate_worlds(
    seed: int, numbers: range, compare: bool = True, signals: tuple[str, ...] = SIGNAL_NAMES
) -> InterferenceResult:
    result, watches = InterferenceResult(), watches_of(signals)
    for number in numbers:
        result.add(judge_world(make_world(f"{seed} {number}", KINDS[number % len(KINDS)]), compare, watches))
    return result


def rows(result: InterferenceResult) -> list[tuple[str, str]]:
    """Return the results as names and texts."""
    hours = result.calm_hours or 1.0
    found = [
        ("worlds, of them with a victim of the culprit", f"{result.worlds}, {result.disturbed}"),
        (
            "guests limited, rightly",
            f"{result.actions}, {result.right} ({_format_share(result.right, result.actions)})",
        ),
        (
            "verdicts, rightly",
            f"{result.verdicts}, {result.right_verdicts}"
            f" ({_format_share(result.right_verdicts, result.verdicts)})",
        ),
        ("culprits found, of them within five minutes", f"{result.found}, {result.in_time}"),
        ("recall within five minutes", _format_share(result.in_time, result.disturbed)),
        ("guest-hours without a culprit", f"{result.calm_hours:,.0f}"),
        (
            "wrong actions in 1,000 of them",
            f"{1000 * result.calm_actions / hours:.2f} ({result.calm_actions})",
        ),
        ("worlds in which something stayed limited", f"{result.not_returned}"),
    ]
    if result.delays:
        found.append(("seconds to the verdict, median", f"{statistics.median(result.delays):.0f}"))
    if result.kept:
        found += [
            ("work of the innocent kept: agent", f"{100 * statistics.fmean(result.kept):.1f} %"),
            ("the same: all to the minimum", f"{100 * statistics.fmean(result.kept_minimum):.1f} %"),
        ]
        found += [
            (f"speed of victims meanwhile, {name}", f"{100 * statistics.fmean(values):.1f} %")
            for name, values in result.speed.items()
        ]
    return found


def _format_share(some: int, of: int) -> str:
    return f"{100 * some / of:.1f} %" if of else "-"


def draw_picture(seed: int) -> str:
    """Draw a world of each kind: the victim with and without the agent, and the culprit's limits."""
    panels: list[ChartPanel] = []
    longest = 0.0
    for kind in KINDS[:3]:
        for number in range(100):
            one = make_world(f"{seed} {kind} {number}", kind)
            idle, quiet, agent = (
                play_world(one, IdleController()),
                play_world(one, IdleController(), quiet=True),
                play_world(one, AgentController()),
            )
            victims = victims_of(one, idle, quiet)
            if victims and any(a.guilty and a.suspect == one.culprit for a in agent.actions):
                break
        victim = min(victims, key=lambda uuid: _mean_value(one, idle, uuid, lambda use: use.speed))
        times = [STEP * n for n in range(one.length)]
        longest = max(longest, times[-1])
        curves = [
            ChartCurve(
                name,
                colour,
                [(t, 100 * uses[victim].speed) for t, uses in zip(times, trace.uses, strict=True)],
            )
            for name, colour, trace in (("nothing done", COLOURS[1], idle), ("agent", COLOURS[0], agent))
        ]
        panels.append(
            ChartPanel(f"Speed of {victim} in % of alone; {one.culprit} disturbs it ({kind})", curves)
        )
        lines: dict[str, list[tuple[float, float]]] = {}
        for time, limits in zip(times, agent.limits, strict=True):
            entitled = one.guests[one.culprit].facts.allotments
            for knob, allotment in entitled.items():
                limit = limits.get(one.culprit, {}).get(knob, allotment.full)
                lines.setdefault(knob.lever, []).append((time, 100 * limit / allotment.full))
        panels.append(
            ChartPanel(
                f"What {one.culprit} may have, in % of what it is allotted",
                [
                    ChartCurve(name, COLOURS[n], points)
                    for n, (name, points) in enumerate(lines.items())
                    if min(value for _, value in points) < 100
                ],
            )
        )
    return draw_chart("Guests that disturb others, simulated", panels, 0.0, longest, 2 * STEP)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--worlds", type=int, default=500)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--alone", action="store_true", help="omit the comparison with PRM's controller")
    parser.add_argument("--signals", nargs="*", choices=SIGNALS, default=SIGNAL_NAMES, metavar="SIGNAL")
    parser.add_argument("--svg", type=Path, metavar="FILE", help="draw a world of each kind to this file")
    parser.add_argument("--jobs", type=int, default=min(2, os.cpu_count() or 1))
    arguments = parser.parse_args()
    result = InterferenceResult()
    parts = [range(first, arguments.worlds, 20) for first in range(20)]
    with ProcessPoolExecutor(arguments.jobs) as pool:
        for part in pool.map(
            partial(
                simulate_worlds,
                arguments.seed,
                compare=not arguments.alone,
                signals=tuple(arguments.signals),
            ),
            [p for p in parts if p],
        ):
            result.add(part)
    print("| | |\n| --- | --- |")
    for name, value in rows(result):
        print(f"| {name} | {value} |")
    print(f"wrong: {sorted(result.wrong.items())}", file=sys.stderr)
    if arguments.svg:
        arguments.svg.write_text(draw_picture(arguments.seed))


if __name__ == "__main__":
    main()
