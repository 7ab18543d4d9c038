"""The file of samples: an SQLite database that one agent writes while anybody reads."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Final
from urllib.parse import quote

import sqlalchemy as sa

FILE: Final = "samples.db"
"""Its name in the state folder."""

VERSION: Final = 1
"""Of the tables, as ``user_version``."""

NO_CACHE: Final = -1
"""The cache id of samples that are of no cache."""

METADATA: Final = sa.MetaData()

TARGETS: Final = sa.Table(
    "targets",
    METADATA,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("guest", sa.String, nullable=False),
    sa.Column("name", sa.String, nullable=False),
    sa.Column("class", sa.String, nullable=False, key="qos_class"),
    sa.UniqueConstraint("guest", "name", "qos_class"),
)

# In the order of its primary key: what is read is one target's, from a time on.
SAMPLES: Final = sa.Table(
    "samples",
    METADATA,
    sa.Column("target_id", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("time", sa.Float, primary_key=True),
    sa.Column("cache_id", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("occupancy", sa.Integer),
    sa.Column("local", sa.Float),
    sa.Column("total", sa.Float),
    sa.Column("cpu", sa.Float),
    sqlite_with_rowid=False,
)


def engine_to_write(path: Path, lock_seconds: float) -> sa.Engine:
    """An engine that waits ``lock_seconds`` for others, and makes the file if there is none."""
    engine = sa.create_engine(
        sa.URL.create("sqlite", database=str(path)), connect_args={"timeout": lock_seconds}
    )

    @sa.event.listens_for(engine, "connect")
    def _connect(connection: sqlite3.Connection, record: object) -> None:
        # A power cut may cost the last samples, never the file; and the disk is not waited for at each write.
        connection.execute("PRAGMA synchronous = NORMAL")
        connection.execute("PRAGMA journal_size_limit = 4194304")

    return engine


def engine_to_read(path: Path) -> sa.Engine:
    """An engine that changes nothing.

    Without a writer there is no log beside the file, and whoever may not make one reads the file alone.
    """
    alone = not path.with_name(f"{path.name}-wal").exists()
    where = f"file:{quote(str(path.absolute()))}?mode=ro{'&immutable=1' if alone else ''}"
    return sa.create_engine(
        "sqlite://", creator=lambda: sqlite3.connect(where, uri=True, timeout=5), poolclass=sa.NullPool
    )
