"""What the commands for operators share."""

import json
import sys
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Final

from oslo_config import cfg
from prettytable import PrettyTable
from sqlalchemy import exc
from sqlalchemy.engine import make_url

from placement.db.database import ServiceDatabase
from placement.maintenance import opening
from placement.maintenance.content import TallyComparison

_PASSWORDS: Final = frozenset({"password", "passwd"})
"""Under these names a driver takes a password after the question mark of a URL, too."""


def open_database(conf: cfg.ConfigOpts) -> AbstractContextManager[ServiceDatabase]:
    """The database that the configuration names.

    :raises Unavailable: it does not answer or has a schema that this version cannot work with.
    """
    return opening.open_database(conf.placement_database.connection)


def warn_of_password(program: str, argument: str, url: str, instead: str) -> None:
    """Say that an argument holds the password of a database, which every user of the host can read."""
    try:
        parsed = make_url(url)
    except (exc.ArgumentError, ValueError):  # no URL, which is refused where it is used
        return
    if parsed.password is not None or not _PASSWORDS.isdisjoint(parsed.query):
        print(
            f"{program}: warning: {argument} holds a password, which the list of processes shows"
            f" to every user of this host: {instead}",
            file=sys.stderr,
        )


def print_table(titles: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Rows for people; numbers to the right."""
    table = PrettyTable(list(titles))
    table.align = "l"
    for index, title in enumerate(titles):
        if rows and all(isinstance(row[index], int) for row in rows):
            table.align[title] = "r"
    table.add_rows([list(row) for row in rows])
    print(table)


def print_comparison(comparison: TallyComparison) -> None:
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
