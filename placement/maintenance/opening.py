"""Our database, opened for work on all of it."""

from collections.abc import Iterator
from contextlib import contextmanager

from placement.db import migration
from placement.db.database import ServiceDatabase
from placement.db.engine import WHOLE_DATABASE


@contextmanager
def open_database(url: str) -> Iterator[ServiceDatabase]:
    """The database behind a URL.

    :raises Unavailable: it does not answer or has a schema that this version cannot work with.
    """
    migration.require_schema(url)
    database = ServiceDatabase(url, WHOLE_DATABASE)
    try:
        yield database
    finally:
        database.close()
