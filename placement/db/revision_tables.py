"""Functions for revisions in ``migrations/versions`` that create tables and columns.

MySQL commits after each statement that creates a table or a column. So when an interrupted upgrade runs
again, some tables or columns already exist.
"""

from collections.abc import Sequence
from typing import Any, Final

import sqlalchemy as sa
from alembic import op

from placement.exceptions import Unavailable

_OPTIONS: Final[dict[str, Any]] = {
    f"{kind}_{name}": value
    for kind in ("mysql", "mariadb")
    for name, value in (("engine", "InnoDB"), ("charset", "utf8mb4"), ("collate", "utf8mb4_bin"))
}


def make_table(name: str, *elements: sa.schema.SchemaItem, **options: Any) -> None:
    """Create a table unless it exists. ``options`` are SQLAlchemy's options for dialects.

    :raises Unavailable: a table with this name exists, but has other columns.
    """
    present = sa.inspect(op.get_bind())
    if not present.has_table(name):
        op.create_table(name, *elements, **_OPTIONS, **options)
        return
    # only the names of columns are compared, because databases report equal types in different spellings
    columns = {element.name for element in elements if isinstance(element, sa.Column)}
    if {column["name"] for column in present.get_columns(name)} != columns:
        raise Unavailable(
            f"The database has a table {name} of another program: "
            "give the service a database of its own in [placement_database] connection."
        )


def make_column(table: str, column: sa.Column[Any]) -> None:
    """Add a column to a table, unless the table has it."""
    if column.name not in {each["name"] for each in sa.inspect(op.get_bind()).get_columns(table)}:
        op.add_column(table, column)


def make_index(name: str, table: str, columns: Sequence[str], *, unique: bool = False) -> None:
    """Create an index of a table, unless it exists."""
    if name not in {index["name"] for index in sa.inspect(op.get_bind()).get_indexes(table)}:
        op.create_index(name, table, columns, unique=unique)
