"""SQLite: a folder of database files."""

import os
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import ClassVar

from sqlalchemy.engine import URL, make_url

from tests.databases.base import DatabaseServer


class SQLite(DatabaseServer):
    """SQLite has no server: starting, stopping and killing do nothing."""

    kind: ClassVar[str] = "sqlite"

    def start(self) -> None:
        """Do nothing: no server runs."""

    def stop(self) -> None:
        """Do nothing: no server runs."""

    def kill(self) -> None:
        """Do nothing: no server runs."""

    def fresh_database(self) -> str:
        path = self.folder / f"{self._new_name()}.sqlite"
        return URL.create("sqlite", database=str(path)).render_as_string()

    def clone(self, url: str) -> str:
        copy = self.fresh_database()
        _copy(_path(url), _path(copy))
        return copy

    def backup(self, url: str) -> Path:
        path = self.folder / f"{self._new_name()}.backup"
        _copy(_path(url), str(path))
        return path

    def restore(self, url: str, backup: Path) -> None:
        _copy(str(backup), _path(url))

    def replace(self, url: str, backup: Path) -> None:
        for suffix in ("-wal", "-shm"):
            Path(f"{_path(url)}{suffix}").unlink(missing_ok=True)
        shutil.copy(backup, f"{backup}.copy")
        os.replace(f"{backup}.copy", _path(url))

    def _drop(self, url: str) -> None:
        for suffix in ("", "-wal", "-shm", "-journal"):
            Path(f"{_path(url)}{suffix}").unlink(missing_ok=True)


def _copy(path: str, to: str) -> None:
    with closing(sqlite3.connect(path)) as source, closing(sqlite3.connect(to)) as target:
        source.backup(target)


def _path(url: str) -> str:
    return str(make_url(url).database)
