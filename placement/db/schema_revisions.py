"""The schema revisions that this version knows, and the revisions that a database records, without Alembic.

Each service and command compares these revisions when it starts. For this comparison, Alembic would import
every migration, which would take a third of the time of a start. So only migrations use Alembic.
"""

from collections.abc import Sequence
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Final

import sqlalchemy as sa

from placement.db.tables import ExtensionTables

_DIGITS: Final = "[0-9]" * 4
VERSION_TABLE: Final = "alembic_version"
"""Name of the table in which Alembic records the revision of the core's tables."""


def script_location() -> Path:
    """Return the folder of the migrations, which is a part of the installed package."""
    return Path(str(resources.files("placement.db"))) / "migrations"


@cache
def known_revisions(branch: ExtensionTables | None = None) -> frozenset[str]:
    """Return the revisions of the core or of an extension: the first four digits of names of files."""
    folder = script_location() / "versions" if branch is None else branch.revisions
    return frozenset(file.name.partition("_")[0] for file in folder.glob(f"{_DIGITS}_*.py"))


def newest_revision(branch: ExtensionTables | None = None) -> str | None:
    """Return the revision that this version needs for the tables of the core or of an extension."""
    return max(known_revisions(branch), default=None)


def read_revisions(conn: sa.Connection, branch: ExtensionTables | None = None) -> Sequence[str]:
    """Return the recorded revisions: none or one, or several if another program has written to the table."""
    name = VERSION_TABLE if branch is None else branch.version_table
    if not sa.inspect(conn).has_table(name):
        return ()
    table = sa.table(name, sa.column("version_num"))
    return conn.execute(sa.select(table.c.version_num)).scalars().all()
