"""What the commands for operators share."""

import json
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

from oslo_config import cfg
from prettytable import PrettyTable

from placement.db.database import Database
from placement.maintenance import opening
from placement.maintenance.content import Comparison


def open_database(conf: cfg.ConfigOpts) -> AbstractContextManager[Database]:
    """The database that the configuration names.

    :raises Unavailable: it does not answer or has a schema that this version cannot work with.
    """
    return opening.open_database(conf.placement_database.connection)


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
