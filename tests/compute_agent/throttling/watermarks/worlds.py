"""Hosts for simulations, with demand that changes from time to time."""

import math
import random

from compute_agent.throttling.watermarks.sections import WatermarkRules
from compute_agent.throttling.watermarks.state import EvictAction, RestoreAction, ThrottleAction
from tests.compute_agent.throttling.watermarks.builders import line, rules
from tests.compute_agent.throttling.watermarks.chart import (
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    VERMILION,
    Curve,
    Line,
    Marks,
    Panel,
    draw,
)
from tests.compute_agent.throttling.watermarks.simulate import Demand, Loop, SimulatedGuest, SimulatedHost

CPUS, MEMORY = 64.0, 256.0
DOWN, UP, EVICT = 48.0, 44.0, 230.0
COOL_DOWN, SAMPLES = 30, 3


def steps(
    seed: int, low: float, high: float, *, day: int = 0, until: int = 10**9, noise: float = 0.0
) -> Demand:
    """The demand of a guest, which jumps from time to time and is ``low`` from round ``until`` on.

    ``day`` is the length of a day in rounds. With a day, the demand is lower at night.
    """
    period = 97 + 13 * (seed % 20)
    levels = [random.Random(seed * 1000 + number).uniform(low, high) for number in range(211)]

    def demand(number: int) -> float:
        if number >= until:
            return low
        level = levels[number // period % len(levels)]
        if day:
            level = low + (level - low) * (0.5 - 0.5 * math.cos(2 * math.pi * (number // 50 * 50) / day))
        jitter = random.Random(seed * 1_000_003 + number).uniform(-1, 1) if noise else 0.0
        return level * (1 + noise * jitter)

    return demand


def host(*, best_effort: int = 20, day: int = 0, until: int = 10**9, noise: float = 0.0) -> SimulatedHost:
    """A host with 4 dedicated guests and some best-effort guests, which at times want more than the
    host has.
    """
    guests = {}
    for number in range(best_effort):
        uuid = f"best-effort-{number:02}"
        cores = steps(number, 0.2, 4.0, day=day, until=until, noise=noise)
        held = steps(500 + number, 1.0, 9.0, day=day, until=until)
        guests[uuid] = SimulatedGuest(uuid, 4.0, cores, held, started=float(number))
    for number in range(4):
        uuid = f"dedicated-{number}"
        cores = steps(100 + number, 3.0, 8.0, day=day, until=until, noise=noise)
        guests[uuid] = SimulatedGuest(uuid, 8.0, cores, lambda number: 30.0, "LSR", rank=20, protected=True)
    return SimulatedHost(CPUS, MEMORY, guests, own_use=1.0)


def cpu_rules() -> WatermarkRules:
    """Watermarks that throttle above 48 of 64 cores, and evict above 230 of 256 units of memory."""
    return rules(
        line("cpu", throttle_down=DOWN, throttle_up=UP, for_samples=SAMPLES, cool_down=COOL_DOWN),
        line("memory", "memory_usage", evict=EVICT, for_samples=SAMPLES, cool_down=COOL_DOWN),
        margin=0.1,
    )


def picture(loop: Loop, title: str, first: int = 0, last: int | None = None) -> str:
    """The picture of a simulation as SVG."""
    seen = loop.history[first:last]
    acts = [[type(action) for action in one.actions] for one in seen]

    def rounds(kind: type) -> list[int]:
        return [number for number, kinds in enumerate(acts) if kind in kinds]

    return draw(
        title,
        [
            Panel(
                "CPU, cores",
                [
                    Curve("wanted", GREY, [one.demand for one in seen], faint=True),
                    Curve("used", BLUE, [one.usage for one in seen]),
                ],
                max(CPUS, *(one.demand for one in seen)),
                [Line("throttle_down", VERMILION, DOWN), Line("throttle_up", GREEN, UP)],
                260,
            ),
            Panel(
                "Memory, GiB",
                [Curve("held", BLUE, [one.memory for one in seen])],
                MEMORY,
                [Line("evict", VERMILION, EVICT)],
                140,
            ),
            Panel(
                "Guests throttled",
                [Curve("throttled", ORANGE, [float(one.throttled) for one in seen])],
                max(20.0, max(one.throttled for one in seen)),
                height=80,
                filled=True,
            ),
        ],
        [
            Marks("throttle", ORANGE, rounds(ThrottleAction)),
            Marks("give back", GREEN, rounds(RestoreAction)),
            Marks("evict", VERMILION, rounds(EvictAction)),
        ],
        first,
    )
