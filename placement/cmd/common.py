"""What the commands for operators share."""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from oslo_config import cfg
from prettytable import PrettyTable

from placement.db import migration
from placement.db.database import Database
from placement.db.engine import WHOLE_DATABASE
from placement.maintenance.content import Comparison


@contextmanager
def open_database(conf: cfg.ConfigOpts) -> Iterator[Database]:
    """The database that the configuration names.

    :raises Unavailable: it does not answer or has a schema that this version cannot work with.
    """
    url = conf.placement_database.connection
    migration.require_schema(url)
    database = Database(url, WHOLE_DATABASE)
    try:
        yield database
    finally:
        database.close()


def print_table(titles: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Rows for people; numbers to the right."""
    table = PrettyTable(list(titles))
    table.align = "l"
    for index, title in enumerate(titles):
        if rows and all(isinstance(row[index], int) for row in rows):
            table.align[title] = "r"
    table.add_rows([list(row) for row in rows])
    print(table)


def print_comparison(comparison: Comparison) -> None:
    """What was there beside what is here."""
    print_table(
        ("Content", "Rows there", "Rows here", "Sum there", "Sum here"),
        [
            (title, there.rows, here.rows, there.total, here.total)
            for title, (there, here) in comparison.pairs.items()
        ],
    )


def print_json(document: Mapping[str, Any]) -> None:
    """A document for programs."""
    print(json.dumps(document, indent=2))
