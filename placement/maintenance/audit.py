"""Finds contradictions in the database: in trees, consumers, allocations, usage and windows."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

import sqlalchemy as sa

from placement.db.tables import (
    RESERVATION,
    allocations,
    consumers,
    inventories,
    planned_allocations,
    reservations,
    resource_classes,
    resource_providers,
    window_promises,
)
from placement.read_model.provider import Inventory
from placement.read_model.rows import INVENTORY_COLUMNS
from placement.store import time_schedule
from placement.store.time_profile import HoldKey, by_key, needed_holds


@dataclass(frozen=True, slots=True)
class TreeRoots:
    """The roots of providers by the providers' ids, and the providers without a root.

    ``of`` maps the id of each provider to the id of its root. As in the database, a root itself maps to None.
    ``orphans`` are providers with an ancestor that does not exist. ``loops`` are providers that are their own
    ancestors, and the descendants of such providers.
    """

    of: Mapping[int, int | None]
    orphans: frozenset[int]
    loops: frozenset[int]


def find_roots(parents: Mapping[int, int | None]) -> TreeRoots:
    """Find the root of each provider, and the providers without a root."""
    roots: dict[int, int] = {}
    orphans: set[int] = set()
    loops: set[int] = set()
    for start in parents:
        # the ids of the current chain of parents, in order; in a dictionary each step quickly finds a loop
        chain: dict[int, None] = {}
        provider_id = start
        while True:
            if provider_id in roots:
                roots.update(dict.fromkeys(chain, roots[provider_id]))
            elif provider_id in orphans or provider_id not in parents:
                orphans.update(chain)
            elif provider_id in loops or provider_id in chain:
                loops.update(chain)
            else:
                chain[provider_id] = None
                parent = parents[provider_id]
                if parent is not None:
                    provider_id = parent
                    continue
                roots.update(dict.fromkeys(chain, provider_id))
            break
    of = {provider_id: None if root == provider_id else root for provider_id, root in roots.items()}
    return TreeRoots(of, frozenset(orphans), frozenset(loops))


def parents_first(rows: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield rows with ``id`` and ``parent_id``, parents before children, otherwise in the given order.

    Foreign keys require that a parent is inserted before its children. A row is left out if its chain of
    parents does not end at a row without a parent.
    """
    done: set[int] = set()
    waiting: dict[int, list[dict[str, Any]]] = {}
    for row in rows:
        parent = row["parent_id"]
        if parent is not None and parent not in done:
            waiting.setdefault(parent, []).append(row)
            continue
        ready = [row]
        while ready:
            next_row = ready.pop()
            done.add(next_row["id"])
            yield next_row
            ready += reversed(waiting.pop(next_row["id"], []))


class AuditProblem(StrEnum):
    """The kinds of contradictions; the values are the texts that commands print."""

    NO_CONSUMER = "allocations without consumer"
    NO_ALLOCATIONS = "consumer without allocations"
    WRONG_ROOT = "wrong root provider"
    NO_PARENT = "parent provider does not exist"
    LOOP = "provider below itself"
    OVER_CAPACITY = "usage above capacity"
    NO_INVENTORY = "allocations without inventory"
    NO_WINDOW = "planned allocations without window"
    WRONG_HOLD = "wrong hold for windows"

    @property
    def is_healable(self) -> bool:
        """Return whether contradictions of this kind can be repaired without a decision by the operator."""
        return self not in (
            AuditProblem.NO_PARENT,
            AuditProblem.LOOP,
            AuditProblem.OVER_CAPACITY,
            AuditProblem.NO_INVENTORY,
        )


@dataclass(frozen=True, slots=True)
class DatabaseFinding:
    """A contradiction in the row ``id``.

    ``subject`` is the uuid of the provider or the consumer. If the consumer does not exist, ``subject`` is a
    text with the id of the consumer.
    """

    problem: AuditProblem
    id: int
    subject: str
    detail: str


def find_contradictions(conn: sa.Connection) -> list[DatabaseFinding]:
    """Return all contradictions in the database, by kind."""
    return [
        *without_consumer(conn),
        *without_allocations(conn),
        *wrong_trees(conn),
        *over_capacity(conn),
        *without_inventory(conn),
        *without_window(conn),
        *wrong_holds(conn),
    ]


_c, _a, _p, _i = consumers.c, allocations.c, resource_providers.c, inventories.c

_without_consumer: Final = (
    sa.select(_a.consumer_id, _p.uuid, resource_classes.c.name, _a.used)
    .select_from(allocations)
    .outerjoin(consumers, _c.id == _a.consumer_id)
    .outerjoin(resource_providers, _p.id == _a.provider_id)
    .outerjoin(resource_classes, resource_classes.c.id == _a.resource_class_id)
    .where(_c.id.is_(None))
    .order_by(_a.consumer_id, _a.provider_id, _a.resource_class_id)
)
_without_allocations: Final = (
    sa.select(_c.id, _c.uuid, _c.project_id)
    .where(
        ~sa.exists().where(_a.consumer_id == _c.id),
        # a reservation has planned allocations instead of allocations until its window begins; if claims have
        # taken all its amounts, only promises are left
        ~sa.exists().where(planned_allocations.c.consumer_id == _c.id),
        ~sa.exists().where(window_promises.c.consumer_id == _c.id),
    )
    .order_by(_c.id)
)


def without_consumer(conn: sa.Connection) -> list[DatabaseFinding]:
    """Return the allocations without a row of a consumer; no client can see or release these allocations."""
    held: dict[int, list[str]] = {}
    for consumer_id, provider, name, used in conn.execute(_without_consumer):
        held.setdefault(consumer_id, []).append(f"{used} {name} of {provider}")
    return [
        DatabaseFinding(
            AuditProblem.NO_CONSUMER, consumer_id, f"consumer number {consumer_id}", ", ".join(amounts)
        )
        for consumer_id, amounts in held.items()
    ]


def without_allocations(conn: sa.Connection) -> list[DatabaseFinding]:
    """Return the consumers without allocations, which should have been deleted with the last allocation."""
    return [
        DatabaseFinding(AuditProblem.NO_ALLOCATIONS, consumer_id, uuid, f"of project {project}")
        for consumer_id, uuid, project in conn.execute(_without_allocations)
    ]


def wrong_trees(conn: sa.Connection) -> Iterator[DatabaseFinding]:
    """Yield the providers that have no root, and those with a root that is not the end of their chain."""
    rows, roots = _read_trees(conn)
    for provider_id, row in rows.items():
        if provider_id in roots.loops:
            yield DatabaseFinding(
                AuditProblem.LOOP, provider_id, row.uuid, "give one provider of the loop another parent"
            )
        elif provider_id in roots.orphans:
            detail = f"number {row.parent_id}, or one above it; give it another parent"
            yield DatabaseFinding(AuditProblem.NO_PARENT, provider_id, row.uuid, detail)
        elif row.root_id != roots.of[provider_id]:
            right = roots.of[provider_id]
            shown = "itself" if right is None else rows[right].uuid
            yield DatabaseFinding(AuditProblem.WRONG_ROOT, provider_id, row.uuid, f"should be {shown}")


def right_roots(conn: sa.Connection) -> dict[int, int | None]:
    """Return the right ``root_id`` of each provider with a wrong ``root_id``, by the provider's id."""
    rows, roots = _read_trees(conn)
    return {provider_id: root for provider_id, root in roots.of.items() if rows[provider_id].root_id != root}


def _read_trees(conn: sa.Connection) -> tuple[dict[int, Any], TreeRoots]:
    rows = {row.id: row for row in conn.execute(_trees)}
    return rows, find_roots({provider_id: row.parent_id for provider_id, row in rows.items()})


_trees: Final = sa.select(_p.id, _p.uuid, _p.parent_id, _p.root_id).order_by(_p.id)

_used: Final = (
    sa.select(_a.provider_id, _a.resource_class_id, sa.func.sum(_a.used).label("used"))
    .group_by(_a.provider_id, _a.resource_class_id)
    .subquery()
)
_with_names: Final = (
    sa.select(_p.id, _p.uuid, resource_classes.c.name, _used.c.used)
    .select_from(_used)
    .join(resource_providers, _p.id == _used.c.provider_id)
    .join(resource_classes, resource_classes.c.id == _used.c.resource_class_id)
    .outerjoin(
        inventories,
        sa.and_(_i.provider_id == _used.c.provider_id, _i.resource_class_id == _used.c.resource_class_id),
    )
    .order_by(_p.id, resource_classes.c.id)
)
_over_capacity: Final = _with_names.add_columns(*INVENTORY_COLUMNS).where(
    # the capacity is not rounded here, because rounding does not change a comparison with an integer
    _used.c.used > (_i.total - _i.reserved) * _i.allocation_ratio
)
_without_inventory: Final = _with_names.where(_i.provider_id.is_(None))


def over_capacity(conn: sa.Connection) -> list[DatabaseFinding]:
    """Return the inventories with allocations of more than the capacity, not counting maintenances.

    Such an inventory is no defect of the service: clients are allowed to reduce an inventory below its usage.
    """
    rows = conn.execute(_over_capacity).all()
    of_maintenances = _usage_by_maintenances(conn, {row.uuid for row in rows})
    findings = []
    for provider_id, uuid, name, used, *inventory in rows:
        capacity = Inventory(*inventory).capacity
        if (rest := used - of_maintenances.get((uuid, name), 0)) > capacity:
            detail = f"{name}: {rest} used of {capacity}"
            findings.append(DatabaseFinding(AuditProblem.OVER_CAPACITY, provider_id, uuid, detail))
    return findings


def _usage_by_maintenances(conn: sa.Connection, providers: Collection[str]) -> dict[HoldKey, int]:
    """Return the part of the usage of these providers that there would not be without maintenances.

    A maintenance is booked without a check of the capacity, so that guests can move until it begins. Until
    then, its amounts are a part of the hold.
    """
    maintenances = set(conn.execute(_maintenances).scalars()) if providers else set()
    if not maintenances:
        return {}
    schedule = time_schedule.read_schedule(conn, of_providers=providers)
    holds = dict(schedule.holds)
    others = [each for each in schedule.amounts if each.consumer not in maintenances]
    holds_of_others = needed_holds(others, schedule.now)
    booked = by_key(each for each in schedule.amounts if each.consumer in maintenances)
    return {
        key: sum(each.used for each in amounts if each.has_begun)
        + holds.get(key, 0)
        - holds_of_others.get(key, 0)
        for key, amounts in booked.items()
    }


_maintenances: Final = (
    sa.select(_c.uuid)
    .join(reservations, reservations.c.consumer_id == _c.id)
    .where(reservations.c.is_maintenance)
)


def without_inventory(conn: sa.Connection) -> list[DatabaseFinding]:
    """Return the allocations of resource classes for which the provider has no inventory."""
    return [
        DatabaseFinding(AuditProblem.NO_INVENTORY, provider_id, uuid, f"{name}: {used} used, no inventory")
        for provider_id, uuid, name, used in conn.execute(_without_inventory)
    ]


def _orphans_in(table: sa.Table) -> sa.Select[Any]:
    return (
        sa.select(table.c.consumer_id, _c.uuid, sa.func.count())
        .select_from(table)
        .outerjoin(consumers, _c.id == table.c.consumer_id)
        .outerjoin(reservations, reservations.c.consumer_id == table.c.consumer_id)
        .where(
            sa.or_(
                _c.id.is_(None),
                sa.func.coalesce(_c.consumer_type, "") != RESERVATION,
                reservations.c.starts_at.is_(None),
            )
        )
        .group_by(table.c.consumer_id, _c.uuid)
        .order_by(table.c.consumer_id)
    )


WINDOW_TABLES: Final = (planned_allocations, window_promises)
"""The tables with amounts of windows that are no allocations; each row needs a reservation with a start."""
_without_window: Final = tuple(map(_orphans_in, WINDOW_TABLES))


def without_window(conn: sa.Connection) -> list[DatabaseFinding]:
    """Return the planned allocations and promises that belong to no reservation with a start.

    Such planned allocations never begin, and keep no capacity free.
    """
    return [
        DatabaseFinding(
            AuditProblem.NO_WINDOW,
            consumer_id,
            uuid or f"consumer number {consumer_id}",
            f"{count} without a time",
        )
        for query in _without_window
        for consumer_id, uuid, count in conn.execute(query)
    ]


def wrong_holds(conn: sa.Connection) -> list[DatabaseFinding]:
    """Return the holds that are wrong.

    If a hold is too small, other consumers can claim the promised amounts.
    """
    found = time_schedule.find_wrong_holds(conn)
    if not found:
        return []
    ids = {uuid: provider_id for provider_id, uuid in conn.execute(sa.select(_p.id, _p.uuid))}
    return [
        DatabaseFinding(
            AuditProblem.WRONG_HOLD, ids[uuid], uuid, f"{name}: {held} held, windows need {needed}"
        )
        for (uuid, name), (held, needed) in found.items()
    ]
