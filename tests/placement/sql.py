"""Plain SQL on the database of a test, beside the service."""

from typing import Any

import sqlalchemy as sa


def execute_sql(url: str, *statements: str) -> None:
    """Execute statements in one transaction."""
    engine = sa.create_engine(url, poolclass=sa.NullPool)
    with engine.begin() as conn:
        for statement in statements:
            conn.exec_driver_sql(statement)


def read_scalar(url: str, query: str) -> Any:
    """Read the only value of the only row."""
    engine = sa.create_engine(url, poolclass=sa.NullPool)
    with engine.connect() as conn:
        return conn.exec_driver_sql(query).scalar_one()
