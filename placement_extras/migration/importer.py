"""Copies the content of an OpenStack Placement database into ours, in one transaction.

If our tables cannot hold some of the content, the copy is refused before the first write.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy import exc

from placement.db import buckets, tables
from placement.db.database import ServiceDatabase, WriteTransaction
from placement.db.tables import change_buckets, resource_classes, traits
from placement.exceptions import Conflict, InvalidRequest
from placement.maintenance.audit import TreeRoots, find_roots, parents_first
from placement.maintenance.heal import advance_sequence
from placement.store import known_names
from placement_extras.migration.content import (
    BATCH_ROWS,
    COMPARED_TABLES,
    DatabaseContent,
    RowTally,
    TallyPairs,
    different_titles,
    own_content,
    pair_tallies,
)
from placement_extras.migration.stock_database import StockContent, canonical_uuid

# largest value of our columns for amounts, which are signed integers of 4 bytes
_MAX_AMOUNT: Final = 2**31 - 1


def _find_refusals(source: StockContent) -> list[str]:
    """Describe each item of the source that our tables cannot hold.

    Current releases of OpenStack Placement do not write such items. The items come from old releases and
    manual SQL.
    """
    conn, p = source.conn, source.tables.providers.c
    providers = [(uuid, name) for uuid, name in conn.execute(sa.select(p.uuid, p.name).order_by(p.id))]
    # only consumers with allocations and aggregates with members are copied
    consumers = conn.execute(sa.select(source.queries["consumers"].subquery().c.uuid)).scalars().all()
    listed = source.queries["provider_aggregates"].subquery().c.aggregate
    aggregates = conn.execute(sa.select(listed).distinct()).scalars().all()
    return [
        *_check_spellings("resource provider", (uuid for uuid, _ in providers)),
        *_check_names(providers),
        *_check_spellings("consumer", chain(consumers, source.unknown_consumers)),
        *_check_spellings("aggregate", aggregates),
        *_check_amounts(source),
    ]


def _check_spellings(what: str, texts: Iterable[str]) -> Iterator[str]:
    """Describe texts that are not uuids, and uuids that occur in two spellings.

    :param what: the noun for such a text in the description, such as "consumer".
    """
    known: dict[str, str] = {}
    for text in texts:
        try:
            first = known.setdefault(canonical_uuid(text), text)
        except InvalidRequest:
            yield f"{what} {text!r}: that is not a uuid"
            continue
        # setdefault() returns another object than ``text`` only if an earlier text is the same uuid
        if first is not text:
            yield f"{what} {text}: the same uuid as {first}, in another spelling"


def _check_names(providers: Iterable[tuple[str, str | None]]) -> Iterator[str]:
    """Describe each provider with the name of an earlier one. A provider's uuid stands for a missing name."""
    known: dict[str, str] = {}  # uuid of the first provider by name
    for uuid, name in providers:
        first = known.setdefault(uuid if name is None else name, uuid)
        # setdefault() returns another object than ``uuid`` only if an earlier provider has this name
        if first is not uuid:
            yield f"resource provider {uuid}: {name or uuid!r} is the name of {first}, too"


def _check_amounts(source: StockContent) -> Iterator[str]:
    """Describe each allocation with an amount that does not fit into our column."""
    held = source.queries["allocations"].subquery().c
    query = sa.select(held.consumer_uuid, held.provider_id, held.resource_class_id, held.used)
    for consumer, provider, class_id, used in source.conn.execute(query.where(held.used > _MAX_AMOUNT)):
        name = source.classes[class_id]
        yield f"allocation of {used} {name} of resource provider number {provider} for {consumer}: too much"


# maximum number of lines of a list in a message, so that the message fits on a screen
_MAX_SHOWN: Final = 20


@dataclass(frozen=True, slots=True)
class ImportOutcome:
    """Result of an import or an adoption.

    :param copied: False if nothing was copied, because our database already had the same content.
    :param comparison: the numbers and sums of rows in both databases after the copy.
    :param notes: a line for each item that was corrected or not copied.
    """

    copied: bool
    comparison: TallyPairs
    notes: Sequence[str] = ()


def examine_source(source: StockContent, *, skip_orphans: bool = False) -> list[str]:
    """Describe each item of the source that an import corrects or does not copy.

    :param skip_orphans: do not copy rows that refer to missing rows, instead of refusing them.
    :raises Conflict: an item cannot be copied. The message describes this item.
    """
    roots = _tree_roots(source)
    if refused := _find_refusals(source):
        raise Conflict(
            "The source holds content that cannot be taken over; nothing is changed. Repair it there, by the"
            f" old service or by SQL, then try again:\n{shorten_list(refused)}"
        )
    notes = [f"not copied: {each}" for each in source.leftovers]
    if notes and not skip_orphans:
        raise Conflict(
            "These rows of the source refer to missing rows; repair them or leave them behind "
            f"with --skip-orphans:\n{shorten_list(source.leftovers)}"
        )
    corrected = {
        provider_id
        for provider_id, root in source.provider_links("root_provider_id").items()
        if root != (roots.of[provider_id] or provider_id)
    }
    # rows that old releases have written lack a root until an operator runs 'placement-manage db
    # online_data_migrations' of OpenStack Placement
    notes += [f"root provider set right: {name}" for name in source.provider_names(corrected)]
    notes += [
        "consumer without a record, gets generation 0, and project and user of [placement]"
        f" incomplete_consumer_*: {consumer}"
        for consumer in source.unknown_consumers
    ]
    notes += [
        f"consumer with a missing project or user, gets that of [placement] incomplete_consumer_*: {consumer}"
        for consumer in source.ownerless_consumers()
    ]
    return notes


def _tree_roots(source: StockContent) -> TreeRoots:
    roots = find_roots(source.provider_links("parent_provider_id"))
    for ids, what in (
        (roots.orphans, "have a parent that does not exist"),
        (roots.loops, "are below themselves"),
    ):
        if ids:
            names = source.provider_names(set(ids))
            raise Conflict(f"These resource providers of the source {what}:\n{shorten_list(names)}")
    return roots


def shorten_list(lines: Sequence[str]) -> str:
    """Join the first lines, each with an indent. A last line has the number of lines that are left out."""
    more = [f"... and {len(lines) - _MAX_SHOWN} more"] if len(lines) > _MAX_SHOWN else []
    return "\n".join(f"  {line}" for line in (*lines[:_MAX_SHOWN], *more))


def check_target(conn: sa.Connection, source: StockContent) -> bool:
    """Return whether our database has the same content as the source. False means that it is empty.

    :raises Conflict: our database holds other content.
    """
    # classes and traits do not count as content, because each 'db sync' creates standard classes and traits
    names = ("resource_providers", "consumers", "allocations")
    present = [conn.execute(sa.select(tables.metadata.tables[name]).limit(1)).first() for name in names]
    if not any(present):
        return False
    ours = own_content(conn)
    # sums are compared first, because the database computes them fast, and the title of a sum shows where the
    # difference is
    differences = different_titles(pair_tallies(source.row_tallies(), ours.row_tallies()))
    if not differences:  # tables with different rows can have equal sums
        differences = _different_tables(source, ours)
    if differences:
        raise Conflict(
            "The database to import into is not empty, and not the same as the source. "
            f"Differences are in:\n{shorten_list(differences)}"
        )
    return True


def run(
    database: ServiceDatabase,
    source: StockContent,
    additional_classes: Iterable[str],
    *,
    skip_orphans: bool = False,
) -> ImportOutcome:
    """Copy all content in one transaction. If our database already has this content, change nothing.

    Writers wait until the transaction ends. Running workers then read all content of the database again.

    :param additional_classes: names of resource classes that our service has in addition to the standard
        classes.
    :param skip_orphans: do not copy rows that refer to missing rows, instead of refusing them.
    :raises Conflict: the source cannot be copied, our database has other content, or the copy differs from
        the source. Our database is then unchanged.
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
    """Copy all content like :func:`run`, but within a transaction of the caller."""
    notes = examine_source(source, skip_orphans=skip_orphans)
    # with this lock, all writers of a running service wait, so that an empty database stays empty until the
    # copy is made
    tx.lock_buckets(buckets.ALL)
    if check_target(tx.conn, source):
        return ImportOutcome(False, _compare_tallies(source, tx.conn))
    # a new epoch makes running workers read all content again
    tx.renew_epoch()
    known_names.make_standard_names(tx, additional_classes)
    _copy(tx, source)
    comparison = _compare_tallies(source, tx.conn)
    # contents are compared before the transaction ends, so that a faulty copy is rolled back
    differences = different_titles(comparison) or _different_tables(source, own_content(tx.conn))
    if differences:
        raise Conflict(f"The copy differs from the source; nothing is changed:\n{shorten_list(differences)}")
    return ImportOutcome(True, comparison, notes)


def _different_tables(source: StockContent, own_rows: DatabaseContent) -> list[str]:
    """Return the names of the tables with different rows."""
    theirs, mine = source.table_fingerprints(), own_rows.table_fingerprints()
    return [name for name in mine if mine[name] != theirs[name]]


def _compare_tallies(source: StockContent, conn: sa.Connection) -> TallyPairs:
    own_rows = own_content(conn)
    pairs = dict(pair_tallies(source.row_tallies(), own_rows.row_tallies()))
    for table, present in ((resource_classes, own_rows.classes), (traits, own_rows.traits)):
        wanted = {row["name"] for row in source.rows(table.name)}
        title = f"{table.name.replace('_', ' ')} (by name)"
        pairs[title] = (RowTally(len(wanted)), RowTally(len(wanted & set(present.values()))))
    return pairs


def _copy(tx: WriteTransaction, source: StockContent) -> None:
    class_ids = _make_names(tx, source, resource_classes)
    trait_ids = _make_names(tx, source, traits)
    roots = _tree_roots(source).of
    # the counters of buckets are not incremented, because the new epoch makes workers read all rows anyway
    counters = {row.id: row.counter for row in tx.conn.execute(sa.select(change_buckets))}

    def own_rows(rows: Iterator[dict[str, Any]]) -> Iterator[dict[str, Any]]:
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
                # a source can have NULL here, but our columns for times do not allow NULL
                row["updated_at"] = row["updated_at"] or tx.now
            yield row

    for name in COMPARED_TABLES:
        rows = source.rows(name)
        # MySQL checks foreign keys row by row, so each provider has to come after its parent
        _insert(tx.conn, name, own_rows(parents_first(rows) if name == "resource_providers" else rows))
    # PostgreSQL does not advance a sequence when rows with explicit ids are inserted
    for table in (tables.resource_providers, tables.consumers):
        advance_sequence(tx.conn, table)


def _make_names(tx: WriteTransaction, source: StockContent, table: sa.Table) -> dict[int, int]:
    """Insert the source's names that our table lacks, in their order; return our ids by the source's ids."""
    present = set(tx.conn.execute(sa.select(table.c.name)).scalars())
    missing = [row for row in source.rows(table.name) if row["name"] not in present]
    rows = ({"name": row["name"], "updated_at": row["updated_at"] or tx.now} for row in missing)
    _insert(tx.conn, table.name, rows)
    ids = {row.name: row.id for row in tx.conn.execute(sa.select(table.c.name, table.c.id))}
    names = source.classes if table is resource_classes else source.traits
    return {source_id: ids[name] for source_id, name in names.items() if name in ids}


def _insert(conn: sa.Connection, table: str, rows: Iterator[dict[str, Any]]) -> None:
    statement = sa.insert(tables.metadata.tables[table])
    while batch := list(islice(rows, BATCH_ROWS)):
        try:
            conn.execute(statement, batch)
        except (exc.IntegrityError, exc.DataError) as error:
            raise Conflict(f"Rows of {table} cannot be copied: {error.orig}") from error
