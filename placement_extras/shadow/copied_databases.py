"""Copies the database of OpenStack Placement into ours while OpenStack Placement continues to write."""

import logging
import sqlite3
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Final

from sqlalchemy.engine import URL, make_url

from placement.exceptions import InvalidRequest
from placement.maintenance.sync import open_database
from placement.store.consumers import ConsumerOwnership
from placement_extras.migration import importer
from placement_extras.migration.stock_database import StockContent, open_source
from placement_extras.shadow.exchange import MirroredRequest

LOG = logging.getLogger(__name__)

# seconds to wait for a lock of SQLite. A write holds this lock for milliseconds, so after a longer wait the
# writing program hangs.
_LOCK_SECONDS: Final = 30


@dataclass(frozen=True, slots=True)
class CopiedDatabases:
    """Source and target of the copy.

    :param source: the URL of OpenStack Placement's database, which is copied.
    :param target: the URL of our database, in which our tables are empty.
    :param owner: project and user for consumers without a row in the source.
    :param classes: the additional resource classes of our service.
    """

    source: str
    target: str
    owner: ConsumerOwnership
    classes: Sequence[str]


MAX_MOMENTS: Final = 20
"""Maximum number of snapshots. The database is read again until no write was in flight at the snapshot, or
until this number is reached.
"""


@dataclass(frozen=True, slots=True)
class CopyMoment:
    """Two times (in seconds of the monotonic clock) between which the database was copied."""

    earliest: float
    latest: float

    def is_after(self, copy: MirroredRequest) -> bool:
        """Return whether a request was answered before this moment. The copied database has its changes."""
        return copy.started + copy.seconds < self.earliest

    def is_within(self, copy: MirroredRequest) -> bool:
        """Return whether a write was in flight at this moment, so that perhaps the copy has its changes."""
        return copy.is_write and copy.started < self.latest and not self.is_after(copy)


def check_databases(databases: CopiedDatabases) -> None:
    """Raise ServiceError if the database cannot be copied; change nothing."""
    with (
        open_database(databases.target) as database,
        # a copy of SQLite takes time and space, so the target is opened first
        _open_copy(databases) as (source, _),
        database.read() as conn,
    ):
        importer.examine_source(source, skip_orphans=True)
        importer.check_target(conn, source)


def copy(databases: CopiedDatabases, is_quiet: Callable[[CopyMoment], bool]) -> CopyMoment:
    """Copy the source database into ours. Programs that write to the source are not blocked.

    :param is_quiet: a function that returns whether no write was in flight at a moment. If this is so, the
        copy contains exactly the changes before this moment. Otherwise another snapshot is taken. There are
        at most :data:`MAX_MOMENTS` snapshots.
    :raises ServiceError: the database was not copied; our database is unchanged.
    """
    with open_database(databases.target) as database:
        for number in count(1):
            with _open_copy(databases) as (source, moment):
                if not is_quiet(moment):
                    if number < MAX_MOMENTS:
                        continue
                    LOG.warning(
                        "Clients wrote to the database during the copy, so one of these writes may be"
                        " applied to the copy twice. If the report says that the copy is out of step,"
                        " start placement-shadow again when clients write less"
                    )
                importer.run(database, source, databases.classes, skip_orphans=True)
                break
    return moment


@contextmanager
def _open_copy(databases: CopiedDatabases) -> Iterator[tuple[StockContent, CopyMoment]]:
    try:
        made = tempfile.TemporaryDirectory(prefix="placement-shadow-")
    except OSError as error:
        raise InvalidRequest(f"There is no folder for a copy of the source database: {error}") from error
    with made as folder:
        earliest = time.monotonic()
        url = _copied_url(databases.source, Path(folder) / "copy.sqlite")
        with open_source(url, databases.owner) as source:
            yield source, CopyMoment(earliest, time.monotonic())


def _copied_url(source: str, file: Path) -> str:
    """Return the URL of the database to read; a SQLite file is copied first, as readers block writers."""
    try:
        url = make_url(source)
    except Exception:  # open_source reports the error with a better message
        return source
    if url.get_backend_name() != "sqlite" or not url.database or not Path(url.database).is_file():
        return source
    try:
        with (
            closing(
                sqlite3.connect(f"file:{url.database}?mode=ro", uri=True, timeout=_LOCK_SECONDS)
            ) as there,
            closing(sqlite3.connect(file)) as here,
        ):
            there.backup(here)
    except sqlite3.Error as error:
        folder = file.parent.parent
        raise InvalidRequest(
            f"The source database cannot be read, or not be copied to {folder} (TMPDIR names another folder):"
            f" {error}"
        ) from error
    return str(URL.create("sqlite", database=str(file)))
