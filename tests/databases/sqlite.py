"""SQLite: a folder of database files."""

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import ClassVar

from sqlalchemy.engine import URL, make_url

from tests.databases.base import DatabaseServer


class SQLite(DatabaseServer):
    """There is no server: starting, stopping and killing it do nothing."""

    kind: ClassVar[str] = "sqlite"

    def start(self) -> None:
        """Nothing to do."""

    def stop(self) -> None:
        """Nothing to do."""

    def kill(self) -> None:
        """Nothing to do."""

    def fresh_database(self) -> str:
        path = self.folder / f"{self._new_name()}.sqlite"
        return URL.create("sqlite", database=str(path)).render_as_string()

    def clone(self, url: str) -> str:
        copy = self.fresh_database()
        with closing(sqlite3.connect(_path(url))) as source, closing(sqlite3.connect(_path(copy))) as target:
            source.backup(target)
        return copy

    def drop_database(self, url: str) -> None:
        for suffix in ("", "-wal", "-shm", "-journal"):
            Path(f"{_path(url)}{suffix}").unlink(missing_ok=True)


def _path(url: str) -> str:
    return str(make_url(url).database)
