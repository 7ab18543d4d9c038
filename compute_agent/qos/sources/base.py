"""What a source tells."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from compute_agent.qos.rounds import Round


@dataclass(frozen=True, slots=True)
class Measured:
    """The usage of one metric, by domain ("" for the host as a whole); guests by uuid, then by domain.

    ``capacity`` is what 100 % are, where that is known.
    """

    host: Mapping[str, float] = field(default_factory=dict)
    guests: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    capacity: Mapping[str, float] = field(default_factory=dict)


Measure = Callable[[Round, Round | None], Measured]
"""Usage from a round and the one before it, which is None for the first."""


def whole(
    amount: float | None, guests: Mapping[str, float] | None = None, capacity: float | None = None
) -> Measured:
    """Usage of the host as a whole; None where it is not known."""
    return Measured(
        host={} if amount is None else {"": amount},
        guests={guest: {"": used} for guest, used in (guests or {}).items()},
        capacity={} if capacity is None else {"": capacity},
    )
