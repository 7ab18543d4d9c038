"""Recognises an older copy of Placement's database, and gives lost allocations back to consumers.

Nouns
    A database that was restored, or failed over to a replica that lagged behind, lacks its last writes. To a
    host this looks as if the allocations of guests had been deleted. A *loss* is a guest with other
    allocations than before.

Evidence
    The *generation* of a provider increases with each claim, and never decreases. A lower generation or a
    missing provider together with a loss is an older copy. Without that evidence, simultaneous losses of many
    guests count as one, because generations may have increased again meanwhile.

Invariants
    - If a single guest loses its allocation and no generation has decreased, this counts as real at once.
    - Without a loss no database counts as an older copy.
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
"""If this number of guests lose everything at once, the database counts as an older copy, even without other
evidence.

These guests have to be half of the guests that held anything, too: on a host with hundreds of guests three
may end within one interval.
"""

Generations = Mapping[str, int]
"""The generations of providers, by uuid."""


@dataclass(frozen=True, slots=True)
class AllocationLoss:
    """A guest with its former and its present allocation on this host."""

    uuid: str
    name: str
    before: Allocation
    now: Allocation


@dataclass(frozen=True, slots=True)
class OlderCopy:
    """Placement has an older copy: the evidence, and since when, in seconds since the epoch."""

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
    """The kept history of Placement: generations as last seen, and whether it is an ``older`` copy.

    ``holders`` are the owners of guests that hold something: an older copy may not know them any more.
    """

    generations: Generations = field(default_factory=dict)
    older: OlderCopy | None = None
    holders: Mapping[str, ConsumerOwner] = field(default_factory=dict)


def holder_of(record: ConsumerAllocations) -> ConsumerOwner | None:
    """The owner of a consumer; None if it holds nothing, as Placement then does not have it."""
    if not record.resources or record.project_id is None or record.user_id is None:
        return None
    return ConsumerOwner(record.project_id, record.user_id, record.consumer_type)


def went_back(before: Generations, now: Generations) -> str:
    """Evidence that ``now`` does not follow ``before``, in words; empty without any."""
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
    """The reason why the losses come from an older copy of the database; empty if the losses are real.

    :param evidence: the result of :func:`went_back`.
    :param holding: number of guests that held anything.
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
    """The former allocations of a guest, and its owner; None if the agent does not know the owner."""

    consumer: str
    resources: Allocation
    holder: ConsumerOwner | None


@dataclass(frozen=True, slots=True)
class RestoredConsumer:
    """The result for one consumer."""

    held: HeldAllocation
    outcome: str

    @property
    def has_failed(self) -> bool:
        """Whether the consumer should hold something, and does not."""
        return self.outcome not in (DONE, WOULD, THERE)


def restore_consumers(
    client: PlacementClient, wanted: Iterable[HeldAllocation], dry_run: bool
) -> list[RestoredConsumer]:
    """Give former allocations back to consumers without any allocation.

    :param dry_run: only report the allocations that would be given back.

    :raises UnavailableError: Placement does not answer. Allocations given back until then stay.
    """
    wanted = sorted(wanted, key=lambda held: held.consumer)
    # A guest that migrated meanwhile is in the files of two hosts, and only one of them is
    # right.
    times = Counter(held.consumer for held in wanted)
    return [
        RestoredConsumer(held, _give_back(client, held, dry_run))
        if times[held.consumer] == 1
        else RestoredConsumer(held, "left: these files list it as a guest of several hosts")
        for held in wanted
    ]


def _give_back(client: PlacementClient, held: HeldAllocation, dry_run: bool) -> str:
    try:
        record = client.get_allocations(held.consumer)
        if record.resources:
            return THERE
        if held.holder is None:
            return "left: its owner is unknown; compute-agent audit --heal on its host may find it out"
        if dry_run:
            return WOULD
        client.set_allocations(_as_held(record, held, held.holder, client.knows_consumer_types()))
    # All further consumers would wait for the same answer.
    except UnavailableError:
        raise
    except ConflictError as error:
        return f"refused, as another consumer holds it, or another program changes it now: {error}"
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
