"""Thresholds: amounts of a metric as operators write them, such as ``0.8``, ``12G``, ``80%`` or ``true``."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from typing import Final

from compute_agent.throttling.watermarks.metrics import MetricUnit

# Of 1024, as cgroup files and operators count memory.
_POWERS: Final = {"": 0, "K": 1, "M": 2, "G": 3, "T": 4}
THRESHOLD: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([KMGT%]?)", re.ASCII)

# The usage of a condition is 1 or 0. It is above "true" while it holds, and below "false" while it does not.
_WORDS: Final = {"true": 0.5, "false": 0.25}


@dataclass(frozen=True, slots=True)
class WatermarkThreshold:
    """The usage from which on an action is taken.

    The amount is in the metric's unit, or ``relative``, in percent of the capacity of the host. ``word`` is
    the threshold of a condition as written.
    """

    value: float
    relative: bool = False
    word: str = field(default="", compare=False)

    def absolute_amount(self, capacity: float | None) -> float | None:
        """The threshold in the metric's unit; None where the capacity of the host is not known."""
        if not self.relative:
            return self.value
        return None if capacity is None else self.value / 100 * capacity

    def __str__(self) -> str:
        return self.word or f"{self.value:.15g}{'%' if self.relative else ''}"


def parse_threshold(text: str, unit: MetricUnit) -> WatermarkThreshold:
    """A threshold as written: ``0.8``, ``12G``, ``80%``; ``true`` or ``false`` of a condition.

    :raises ValueError:
    """
    if unit is MetricUnit.CONDITION:
        word = text.strip().lower()
        if word not in _WORDS:
            raise ValueError(f"{text.strip()!r} is not a threshold of a condition: write true or false")
        return WatermarkThreshold(_WORDS[word], word=word)
    match = THRESHOLD.fullmatch(text.strip())
    # Hundreds of digits are infinite as a float, and above every usage.
    if match is None or not math.isfinite(float(match[1])):
        raise ValueError(f"{text!r} is not a threshold: a number such as 12, 1.5, 12G or 80% is needed")
    value, suffix = float(match[1]), match[2]
    if suffix == "%":
        if unit == MetricUnit.OTHER:
            raise ValueError("the metric has no percentages")
        # A percentage itself (a pressure) is an amount, and a ratio to a promise may exceed 100.
        if value > 100 and unit != MetricUnit.PERCENT:
            raise ValueError(f"{text.strip()} is more than there is")
        return WatermarkThreshold(value, relative=unit != MetricUnit.PERCENT)
    # 12G cores would be read as twelve billion.
    if suffix and unit not in (MetricUnit.BYTES, MetricUnit.BYTES_PER_SECOND):
        raise ValueError(f"{suffix} is for bytes, and the metric is in {unit or 'another unit'}")
    return WatermarkThreshold(value * 1024 ** _POWERS[suffix])


def parse_usage(text: str, unit: MetricUnit) -> WatermarkThreshold:
    """A usage of the host, written as a threshold; that of a condition is 1 or 0.

    :raises ValueError:
    """
    threshold = parse_threshold(text, unit)
    return WatermarkThreshold(float(threshold.word == "true")) if threshold.word else threshold
