"""Evidence: victims suffer more than usual, and the use of a suspect rises and falls with the suffering."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from compute_agent.model.resource import ThrottleControl
from compute_agent.throttling.interference.signals import GuestReading, GuestSamples, InterferenceWatch

HALF_LIFE: Final = 360
"""Number of later samples after which the weight of a sample in the baseline has fallen to one half.

With a sample each ten seconds, 360 samples are an hour. So the baseline follows the course of a day, but not
a short disturbance.
"""

LEARNING: Final = 30
"""Number of samples that a baseline needs before it is used: five minutes."""

SIGMAS: Final = 2.0
"""A sample has to exceed the mean by at least this number of standard deviations to be a violation.

One in forty samples of an undisturbed guest exceeds the threshold. A violation also has to exceed the mean by
``least`` and ``share`` of the signal.
"""

WINDOW_SECONDS: Final = 30.0
"""Length, in seconds, of the window over which the mean of a signal is computed. A window has three samples.
A guest has to suffer for a whole window to become a victim."""

# An exponential mean needs three numbers for each guest, and a window of an hour would need 360 samples.
_ALPHA: Final = 1 - 0.5 ** (1 / HALF_LIFE)


@dataclass(frozen=True, slots=True)
class SignalBaseline:
    """Exponentially weighted mean and variance of a signal; ``count`` has its samples, at most HALF_LIFE."""

    mean: float = 0.0
    variance: float = 0.0
    count: int = 0

    @property
    def is_usable(self) -> bool:
        """Whether the baseline has at least LEARNING samples, so that violations can be found."""
        return self.count >= LEARNING

    def violation_threshold(self, least: float, share: float) -> float:
        """The value above which a sample is a violation, in the unit of the signal.

        The threshold is the mean plus the largest of three values: 2 standard deviations, ``least``, and
        ``share`` of the mean.
        """
        return self.mean + max(SIGMAS * math.sqrt(self.variance), least, share * abs(self.mean))

    def with_value(self, value: float) -> SignalBaseline:
        """Return a copy of the baseline with one more sample."""
        # The first samples have equal weights, as in a plain mean. With a fixed weight the first sample would
        # count most.
        weight = max(_ALPHA, 1 / (self.count + 1))
        # Welford's update with weights. A difference of sums of squares would lose digits.
        delta = value - self.mean
        return SignalBaseline(
            self.mean + weight * delta,
            (1 - weight) * (self.variance + weight * delta * delta),
            # The count is bounded, because a higher count has no effect on the weight.
            min(self.count + 1, HALF_LIFE),
        )


@dataclass(frozen=True, slots=True)
class SignalTrack:
    """One signal of one guest on one domain: its baseline, and its recent values.

    - ``threshold`` is the threshold that applied to the latest sample; inf while the baseline has too few
      samples.
    - ``recent`` has the time and the value of each sample in the latest window, oldest first.
    - ``since`` is the time at which the current series of violations began; inf if the latest sample was no
      violation.
    """

    baseline: SignalBaseline = SignalBaseline()
    threshold: float = math.inf
    recent: tuple[tuple[float, float], ...] = ()
    since: float = math.inf

    def with_sample(self, time: float, value: float, least: float, share: float, learns: bool) -> SignalTrack:
        """The track with another sample at ``time``. The baseline changes only if ``learns`` is set.

        A value above the threshold enters the baseline as the threshold. So a lasting higher level becomes
        the baseline only slowly.
        """
        # The threshold comes from the baseline without this sample, because this sample would raise it.
        baseline = self.baseline
        threshold = baseline.violation_threshold(least, share) if baseline.is_usable else math.inf
        # Only the samples of the latest window are kept one by one.
        recent = tuple(one for one in self.recent if one[0] > time - WINDOW_SECONDS)
        # If the whole window has no samples, the series of violations begins again with this sample.
        since = min(self.since, time) if recent else time
        return SignalTrack(
            baseline.with_value(min(value, threshold)) if learns else baseline,
            threshold,
            (*recent, (time, value)),
            # One sample at or below the threshold ends the series, because the agent acts only on lasting
            # disturbances.
            since if value > threshold else math.inf,
        )

    def without_recent(self) -> SignalTrack:
        """The track with its baseline only, without recent samples and violations."""
        return replace(self, recent=(), since=math.inf) if self.recent else self

    def mean_level(self, time: float) -> float | None:
        """The mean of the signal in the window that ends at ``time``; None if the window has no sample."""
        values = [value for at, value in self.recent if at > time - WINDOW_SECONDS]
        return sum(values) / len(values) if values else None

    def suffers_now(self, time: float) -> bool:
        """Whether the mean of the signal over the window that ends at ``time`` is above the threshold."""
        level = self.mean_level(time)
        return level is not None and level > self.threshold

    def suffers_lastingly(self, time: float) -> bool:
        """Whether violations have lasted for a window, and the window's mean is above the threshold."""
        return self.suffers_now(time) and time - self.since >= WINDOW_SECONDS


CORRELATION_SECONDS: Final = 600.0
"""Seconds of samples from which a correlation is computed. With a sample each ten seconds, these are sixty
samples.

Sixty samples are enough to distinguish a cause from chance, and few enough to be about the current
disturbance.
"""

MIN_CORRELATION: Final = 0.35
"""Minimum of :func:`least_correlation` for a suspect.

The value was chosen by runs of ``benchmarks.interference`` with the seeds 1 and 2.
"""

LEAST_PART: Final = 0.5
"""A guest is a suspect only if its ``part`` (correlation times spread of its use) is at least this share of
the most likely suspect's ``part``."""

_ALIKE: Final = 3
"""Number of consecutive samples that count as one independent sample.

Samples that are ten seconds apart depend on each other.
"""


@dataclass(frozen=True, slots=True)
class SuspectGuest:
    """A guest that can disturb a victim, with the correlation between its use and the victim's signal.

    ``part`` is the correlation multiplied by the standard deviation of the guest's use, in the unit of use.
    Suspects are ranked by ``part``, because small and large batch jobs that run at the same time correlate
    equally well.
    """

    guest: str
    correlation: float
    part: float


def find_suspects(
    watch: InterferenceWatch, victim: str, domain: str, samples: Sequence[GuestSamples]
) -> list[SuspectGuest]:
    """The guests that can be the reason why a victim suffers on a domain, the most likely guest first.

    The domain is an L3 cache, or "" for the host. ``samples`` are the samples of the last ten minutes, oldest
    first.
    """
    now = samples[-1]
    # Classes and CPUs come from the newest sample, so that a guest that has moved to other CPUs is no
    # suspect.
    reading = now.readings[victim]
    signal = watch.signal
    # Samples without the victim are left out.
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
        # The lower bound of the correlation is used, so that a suspect with few samples needs a stronger
        # correlation.
        if least_correlation(correlation, len(pairs)) >= MIN_CORRELATION:
            found.append(SuspectGuest(guest, correlation, part))
    # Batch jobs often begin at the same time. A small job then correlates as well as a large job, but
    # explains less of the disturbance.
    most = max((one.part for one in found), default=0.0)
    likely = [one for one in found if one.part >= LEAST_PART * most]
    # The uuid comes last, so that the order does not depend on the order of the guests.
    return sorted(likely, key=lambda one: (-one.part, one.guest))


def may_be_limited(watch: InterferenceWatch, victim: GuestReading, other: GuestReading, domain: str) -> bool:
    """Whether the guest ``other`` can be limited for ``victim``.

    The guest must not be protected, and must use the same resource. Its class must be lower than the
    victim's; the same class is enough if the section lists it in ``consenting``.
    """
    mine, its, reached = victim.facts, other.facts, watch.signal.reached_cpus(victim)
    # A guest is never limited for a guest of a lower class, which has to give way first.
    lower = its.rank < mine.rank or (its.rank == mine.rank and its.qos_class in watch.consenting)
    return (
        its.uuid != mine.uuid
        and not its.protected
        and lower
        and ThrottleControl(watch.signal.lever.name, domain) in its.allotments
        # On a domain, both guests use the same cache. Without a domain both guests have to share CPUs. If the
        # CPUs of the victim are unknown, any guest can share them.
        and (bool(domain) or not reached or not other.cpus.isdisjoint(reached))
    )


def least_correlation(correlation: float, points: int) -> float:
    """Lower confidence bound (97.5 %) of a correlation from ``points`` samples, by Fisher's transformation.

    With fewer samples the bound is lower, and with too few samples it is -1. Three samples count as one,
    because consecutive samples depend on each other.
    """
    independent = points / _ALIKE
    # atanh(1) is infinite, and a rounded correlation can exceed 1.
    bounded = max(-0.999999, min(0.999999, correlation))
    return math.tanh(math.atanh(bounded) - 2 / math.sqrt(independent - 3)) if independent > 3 else -1.0


def _used_amount(watch: InterferenceWatch, sample: GuestSamples, guest: str, domain: str) -> float | None:
    reading = sample.readings.get(guest)
    return None if reading is None else watch.signal.amounts(reading).get(domain)


def _correlate_pairs(pairs: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Pearson's correlation of pairs, and the correlation times the standard deviation of second values."""
    if len(pairs) < 2:
        return 0.0, 0.0
    count, columns = len(pairs), tuple(zip(*pairs, strict=True))
    means = [sum(column) / count for column in columns]
    spreads = [
        math.sqrt(sum((one - mean) ** 2 for one in column) / count)
        for column, mean in zip(columns, means, strict=True)
    ]
    # The correlation with a constant is not defined. The result 0 means that the guest is no suspect.
    if min(spreads) <= 1e-12:
        return 0.0, 0.0
    shared = sum((x - means[0]) * (y - means[1]) for x, y in pairs) / count
    correlation = shared / (spreads[0] * spreads[1])
    return correlation, correlation * spreads[1]
