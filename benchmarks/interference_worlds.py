"""Simulated hosts with guests that share CPUs, a cache and memory. On some hosts one guest disturbs others.

The model is not based on measurements. CPUs are a queue. Memory answers later the busier it is. A guest's
share of the cache depends on how fast it fills the cache beside the others. The demand of a guest does not
depend on its limits. So the same world can run with and without a controller, a culprit, or any guest.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Mapping
from dataclasses import astuple, dataclass, field

from compute_agent.model.resource import CACHE_WAYS, CPU_QUOTA, MEMORY_BANDWIDTH, ThrottleControl
from compute_agent.throttling.interference.signals import GuestReading, GuestSamples
from compute_agent.usage.snapshot import GuestAllotment, GuestUsage

STEP = 10.0
"""Seconds of a step."""

CPUS = 16
CACHE = 32e6
WAYS = 16
BANDWIDTH = 40e9
CORE_BANDWIDTH = 8e9
"""Bytes a second that a core gets from otherwise idle memory."""

QUOTA, WAY, BAND = (
    ThrottleControl(CPU_QUOTA),
    ThrottleControl(CACHE_WAYS, "0"),
    ThrottleControl(MEMORY_BANDWIDTH, "0"),
)

KINDS = ("cpu", "bandwidth", "cache", "calm")

Limits = Mapping[str, Mapping[ThrottleControl, float]]


@dataclass(frozen=True)
class GuestProgram:
    """The program of a guest: bytes touched in each second of work, and the number of different bytes."""

    touched: float
    footprint: float


@dataclass
class WorldGuest:
    facts: GuestUsage
    program: GuestProgram
    wants: list[float]
    other: GuestProgram | None = None
    """The program from ``begin`` to ``end`` of a culprit or of a guest that becomes slower by itself."""
    other_wants: list[float] = field(default_factory=list)
    begin: int = 0
    end: int = 0

    def wanted_at(self, step: int, quiet: bool, rest: bool) -> tuple[float, GuestProgram]:
        """Return the wanted cores and the program in the first part of a step, or in the ``rest`` of it."""
        turn = step if rest else step - 1
        if self.other is not None and self.begin <= turn < self.end and not quiet:
            return self.other_wants[turn - self.begin], self.other
        return self.wants[min(step, len(self.wants) - 1)], self.program


@dataclass
class StepUse:
    """One guest in one step: wanted, used and awaited cores, bytes a second, and bytes in the cache."""

    want: float
    had: float
    delay: float
    bandwidth: float
    occupancy: float
    speed: float
    """Share of the speed that the guest would have alone on the host."""
    work: float

    def mix_with(self, other: StepUse, share: float) -> StepUse:
        """Return the mean of this step and another, with a weight for this one."""
        mine, its = astuple(self), astuple(other)
        return StepUse(*(share * one + (1 - share) * two for one, two in zip(mine, its, strict=True)))

    @property
    def cycles_per_instruction(self) -> float:
        """Return the cycles for an instruction of a program that takes one cycle without memory accesses."""
        return self.had / self.work if self.work else 1.0


@dataclass
class GuestWorld:
    seed: str
    kind: str
    guests: dict[str, WorldGuest]
    culprit: str = ""
    begin: int = 0
    end: int = 0
    length: int = 0
    offset: float = 0.0
    """The share of a step by which the activity of the culprit begins, changes and ends after the step."""
    noise: random.Random = field(default_factory=random.Random)
    cycle_noise: random.Random = field(default_factory=random.Random)
    occupancy: dict[str, float] = field(default_factory=dict)

    def fresh_copy(self) -> GuestWorld:
        """Return the same world at its beginning."""
        return GuestWorld(
            self.seed, self.kind, self.guests, self.culprit, self.begin, self.end, self.length, self.offset,
            random.Random(f"{self.seed} noise"), random.Random(f"{self.seed} cycles"),
        )  # fmt: skip

    def run_step(
        self, number: int, limits: Limits, without: Iterable[str] = (), quiet: bool = False
    ) -> dict[str, StepUse]:
        """Simulate a step; return the use of each guest.

        :param quiet: whether the culprit runs its ordinary program.
        """
        there = {uuid: guest for uuid, guest in self.guests.items() if uuid not in without}
        early, late = (
            {
                uuid: guest.wanted_at(number, quiet and uuid == self.culprit, rest)
                for uuid, guest in there.items()
            }
            for rest in (False, True)
        )
        uses, filled = self._run_part(late, limits)
        if early != late:
            part = self.offset
            first, filled_first = self._run_part(early, limits)
            uses = {uuid: first[uuid].mix_with(use, part) for uuid, use in uses.items()}
            filled = {u: part * filled_first[u] + (1 - part) * amount for u, amount in filled.items()}
        self.occupancy = self.occupancy | filled
        return uses

    def _run_part(
        self, asked: Mapping[str, tuple[float, GuestProgram]], limits: Limits
    ) -> tuple[dict[str, StepUse], dict[str, float]]:
        """Simulate a part of a step; return the use of each guest, and its bytes in the cache at the end."""
        programs = {uuid: program for uuid, (_, program) in asked.items()}
        had, waits = _share_cores(
            {u: (w, limits.get(u, {}).get(QUOTA, math.inf)) for u, (w, _) in asked.items()}
        )
        occupancy = {
            u: self.occupancy.get(u, min(p.footprint, CACHE / len(asked))) for u, p in programs.items()
        }
        slow, rates = _memory_slowdown(had, programs, occupancy, limits)
        found = {}
        for uuid, (want, program) in asked.items():
            alone = 1 + program.touched * _miss_rate(program, CACHE) / CORE_BANDWIDTH
            share = waits[uuid] / (waits[uuid] + had[uuid]) if had[uuid] else 1.0
            speed = (1 - share) * alone / slow[uuid]
            found[uuid] = StepUse(
                want, had[uuid], waits[uuid], rates[uuid], occupancy[uuid], speed, had[uuid] / slow[uuid]
            )
        return found, _cache_occupancy(rates, programs, occupancy, limits)

    def step_without(self, number: int, limits: Limits, guest: str) -> dict[str, StepUse]:
        """Return the same step as if a guest had ended long before, without changes of this world."""
        kept = dict(self.occupancy)
        for _ in range(6):
            self.occupancy.pop(guest, None)
            found = self.run_step(number, limits, (guest,))
        self.occupancy = kept
        return found

    def take_sample(self, number: int, uses: Mapping[str, StepUse], limits: Limits) -> GuestSamples:
        """Return the sample that an agent reads after a step."""
        rng = self.noise
        readings = {
            uuid: GuestReading(
                self.guests[uuid].facts,
                limited=bool(limits.get(uuid)),
                cpu=use.had * rng.gauss(1, 0.01),
                delay=max(0.0, use.delay * rng.gauss(1, 0.1)),
                bandwidth={"0": max(0.0, use.bandwidth * rng.gauss(1, 0.04))},
                occupancy={"0": max(0.0, use.occupancy * rng.gauss(1, 0.05))},
                cpi=use.cycles_per_instruction * self.cycle_noise.gauss(1, 0.05),
            )
            for uuid, use in uses.items()
        }
        return GuestSamples(STEP * (number + 1), readings)


def _share_cores(asked: Mapping[str, tuple[float, float]]) -> tuple[dict[str, float], dict[str, float]]:
    """Return used and awaited cores: fair shares, and Sakasegawa's queue where the CPUs suffice."""
    wants = {uuid: min(want, quota) for uuid, (want, quota) in asked.items()}
    total = sum(wants.values())
    had, left, open_ = {}, float(CPUS), sorted(wants, key=lambda uuid: wants[uuid])
    for number, uuid in enumerate(open_):
        had[uuid] = min(wants[uuid], left / (len(open_) - number))
        left -= had[uuid]
    load = min(0.98, total / CPUS)
    queue = 0.5 * load ** (math.sqrt(2 * (CPUS + 1)) - 1) / (CPUS * (1 - load))
    # a guest that waits for its quota is not a victim of another guest
    return had, {uuid: wants[uuid] - had[uuid] + had[uuid] * queue for uuid in wants}


def _miss_rate(program: GuestProgram, occupancy: float) -> float:
    return 0.05 + 0.95 * max(0.0, 1 - occupancy / program.footprint)


def _memory_slowdown(
    had: Mapping[str, float],
    programs: Mapping[str, GuestProgram],
    occupancy: Mapping[str, float],
    limits: Limits,
) -> tuple[dict[str, float], dict[str, float]]:
    """Return the factor by which memory delays the work of each guest, and its bytes a second from memory."""
    missed = {
        uuid: program.touched * _miss_rate(program, occupancy[uuid]) for uuid, program in programs.items()
    }
    late, slow, rates = 1.0, dict.fromkeys(had, 1.0), dict.fromkeys(had, 0.0)
    for _ in range(12):
        for uuid, cores in had.items():
            slow[uuid] = 1 + missed[uuid] * late / CORE_BANDWIDTH
            percent = limits.get(uuid, {}).get(BAND)
            if percent is not None:
                slow[uuid] = max(slow[uuid], cores * missed[uuid] / (percent / 100 * BANDWIDTH))
            rates[uuid] = cores / slow[uuid] * missed[uuid]
        load = sum(rates.values()) / BANDWIDTH
        wanted = 1 + 0.4 * min(load, 0.95) ** 4 / (1 - min(load, 0.95)) + max(0.0, load - 0.95) * 8
        late += 0.4 * (wanted - late)
    return slow, rates


def _cache_occupancy(
    rates: Mapping[str, float],
    programs: Mapping[str, GuestProgram],
    before: Mapping[str, float],
    limits: Limits,
) -> dict[str, float]:
    """Return the next bytes of each guest in the cache, at most its footprint and the size of its ways."""
    most = {
        uuid: min(program.footprint, limits.get(uuid, {}).get(WAY, WAYS) / WAYS * CACHE)
        for uuid, program in programs.items()
    }
    open_, left, target = set(most), CACHE, {}
    while open_:
        speed = sum(rates[uuid] + 1e6 for uuid in open_)
        full = {uuid for uuid in open_ if left * (rates[uuid] + 1e6) / speed >= most[uuid]}
        if not full:
            target |= {uuid: left * (rates[uuid] + 1e6) / speed for uuid in open_}
            break
        target |= {uuid: most[uuid] for uuid in full}
        left -= sum(most[uuid] for uuid in full)
        open_ -= full
    return {uuid: 0.3 * before[uuid] + 0.7 * target[uuid] for uuid in target}


# Worlds


def make_world(seed: str, kind: str) -> GuestWorld:
    """Return a world with some guests of either class, and with a culprit after 20 minutes unless it is calm.

    The culprit begins between two samples, which are taken at the ends of steps.
    """
    rng = random.Random(seed)
    begin = rng.randrange(120, 180)
    end = begin + rng.randrange(60, 120)
    length = end + 90
    guests = {}
    for number in range(rng.randint(3, 5)):
        facts = _guest_facts(f"ls{number}", "LS", 10, 4.0)
        guests[facts.uuid] = WorldGuest(
            facts, _random_program(rng), _wanted_cores(rng, rng.uniform(0.5, 1.6), length, 4.0)
        )
    for number in range(rng.randint(3, 6)):
        vcpus = rng.choice((1.0, 2.0, 2.0, 4.0))
        facts = _guest_facts(f"be{number}", "BE", 0, vcpus)
        mean = vcpus * rng.uniform(0.2, 0.5)
        guests[facts.uuid] = WorldGuest(facts, _random_program(rng), _wanted_cores(rng, mean, length, vcpus))
    found = GuestWorld(seed, kind, guests, begin=begin, end=end, length=length)
    found.offset = random.Random(f"{seed} offset").random()
    best_effort = [uuid for uuid in guests if uuid.startswith("be")]
    rng.shuffle(best_effort)
    if kind == "calm":
        _change_of_mind(
            rng, guests[rng.choice([uuid for uuid in guests if uuid.startswith("ls")])], begin, end
        )
    else:
        found.culprit = best_effort[0]
        _begin_culprit(rng, guests[found.culprit], kind, begin, end)
    # a decoy begins to do more at about the same time, without disturbing other guests
    decoy = guests[best_effort[1]]
    start = max(0, begin + rng.randint(-6, 6))
    decoy.wants[start:end] = [want * rng.uniform(1.2, 1.6) for want in decoy.wants[start:end]]
    return found.fresh_copy()


def _guest_facts(uuid: str, qos_class: str, rank: int, vcpus: float) -> GuestUsage:
    allotments = {
        QUOTA: GuestAllotment(vcpus),
        WAY: GuestAllotment(float(WAYS), 1.0, CACHE / WAYS),
        BAND: GuestAllotment(100.0, 5.0, BANDWIDTH / 100),
    }
    return GuestUsage(uuid, qos_class, rank, allotments=allotments, name=uuid)


def _random_program(rng: random.Random) -> GuestProgram:
    return GuestProgram(rng.lognormvariate(math.log(4e9), 0.6), rng.uniform(0.5e6, 5e6))


def _begin_culprit(rng: random.Random, guest: WorldGuest, kind: str, begin: int, end: int) -> None:
    guest.facts = _guest_facts(guest.facts.uuid, "BE", 0, 16.0)
    if kind == "cpu":
        cores, guest.other = rng.uniform(10, 16), guest.program
    elif kind == "bandwidth":
        cores, guest.other = rng.uniform(4, 8), GuestProgram(rng.uniform(20e9, 40e9), 4e9)
    else:
        cores, guest.other = rng.uniform(2, 4), GuestProgram(rng.uniform(4e9, 8e9), rng.uniform(30e6, 90e6))
    guest.begin, guest.end = begin, end
    guest.other_wants = _wanted_cores(rng, cores, end - begin, 16.0, swing=0.1)
    manner = rng.random()
    if manner < 0.3:  # the culprit begins slowly
        rise = rng.randint(6, 18)
        for number in range(rise):
            guest.other_wants[number] *= number / rise
    elif manner < 0.6:  # the culprit pauses every few minutes
        work, pause = rng.randint(12, 30), rng.randint(6, 18)
        for number in range(end - begin):
            if number % (work + pause) >= work:
                guest.other_wants[number] = 0.1


def _change_of_mind(rng: random.Random, guest: WorldGuest, begin: int, end: int) -> None:
    """Make a guest slower by itself: it touches more memory, or wants more cores."""
    guest.begin, guest.end = begin, end
    guest.other = GuestProgram(
        guest.program.touched * rng.uniform(1, 2), guest.program.footprint * rng.uniform(1, 2)
    )
    guest.other_wants = _wanted_cores(rng, rng.uniform(0.5, 2.5), end - begin, 4.0)


def _wanted_cores(
    rng: random.Random, mean: float, length: int, most: float, swing: float = 0.3
) -> list[float]:
    """Return a slow wave, noise with a memory of one or two minutes, and bursts with a heavy tail."""
    phase, period = rng.uniform(0, 7), rng.uniform(120, 720)
    spread, value, burst, found = rng.uniform(0.05, 0.2), 0.0, 0.0, []
    for number in range(length):
        value = 0.85 * value + 0.527 * rng.gauss(0, 1)
        if rng.random() < 1 / 180:
            burst = mean * min(2.0, rng.paretovariate(2.5) - 0.7)
        burst *= 0.85
        wave = mean * (1 + swing * math.sin(phase + 2 * math.pi * number / period))
        found.append(min(most, max(0.02, wave + mean * spread * value + burst)))
    return found
