"""Makes our database a copy of the stock service's, while that one goes on working."""

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

_SECONDS_LOCKED: Final = 30


@dataclass(frozen=True, slots=True)
class CopiedDatabases:
    """What is copied where.

    :param source: the URL of the stock service's database.
    :param target: the URL of ours, which is migrated and empty.
    :param owner: whose consumers are that nobody is known to own.
    :param classes: the additional resource classes of our service.
    """

    source: str
    target: str
    owner: ConsumerOwnership
    classes: Sequence[str]


MOMENTS: Final = 20
"""How many are looked at for one at which nothing was written."""


@dataclass(frozen=True, slots=True)
class CopyMoment:
    """When the copy was taken: between two times of the monotonic clock."""

    earliest: float
    latest: float

    def is_after(self, copy: MirroredRequest) -> bool:
        """Whether a request had been answered by then, so that all it wrote is in the copy."""
        return copy.started + copy.seconds < self.earliest

    def is_within(self, copy: MirroredRequest) -> bool:
        """Whether a request was a write in flight then, which may be in the copy or not."""
        return copy.is_write and copy.started < self.latest and not self.is_after(copy)


def check(databases: CopiedDatabases) -> None:
    """Whether a copy can be made, without making it.

    :raises PlacementError: no; the message says why.
    """
    with (
        open_database(databases.target) as database,
        _source(databases) as (source, _),
        database.read() as conn,
    ):
        importer.examine_source(source, skip_orphans=True)
        importer.check_target(conn, source)


def copy(databases: CopiedDatabases, is_quiet: Callable[[CopyMoment], bool] = lambda _: True) -> CopyMoment:
    """Make our database hold what the other holds; writers of the other do not wait for it.

    :param is_quiet: whether nothing was written at that moment, so that all that was written before is in
        the copy and nothing of what comes after. Others are left for the next one, some times.
    :raises PlacementError: it was not copied, and nothing is changed.
    """
    with open_database(databases.target) as database:
        for number in count(1):
            with _source(databases) as (source, moment):
                if not is_quiet(moment):
                    if number < MOMENTS:
                        continue
                    LOG.warning(
                        "There was no moment without a write: those at the moment of the copy may be in it"
                        " twice. If the report says that it is out of step, start anew when less is written"
                    )
                importer.run(database, source, databases.classes, skip_orphans=True)
                break
    return moment


@contextmanager
def _source(databases: CopiedDatabases) -> Iterator[tuple[StockContent, CopyMoment]]:
    try:
        made = tempfile.TemporaryDirectory(prefix="placement-shadow-")
    except OSError as error:
        raise InvalidRequest(f"There is no folder for a copy of the source database: {error}") from error
    with made as folder:
        earliest = time.monotonic()
        url = _readable(databases.source, Path(folder) / "copy.sqlite")
        with open_source(url, databases.owner) as source:
            yield source, CopyMoment(earliest, time.monotonic())


def _readable(source: str, file: Path) -> str:
    """The URL to read.

    While somebody reads a file of SQLite nobody can write to it: such a file is copied first.
    """
    try:
        url = make_url(source)
    except Exception:  # open_source says what is wrong
        return source
    if url.get_backend_name() != "sqlite" or not url.database or not Path(url.database).is_file():
        return source
    try:
        with (
            closing(
                sqlite3.connect(f"file:{url.database}?mode=ro", uri=True, timeout=_SECONDS_LOCKED)
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
