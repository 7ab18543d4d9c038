"""Whether what Placement has goes on from what it had, or is an older copy: pure functions.

Nouns
    A database that was restored, or failed over to a replica that lagged behind, lacks its last writes. To a
    host that looks as if guests had given back what they hold. A *loss* is a guest that holds something else
    than it did.

What tells an older copy
    The *generation* of a provider goes up with whatever is claimed of it, and never down: one that is lower
    than it was, or a provider that is gone, and a loss at the same look. Without that, losses of many guests
    at one look, as the generations may have gone up again meanwhile.

What always holds
    - One guest that gives back what it holds, in a database that goes on, is believed at once.
    - Nothing is taken for an older copy as long as no guest loses anything.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Final

from compute_agent.model.guest import Allocation, ConsumerAllocations

MANY: Final = 3
"""An older copy is told by so many guests that lose all they hold at one look.

They have to be half of those that held anything.
"""

Generations = Mapping[str, int]
"""The generations of providers, by uuid."""


@dataclass(frozen=True, slots=True)
class AllocationLoss:
    """A guest, what it held of this host, and what Placement says that it holds now."""

    uuid: str
    name: str
    before: Allocation
    now: Allocation


@dataclass(frozen=True, slots=True)
class OlderCopy:
    """Placement has an older copy: why the agent thinks so, and since when, in seconds since the epoch."""

    reason: str
    since: float


@dataclass(frozen=True, slots=True)
class ConsumerOwner:
    """Whose a consumer is, and of which type (None: Placement knows no types)."""

    project_id: str
    user_id: str
    consumer_type: str | None = None


@dataclass(frozen=True, slots=True)
class PlacementHistory:
    """What is kept of Placement's history: generations as last seen, and whether it is ``older``.

    ``holders`` are the consumers of the guests that hold something, as Placement had them.
    """

    generations: Generations = field(default_factory=dict)
    older: OlderCopy | None = None
    holders: Mapping[str, ConsumerOwner] = field(default_factory=dict)


def holder_of(record: ConsumerAllocations) -> ConsumerOwner | None:
    """Whose a consumer is; None if it holds nothing, so that Placement does not know."""
    if not record.resources or record.project_id is None or record.user_id is None:
        return None
    return ConsumerOwner(record.project_id, record.user_id, record.consumer_type)


def went_back(before: Generations, now: Generations) -> str:
    """Why ``now`` does not go on from ``before``, in words; empty if it may."""
    parts = []
    if gone := before.keys() - now.keys():
        parts.append(f"{len(gone)} of {len(before)} providers are gone")
    if lower := [uuid for uuid, generation in now.items() if generation < before.get(uuid, 0)]:
        example = min(lower)
        parts.append(
            f"generations of {len(lower)} providers went back"
            f" ({example} from {before[example]} to {now[example]})"
        )
    return ", ".join(parts)


def why_older(evidence: str, losses: Collection[AllocationLoss], holding: int) -> str:
    """Why the losses are those of an older copy; empty if they are to be believed.

    :param evidence: what :func:`went_back` says.
    :param holding: how many guests held anything.
    """
    if not losses:
        return ""
    if evidence:
        return evidence
    bare = sum(not loss.now for loss in losses)
    if bare >= MANY and 2 * bare >= holding:
        return f"{bare} of {holding} guests lost their allocations at once"
    return ""
