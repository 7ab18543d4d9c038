"""Reservations: consumers that keep allocations for later claims, until a time of the database's clock.

A reservation is a consumer of the type ``RESERVATION``, with a row in the table of reservations. Like every
consumer, it disappears with its last allocation, except for a window that begins later or that claims use.
The amounts of an expired reservation are released by the next worker that reads the reservation or needs
these amounts (:mod:`placement.store.due_changes`). So no separate process has to release expired
reservations.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Final

import sqlalchemy as sa

from placement.db import clock
from placement.db.batch import PreparedStatement, StatementBatch, StatementFamily
from placement.db.database import WriteTransaction
from placement.db.tables import RESERVATION, consumers, is_planned, reservations, resource_classes
from placement.exceptions import NO_RESERVATION, Conflict, NotFound
from placement.store import allocations, claimants, window_promises
from placement.store import consumers as consumer_store
from placement.store.claims import ConsumerClaim, claimed_amounts
from placement.store.consumers import ANY_GENERATION, RESERVING_CONSUMERS
from placement.store.time_profile import AT_ONCE, EndAction, TimeWindow, WindowMargins, iso_time


class ReservationState(StrEnum):
    """The state of a reservation that has not expired.

    In the state ``CLEANING``, the reservation still has its amounts, but claims can no longer use them.
    """

    PENDING = "pending"
    ACTIVE = "active"
    CLEANING = "cleaning"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class CapacityReservation:
    """A reservation that has not expired; its times are in seconds since 1970 by the database's clock.

    Only members of ``group`` may take amounts from the reservation; None allows all claims of its project. A
    reservation with a start (``starts_at``) is called a window. A window keeps its amounts from ``starts_at``
    up to ``expires_at``, which includes the lead and the cleaning time. While a window is pending
    (``is_pending``), its amounts are planned allocations. ``now`` is the time when the reservation was read.
    Before its start, a window that ``is_movable`` may move to an equivalent host.
    """

    uuid: str
    project_id: str
    user_id: str
    generation: int
    group: str | None
    expires_at: float
    starts_at: float | None = None
    is_pending: bool = False
    now: float = 0.0
    lead_time: int = 0
    cleaning_time: int = 0
    is_maintenance: bool = False
    on_end: EndAction = EndAction.NONE
    is_movable: bool = False

    @property
    def window_margins(self) -> WindowMargins:
        """Return the lead time and the cleaning time of the window."""
        return WindowMargins(self.lead_time, self.cleaning_time)

    @property
    def usable(self) -> TimeWindow:
        """Return the time in which claims can use the reservation.

        Without ``starts_at``, this time begins at 0.
        """
        return self.window_margins.usable_window(TimeWindow(self.starts_at or AT_ONCE, self.expires_at))

    @property
    def state(self) -> ReservationState:
        """Return the state of the reservation at the time when it was read from the database."""
        if not self.has_begun or (self.lead_time and self.now < self.usable.starts_at):
            return ReservationState.PENDING
        return ReservationState.ACTIVE if self.now < self.usable.ends_at else ReservationState.CLEANING

    @property
    def time_ahead(self) -> TimeWindow:
        """Return the time for which the reservation keeps its amounts, from the time when it was read."""
        return TimeWindow(max(self.now, self.starts_at or self.now), self.expires_at)

    @property
    def has_begun(self) -> bool:
        """Return whether the window had already begun when it was read from the database."""
        # the clock decides, even if no request has turned the planned amounts into allocations yet
        return self.starts_at is None or not self.is_pending or self.starts_at <= self.now

    def refuse_time(self, window: TimeWindow | None) -> None:
        """Refuse claims outside of the time of this window.

        A reservation without a start accepts claims at all times.

        :raises Conflict: the window has not begun, or the claim has no end time, or the claim ends after the
            window.
        """
        if self.starts_at is None:
            return
        usable = self.usable
        if self.state is ReservationState.PENDING:
            raise Conflict(
                f"The reservation {self.uuid} begins at {iso_time(usable.starts_at)}; no claim takes from it"
                " before.",
                NO_RESERVATION,
            )
        # another window may hold the same room afterwards
        if window is None or window.ends_at > usable.ends_at:
            raise Conflict(
                f"The reservation {self.uuid} is a window, which ends at {iso_time(usable.ends_at)}: a claim"
                " from it needs an ends_at of at most this time.",
                NO_RESERVATION,
            )

    def serves_claim(self, project_id: str, group: str | None) -> bool:
        """Return whether a claim of this project, for a consumer of this group, may use the reservation."""
        # the project is checked even with the right uuid, which is no secret and must not give access to the
        # reservation
        return project_id == self.project_id and self.group in (None, group)


# the type is a condition, because a consumer that has got another type is no reservation any more
_shown: Final = (
    sa.select(
        consumers.c.uuid,
        consumers.c.project_id,
        consumers.c.user_id,
        consumers.c.generation,
        reservations.c.claim_group,
        reservations.c.expires_at,
        reservations.c.starts_at,
        is_planned(consumers.c.id),
        clock.ServerNow(),
        reservations.c.lead_time,
        reservations.c.cleaning_time,
        reservations.c.is_maintenance,
        reservations.c.on_end,
        reservations.c.is_movable,
    )
    .select_from(RESERVING_CONSUMERS)
    .where(consumers.c.consumer_type == RESERVATION, reservations.c.expires_at > clock.ServerNow())
)
_one: Final = PreparedStatement(_shown.where(consumers.c.uuid == sa.bindparam("uuid")))


def find_reservation(conn: sa.Connection, uuid: str) -> CapacityReservation | None:
    """Return the reservation with this uuid; None if it does not exist or has expired."""
    rows = StatementBatch(conn).add(_one, {"uuid": uuid}).rows
    return _reservation_of(rows[0]) if rows else None


def _reservation_of(row: Sequence[Any]) -> CapacityReservation:
    found = CapacityReservation(*row)
    return replace(
        found,
        # some drivers return truth values as numbers
        is_pending=bool(found.is_pending),
        is_maintenance=bool(found.is_maintenance),
        is_movable=bool(found.is_movable),
        on_end=EndAction(found.on_end),
    )


def list_reservations(
    conn: sa.Connection, project_id: str | None, group: str | None, after: str | None, limit: int
) -> list[CapacityReservation]:
    """Return reservations of a project and a group, sorted by uuid, beginning after the uuid ``after``."""
    # pages begin after a uuid and not after a number of rows, so that added or removed reservations do not
    # shift pages
    query = _shown.order_by(consumers.c.uuid).limit(limit)
    if project_id is not None:
        query = query.where(consumer_store.is_of_project(project_id))
    if group is not None:
        query = query.where(reservations.c.claim_group == group)
    if after is not None:
        query = query.where(consumers.c.uuid > after)
    return [_reservation_of(row) for row in conn.execute(query)]


def no_reservation(uuid: str) -> NotFound:
    """Return the error for an unknown reservation."""
    return NotFound(
        f"There is no reservation {uuid}: it never existed, it has ended or was cancelled, or claims have"
        " taken all of it. The lists with the states ended and cancelled have former windows."
    )


@dataclass(frozen=True, slots=True)
class ReservedAmounts:
    """The present or planned amounts of reservations, and the amounts that claims have taken from windows.

    The consumers of all amounts are the reservations.
    """

    held: Sequence[allocations.Allocation]
    claimed: Sequence[allocations.Allocation] = ()


@dataclass(frozen=True, slots=True)
class WrittenReservation:
    """A reservation at the end of a transaction, with its allocations.

    The transaction reads the reservation, because the reservation may expire before a later read.
    """

    reservation: CapacityReservation
    amounts: ReservedAmounts


def window_claim(
    tx: WriteTransaction,
    row: consumer_store.ConsumerRow,
    locked: claimants.LockedConsumers,
    window: TimeWindow | None,
) -> ConsumerClaim:
    """Return a claim of a locked reservation, or of a claim's consumer, for its present or planned amounts.

    The claim has only the amounts in the scope of the window. The caller has locked the buckets of their
    providers.
    """
    scope = locked.scopes.get(row.uuid)
    owner = consumer_store.present_owner(row)
    resources: dict[str, dict[str, int]] = {}
    if any(each.consumer == row.uuid for each in locked.promised):
        for each in window_promises.promised_amounts(tx.conn, [row.uuid]):
            if each.held.used and (scope is None or each.held.provider in scope):
                resources.setdefault(each.held.provider, {})[each.held.resource_class] = each.held.used
    else:
        own = [each for each in (*locked.holdings, *locked.planned) if each.consumer == row.uuid]
        names = _class_names(tx, {each.class_id for each in own})
        for holding in own:
            resources.setdefault(holding.provider, {})[names[holding.class_id]] = holding.used
    return ConsumerClaim(row.uuid, resources, ANY_GENERATION, owner, in_any_portions=True, window=window)


def reserved_amounts(conn: sa.Connection, found: Collection[CapacityReservation]) -> ReservedAmounts:
    """Return the amounts of these reservations, and the amounts that claims have taken from windows.

    A pending window has its planned allocations. An amount that a claim has given back belongs to the window
    again.
    """
    if not found:
        return ReservedAmounts(())
    # both statements are queued before an answer is read, so that they are sent together
    batch, pending = StatementBatch(conn), [each.uuid for each in found if each.is_pending]
    answers = [batch.add(*allocations.PRESENT.bind_list(each.uuid for each in found))]
    if pending:
        answers.append(batch.add(*allocations.PLANNED.bind_list(pending)))
    held = [each for answer in answers for each in allocations.read_allocations(answer)]
    # only windows that have begun have promises
    windows = [each.uuid for each in found if each.starts_at is not None and not each.is_pending]
    promised = window_promises.promised_amounts(conn, windows)
    used = {each.held.consumer for each in promised}
    held = [each for each in held if each.consumer not in used]
    held += [each.held for each in promised if each.held.used]
    return ReservedAmounts(held, [each.claimed for each in promised if each.claimed.used])


def amounts_for_claims(
    conn: sa.Connection, found: CapacityReservation, repeated: Collection[str]
) -> list[allocations.Allocation]:
    """Return the amounts that claims can take from a reservation, with the amounts of replaced claims.

    :param repeated: consumers that may have claims from the reservation, which new claims replace.
    """
    amounts = reserved_amounts(conn, [found])
    if not amounts.claimed or not repeated:
        return list(amounts.held)
    total = window_promises.taken_by(conn, found.uuid, repeated)
    some = {(each.provider, each.resource_class): each for each in (*amounts.claimed, *amounts.held)}
    for each in amounts.held:
        total[each.provider, each.resource_class] += each.used
    return [replace(each, used=total[key]) for key, each in some.items() if total[key]]


def divided_claims(
    tx: WriteTransaction,
    reservation: str,
    claims: Sequence[ConsumerClaim],
    groups: Mapping[str, str],
    locked: claimants.LockedConsumers,
) -> list[ConsumerClaim] | None:
    """Return claims from a locked reservation, and a claim of the reservation for the amounts that remain.

    The claims last until the end of the cleaning time that the reservation requires.

    :param groups: the names of the groups that the consumers join.
    :returns: None if the reservation has too little of some resource class.
    :raises Conflict: no reservation with this uuid serves the claims.
    """
    row, found = locked.consumers.get(reservation), find_reservation(tx.conn, reservation)
    for claim in claims:
        project_id, group = claim.owner.project_id, groups.get(claim.consumer)
        # the reservation is checked before the search, and again here under the lock, because it may have
        # changed
        if row is None or found is None or not found.serves_claim(project_id, group):
            raise unusable_reservation(reservation, project_id)
        found.refuse_time(claim.window)
    # this line is for the type checker: there is at least one claim, and the loop has refused it if the
    # consumer is missing
    assert row is not None
    assert found is not None
    window = None if found.starts_at is None else TimeWindow(found.starts_at, found.expires_at)
    # min_unit, max_unit and step_size do not apply to the rest of a reservation
    left = window_claim(tx, row, locked, window)
    rest = Counter({(provider, name): amount for _, provider, name, amount in claimed_amounts([left])})
    if window is not None:
        # a claim that is repeated may use its amounts again
        rest += window_promises.taken_by(tx.conn, reservation, [claim.consumer for claim in claims])
    for claim in claims:
        for provider, taken in claim.resources.items():
            for name, amount in taken.items():
                rest[provider, name] -= amount
    # The result is None instead of a conflict, because the caller searches again within the remaining amounts
    if any(amount < 0 for amount in rest.values()):
        return None
    resources: dict[str, dict[str, int]] = {}
    for (provider, name), amount in rest.items():
        # amounts of 0 are left out, because they would keep a consumer that should disappear
        if amount:
            resources.setdefault(provider, {})[name] = amount
    return [*(_from_reservation(claim, found) for claim in claims), replace(left, resources=resources)]


def _from_reservation(claim: ConsumerClaim, reservation: CapacityReservation) -> ConsumerClaim:
    if claim.window is None or reservation.starts_at is None:
        return claim
    return replace(
        claim,
        window=replace(claim.window, ends_at=claim.window.ends_at + reservation.cleaning_time),
        cleaning_time=reservation.cleaning_time,
        taken_from=reservation.uuid,
    )


def unusable_reservation(reservation: str, project_id: str) -> Conflict:
    """Return the error for a claim that is not allowed to use a reservation.

    The message hides the reservation's owner.
    """
    return Conflict(
        f"There is no reservation {reservation} that this claim of project {project_id} may take from: it"
        " may have expired, or be for another group, or claims may have taken all of it.",
        NO_RESERVATION,
    )


def _class_names(tx: WriteTransaction, class_ids: Iterable[int]) -> Mapping[int, str]:
    return dict(tx.queue(*_CLASS_LOOKUP.bind_list(sorted(class_ids))).rows)


_CLASS_LOOKUP: Final = StatementFamily(
    resource_classes.c.id, sa.select(resource_classes.c.id, resource_classes.c.name).where
)
