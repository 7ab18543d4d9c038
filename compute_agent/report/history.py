"""Recognises an older copy of Placement's database, and gives lost allocations back to their consumers.

Nouns
    If a database was restored, or has failed over to a replica that lagged behind, it lacks its last writes.
    For the host this looks as if a client had deleted the allocations of guests. A guest that no longer has
    the allocation that it had before is a *loss*.

Evidence
    The *generation* of a provider increases with each claim, and never decreases. If there is a loss, a lower
    generation or a missing provider shows an older copy. Without such evidence, simultaneous losses of many
    guests show an older copy, too, because generations may have increased again meanwhile.

Invariants
    - If a single guest loses its allocation, no generation has decreased and no provider is missing, the loss
      counts as intended at once.
    - Without a loss, the database never counts as an older copy.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Final

from compute_agent.model.guest import Allocation, ConsumerAllocations
from compute_agent.report.answers import ConflictError, PlacementError, UnavailableError
from compute_agent.report.client import PlacementClient

MANY: Final = 3
"""If at least this number of guests lose everything at once, the database counts as an older copy without
other evidence.

The guests that lose everything must also be at least half of those that held anything: on a host with
hundreds of guests, three can end within one interval.
"""

Generations = Mapping[str, int]
"""The generations of providers by uuid."""


@dataclass(frozen=True, slots=True)
class AllocationLoss:
    """A guest that holds another allocation on this host than before."""

    uuid: str
    name: str
    before: Allocation
    now: Allocation


@dataclass(frozen=True, slots=True)
class OlderCopy:
    """The finding that Placement uses an older copy of its database.

    :ivar since: the time of the finding, in seconds since the epoch.
    """

    reason: str
    since: float


@dataclass(frozen=True, slots=True)
class ConsumerOwner:
    """The owner and the type of a consumer.

    :ivar consumer_type: the type of the consumer; None if Placement has no consumer types.
    """

    project_id: str
    user_id: str
    consumer_type: str | None = None


@dataclass(frozen=True, slots=True)
class PlacementHistory:
    """The state of Placement's database as the agent has seen it.

    :ivar generations: the generations that the providers had when they were last read.
    :ivar older: the finding that the database is an older copy; None if no older copy was found.
    :ivar holders: the owners of guests with allocations, by consumer. An older copy can lack these consumers.
    """

    generations: Generations = field(default_factory=dict)
    older: OlderCopy | None = None
    holders: Mapping[str, ConsumerOwner] = field(default_factory=dict)


def holder_of(record: ConsumerAllocations) -> ConsumerOwner | None:
    """The owner of a consumer; None if the consumer holds nothing, so that Placement does not know it."""
    if not record.resources or record.project_id is None or record.user_id is None:
        return None
    return ConsumerOwner(record.project_id, record.user_id, record.consumer_type)


def went_back(before: Generations, now: Generations) -> str:
    """The evidence, as text, that the generations ``now`` are older than ``before``; otherwise empty."""
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
    """The reason to believe that losses come from an older copy of the database; empty for intended losses.

    :param evidence: the result of :func:`went_back`.
    :param losses: the guests with another allocation than before.
    :param holding: the number of guests that held anything.
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
    """The former allocation of a guest, and its owner.

    :ivar holder: the project and user of the consumer; None if the agent does not know them.
    """

    consumer: str
    resources: Allocation
    holder: ConsumerOwner | None


@dataclass(frozen=True, slots=True)
class RestoredConsumer:
    """The result of giving an allocation back to one consumer."""

    held: HeldAllocation
    outcome: str

    @property
    def has_failed(self) -> bool:
        """Whether the consumer should hold something but does not."""
        return self.outcome not in (DONE, WOULD, THERE)


def restore_consumers(
    client: PlacementClient, wanted: Iterable[HeldAllocation], dry_run: bool
) -> list[RestoredConsumer]:
    """Give former allocations back to consumers that hold nothing now.

    :param dry_run: only report the allocations that would be given back.
    :raises UnavailableError: Placement does not answer. Allocations that were given back before stay.
    """
    wanted = sorted(wanted, key=lambda held: held.consumer)
    # Consumers in several files are left out: after a migration the files of two hosts list the guest, and
    # only one file is right.
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
        if (holder := held.holder) is None:
            return "left: its owner is unknown; compute-agent audit --heal on its host may find it out"
        if dry_run:
            return WOULD
        if not client.knows_consumer_types():
            holder = replace(holder, consumer_type=None)
        client.set_allocations(replace(record, resources=held.resources, **asdict(holder)))
    # The error is raised again and ends all work, because each further request would wait just as long.
    except UnavailableError:
        raise
    except ConflictError as error:
        return f"refused, as another consumer holds it, or another program changes it now: {error}"
    except PlacementError as error:
        return f"refused: {error}"
    return DONE
