"""Consumers: who holds allocations, and the generation that guards them."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Final

import sqlalchemy as sa

from placement.db.database import Transaction
from placement.db.tables import consumers
from placement.exceptions import ConcurrentUpdate


class AnyGeneration(Enum):
    """The one value that stands for "whatever the generation is"."""

    ANY_GENERATION = "any"


ANY_GENERATION: Final = AnyGeneration.ANY_GENERATION
Generation = int | AnyGeneration | None

_columns: Final = (
    consumers.c.id,
    consumers.c.uuid,
    consumers.c.project_id,
    consumers.c.user_id,
    consumers.c.consumer_type,
    consumers.c.generation,
)
_by_uuid: Final = (
    sa.select(*_columns)
    .where(consumers.c.uuid.in_(sa.bindparam("uuids", expanding=True)))
    .order_by(consumers.c.uuid)
)
_by_uuid_locked: Final = _by_uuid.with_for_update()


@dataclass(frozen=True, slots=True)
class Owner:
    """To whom a consumer belongs; a type of None is shown as ``unknown``."""

    project_id: str
    user_id: str
    consumer_type: str | None


@dataclass(frozen=True, slots=True)
class Row:
    """A consumer as the database has it."""

    id: int
    uuid: str
    project_id: str
    user_id: str
    consumer_type: str | None
    generation: int


def find(conn: sa.Connection, uuid: str) -> Row | None:
    """The consumer of that uuid, if it has allocations."""
    row = conn.execute(_by_uuid, {"uuids": [uuid]}).first()
    return None if row is None else Row(*row)


def lock(tx: Transaction, uuids: Iterable[str]) -> dict[str, Row]:
    """Those of the consumers that exist, kept from other transactions until this one ends."""
    return {row.uuid: Row(*row) for row in tx.conn.execute(_by_uuid_locked, {"uuids": sorted(uuids)})}


def check_generation(uuid: str, present: Row | None, given: Generation) -> None:
    """Refuse a generation that is not the consumer's; None stands for "there is no such consumer".

    :raises ConcurrentUpdate: naming both.
    """
    expected = None if present is None else present.generation
    if given is not ANY_GENERATION and given != expected:
        raise ConcurrentUpdate(
            f"consumer generation conflict - expected {_shown(expected)} but got {_shown(given)}"
        )


def _shown(generation: Generation) -> str:
    return "null" if generation is None else str(generation)


def create(tx: Transaction, uuid: str, owner: Owner) -> int:
    """Add a consumer, at generation 1; return its id."""
    inserted = tx.conn.execute(
        sa.insert(consumers).values(
            uuid=uuid,
            project_id=owner.project_id,
            user_id=owner.user_id,
            consumer_type=owner.consumer_type,
            generation=1,
            updated_at=tx.now,
        )
    )
    (number,) = inserted.inserted_primary_key or (None,)
    assert isinstance(number, int)
    return number


def advance(tx: Transaction, row: Row, owner: Owner | None) -> None:
    """Move a (locked) consumer to its next generation, and to a new owner if one is given."""
    values: dict[str, object] = {"generation": row.generation + 1, "updated_at": tx.now}
    if owner is not None:
        values.update(project_id=owner.project_id, user_id=owner.user_id, consumer_type=owner.consumer_type)
    tx.conn.execute(sa.update(consumers).where(consumers.c.id == row.id).values(**values))


def remove(tx: Transaction, ids: Iterable[int]) -> None:
    """Forget consumers that have no allocations left."""
    tx.conn.execute(sa.delete(consumers).where(consumers.c.id.in_(list(ids))))
