"""Runs the migrations with Alembic.

The import of Alembic takes as long as everything else in a command. So :mod:`placement.db.migration` imports
this module only for a migration.
"""

import sqlalchemy as sa
from alembic import command
from alembic.config import Config
from alembic.util.exc import CommandError

from placement.db.schema_revisions import script_location
from placement.db.tables import ExtensionTables


def upgrade_tables(conn: sa.Connection, revision: str, branch: ExtensionTables | None = None) -> None:
    """Migrate the tables of the core or of an extension; raise ValueError if the revision is unknown."""
    try:
        command.upgrade(_alembic_config(conn, branch), revision)
    except CommandError as error:
        raise ValueError(str(error)) from error


def stamp_tables(conn: sa.Connection, revision: str) -> None:
    """Record a revision of the core without migrating; raise ValueError if the revision is unknown."""
    try:
        command.stamp(_alembic_config(conn), revision)
    except CommandError as error:
        raise ValueError(str(error)) from error


def _alembic_config(connection: sa.Connection, branch: ExtensionTables | None = None) -> Config:
    config = Config()
    # configparser interpolates percent signs in values, so a percent sign in a path has to be doubled
    config.set_main_option("script_location", str(script_location()).replace("%", "%%"))
    config.attributes["connection"] = connection
    if branch is not None:
        config.set_main_option("version_locations", str(branch.revisions).replace("%", "%%"))
        for separator in ("path_separator", "version_path_separator"):  # the second is of Alembic before 1.16
            config.set_main_option(separator, "os")
        config.attributes["version_table"] = branch.version_table
    return config
