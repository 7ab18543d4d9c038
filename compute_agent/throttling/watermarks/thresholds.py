"""Thresholds: amounts of a metric in the configuration, such as ``0.8``, ``12G``, ``80%`` or ``true``."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from typing import Final

from compute_agent.throttling.watermarks.metrics import MetricUnit

# Powers of 1024, as in files of cgroups (memory.max accepts 12G).
_POWERS: Final = {"": 0, "K": 1, "M": 2, "G": 3, "T": 4}

THRESHOLD: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([KMGT%]?)", re.ASCII)
"""The text of an amount: a number with an optional suffix."""

# The usage of a condition is 1 or 0. So the usage is above the value of "true" while the condition holds, and
# below the value of "false" otherwise.
_WORDS: Final = {"true": 0.5, "false": 0.25}


@dataclass(frozen=True, slots=True)
class WatermarkThreshold:
    """The usage above which an action is taken. Only ``throttle_up`` is for usage below the threshold.

    - ``value`` is in the metric's unit or, if ``relative``, in percent of the capacity of the host or cache.
    - ``word`` is the text of the threshold of a condition, ``true`` or ``false``; empty for an amount.
    """

    value: float
    relative: bool = False
    word: str = field(default="", compare=False)

    def absolute_amount(self, capacity: float | None) -> float | None:
        """The threshold in the metric's unit; None for a percentage of an unknown ``capacity``."""
        if not self.relative:
            return self.value
        return None if capacity is None else self.value / 100 * capacity

    def __str__(self) -> str:
        return self.word or f"{self.value:.15g}{'%' if self.relative else ''}"


def parse_threshold(text: str, unit: MetricUnit, has_capacity: bool = True) -> WatermarkThreshold:
    """Parse the text of a threshold, such as ``0.8``, ``12G``, ``80%`` or ``true``, for a metric in ``unit``.

    :param has_capacity: whether the metric has a capacity, so that the threshold can be a percentage of it.
    :raises ValueError: the text is no threshold, or its suffix does not fit the metric.
    """
    if unit is MetricUnit.CONDITION:
        word = text.strip().lower()
        if word not in _WORDS:
            raise ValueError(f"{text.strip()!r} is not a threshold of a condition: write true or false")
        return WatermarkThreshold(_WORDS[word], word=word)
    match = THRESHOLD.fullmatch(text.strip())
    # A number with hundreds of digits is infinite as a float, and no usage would ever be above it.
    if match is None or not math.isfinite(float(match[1])):
        raise ValueError(f"{text!r} is not a threshold: a number such as 12, 1.5, 12G or 80% is needed")
    value, suffix = float(match[1]), match[2]
    if suffix == "%":
        # Without a capacity the usage would never be above the percentage.
        if unit == MetricUnit.OTHER or (not has_capacity and unit != MetricUnit.PERCENT):
            raise ValueError(
                f"{text.strip()}: a percentage needs a capacity, which the metric does not have; write an"
                " amount"
            )
        # For a metric in percent the number is the amount itself, and best_effort_cpu can exceed 100 %.
        if value > 100 and unit != MetricUnit.PERCENT:
            raise ValueError(f"{text.strip()} is above 100 percent of the capacity")
        return WatermarkThreshold(value, relative=unit != MetricUnit.PERCENT)
    # Only amounts of bytes can have a suffix: ``12G`` cores is a mistake, and does not mean twelve billion
    # cores.
    if suffix and unit not in (MetricUnit.BYTES, MetricUnit.BYTES_PER_SECOND):
        raise ValueError(f"{suffix} is for bytes, and the metric is in {unit or 'another unit'}")
    return WatermarkThreshold(value * 1024 ** _POWERS[suffix])


def parse_usage(text: str, unit: MetricUnit, has_capacity: bool = True) -> WatermarkThreshold:
    """Parse the text of an assumed usage of the host, which has the format of a threshold.

    The usage of a condition is 1 for ``true`` and 0 for ``false``.

    :raises ValueError: the text is no usage of a metric in ``unit``, or a percentage without a capacity.
    """
    threshold = parse_threshold(text, unit, has_capacity)
    return WatermarkThreshold(float(threshold.word == "true")) if threshold.word else threshold
