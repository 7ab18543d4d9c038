"""What the consumers of this host hold, as Placement has it now, in the worker's terms."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable, Mapping
from concurrent.futures import TimeoutError as FutureTimeoutError
from typing import Final

from compute_agent.loops.history import HistoryWatch
from compute_agent.model.guest import Allocation, ConsumerAllocations, GuestHolding
from compute_agent.model.messages import DriverError
from compute_agent.pipeline.events import AllocationsRead
from compute_agent.pipeline.view import GuestView
from compute_agent.pipeline.worker import GuestPipeline
from compute_agent.pipeline.world import HostState, request_for
from compute_agent.policy.base import refit
from compute_agent.report.answers import NotFoundError
from compute_agent.report.audit import MigrationClaim, MovedGuest, Owner, resolve
from compute_agent.report.client import PlacementClient
from compute_agent.report.history import AllocationLoss
from compute_agent.report.reporter import HoldingsListing

_ANSWER_SECONDS: Final = 50.0

Held = Mapping[str, Allocation]
"""What consumers hold on this host's providers."""


def allocations_read(
    client: PlacementClient,
    pipeline: GuestPipeline,
    offering: frozenset[str],
    listing: HoldingsListing | None = None,
    watch: HistoryWatch | None = None,
) -> AllocationsRead | None:
    """What the worker has to be told of allocations on these providers; None if it knows.

    :param listing: what was held of them a moment ago, if somebody has read that.
    :param watch: says whether what guests lose is believed; without it, it is.

    :raises PlacementError:
    :raises OSError: it cannot be kept that it is not believed.
    """
    world = pipeline.world
    providers = sorted(offering & {zone.uuid for zone in world.zones})
    if listing is not None and not listing.held.keys() >= set(providers):
        listing = None
    as_of = time.monotonic() if listing is None else listing.as_of
    # Before the guests: what is found out meanwhile must not look as if it had long been so.
    known: dict[str, Allocation] = {uuid: one.allocation for uuid, one in pipeline.unclaimed.items()}
    views = pipeline.views()
    held: Held = (
        allocations_by_consumer(client, providers)
        if listing is None
        else _by_consumer({uuid: listing.held[uuid] for uuid in providers})
    )
    # The listing may be a request per provider: an allocation that just moves between two of them may be seen
    # on none. The consumer's own record is read at once.
    records = {
        view.guest.uuid: client.allocations(view.guest.uuid)
        for view in views
        if not _holds_the_same(view, held)
    }
    if any(view.allocation != {} for view in views if view.guest.uuid in records):
        # What they held may have gone to migrations, and that after some of the listing was made.
        held = allocations_by_consumer(client, providers)
    found = _holdings(client, world, views, records, held, known)
    changed = {
        view.guest.uuid: holding
        for view in views
        if (holding := found.get(view.guest.uuid)) is not None
        and (view.allocation is None or holding != GuestHolding(view.allocation, view.migration))
    }
    losses = _losses(views, changed)
    if watch is not None and watch.withholds(losses, sum(bool(view.allocation) for view in views)):
        changed = {uuid: changed[uuid] for uuid in changed.keys() - {loss.uuid for loss in losses}}
        held = {**known, **held}
    guests = {view.guest.uuid for view in views}
    unclaimed = {consumer: held[consumer] for consumer in held.keys() - guests}
    if not changed and unclaimed == known:
        return None
    return AllocationsRead(
        {uuid: holding.allocation for uuid, holding in changed.items()},
        as_of,
        held,
        {uuid: holding.migration for uuid, holding in changed.items() if holding.migration is not None},
    )


def hand_over(pipeline: GuestPipeline, event: AllocationsRead) -> None:
    """Have the worker know of allocations, and wait until it does.

    :raises DriverError: the worker is busy.
    """
    try:
        pipeline.submit(event).result(_ANSWER_SECONDS)
    except FutureTimeoutError as error:
        raise DriverError(f"the agent is busy: no answer within {_ANSWER_SECONDS:g} s") from error


def _losses(views: Iterable[GuestView], changed: Mapping[str, GuestHolding]) -> list[AllocationLoss]:
    """The guests that held something and hold something else now, whoever holds it for them."""
    return [
        AllocationLoss(view.guest.uuid, view.guest.name, view.allocation, now)
        for view in views
        if view.allocation and view.guest.uuid in changed
        for now in [changed[view.guest.uuid].allocation]
        if now != view.allocation
    ]


def _holds_the_same(view: GuestView, held: Held) -> bool:
    """Whether a guest still holds what it did, by itself or through its migration."""
    own = held.get(view.guest.uuid, {})
    if view.migration is None:
        return own == view.allocation
    return own != view.allocation == held.get(view.migration.consumer, {})


def _holdings(
    client: PlacementClient,
    world: HostState,
    views: Iterable[GuestView],
    records: Mapping[str, ConsumerAllocations],
    held: Held,
    known: Held,
) -> dict[str, GuestHolding]:
    """What the guests hold whose ``records`` were read."""
    views = list(views)
    waiting = [view for view in views if view.guest.uuid in records]
    spoken_for = {view.guest.uuid for view in views}
    spoken_for |= {it.migration.consumer for it in views if it.migration and it.guest.uuid not in records}
    free = {consumer: allocation for consumer, allocation in held.items() if consumer not in spoken_for}
    suitable = {view.guest.uuid: _suitable(world, view, free) for view in waiting if view.allocation is None}
    wanted = [view.allocation for view in waiting if view.allocation]
    current = {view.migration.consumer for view in waiting if view.migration}
    claims = []
    for consumer, allocation in free.items():
        if allocation in wanted or consumer in current or any(consumer in each for each in suitable.values()):
            record = client.allocations(consumer)
            if part := world.own_part(record.resources):
                new = known.get(consumer) != part
                claims.append(MigrationClaim(consumer, part, _owner(record), record.consumer_type, new))
    moved = []
    for view in waiting:
        uuid = view.guest.uuid
        own, migration = world.own_part(records[uuid].resources), view.migration
        consumer = "" if migration is None else migration.consumer
        owner = _owner(records[uuid])
        moved.append(MovedGuest(uuid, view.allocation, own, consumer, owner, suitable.get(uuid, frozenset())))
    return resolve(moved, claims)


def _owner(record: ConsumerAllocations) -> Owner | None:
    if record.project_id is None or record.user_id is None:
        return None
    return record.project_id, record.user_id


def _suitable(world: HostState, view: GuestView, claims: Held) -> frozenset[str]:
    """The consumers whose claims are what a guest needs where it runs."""
    return frozenset(consumer for consumer, allocation in claims.items() if _suits(world, view, allocation))


def _suits(world: HostState, view: GuestView, allocation: Allocation) -> bool:
    request = request_for(world, view.guest, allocation)
    if view.assignment is None or not view.assignment.held:
        return request.pcpu == 0 and sum(demand.vcpu for demand in request.demands) == request.vcpus
    return refit(world.supply({}), request, view.assignment) is not None


def allocations_by_consumer(
    client: PlacementClient, providers: Iterable[str]
) -> dict[str, dict[str, dict[str, int]]]:
    """What consumers hold on these providers: amounts by consumer, provider and resource class.

    :raises PlacementError:
    """
    found = {}
    for uuid in providers:
        try:
            found[uuid] = client.provider_allocations(uuid)
        except NotFoundError:
            continue  # it could not be created so far, and nobody holds anything of it
    return _by_consumer(found)


def _by_consumer(
    found: Mapping[str, Mapping[str, Mapping[str, int]]],
) -> dict[str, dict[str, dict[str, int]]]:
    held: dict[str, dict[str, dict[str, int]]] = defaultdict(dict)
    for uuid, consumers in found.items():
        for consumer, resources in consumers.items():
            held[consumer][uuid] = dict(resources)
    return dict(held)
