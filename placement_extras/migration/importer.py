"""Copies the whole content of an OpenStack Placement database into ours, or nothing of it.

Content that cannot become rows of ours is refused before anything is written.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy import exc

from placement.db import buckets, tables
from placement.db.database import ServiceDatabase, WriteTransaction
from placement.db.tables import change_buckets, resource_classes, traits
from placement.exceptions import Conflict, InvalidRequest
from placement.maintenance.audit import TreeRoots, find_roots, parents_first
from placement.maintenance.heal import advance_sequence
from placement.store import classes
from placement_extras.migration.content import BATCH, DatabaseContent, RowTally, TallyComparison, of_ours
from placement_extras.migration.stock_database import StockContent, canonical

_LARGEST: Final = 2**31 - 1  # of our column for amounts


def refusals(source: StockContent) -> list[str]:
    """The things, in words; no service of either kind makes them, but years and SQL by hand do."""
    providers = _providers(source)
    return [
        *_spellings("resource provider", (uuid for uuid, _ in providers)),
        *_names(providers),
        *_spellings("consumer", _consumers(source)),
        *_spellings("aggregate", _aggregates(source)),
        *_amounts(source),
    ]


def _providers(source: StockContent) -> list[tuple[str, str | None]]:
    p = source.tables.providers.c
    return [(uuid, name) for uuid, name in source.conn.execute(sa.select(p.uuid, p.name).order_by(p.id))]


def _consumers(source: StockContent) -> Iterator[str]:
    """Those that hold something."""
    yield from source.conn.execute(sa.select(source.queries["consumers"].subquery().c.uuid)).scalars()
    yield from source.unknown_consumers


def _aggregates(source: StockContent) -> Iterator[str]:
    """Those that have members, in one spelling each."""
    listed = source.queries["provider_aggregates"].subquery()
    yield from source.conn.execute(sa.select(listed.c.aggregate).distinct()).scalars()


def _spellings(what: str, texts: Iterable[str]) -> Iterator[str]:
    """Those that are no uuids, and those that are the same one."""
    known: dict[str, str] = {}
    for text in texts:
        try:
            first = known.setdefault(canonical(text), text)
        except InvalidRequest:
            yield f"{what} {text!r}: that is no uuid"
            continue
        if first is not text:
            yield f"{what} {text}: the same uuid as {first}, in another spelling"


def _names(providers: Iterable[tuple[str, str | None]]) -> Iterator[str]:
    """Where a provider without a name cannot get its uuid for one, as somebody else has that name."""
    known: dict[str, str] = {}
    for uuid, name in providers:
        first = known.setdefault(uuid if name is None else name, uuid)
        if first is not uuid:
            yield f"resource provider {uuid}: {name or uuid!r} is the name of {first}, too"


def _amounts(source: StockContent) -> Iterator[str]:
    """Rows of the same thing that add up to more than a column holds."""
    held = source.queries["allocations"].subquery().c
    query = sa.select(held.consumer_uuid, held.provider_id, held.resource_class_id, held.used)
    for consumer, provider, class_id, used in source.conn.execute(query.where(held.used > _LARGEST)):
        name = source.classes[class_id]
        yield f"allocation of {used} {name} of resource provider number {provider} for {consumer}: too much"


_SHOWN: Final = 20

_ORDER: Final = (
    "resource_providers",
    "inventories",
    "provider_traits",
    "provider_aggregates",
    "consumers",
    "allocations",
)


@dataclass(frozen=True, slots=True)
class ImportOutcome:
    """What an import did: ``copied`` is False when all was there already."""

    copied: bool
    comparison: TallyComparison
    notes: Sequence[str] = ()


def examine(source: StockContent, *, skip_orphans: bool = False) -> list[str]:
    """What will not be copied as it is, in words.

    :raises Conflict: when something cannot be copied at all; the message names it.
    """
    roots = _roots(source)
    if refused := refusals(source):
        raise Conflict(
            "This of the source cannot be taken over; nothing is changed. Repair it there, by the old service"
            f" or by SQL, then try again:\n{listed(refused)}"
        )
    notes = [f"not copied: {each}" for each in source.leftovers]
    if notes and not skip_orphans:
        raise Conflict(
            "These rows of the source belong to nothing; repair them or leave them behind "
            f"with --skip-orphans:\n{listed(source.leftovers)}"
        )
    corrected = {
        provider_id
        for provider_id, root in source.stored_roots().items()
        if root != (roots.of[provider_id] or provider_id)
    }
    notes += [f"root provider set right: {name}" for name in source.provider_names(corrected)]
    notes += [
        f"consumer without a record, gets generation 0 and the incomplete project and user: {consumer}"
        for consumer in source.unknown_consumers
    ]
    notes += [
        f"consumer whose project or user is in no table, gets the incomplete one: {consumer}"
        for consumer in source.ownerless_consumers()
    ]
    return notes


def _roots(source: StockContent) -> TreeRoots:
    roots = find_roots(source.parents())
    for ids, what in (
        (roots.orphans, "have a parent that does not exist"),
        (roots.loops, "are below themselves"),
    ):
        if ids:
            names = source.provider_names(set(ids))
            raise Conflict(f"These resource providers of the source {what}:\n{listed(names)}")
    return roots


def listed(lines: Sequence[str]) -> str:
    """The first of them, each on a line of its own, and how many more there are."""
    more = [f"... and {len(lines) - _SHOWN} more"] if len(lines) > _SHOWN else []
    return "\n".join(f"  {line}" for line in (*lines[:_SHOWN], *more))


def check_target(conn: sa.Connection, source: StockContent) -> bool:
    """Whether all of the source is in our database already; False when ours is empty.

    :raises Conflict: when ours holds something else.
    """
    names = ("resource_providers", "consumers", "allocations")
    present = [conn.execute(sa.select(tables.metadata.tables[name]).limit(1)).first() for name in names]
    if not any(present):
        return False
    ours = of_ours(conn)
    differences = TallyComparison.of(source.tallies(), ours.tallies()).differences
    if not differences:
        differences = _differing(source, ours)
    if differences:
        raise Conflict(
            "The database to import into is not empty, and not the same as the source. "
            f"Differences are in:\n{listed(differences)}"
        )
    return True


def run(
    database: ServiceDatabase,
    source: StockContent,
    additional_classes: Iterable[str],
    *,
    skip_orphans: bool = False,
) -> ImportOutcome:
    """Copy all, in one transaction; harmless when done again.

    Writers wait until it ends, and workers that run then read everything anew.

    :raises Conflict: the source cannot be copied, or our database holds something else,
        or what arrived is not what was sent; nothing is changed then.
    :raises Unavailable: one of the databases does not answer.
    """
    return database.write(lambda tx: copy(tx, source, additional_classes, skip_orphans=skip_orphans))


def copy(
    tx: WriteTransaction,
    source: StockContent,
    additional_classes: Iterable[str],
    *,
    skip_orphans: bool = False,
) -> ImportOutcome:
    """As :func:`run`, in a transaction that there is."""
    notes = examine(source, skip_orphans=skip_orphans)
    tx.lock_buckets(buckets.ALL)
    if check_target(tx.conn, source):
        return ImportOutcome(False, _compare(source, tx.conn))
    tx.renew_epoch()
    classes.make_standard_names(tx, additional_classes)
    _copy(tx, source)
    comparison = _compare(source, tx.conn)
    differences = comparison.differences or _differing(source, of_ours(tx.conn))
    if differences:
        raise Conflict(f"Not all arrived; nothing is changed:\n{listed(differences)}")
    return ImportOutcome(True, comparison, notes)


def _differing(source: StockContent, ours: DatabaseContent) -> list[str]:
    """The tables that do not hold the same, row by row."""
    theirs, mine = source.fingerprints(), ours.fingerprints()
    return [name for name in mine if mine[name] != theirs[name]]


def _compare(source: StockContent, conn: sa.Connection) -> TallyComparison:
    ours = of_ours(conn)
    pairs = dict(TallyComparison.of(source.tallies(), ours.tallies()).pairs)
    for table, present in ((resource_classes, ours.classes), (traits, ours.traits)):
        wanted = {row["name"] for row in source.rows(table.name)}
        title = f"{table.name.replace('_', ' ')} (by name)"
        pairs[title] = (RowTally(len(wanted)), RowTally(len(wanted & set(present.values()))))
    return TallyComparison(pairs)


def _copy(tx: WriteTransaction, source: StockContent) -> None:
    class_ids = _make_names(tx, source, resource_classes)
    trait_ids = _make_names(tx, source, traits)
    roots = _roots(source).of
    counters = {row.id: row.counter for row in tx.conn.execute(sa.select(change_buckets))}

    def ours(rows: Iterator[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        for row in rows:
            if "resource_class_id" in row:
                row["resource_class_id"] = class_ids[row["resource_class_id"]]
            if "trait_id" in row:
                row["trait_id"] = trait_ids[row["trait_id"]]
            if "parent_id" in row:
                bucket = buckets.bucket_of(row["uuid"])
                seq = counters[bucket]
                row.update(root_id=roots[row["id"]], bucket=bucket, change_seq=seq, described_seq=seq)
            if "updated_at" in row:
                row["updated_at"] = row["updated_at"] or tx.now
            yield row

    for name in _ORDER:
        rows = source.rows(name)
        _insert(tx.conn, name, ours(parents_first(rows) if name == "resource_providers" else rows))
    for table in (tables.resource_providers, tables.consumers):
        advance_sequence(tx.conn, table)


def _make_names(tx: WriteTransaction, source: StockContent, table: sa.Table) -> dict[int, int]:
    """The ids that the source's names have with us; names we lack are made, in their order."""
    present = set(tx.conn.execute(sa.select(table.c.name)).scalars())
    missing = [row for row in source.rows(table.name) if row["name"] not in present]
    rows = ({"name": row["name"], "updated_at": row["updated_at"] or tx.now} for row in missing)
    _insert(tx.conn, table.name, rows)
    ids = {row.name: row.id for row in tx.conn.execute(sa.select(table.c.name, table.c.id))}
    names = source.classes if table is resource_classes else source.traits
    return {source_id: ids[name] for source_id, name in names.items() if name in ids}


def _insert(conn: sa.Connection, table: str, rows: Iterator[dict[str, Any]]) -> None:
    statement = sa.insert(tables.metadata.tables[table])
    while batch := list(islice(rows, BATCH)):
        try:
            conn.execute(statement, batch)
        except (exc.IntegrityError, exc.DataError) as error:
            raise Conflict(f"Rows of {table} cannot be copied: {error.orig}") from error
