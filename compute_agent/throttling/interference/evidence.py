"""Evidence: the excess of a victim's signal over its baseline, and suspects with correlated use.

The baseline of a guest is learnt from itself. A suspect may be limited for the victim, shares the resource,
and used more of it whenever the victim suffered more.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from compute_agent.model.resource import ThrottleControl
from compute_agent.throttling.interference.signals import GuestReading, GuestSamples, InterferenceWatch

HALF_LIFE: Final = 360
"""Number of samples after which one counts half: an hour, so that a day's rhythm is followed and a
disturbance is not."""

LEARNING: Final = 30
"""Samples before a baseline says anything: five minutes."""

SIGMAS: Final = 2.0
"""Above the mean. Alone this limit would make a victim of one quiet guest in forty samples; see ``least`` and
``share``."""

WINDOW_SECONDS: Final = 30.0
"""The window of means, which is also how long a guest has to suffer: three samples, and the one before
them."""

# An exponential mean needs two numbers for each guest, where a window of an hour would need 360.
_ALPHA: Final = 1 - 0.5 ** (1 / HALF_LIFE)


@dataclass(frozen=True, slots=True)
class SignalBaseline:
    """Mean and variance with lower weights of older samples; ``count`` of samples, up to HALF_LIFE."""

    mean: float = 0.0
    variance: float = 0.0
    count: int = 0

    @property
    def is_usable(self) -> bool:
        """Whether the baseline has enough samples."""
        return self.count >= LEARNING

    def violation_threshold(self, least: float, share: float) -> float:
        """The threshold of a violation: above the mean by 2 sigma, ``least``, and ``share`` of the mean."""
        return self.mean + max(SIGMAS * math.sqrt(self.variance), least, share * abs(self.mean))

    def with_value(self, value: float) -> SignalBaseline:
        """The baseline with another sample."""
        # At first each sample counts as much as all before it do: a plain mean, until enough are there.
        weight = max(_ALPHA, 1 / (self.count + 1))
        # Welford's update with weights: no sum of squares, which would lose digits.
        delta = value - self.mean
        return SignalBaseline(
            self.mean + weight * delta,
            (1 - weight) * (self.variance + weight * delta * delta),
            # Beyond that the weight is constant, and the count of no use.
            min(self.count + 1, HALF_LIFE),
        )


@dataclass(frozen=True, slots=True)
class SignalTrack:
    """One signal of one guest on one domain: its baseline, and its recent values.

    - ``threshold`` is that of the latest sample.
    - ``recent`` are time and value of the samples in a window.
    - ``since`` is the time of the first violation after the last calm sample; inf if the latest was calm.
    """

    baseline: SignalBaseline = SignalBaseline()
    threshold: float = math.inf
    recent: tuple[tuple[float, float], ...] = ()
    since: float = math.inf

    def with_sample(self, time: float, value: float, least: float, share: float, learns: bool) -> SignalTrack:
        """The track with another sample; without ``learns`` it leaves the baseline as it is.

        A violation counts with the value of the threshold, so that a lasting level becomes the baseline
        slowly.
        """
        # Judged by the baseline of before: a violation must not excuse itself.
        baseline = self.baseline
        threshold = baseline.violation_threshold(least, share) if baseline.is_usable else math.inf
        # Of one window, as older samples are in the baseline.
        recent = tuple(one for one in self.recent if one[0] > time - WINDOW_SECONDS)
        # A gap in the samples ends a violation: nothing is known of the time between.
        since = min(self.since, time) if recent else time
        return SignalTrack(
            baseline.with_value(min(value, threshold)) if learns else baseline,
            threshold,
            (*recent, (time, value)),
            # One calm sample begins the count again: only a disturbance that lasts is acted on.
            since if value > threshold else math.inf,
        )

    def without_recent(self) -> SignalTrack:
        """The track without its recent samples, for use after a start or a limit of the guest."""
        return replace(self, recent=(), since=math.inf) if self.recent else self

    def mean_level(self, time: float) -> float | None:
        """The mean of the window up to now; None without a sample in it."""
        values = [value for at, value in self.recent if at > time - WINDOW_SECONDS]
        return sum(values) / len(values) if values else None

    def suffers_now(self, time: float) -> bool:
        """Whether the mean over the window up to now is above the threshold."""
        level = self.mean_level(time)
        return level is not None and level > self.threshold

    def suffers_lastingly(self, time: float) -> bool:
        """Whether the guest has suffered for a whole window, so that its level includes no earlier time.

        The first violation is not of that window: a disturbance begins at any time between two samples.
        """
        return self.suffers_now(time) and time - self.since >= WINDOW_SECONDS


CORRELATION_SECONDS: Final = 600.0
"""Sixty samples: enough to tell a cause from chance, and short enough to be about this disturbance."""

MIN_CORRELATION: Final = 0.35
"""Of what chance leaves (see :func:`least_correlation`); chosen with seeds 1 and 2 of
benchmarks.interference."""

LEAST_PART: Final = 0.5
"""Instead of the likeliest suspect, the agent tries only suspects that explain at least this part of its
value."""

_ALIKE: Final = 3
"""The number of consecutive samples that count as one: samples ten seconds apart depend on each other."""


@dataclass(frozen=True, slots=True)
class SuspectGuest:
    """A guest, and the correlation of its use with the victim's signal.

    ``part`` is the part of the signal's variation that its use explains, in units of use.
    """

    guest: str
    correlation: float
    part: float


def find_suspects(
    watch: InterferenceWatch, victim: str, domain: str, samples: Sequence[GuestSamples]
) -> list[SuspectGuest]:
    """All suspects in the newest of ``samples``, the likeliest first."""
    now = samples[-1]
    # Current classes and CPUs: a guest that has moved away is not a suspect.
    reading = now.readings[victim]
    signal = watch.signal
    # Samples without the victim say nothing of it.
    kept = [one for one in samples if one.time > now.time - CORRELATION_SECONDS and victim in one.readings]
    suffered = [signal.values(one.readings[victim]).get(domain) for one in kept]
    found = []
    for guest, other in now.readings.items():
        if not may_be_limited(watch, reading, other, domain):
            continue
        pairs = [
            (value, amount)
            for value, sample in zip(suffered, kept, strict=True)
            if value is not None and (amount := _used_amount(watch, sample, guest, domain)) is not None
        ]
        correlation, part = _correlate_pairs(pairs)
        # The sure part, so that a suspect with few samples needs a stronger correlation.
        if least_correlation(correlation, len(pairs)) >= MIN_CORRELATION:
            found.append(SuspectGuest(guest, correlation, part))
    # Several batch jobs often begin together: the correlation of a small one is as good, and its part is not.
    most = max((one.part for one in found), default=0.0)
    likely = [one for one in found if one.part >= LEAST_PART * most]
    # The uuid last, so that a restart tries the same one.
    return sorted(likely, key=lambda one: (-one.part, one.guest))


def may_be_limited(watch: InterferenceWatch, victim: GuestReading, other: GuestReading, domain: str) -> bool:
    """Whether a guest may be limited for a victim: unprotected, of a lower class, on the same resource."""
    mine, its = victim.facts, other.facts
    # Never for a guest that gives way earlier: that would turn the classes upside down.
    lower = its.rank < mine.rank or (its.rank == mine.rank and its.qos_class in watch.consenting)
    return (
        its.uuid != mine.uuid
        and not its.protected
        and lower
        and ThrottleControl(watch.signal.lever.name, domain) in its.allotments
        # On a domain both have an allotment of the same cache; else they have to share CPUs. A victim
        # without known CPUs may be anywhere.
        and (bool(domain) or not (reach := watch.signal.reach(victim)) or not other.cpus.isdisjoint(reach))
    )


def least_correlation(correlation: float, points: int) -> float:
    """Lower bound of a correlation, which is right in 39 of 40 cases (Fisher).

    Few points give chance more weight.

    Noise in one sample mostly goes on in the next: see ``_ALIKE``.
    """
    independent = points / _ALIKE
    # atanh of 1 is infinite, and rounding may lead beyond 1.
    bounded = max(-0.999999, min(0.999999, correlation))
    return math.tanh(math.atanh(bounded) - 2 / math.sqrt(independent - 3)) if independent > 3 else -1.0


def _used_amount(watch: InterferenceWatch, sample: GuestSamples, guest: str, domain: str) -> float | None:
    reading = sample.readings.get(guest)
    return None if reading is None else watch.signal.amounts(reading).get(domain)


def _correlate_pairs(pairs: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Pearson's correlation, and the part of the first that the second explains, in units of the second."""
    if len(pairs) < 2:
        return 0.0, 0.0
    count = len(pairs)
    means = tuple(sum(column) / count for column in _split_columns(pairs))
    spreads = [
        math.sqrt(sum((one - mean) ** 2 for one in column) / count)
        for column, mean in zip(_split_columns(pairs), means, strict=True)
    ]
    # A constant goes with everything and nothing.
    if min(spreads) <= 1e-12:
        return 0.0, 0.0
    shared = sum((x - means[0]) * (y - means[1]) for x, y in pairs) / count
    correlation = shared / (spreads[0] * spreads[1])
    return correlation, correlation * spreads[1]


def _split_columns(pairs: Sequence[tuple[float, float]]) -> Iterator[list[float]]:
    yield [first for first, _ in pairs]
    yield [second for _, second in pairs]
