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

Give consumers back in Placement what agents know that they held, after it lost that.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from compute_agent.model.guest import Allocation, ConsumerAllocations
from compute_agent.report.answers import ConflictError, PlacementError, UnavailableError
from compute_agent.report.client import PlacementClient

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
    """The owner and type of a consumer. The type is None where Placement has no types."""

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
    """The owner of a consumer; None if it holds nothing, so that Placement does not have it."""
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


DONE, WOULD, THERE = "given back", "would be given back", "not needed: it holds something"


@dataclass(frozen=True, slots=True)
class HeldAllocation:
    """The former allocations of a guest, and its owner; None where the agent does not know it."""

    consumer: str
    resources: Allocation
    holder: ConsumerOwner | None


@dataclass(frozen=True, slots=True)
class RestoredConsumer:
    """The result for one consumer."""

    held: HeldAllocation
    outcome: str

    @property
    def failed(self) -> bool:
        """Whether it should hold something, and does not."""
        return self.outcome not in (DONE, WOULD, THERE)


def restore(
    client: PlacementClient, wanted: Iterable[HeldAllocation], dry_run: bool
) -> list[RestoredConsumer]:
    """Have the consumers that hold nothing at all hold what they held; ``dry_run``: only say so.

    :raises UnavailableError: Placement is away; what was given back until then stays.
    """
    wanted = sorted(wanted, key=lambda held: held.consumer)
    times = Counter(held.consumer for held in wanted)
    return [
        RestoredConsumer(held, _give_back(client, held, dry_run))
        if times[held.consumer] == 1
        else RestoredConsumer(held, "left: it is a guest of several hosts by these files")
        for held in wanted
    ]


def _give_back(client: PlacementClient, held: HeldAllocation, dry_run: bool) -> str:
    try:
        record = client.allocations(held.consumer)
        if record.resources:
            return THERE
        if held.holder is None:
            return "left: whose it is is not known; compute-agent audit --heal on its host may find out"
        if dry_run:
            return WOULD
        client.set_allocations(_as_held(record, held, held.holder, client.knows_consumer_types()))
    except UnavailableError:
        raise
    except ConflictError as error:
        return f"refused, as somebody else holds it, or changes it now: {error}"
    except PlacementError as error:
        return f"refused: {error}"
    return DONE


def _as_held(
    record: ConsumerAllocations, held: HeldAllocation, holder: ConsumerOwner, typed: bool
) -> ConsumerAllocations:
    return replace(
        record,
        resources=held.resources,
        project_id=holder.project_id,
        user_id=holder.user_id,
        consumer_type=holder.consumer_type if typed else None,
    )
