"""Who may be the cause: may be limited for a victim, shares the resource, and used more as it suffered."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from compute_agent.interference.reading import GuestReading, GuestSamples
from compute_agent.interference.watch import InterferenceWatch
from compute_agent.model.resource import ThrottleControl

CORRELATION_SECONDS: Final = 600.0

MIN_CORRELATION: Final = 0.35

LEAST_PART: Final = 0.5
"""Of what the likeliest suspect explains; who explains less is not tried in its place."""

_ALIKE: Final = 3
"""Samples that follow each other and count as one."""


@dataclass(frozen=True, slots=True)
class SuspectGuest:
    """A guest, and how its use went with the signal of the victim.

    ``part`` is how much of the signal's ups and downs its own explain, in its units of use.
    """

    guest: str
    correlation: float
    part: float


def find_suspects(
    watch: InterferenceWatch, victim: str, domain: str, samples: Sequence[GuestSamples]
) -> list[SuspectGuest]:
    """All suspects in the newest of ``samples``, the likeliest first."""
    now = samples[-1]
    reading = now.readings[victim]
    signal = watch.signal
    kept = [one for one in samples if one.time > now.time - CORRELATION_SECONDS and victim in one.readings]
    suffered = [signal.values(one.readings[victim]).get(domain) for one in kept]
    found = []
    for guest, other in now.readings.items():
        if not may_be_limited(watch, reading, other, domain):
            continue
        pairs = [
            (value, amount)
            for value, sample in zip(suffered, kept, strict=True)
            if value is not None and (amount := _amount(watch, sample, guest, domain)) is not None
        ]
        correlation, part = _correlation(pairs)
        if sure(correlation, len(pairs)) >= MIN_CORRELATION:
            found.append(SuspectGuest(guest, correlation, part))
    most = max((one.part for one in found), default=0.0)
    likely = [one for one in found if one.part >= LEAST_PART * most]
    return sorted(likely, key=lambda one: (-one.part, one.guest))


def may_be_limited(watch: InterferenceWatch, victim: GuestReading, other: GuestReading, domain: str) -> bool:
    """Whether a guest may be limited for a victim: not protected, of a lower class, on the same resource."""
    mine, its = victim.facts, other.facts
    lower = its.rank < mine.rank or (its.rank == mine.rank and its.qos_class in watch.consenting)
    return (
        its.uuid != mine.uuid
        and not its.protected
        and lower
        and ThrottleControl(watch.signal.lever.name, domain) in its.entitlements
        and (bool(domain) or not (reach := watch.signal.reach(victim)) or not other.cpus.isdisjoint(reach))
    )


def sure(correlation: float, points: int) -> float:
    """What a correlation is at the least, but for one in forty (Fisher): of few points chance has more.

    What is noise in one sample is so mostly in the next: see ``_ALIKE``.
    """
    independent = points / _ALIKE
    bounded = max(-0.999999, min(0.999999, correlation))
    return math.tanh(math.atanh(bounded) - 2 / math.sqrt(independent - 3)) if independent > 3 else -1.0


def _amount(watch: InterferenceWatch, sample: GuestSamples, guest: str, domain: str) -> float | None:
    reading = sample.readings.get(guest)
    return None if reading is None else watch.signal.amounts(reading).get(domain)


def _correlation(pairs: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Pearson's, and the part of the first that goes with the second, in units of the second."""
    if len(pairs) < 2:
        return 0.0, 0.0
    count = len(pairs)
    means = tuple(sum(column) / count for column in _columns(pairs))
    spreads = [
        math.sqrt(sum((one - mean) ** 2 for one in column) / count)
        for column, mean in zip(_columns(pairs), means, strict=True)
    ]
    if min(spreads) <= 1e-12:
        return 0.0, 0.0
    shared = sum((x - means[0]) * (y - means[1]) for x, y in pairs) / count
    correlation = shared / (spreads[0] * spreads[1])
    return correlation, correlation * spreads[1]


def _columns(pairs: Sequence[tuple[float, float]]) -> Iterator[list[float]]:
    yield [first for first, _ in pairs]
    yield [second for _, second in pairs]
