"""Give consumers back in Placement what agents know that they held, after it lost that."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace

from compute_agent.model.guest import Allocation, ConsumerAllocations
from compute_agent.report.client import PlacementClient
from compute_agent.report.errors import ConflictError, PlacementError, UnavailableError
from compute_agent.report.history import ConsumerOwner

DONE, WOULD, THERE = "given back", "would be given back", "not needed: it holds something"


@dataclass(frozen=True, slots=True)
class HeldAllocation:
    """What a guest held, and whose it is (None: the agent did not learn that)."""

    consumer: str
    resources: Allocation
    holder: ConsumerOwner | None


@dataclass(frozen=True, slots=True)
class RestoredConsumer:
    """What came of one consumer."""

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
