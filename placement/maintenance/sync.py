"""Brings the schema up to date, as ``placement-manage db sync`` and a service with ``sync_on_startup`` do."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from oslo_config import cfg

from placement import extensions
from placement.db import migration
from placement.db.database import ServiceDatabase
from placement.db.engine import WHOLE_DATABASE
from placement.store.consumers import ConsumerOwnership


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


class Takeover(Protocol):
    """Makes a database of this service out of one of another program, before it is migrated."""

    def __call__(self, conf: cfg.ConfigOpts) -> str | None:
        """Take the database over, if the configuration wants it and there is one.

        :returns: what was done, in sentences; None where there was nothing to do.
        :raises Unavailable: it cannot be taken over.
        """


def incomplete_owner(conf: cfg.ConfigOpts) -> ConsumerOwnership:
    """Whose consumers are that nobody is known to own."""
    options = conf.placement
    return ConsumerOwnership(
        options.incomplete_consumer_project_id, options.incomplete_consumer_user_id, None
    )


def sync(conf: cfg.ConfigOpts, revision: str = "head") -> list[str]:
    """Bring the schema up to date; before, have registered takeovers do their part.

    :returns: what these did, in sentences.
    :raises Unavailable: the database does not answer, or this version cannot work with what is there.
    """
    takeovers: list[Takeover] = list(extensions.registered("takeovers").values())
    done = [said for each in takeovers if (said := each(conf)) is not None]
    migration.upgrade(conf.placement_database.connection, revision)
    return done
