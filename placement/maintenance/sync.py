"""Migrates the schema, for ``placement-manage db sync`` and for the option ``sync_on_startup``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from oslo_config import cfg

from placement import extensions
from placement.db import migration
from placement.db.database import ServiceDatabase
from placement.db.engine import WHOLE_DATABASE
from placement.store.consumers import ConsumerOwnership


@contextmanager
def open_database(url: str) -> Iterator[ServiceDatabase]:
    """Open the database at a URL, and close it at the end of the context.

    :raises Unavailable: this version cannot work with the schema of the database.
    """
    migration.require_schema(url)
    database = ServiceDatabase(url, WHOLE_DATABASE)
    try:
        yield database
    finally:
        database.close()


Takeover = Callable[[cfg.ConfigOpts], str | None]
"""A function that takes over a database of another program before the migration, if the configuration allows
this. It returns a description of the steps, or None if no database had to be taken over. It raises
Unavailable if the database cannot be taken over.
"""


def incomplete_owner(conf: cfg.ConfigOpts) -> ConsumerOwnership:
    """Return the owner for consumers without a record of their owner."""
    options = conf.placement
    return ConsumerOwnership(
        options.incomplete_consumer_project_id, options.incomplete_consumer_user_id, None
    )


def sync(conf: cfg.ConfigOpts, revision: str = "head") -> list[str]:
    """Run the registered takeovers, and then migrate the schema to a revision.

    :returns: the descriptions of the steps of takeovers.
    :raises Unavailable: the database does not answer, or this version cannot work with its content.
    """
    # takeovers come before the migration, because the migration refuses tables of another program
    takeovers: list[Takeover] = list(extensions.registered_objects("takeovers").values())
    done = [said for each in takeovers if (said := each(conf)) is not None]
    migration.upgrade_schema(conf.placement_database.connection, revision)
    return done
