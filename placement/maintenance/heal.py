"""Repairs what an audit found, as far as no allocation is lost and nothing has to be guessed."""

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
from placement.store.consumers import ConsumerOwnership


def advance_sequence(conn: sa.Connection, table: sa.Table) -> None:
    """Let the next row get an id above all there are.

    PostgreSQL counts apart from the rows; SQLite and MySQL look at them.
    """
    if conn.dialect.name == "postgresql":
        sequence = sa.func.pg_get_serial_sequence(table.name, "id")
        highest = sa.select(sa.func.max(table.c.id)).scalar_subquery()
        conn.execute(sa.select(sa.func.setval(sequence, highest)))


_CHUNK: Final = 10_000  # ids in one statement; SQLite takes 32,766


@dataclass(frozen=True, slots=True)
class HealOutcome:
    """What was repaired (or, in a dry run, would be), and what is left to the operator."""

    repaired: Sequence[DatabaseFinding]
    remaining: Sequence[DatabaseFinding]


def heal(database: ServiceDatabase, owner: ConsumerOwnership, *, dry_run: bool = False) -> HealOutcome:
    """Repair what can be; each kind in transactions of their own, with the service running.

    :param owner: to whom allocations without a consumer are given.
    :raises Unavailable: the database does not answer.
    """
    with database.read() as conn:
        found = audit.audit(conn)
    healable = [finding for finding in found if finding.problem.healable]
    if dry_run:
        return HealOutcome(healable, [finding for finding in found if not finding.problem.healable])
    database.write(lambda tx: _adopt(tx, owner))
    for problem, repair in ((AuditProblem.NO_ALLOCATIONS, _forget), (AuditProblem.WRONG_ROOT, _set_roots)):
        findings = [finding for finding in found if finding.problem is problem]
        for start in range(0, len(findings), _CHUNK):
            database.write(partial(repair, findings=findings[start : start + _CHUNK]))
    with database.read() as conn:
        remaining = audit.audit(conn)
    return HealOutcome([finding for finding in healable if finding not in remaining], remaining)


def _adopt(tx: WriteTransaction, owner: ConsumerOwnership) -> None:
    """Give allocations a consumer again; its uuid is lost, so it gets a new one."""
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
        advance_sequence(tx.conn, consumers)


def _forget(tx: WriteTransaction, findings: Sequence[DatabaseFinding]) -> None:
    """Remove consumers that still hold nothing once no claim can come between."""
    subjects = [finding.subject for finding in findings]
    locked = [row.id for row in consumer_store.rows(consumer_store.lock(tx, subjects))]
    query = sa.select(allocations.c.consumer_id).where(allocations.c.consumer_id.in_(locked))
    holding = set(tx.conn.execute(query).scalars())
    idle = [consumer_id for consumer_id in locked if consumer_id not in holding]
    if idle:
        tx.renew_epoch()
        consumer_store.remove(tx, idle)


def _set_roots(tx: WriteTransaction, findings: Sequence[DatabaseFinding]) -> None:
    """Set the roots of these providers right, as their parents are once nobody can move them."""
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
        tx.changed(chosen, generation=False)
