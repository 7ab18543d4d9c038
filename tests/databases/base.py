"""What all kinds of database offer to tests."""

import itertools
import os
import shutil
import tempfile
from abc import ABC, abstractmethod
from pathlib import Path
from types import TracebackType
from typing import ClassVar, Final, Self

_MEMORY: Final = Path("/dev/shm")
_BYTES_WANTED: Final = 2 << 30


class ServerMissing(Exception):
    """The database server is not installed; the message names the package."""


class DatabaseServer(ABC):
    """One server with any number of databases, all of it below one temporary folder."""

    kind: ClassVar[str]

    def __init__(self, *, durable: bool) -> None:
        """``durable``: commits also outlive a power cut, not only the end of the server."""
        self.durable = durable
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

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _make_folder(self) -> Path:
        in_memory = not self.durable and _has_room(_MEMORY)
        return Path(tempfile.mkdtemp(prefix=f"{self.kind}-", dir=_MEMORY if in_memory else None))

    def _new_name(self) -> str:
        return f"placement_{next(self._numbers)}"

    @abstractmethod
    def start(self) -> None:
        """Start the server and wait until it answers; all URLs stay as they were."""

    @abstractmethod
    def stop(self) -> None:
        """Shut the server down in good order, if it runs."""

    @abstractmethod
    def kill(self) -> None:
        """End the server with SIGKILL, as a crash would; :meth:`start` brings it back."""

    def restart(self) -> None:
        """Stop and start; connections break, databases stay."""
        self.stop()
        self.start()

    @abstractmethod
    def fresh_database(self) -> str:
        """The SQLAlchemy URL of a new database without any table."""

    @abstractmethod
    def clone(self, url: str) -> str:
        """The URL of a new copy of this server's database ``url``, to which nobody may be connected."""

    @abstractmethod
    def backup(self, url: str) -> Path:
        """A file with all that is in a database now."""

    @abstractmethod
    def restore(self, url: str, backup: Path) -> None:
        """Make a database what it was when the backup was made, while others are connected to it."""

    @abstractmethod
    def replace(self, url: str, backup: Path) -> None:
        """As :meth:`restore`, into a new database or file that takes the place of the one that is there."""

    @abstractmethod
    def drop_database(self, url: str) -> None:
        """Remove a database, and whoever is connected to it."""


def _has_room(folder: Path) -> bool:
    """Whether we may write into the folder, and it has room enough for a server and its logs."""
    return os.access(folder, os.W_OK | os.X_OK) and shutil.disk_usage(folder).free > _BYTES_WANTED
