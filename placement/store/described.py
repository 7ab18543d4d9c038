"""What a provider has, written without asking the database first what it is.

The first statement after the lock leaves the id of the provider in a setting of the transaction, by which the
others find it, or that of no provider where it is not as the client knows it. No foreign key allows that, nor
the id that stands for a name that there is not, so that all of the transaction is undone; the next attempt
asks first, and finds out what is wrong.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Final

import sqlalchemy as sa

from placement.db import buckets
from placement.db.batch import KEPT_SIZES, MAX_ROWS, PreparedStatement, Values, bind_parameters, bind_rows
from placement.db.database import WriteTransaction
from placement.db.tables import NO_ID, resource_providers

_MAX_GENERATION: Final = (1 << 31) - 1

_SETTING: Final[sa.ColumnElement[str]] = sa.literal_column("'placement.provider'")
_UNTIL_IT_ENDS: Final[sa.ColumnElement[bool]] = sa.literal_column("true")

PROVIDER: Final = sa.cast(sa.func.current_setting(_SETTING), sa.Integer)
"""The id of the provider that :func:`find` found."""


def is_possible(tx: WriteTransaction, generation: int, count: int) -> bool:
    """Whether it is worth trying: at the first attempt, where statements go together, with rows to insert.

    Without rows nothing would be undone where the provider is not as it is known.
    """
    return tx.optimistic and tx.sends_at_once and 0 < count <= MAX_ROWS and 0 <= generation <= _MAX_GENERATION


def finding(*conditions: sa.ColumnElement[bool]) -> PreparedStatement:
    """The statement for :func:`find`, which finds the provider only under these conditions."""
    chosen = sa.select(resource_providers.c.id).where(
        resource_providers.c.uuid == sa.bindparam("its_uuid", type_=sa.String),
        resource_providers.c.generation == sa.bindparam("its_generation", type_=sa.Integer),
        *conditions,
    )
    found = sa.cast(sa.func.coalesce(chosen.scalar_subquery(), NO_ID), sa.String)
    return PreparedStatement(sa.select(sa.func.set_config(_SETTING, found, _UNTIL_IT_ENDS)))


def find(
    tx: WriteTransaction, statement: PreparedStatement, uuid: str, generation: int, **values: Any
) -> None:
    """Lock a provider and have :data:`PROVIDER` stand for it in what is queued from now on.

    :param values: those of the conditions of the statement.
    """
    tx.lock([uuid])
    tx.queue(statement, {**values, "its_uuid": uuid, "its_generation": generation})


def insert(
    tx: WriteTransaction, column: sa.Column[Any], rows: Sequence[Values], names: sa.Table | None = None
) -> None:
    """Queue the insertion of rows that belong to the provider, all with the same columns beside these two.

    :param column: has what is called ``name`` in the rows, or with ``names`` its id there.
    """
    more = tuple(name for name in rows[0] if name != "name")
    tx.queue(_insertion(column, names, more, len(rows)), bind_rows(rows))


@lru_cache(KEPT_SIZES)
def _insertion(
    column: sa.Column[Any], names: sa.Table | None, more: tuple[str, ...], count: int
) -> PreparedStatement:
    table = column.table
    types = {"name": sa.String(), **{name: table.c[name].type for name in more}}
    parameters = [bind_parameters(name, count, type_) for name, type_ in types.items()]
    rows = sa.values(*(sa.column(name, type_) for name, type_ in types.items()), name="given")
    given = rows.data(list(zip(*parameters, strict=True)))
    what: sa.ColumnElement[Any] = given.c.name
    source: sa.FromClause = given
    if names is not None:
        what = sa.func.coalesce(names.c.id, NO_ID)
        source = given.outerjoin(names, names.c.name == given.c.name)
    # of parameters in VALUES the server does not know the types
    values = (sa.cast(given.c[name], types[name]) for name in more)
    chosen = sa.select(PROVIDER, what, *values).select_from(source)
    return PreparedStatement(sa.insert(table).from_select(["provider_id", column.name, *more], chosen))


def changed(tx: WriteTransaction) -> None:
    """Queue the stamp of the provider, whose generation goes up.

    As of :meth:`~placement.db.database.WriteTransaction.changed`, for which its id would have to be known.
    """
    tx.queue(_stamp, {"now": tx.now})


_counter: Final = buckets.counter(resource_providers.c.bucket)
_stamp: Final = PreparedStatement(
    sa.update(resource_providers)
    .where(resource_providers.c.id == PROVIDER)
    .values(
        change_seq=_counter,
        described_seq=_counter,
        generation=resource_providers.c.generation + 1,
        updated_at=sa.bindparam("now", type_=sa.Double),
    )
)
