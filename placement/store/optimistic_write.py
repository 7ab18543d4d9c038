"""Writes inventories, traits or aggregates of a provider without reading the provider first.

The first statement after the lock stores the id of the provider in a setting of the transaction. If the
provider has another generation than the client knows, the statement stores an id that no provider has. The
other statements insert rows with the stored id. Foreign keys forbid ids without a provider, and also the id
that stands for an unknown name. If a foreign key refuses a row, the database rolls the whole transaction
back. The next attempt reads the provider first, and finds the reason.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Final

import sqlalchemy as sa

from placement.db import buckets
from placement.db.batch import KEPT_SIZES, MAX_ROWS, PreparedStatement, Values, bind_parameters, bind_rows
from placement.db.database import WriteTransaction
from placement.db.tables import NO_ID, resource_providers

# the column has 32 bits, and a larger number would make the statement fail
_MAX_GENERATION: Final = (1 << 31) - 1

# the name has a dot, because PostgreSQL requires a prefix for settings of applications
_SETTING: Final[sa.ColumnElement[str]] = sa.literal_column("'placement.provider'")
_UNTIL_IT_ENDS: Final[sa.ColumnElement[bool]] = sa.literal_column("true")

PROVIDER: Final = sa.cast(sa.func.current_setting(_SETTING), sa.Integer)
"""SQL expression for the id of the provider that :func:`find_provider` has found."""


def is_worthwhile(tx: WriteTransaction, generation: int, count: int) -> bool:
    """Return whether to write without reading first, which needs a first attempt and rows to insert.

    Without rows, no foreign key would refuse a provider that has changed.
    """
    # only the first attempt is optimistic (``tx.optimistic``), because after a failed attempt the service has
    # to read the reason
    return tx.optimistic and tx.sends_at_once and 0 < count <= MAX_ROWS and 0 <= generation <= _MAX_GENERATION


def finding_statement(*conditions: sa.ColumnElement[bool]) -> PreparedStatement:
    """Return the statement with which :func:`find_provider` finds a provider that meets these conditions."""
    chosen = sa.select(resource_providers.c.id).where(
        resource_providers.c.uuid == sa.bindparam("its_uuid", type_=sa.String),
        resource_providers.c.generation == sa.bindparam("its_generation", type_=sa.Integer),
        *conditions,
    )
    # the id is cast, because settings are texts
    found = sa.cast(sa.func.coalesce(chosen.scalar_subquery(), NO_ID), sa.String)
    return PreparedStatement(sa.select(sa.func.set_config(_SETTING, found, _UNTIL_IT_ENDS)))


def find_provider(
    tx: WriteTransaction, statement: PreparedStatement, uuid: str, generation: int, **values: Any
) -> None:
    """Lock a provider; later statements of the transaction refer to it by :data:`PROVIDER`.

    :param values: values for the parameters in the conditions of the statement.
    """
    # the bucket is locked first, so that the statement sees the changes of the last writer
    tx.lock([uuid])
    tx.queue(statement, {**values, "its_uuid": uuid, "its_generation": generation})


def insert(
    tx: WriteTransaction, column: sa.Column[Any], rows: Sequence[Values], names: sa.Table | None = None
) -> None:
    """Queue the insertion of rows that belong to the provider.

    :param column: the column for the value ``name`` of each row; with ``names``, for the id of ``name`` in
        that table.
    :param rows: the values of each row by column, with the key ``name`` for the name; all rows have the same
        columns.
    """
    # the columns are a part of the cache key, because they are a part of the statement's text
    more = tuple(name for name in rows[0] if name != "name")
    tx.queue(_part_insertion(column, names, more, len(rows)), bind_rows(rows))


@lru_cache(KEPT_SIZES)
def _part_insertion(
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
        # coalesce() turns an unknown name into an id that the foreign key forbids
        what = sa.func.coalesce(names.c.id, NO_ID)
        source = given.outerjoin(names, names.c.name == given.c.name)
    # the cast is needed, because the server does not know the types of parameters in VALUES
    values = (sa.cast(given.c[name], types[name]) for name in more)
    chosen = sa.select(PROVIDER, what, *values).select_from(source)
    return PreparedStatement(sa.insert(table).from_select(["provider_id", column.name, *more], chosen))


def stamp_provider(tx: WriteTransaction) -> None:
    """Queue the statement that stamps the provider and increases its generation.

    The method :meth:`~placement.db.database.WriteTransaction.note_changed` has the same effect, but needs the
    id of the provider.
    """
    tx.queue(_stamp, {"now": tx.now})


_counter: Final = buckets.present_counter(resource_providers.c.bucket)
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
