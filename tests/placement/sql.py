"""Executes plain SQL on the database of a test, without the service."""

from collections.abc import Callable
from typing import Any

import sqlalchemy as sa


def execute_sql(url: str, *statements: str) -> None:
    """Execute statements in one transaction."""
    engine = sa.create_engine(url, poolclass=sa.NullPool)
    with engine.begin() as conn:
        for statement in statements:
            conn.exec_driver_sql(statement)


def read_scalar(url: str, query: str) -> Any:
    """Read the single value of a query that returns one row with one column."""
    engine = sa.create_engine(url, poolclass=sa.NullPool)
    with engine.connect() as conn:
        return conn.exec_driver_sql(query).scalar_one()


def read_tables(url: str, is_wanted: Callable[[str], bool]) -> dict[str, list[str]]:
    """Read all rows of the tables with these names."""
    engine = sa.create_engine(url, poolclass=sa.NullPool)
    metadata = sa.MetaData()
    with engine.connect() as conn:
        metadata.reflect(conn)
        return {
            table.name: sorted(map(repr, conn.execute(sa.select(table))))
            for table in metadata.tables.values()
            if is_wanted(table.name)
        }
