"""Runs the migrations with Alembic, and has the functions with which revisions create tables and columns.

The import of Alembic takes as long as everything else in a command. So :mod:`placement.db.migration` imports
this module only for a migration.

MySQL commits after each statement that creates a table or a column. So when an interrupted upgrade runs
again, some tables or columns already exist.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import sqlalchemy as sa
from alembic import command, op
from alembic.config import Config
from alembic.util.exc import CommandError

from placement.db.tables import ExtensionTables
from placement.exceptions import Unavailable


def upgrade_tables(
    conn: sa.Connection, scripts: Path, revision: str, branch: ExtensionTables | None = None
) -> None:
    """Migrate the tables of the core or of an extension; raise ValueError if the revision is unknown.

    :param scripts: the folder of the core's migrations.
    """
    try:
        command.upgrade(_alembic_config(conn, scripts, branch), revision)
    except CommandError as error:
        raise ValueError(str(error)) from error


def stamp_tables(conn: sa.Connection, scripts: Path, revision: str) -> None:
    """Record a revision of the core without migrating; raise ValueError if the revision is unknown."""
    try:
        command.stamp(_alembic_config(conn, scripts), revision)
    except CommandError as error:
        raise ValueError(str(error)) from error


def _alembic_config(
    connection: sa.Connection, scripts: Path, branch: ExtensionTables | None = None
) -> Config:
    config = Config()
    # configparser interpolates percent signs in values, so a percent sign in a path has to be doubled
    config.set_main_option("script_location", str(scripts).replace("%", "%%"))
    config.attributes["connection"] = connection
    if branch is not None:
        config.set_main_option("version_locations", str(branch.revisions).replace("%", "%%"))
        for separator in ("path_separator", "version_path_separator"):  # the second is of Alembic before 1.16
            config.set_main_option(separator, "os")
        config.attributes["version_table"] = branch.version_table
    return config


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
