"""What a source tells."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from compute_agent.qos.rounds import MeasuringRound


@dataclass(frozen=True, slots=True)
class MetricUsage:
    """The usage of one metric, by domain ("" for the host as a whole); guests by uuid, then by domain.

    ``capacity`` is what 100 % are, where that is known.
    """

    host: Mapping[str, float] = field(default_factory=dict)
    guests: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    capacity: Mapping[str, float] = field(default_factory=dict)


Measure = Callable[[MeasuringRound, MeasuringRound | None], MetricUsage]
"""Usage from a round and the one before it, which is None for the first."""


def whole(
    amount: float | None, guests: Mapping[str, float] | None = None, capacity: float | None = None
) -> MetricUsage:
    """Usage of the host as a whole; None where it is not known."""
    return MetricUsage(
        host={} if amount is None else {"": amount},
        guests={guest: {"": used} for guest, used in (guests or {}).items()},
        capacity={} if capacity is None else {"": capacity},
    )
