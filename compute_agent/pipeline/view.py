"""The guests as others see them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from compute_agent.model.allocation import Allocation
from compute_agent.model.assignment import Assignment
from compute_agent.model.guest import Guest
from compute_agent.model.knob import Knob
from compute_agent.model.migration import Migration
from compute_agent.pipeline.cache import CachedGuest


@dataclass(frozen=True, slots=True)
class GuestView:
    """A copy of a cached guest that the worker does not change any more."""

    guest: Guest
    allocation: Allocation | None
    assignment: Assignment | None
    refusal: str
    stray: str
    refused: tuple[str, ...]
    limits: Mapping[Knob, float]
    pending: tuple[str, ...]
    migration: Migration | None = None


def view(entry: CachedGuest) -> GuestView:
    """The guest as it is now."""
    return GuestView(
        entry.guest,
        entry.allocation,
        entry.assignment,
        entry.refusal,
        entry.stray,
        entry.refused,
        dict(entry.limits),
        tuple(sorted(entry.pending)),
        entry.migration,
    )
