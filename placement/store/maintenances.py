"""Books maintenance of hosts: windows with the whole capacity of a tree, even while guests use the tree.

Other windows need free capacity. The service books a maintenance without a check of the capacity, so guests
on the host do not prevent the booking. Until the maintenance ends, the service allocates the host neither to
consumers without an end time, nor to claims and windows that overlap the maintenance. Present guests keep
their allocations until they end or move.

The window is degraded while it overlaps the allocations of guests that have to move.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Final

import sqlalchemy as sa

from placement.db.batch import split_rows
from placement.db.clock import server_time
from placement.db.database import WriteTransaction
from placement.db.tables import (
    IS_TREE_ROOT,
    WINDOW_HOLD,
    allocations,
    claim_expiries,
    consumers,
    is_planned,
    planned_allocations,
    reservations,
    resource_providers,
    root_providers,
    window_promises,
)
from placement.exceptions import Conflict, InvalidRequest
from placement.store import consumers as consumer_store
from placement.store.allocations import read_supplies, write_claims
from placement.store.claimants import LockedConsumers, lock_consumers
from placement.store.claims import ConsumerClaim
from placement.store.consumers import EXPIRES, NOT_EXPIRED, ConsumerOwnership
from placement.store.providers import no_provider
from placement.store.reservation_changes import ReservationEnd, make_reservation
from placement.store.reservations import (
    CapacityReservation,
    WrittenReservation,
    find_reservation,
    no_reservation,
    reserved_amounts,
)
from placement.store.time_profile import TimeWindow, check_window

# the sum of a maintenance and of other windows has to fit in a column of 32 bits
_MAX_AMOUNT: Final = 2**30
"""Maximum amount of one resource class of one provider that a maintenance can take."""
MAX_GUESTS: Final = 1000
"""Maximum number of guests that one answer lists."""


def book_maintenance(
    tx: WriteTransaction, consumer: str, host: str, owner: ConsumerOwnership, window: TimeWindow
) -> WrittenReservation:
    """Book all providers of a tree for the maintenance window.

    :param host: the uuid of the root provider.
    :raises InvalidRequest: the provider is not a root, or the time is impossible.
    :raises Conflict: the consumer exists, or the tree has no capacity.
    """
    # the consumer is locked and created before the providers are locked, as in claims
    consumer_store.check_generation(lock_consumers(tx, [consumer]).consumers.get(consumer), None)
    consumer_store.create_consumers(tx, {consumer: owner})
    uuids = _tree_uuids(tx.conn, host)
    tx.lock(uuids)
    window = check_window(window, server_time(tx.conn))
    supplies, class_ids = read_supplies(tx, uuids)
    names = {class_id: name for name, class_id in class_ids.items()}
    capacities = {
        uuid: {
            names[class_id]: min(each.capacity, _MAX_AMOUNT)
            for class_id, each in supply.inventories.items()
            if each.capacity > 0
        }
        for uuid, supply in supplies.items()
    }
    resources = {uuid: amounts for uuid, amounts in capacities.items() if amounts}
    if not resources:
        raise Conflict(f"The tree of resource provider {host} has no capacity that a maintenance could take.")
    claim = ConsumerClaim(consumer, resources, None, owner, in_any_portions=True, window=window)
    write_claims(tx, [claim], LockedConsumers({}), are_promised=True)
    end = ReservationEnd(window.ends_at, None)
    return make_reservation(tx, consumer, None, end, window.starts_at, is_maintenance=True)


def _tree_uuids(conn: sa.Connection, host: str) -> list[str]:
    row = conn.execute(
        sa.select(resource_providers.c.id, resource_providers.c.root_id).where(
            resource_providers.c.uuid == host
        )
    ).one_or_none()
    if row is None:
        raise no_provider(host)
    provider_id, root_id = row
    if root_id is not None:
        raise InvalidRequest(f"Resource provider {host} is not the root of its tree.")
    members = (resource_providers.c.id == provider_id) | (resource_providers.c.root_id == provider_id)
    return list(conn.execute(sa.select(resource_providers.c.uuid).where(members)).scalars())


@dataclass(frozen=True, slots=True)
class HostGuest:
    """A consumer with allocations of providers that a maintenance window has booked.

    ``ends_at`` is the end of the consumer's allocations, with their cleaning time, in seconds since 1970.

    ``has_to_move`` tells whether the consumer still has allocations during the window; otherwise the consumer
    ends before the window. ``is_planned`` tells whether the consumer is a window that has not begun.
    """

    consumer: str
    consumer_type: str | None
    project_id: str
    ends_at: float | None
    has_to_move: bool
    is_planned: bool


def find_guests(
    conn: sa.Connection, window: CapacityReservation, providers: Collection[str], limit: int = MAX_GUESTS
) -> list[HostGuest]:
    """Return up to ``limit`` other consumers of these providers, sorted by uuid.

    Windows that begin after the end of this window are left out.
    """
    begin = window.time_ahead.starts_at
    found: dict[str, HostGuest] = {}
    for chunk in split_rows(sorted(providers)):
        values = {"providers": chunk, "own": window.uuid, "after": window.expires_at, "limit": limit}
        for consumer, kind, project_id, claim_end, reservation_end, planned in conn.execute(_guests, values):
            ends_at = claim_end if reservation_end is None else reservation_end
            has_to_move = ends_at is None or ends_at > begin
            found[consumer] = HostGuest(consumer, kind, project_id, ends_at, has_to_move, bool(planned))
    return [found[consumer] for consumer in sorted(found)][:limit]


@dataclass(frozen=True, slots=True)
class MaintenanceGuests:
    """A reservation of whole hosts, with the roots of the hosts, and some consumers on these hosts.

    The consumers in ``ending`` end before the reservation begins. The consumers in ``planned`` are windows
    that have not begun and overlap the reservation.
    """

    uuid: str
    roots: frozenset[str]
    ending: frozenset[str]
    planned: frozenset[str]


def read_maintenance(
    conn: sa.Connection, uuid: str, limit: int, is_visible: Callable[[str], bool]
) -> MaintenanceGuests:
    """Return the hosts of a reservation, with at most ``limit`` of their consumers.

    :param is_visible: whether the caller may see reservations of a project.
    :raises NotFound: there is no such reservation, or the caller may not see it.
    """
    found = find_reservation(conn, uuid)
    # a separate error would show that the reservation exists
    if found is None or not is_visible(found.project_id):
        raise no_reservation(uuid)
    providers = sorted({each.provider for each in reserved_amounts(conn, [found]).held})
    roots = {
        root
        for chunk in split_rows(providers)
        for root in conn.execute(_roots, {"providers": chunk}).scalars()
    }
    guests = find_guests(conn, found, providers, limit)
    ending = frozenset(each.consumer for each in guests if not each.has_to_move)
    planned = frozenset(each.consumer for each in guests if each.has_to_move and each.is_planned)
    return MaintenanceGuests(uuid, frozenset(roots), ending, planned)


_chosen: Final = resource_providers.c.uuid.in_(sa.bindparam("providers", expanding=True))
_roots: Final = (
    sa.select(root_providers.c.uuid)
    .select_from(resource_providers.join(root_providers, IS_TREE_ROOT))
    .where(_chosen)
    .distinct()
)
_ids: Final = sa.union(
    *(
        sa.select(held.c.consumer_id)
        .join(resource_providers, resource_providers.c.id == held.c.provider_id)
        .where(_chosen)
        for held in (allocations, planned_allocations, window_promises)
    )
).subquery()
_guests: Final = (
    sa.select(
        consumers.c.uuid,
        consumers.c.consumer_type,
        consumers.c.project_id,
        claim_expiries.c.expires_at,
        reservations.c.expires_at.label("reserved_until"),
        is_planned(consumers.c.id).label("is_planned"),
    )
    .select_from(
        consumers.join(_ids, _ids.c.consumer_id == consumers.c.id)
        # a claim that a client may still confirm has no known end
        .outerjoin(claim_expiries, EXPIRES & claim_expiries.c.is_final)
        .outerjoin(reservations, reservations.c.consumer_id == consumers.c.id)
    )
    .where(
        consumers.c.uuid != sa.bindparam("own"),
        sa.func.coalesce(consumers.c.consumer_type, "") != WINDOW_HOLD,
        sa.func.coalesce(reservations.c.starts_at, 0.0) < sa.bindparam("after", type_=sa.Double),
        NOT_EXPIRED,
    )
    .order_by(consumers.c.uuid)
    .limit(sa.bindparam("limit", type_=sa.Integer))
)
