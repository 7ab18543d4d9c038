"""Ids of rows that were chosen by us and not by the database."""

import sqlalchemy as sa


def advance_sequence(conn: sa.Connection, table: sa.Table) -> None:
    """Let the next row get an id above all there are.

    PostgreSQL counts apart from the rows; SQLite and MySQL look at them.
    """
    if conn.dialect.name == "postgresql":
        sequence = sa.func.pg_get_serial_sequence(table.name, "id")
        highest = sa.select(sa.func.max(table.c.id)).scalar_subquery()
        conn.execute(sa.select(sa.func.setval(sequence, highest)))
