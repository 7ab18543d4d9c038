"""Guests with peaks at different hours on hosts with hyperthreads: how often two guests of a core are busy.

    python -m benchmarks.policy_peaks
    python -m benchmarks.policy_peaks --hosts 2 --weeks 2
    python -m benchmarks.policy_peaks --sides profiles --gains 0.5 1 2

Each side places the same guests and moves them as the agent does. The first half of the weeks is for
learning, and the second half counts. The default of 20 hosts and four weeks takes some ten minutes.
``policies.md`` has the results.
"""

from __future__ import annotations

import argparse
import os
import random
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from benchmarks.reclaimed_traces import DAY, noise_table
from compute_agent.host.topology import HostTopology
from compute_agent.model.cpuset import CpuSets
from compute_agent.model.guest import CpuAssignment
from compute_agent.policy import POLICIES
from compute_agent.policy.base import CpuSupply, GuestRequest, ProviderDemand
from compute_agent.policy.load_profiles import WEEK_HOURS, LoadProfile, use_per_cpu
from compute_agent.policy.running_guests import best_move
from compute_agent.usage.week_uses import WeekUses, known_profiles
from tests.compute_agent.inventory.machines import machine

HOUR: Final = DAY // 24
"""Samples in an hour."""
ROUND: Final = 3
"""Samples between two searches for a move."""
MONDAY: Final = 4 * 86400.0
"""The first Monday of the epoch, at which the traces begin. The program runs in UTC."""
SECONDS: Final = 300.0
"""Seconds between two samples."""
POLICY: Final = POLICIES["topology-aware"]

OFF, AVERAGES, PROFILES = SIDES = "load_aware off", "averages", "profiles"
"""The use that decides: none, the mean of the last minutes, or the hours of the week so far."""

PEAKS: Final[Mapping[str, Callable[[int, float], bool]]] = {
    "office": lambda day, clock: day < 5 and 9 <= clock < 17,
    "evening": lambda day, clock: 18 <= clock < 23,
    "night": lambda day, clock: clock < 6,
    "weekend": lambda day, clock: day >= 5,
    "steady": lambda day, clock: False,
}
"""Whether each kind of guest has its peak on a weekday (0: Monday) at a time (hours)."""


@dataclass(frozen=True)
class PeakGuest:
    """A guest with dedicated CPUs, and its use in cores in each sample."""

    name: str
    cpus: int
    samples: list[float]


@dataclass
class PeakScore:
    """Sums over the counted samples: CPUs, moves and days. ``learning`` is the number of moves before."""

    busy: float = 0.0
    common: float = 0.0
    moves: int = 0
    learning: int = 0
    days: int = 0

    def add(self, other: PeakScore) -> None:
        """Add the sums of another host."""
        self.busy += other.busy
        self.common += other.common
        self.moves += other.moves
        self.learning += other.learning
        self.days += other.days


def make_guests(rng: random.Random, noise: Sequence[float], cpus: int, weeks: int) -> list[PeakGuest]:
    """Return guests that hold three quarters of the CPUs."""
    found: list[PeakGuest] = []
    while sum(guest.cpus for guest in found) < cpus * 3 // 4:
        count = rng.choice((1, 1, 1, 2, 3))
        found.append(PeakGuest(f"g{len(found)}", count, _random_use(rng, noise, count, weeks)))
    return found


def _random_use(rng: random.Random, noise: Sequence[float], cpus: int, weeks: int) -> list[float]:
    is_peak, shift = PEAKS[rng.choice(list(PEAKS))], rng.uniform(-1, 1)
    low, high, deviation = rng.uniform(0.02, 0.25), rng.uniform(0.5, 1.0), rng.uniform(0.03, 0.15)
    start = rng.randrange(len(noise) - weeks * 7 * DAY)
    found = []
    for number in range(weeks * 7 * DAY):
        moment = (number / HOUR - shift) % WEEK_HOURS
        base = high if is_peak(int(moment // 24), moment % 24) else low
        # 1 of 200 samples is a burst to all CPUs
        used = 1.0 if rng.random() < 0.005 else base + deviation * noise[start + number]
        found.append(cpus * min(1.0, max(0.0, used)))
    return found


def run_host(topology: HostTopology, guests: Sequence[PeakGuest], side: str, gain: float) -> PeakScore:
    """Place the guests of a host and move them as the agent does; score the second half of the time."""
    length = len(guests[0].samples)
    counted, score, learnt = length // 2, PeakScore(days=length // 2 // DAY), WeekUses()
    supply = CpuSupply(topology, CpuSets(topology.online, frozenset(), frozenset()))
    requests = {
        guest.name: GuestRequest(
            guest.name, guest.cpus, (ProviderDemand("host", topology.online, guest.cpus),)
        )
        for guest in guests
    }
    assigned: dict[str, CpuAssignment] = {}
    for name, request in requests.items():
        found = POLICY(_with_use(supply, assigned, {}), request)
        assert isinstance(found, CpuAssignment)
        assigned[name] = found
    pairs = _core_pairs(topology, assigned)
    known: dict[str, LoadProfile] = {}
    for number in range(length):
        used = {guest.name: guest.samples[number] for guest in guests}
        if side == PROFILES:
            before, learnt = learnt, learnt.with_use(used, SECONDS, MONDAY + number * SECONDS)
            if learnt.guests is not before.guests:
                known = known_profiles(learnt.guests)
        if number >= counted:
            busy = {guest.name: used[guest.name] / guest.cpus for guest in guests}
            score.busy += sum(used.values())
            score.common += sum(count * min(busy[one], busy[other]) for one, other, count in pairs)
        if side == OFF or number % ROUND:
            continue
        means = {name: LoadProfile.from_mean(cores) for name, cores in used.items()}
        running = [(requests[name], one) for name, one in assigned.items()]
        here, recent = _with_use(supply, assigned, means | known), _with_use(supply, assigned, means)
        move = best_move(here, POLICY, running, gain, recent)
        if move is not None:
            assigned[move.guest] = move.assignment
            pairs = _core_pairs(topology, assigned)
            if number >= counted:
                score.moves += 1
            else:
                score.learning += 1
    return score


def _with_use(
    supply: CpuSupply, assigned: Mapping[str, CpuAssignment], use: Mapping[str, LoadProfile]
) -> CpuSupply:
    held = {name: one.held_cpus for name, one in assigned.items()}
    busy = {
        cpu: use_per_cpu(use[name], len(cpus)) for name, cpus in held.items() if name in use for cpu in cpus
    }
    return replace(supply, holdings=held, use=use, busy=busy)


def _core_pairs(topology: HostTopology, assigned: Mapping[str, CpuAssignment]) -> list[tuple[str, str, int]]:
    """Return the pairs of guests that share cores, each with the number of these cores."""
    cores = {
        name: frozenset(topology.threads_of(cpu) for cpu in one.held_cpus) for name, one in assigned.items()
    }
    return [
        (one, other, len(cores[one] & cores[other]))
        for one in cores
        for other in cores
        if one < other and cores[one] & cores[other]
    ]


Run = tuple[str, float]
"""A side, and the gain that a move needs (``[policy] rebalance_gain``)."""


def compare_runs(number: int, seed: int, weeks: int, runs: Sequence[Run]) -> list[PeakScore]:
    """Return the score of each run on one host with 16 cores of 2 threads."""
    os.environ["TZ"] = "UTC"
    rng, topology = random.Random(f"{seed} {number}"), machine(l3=2, cores=8, threads=2)
    here = make_guests(rng, noise_table(random.Random(f"{seed} noise")), len(topology.online), weeks)
    return [run_host(topology, here, side, gain) for side, gain in runs]


def main() -> None:
    """Print the table after each host, so that an interrupted run has a result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hosts", type=int, default=20)
    parser.add_argument("--weeks", type=int, default=4, help="number of weeks; half of them are for learning")
    parser.add_argument("--seed", type=int, default=202)
    parser.add_argument("--sides", nargs="+", choices=SIDES, default=SIDES)
    parser.add_argument("--gains", type=float, nargs="+", default=[2.0, 0.5], help="[policy] rebalance_gain")
    parser.add_argument("--jobs", type=int, default=min(2, os.cpu_count() or 1))
    arguments = parser.parse_args()
    # Without a measured use no guest moves, whatever the gain is.
    runs = [
        (side, gain)
        for side in arguments.sides
        for gain in (arguments.gains[:1] if side == OFF else arguments.gains)
    ]
    totals = [PeakScore() for _ in runs]
    each = partial(compare_runs, seed=arguments.seed, weeks=arguments.weeks, runs=runs)
    with ProcessPoolExecutor(arguments.jobs) as pool:
        for number, scores in enumerate(pool.map(each, range(arguments.hosts)), 1):
            for total, score in zip(totals, scores, strict=True):
                total.add(score)
            print(f"\n{number} hosts, seed {arguments.seed}\n\n{_format_table(runs, totals)}", flush=True)


def _format_table(runs: Sequence[Run], totals: Sequence[PeakScore]) -> str:
    lines = [
        "| side | gain | busy CPUs | of which a core's other guest is busy too | moves a host and day |"
        " while learning |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for (side, gain), score in zip(runs, totals, strict=True):
        samples = score.days * DAY
        common = f"{score.common / samples:.3f} ({100 * score.common / score.busy:.1f} %)"
        moves = f"{score.moves / score.days:.2f} | {score.learning / score.days:.2f}"
        lines.append(f"| {side} | {gain:g} | {score.busy / samples:.2f} | {common} | {moves} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
