"""Repairs contradictions that an audit has found, if a repair needs no guess and loses no allocation."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

import sqlalchemy as sa

from placement.db.database import ServiceDatabase, WriteTransaction
from placement.db.tables import allocations, consumers, resource_providers
from placement.maintenance import audit
from placement.maintenance.audit import AuditProblem, DatabaseFinding
from placement.store import consumers as consumer_store
from placement.store import holds
from placement.store.allocations import write_claims
from placement.store.consumers import ConsumerOwnership


def advance_sequence(conn: sa.Connection, table: sa.Table) -> None:
    """Set the sequence of a table so that the next id is greater than all existing ids.

    PostgreSQL has a sequence that is independent of the rows. SQLite and MySQL derive the next id from the
    existing ids.
    """
    if conn.dialect.name == "postgresql":
        sequence = sa.func.pg_get_serial_sequence(table.name, "id")
        highest = sa.select(sa.func.max(table.c.id)).scalar_subquery()
        conn.execute(sa.select(sa.func.setval(sequence, highest)))


# SQLite allows at most 32,766 values in one statement
_CHUNK: Final = 10_000
"""Maximum number of ids in one statement."""
# a repair of holds locks buckets, so claims would wait for the end of a long repair
_HOLDS_CHUNK: Final = 100
"""Maximum number of holds that one transaction repairs."""


@dataclass(frozen=True, slots=True)
class HealOutcome:
    """The repaired contradictions and the remaining contradictions.

    A dry run repairs nothing, so ``repaired`` has the contradictions that can be repaired.
    """

    repaired: Sequence[DatabaseFinding]
    remaining: Sequence[DatabaseFinding]


def heal_database(
    database: ServiceDatabase, owner: ConsumerOwnership, *, dry_run: bool = False
) -> HealOutcome:
    """Repair contradictions, also while the service runs, in separate transactions for each kind.

    :param owner: the owner of the new consumers of allocations without a consumer.
    """
    with database.read() as conn:
        found = audit.find_contradictions(conn)
    healable = [finding for finding in found if finding.problem.is_healable]
    if dry_run:
        return HealOutcome(healable, [finding for finding in found if not finding.problem.is_healable])
    database.write(lambda tx: _adopt_allocations(tx, owner))
    for problem, repair, chunk in (
        (AuditProblem.NO_WINDOW, _cancel_plans, _CHUNK),
        (AuditProblem.NO_ALLOCATIONS, _delete_idle, _CHUNK),
        (AuditProblem.WRONG_ROOT, _set_roots, _CHUNK),
        (AuditProblem.WRONG_HOLD, _set_holds, _HOLDS_CHUNK),
    ):
        findings = [finding for finding in found if finding.problem is problem]
        for start in range(0, len(findings), chunk):
            database.write(partial(repair, findings=findings[start : start + chunk]))
    # the database is read again, because requests have perhaps caused or removed a contradiction meanwhile
    with database.read() as conn:
        remaining = audit.find_contradictions(conn)
    return HealOutcome([finding for finding in healable if finding not in remaining], remaining)


def _adopt_allocations(tx: WriteTransaction, owner: ConsumerOwnership) -> None:
    """Give allocations without a consumer a new consumer, with a new uuid, because the old uuid is lost."""
    # this transaction searches again, because clients have perhaps changed the allocations meanwhile
    consumer_ids = [finding.id for finding in audit.without_consumer(tx.conn)]
    if consumer_ids:
        tx.renew_epoch()
        tx.conn.execute(
            sa.insert(consumers),
            [
                {
                    "id": consumer_id,
                    "uuid": str(uuid.uuid4()),
                    "project_id": owner.project_id,
                    "user_id": owner.user_id,
                    "consumer_type": owner.consumer_type,
                    "generation": 1,
                    "updated_at": tx.now,
                }
                for consumer_id in consumer_ids
            ],
        )
        # inserted rows with explicit ids do not advance PostgreSQL's sequence
        advance_sequence(tx.conn, consumers)


def _delete_idle(tx: WriteTransaction, findings: Sequence[DatabaseFinding]) -> None:
    """Lock these consumers, and delete those that still have no allocations."""
    subjects = [finding.subject for finding in findings]
    locked = [row.id for row in consumer_store.rows(consumer_store.lock(tx, subjects))]
    query = sa.select(allocations.c.consumer_id).where(allocations.c.consumer_id.in_(locked))
    planned, promised = (
        sa.select(table.c.consumer_id).where(table.c.consumer_id.in_(locked)) for table in audit.WINDOW_TABLES
    )
    holding = set(tx.conn.execute(sa.union(query, planned, promised)).scalars())
    idle = [consumer_id for consumer_id in locked if consumer_id not in holding]
    if idle:
        tx.renew_epoch()
        consumer_store.remove(tx, idle)


def _cancel_plans(tx: WriteTransaction, findings: Sequence[DatabaseFinding]) -> None:
    """Delete planned allocations and promises without a time, and consumers that then have no allocations."""
    subjects = [finding.subject for finding in findings]
    consumer_store.lock(tx, subjects)
    # this transaction searches again under the locks, because clients have perhaps changed rows meanwhile
    chosen = {finding.id for finding in audit.without_window(tx.conn)}.intersection(
        finding.id for finding in findings
    )
    if chosen:
        for table in audit.WINDOW_TABLES:
            tx.conn.execute(sa.delete(table).where(table.c.consumer_id.in_(sorted(chosen))))
        _delete_idle(tx, findings)


def _set_holds(tx: WriteTransaction, findings: Sequence[DatabaseFinding]) -> None:
    """Give these providers the holds that their windows need, even if the usage then exceeds the capacity."""
    repair = holds.plan_repair(tx, sorted({finding.subject for finding in findings}))
    write_claims(tx, repair.claims, repair.locked, are_promised=True)


def _set_roots(tx: WriteTransaction, findings: Sequence[DatabaseFinding]) -> None:
    """Correct the roots of these providers according to their parents, while all trees are locked."""
    # providers are locked before trees, because requests that move a provider lock in the same order
    tx.lock(finding.subject for finding in findings)
    tx.lock_trees()
    right = audit.right_roots(tx.conn)
    chosen = {finding.id: right[finding.id] for finding in findings if finding.id in right}
    if chosen:
        tx.renew_epoch()
        tx.conn.execute(
            sa.update(resource_providers)
            .where(resource_providers.c.id == sa.bindparam("provider"))
            .values(root_id=sa.bindparam("root")),
            [{"provider": provider_id, "root": root} for provider_id, root in chosen.items()],
        )
        tx.note_changed(chosen, generation=False)
