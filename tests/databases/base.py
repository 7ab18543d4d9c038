"""Interface that all kinds of database servers have for tests."""

import itertools
import os
import shutil
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar, Final, Self

_MEMORY: Final = Path("/dev/shm")
_BYTES_WANTED: Final = 2 << 30


class ServerMissing(Exception):
    """The database server is not installed; the message names the package."""


class DatabaseServer(ABC):
    """One server with any number of databases, in one temporary folder."""

    kind: ClassVar[str]

    def __init__(self, *, durable: bool) -> None:
        """Keep the options.

        :param durable: whether commits survive a power cut, too
        """
        self.durable = durable
        #: receives the URL of each database that is about to be dropped, while its connections still work
        self.before_drop: Callable[[str], object] = _do_nothing
        self._numbers = itertools.count(1)

    def __enter__(self) -> Self:
        self.folder = self._make_folder()
        try:
            self.start()
        except BaseException:
            self.stop()
            shutil.rmtree(self.folder, ignore_errors=True)
            raise
        return self

    def __exit__(self, *exception: object) -> None:
        self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _make_folder(self) -> Path:
        in_memory = not self.durable and _has_room(_MEMORY)
        return Path(tempfile.mkdtemp(prefix=f"{self.kind}-", dir=_MEMORY if in_memory else None))

    def _new_name(self) -> str:
        return f"placement_{next(self._numbers)}"

    @abstractmethod
    def start(self) -> None:
        """Start the server and wait until it answers; URLs do not change."""

    @abstractmethod
    def stop(self) -> None:
        """Shut the server down cleanly, if it runs."""

    @abstractmethod
    def kill(self) -> None:
        """End the server with SIGKILL, as a crash would; :meth:`start` brings it back."""

    def restart(self) -> None:
        """Stop and start the server; connections break, databases stay."""
        self.stop()
        self.start()

    @abstractmethod
    def fresh_database(self) -> str:
        """The SQLAlchemy URL of a new database without any table."""

    @abstractmethod
    def clone(self, url: str) -> str:
        """Copy this server's database ``url``, which must have no connections; return the new URL."""

    @abstractmethod
    def backup(self, url: str) -> Path:
        """Write a file with the current content of a database."""

    @abstractmethod
    def restore(self, url: str, backup: Path) -> None:
        """Restore the content of a database from a backup, while clients are connected."""

    @abstractmethod
    def replace(self, url: str, backup: Path) -> None:
        """Restore like :meth:`restore`, into a new database or file that replaces the existing one."""

    def drop_database(self, url: str) -> None:
        """Remove a database and end its connections."""
        self.before_drop(url)
        self._drop(url)

    @abstractmethod
    def _drop(self, url: str) -> None:
        """Remove a database and end its connections."""


def _do_nothing(url: str) -> None:
    """No client has to leave a database first."""


def _has_room(folder: Path) -> bool:
    """Whether the folder is writable and has enough room for a server and its logs."""
    return os.access(folder, os.W_OK | os.X_OK) and shutil.disk_usage(folder).free > _BYTES_WANTED
