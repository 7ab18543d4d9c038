"""What a signal mostly is of a guest, learnt from itself, and what is above that."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Final

HALF_LIFE: Final = 360
"""Samples after which one counts half: an hour."""

LEARNING: Final = 30
"""Samples before a baseline says anything: five minutes."""

SIGMAS: Final = 2.0

WINDOW_SECONDS: Final = 30.0
"""Over which levels are means, and which a guest has to suffer: three samples, and the one before them."""

_ALPHA: Final = 1 - 0.5 ** (1 / HALF_LIFE)


@dataclass(frozen=True, slots=True)
class SignalBaseline:
    """Mean and variance, in which what is older counts less; ``count`` samples, as far as that matters."""

    mean: float = 0.0
    variance: float = 0.0
    count: int = 0

    @property
    def usable(self) -> bool:
        """Whether enough was learnt."""
        return self.count >= LEARNING

    def threshold(self, least: float, share: float) -> float:
        """Above which a sample is a violation: by 2 sigma, by ``least``, and by ``share`` of the mean."""
        return self.mean + max(SIGMAS * math.sqrt(self.variance), least, share * abs(self.mean))

    def after(self, value: float) -> SignalBaseline:
        """With another sample."""
        weight = max(_ALPHA, 1 / (self.count + 1))
        delta = value - self.mean
        return SignalBaseline(
            self.mean + weight * delta,
            (1 - weight) * (self.variance + weight * delta * delta),
            min(self.count + 1, HALF_LIFE),
        )


@dataclass(frozen=True, slots=True)
class SignalTrack:
    """One signal of one guest on one domain: its baseline, and how it was of late.

    ``threshold`` is that of the latest sample, ``recent`` are time and value of those in a window. ``since``
    is the time of the first violation after the last calm sample; inf if the latest was calm.
    """

    baseline: SignalBaseline = SignalBaseline()
    threshold: float = math.inf
    recent: tuple[tuple[float, float], ...] = ()
    since: float = math.inf

    def after(self, time: float, value: float, least: float, share: float, learns: bool) -> SignalTrack:
        """With another sample; one that does not teach (``learns``) leaves the baseline as it is.

        A violation counts no more than the threshold: what becomes usual becomes the baseline, but slowly.
        """
        baseline = self.baseline
        threshold = baseline.threshold(least, share) if baseline.usable else math.inf
        recent = tuple(one for one in self.recent if one[0] > time - WINDOW_SECONDS)
        since = min(self.since, time) if recent else time
        return SignalTrack(
            baseline.after(min(value, threshold)) if learns else baseline,
            threshold,
            (*recent, (time, value)),
            since if value > threshold else math.inf,
        )

    def forgetting(self) -> SignalTrack:
        """Without what was of late; after a start, or when the guest was limited itself."""
        return replace(self, recent=(), since=math.inf) if self.recent else self

    def level(self, time: float) -> float | None:
        """The mean of the window up to now; None where nothing was measured in it."""
        values = [value for at, value in self.recent if at > time - WINDOW_SECONDS]
        return sum(values) / len(values) if values else None

    def suffers(self, time: float) -> bool:
        """Whether it is above the threshold now, as a mean over the window."""
        level = self.level(time)
        return level is not None and level > self.threshold

    def lasts(self, time: float) -> bool:
        """Whether it has suffered for a whole window, so that its level has nothing of before that.

        The first violation is not of that window: what disturbs begins at any time between two samples.
        """
        return self.suffers(time) and time - self.since >= WINDOW_SECONDS
