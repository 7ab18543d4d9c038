"""What the commands for operators share."""

import json
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Final

from oslo_config import cfg
from prettytable import PrettyTable
from sqlalchemy import exc
from sqlalchemy.engine import make_url

from placement.db.database import ServiceDatabase
from placement.maintenance import opening

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


Command = Callable[[cfg.ConfigOpts, Namespace], int]
"""Runs a command; the exit status."""


def _no_arguments(parser: ArgumentParser) -> None:
    """Add none."""


@dataclass(frozen=True, slots=True)
class ManageCommand:
    """A command of ``placement-manage``, whose help is the docstring of what runs it.

    :param words: its name, of one word or two (``db sync``).
    :param add_arguments: makes the rest of its command line.
    """

    words: str
    run: Command
    add_arguments: Callable[[ArgumentParser], None] = _no_arguments


def table_text(titles: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A table for people; numbers to the right."""
    table = PrettyTable(list(titles))
    table.align = "l"
    for index, title in enumerate(titles):
        if rows and all(isinstance(row[index], int) for row in rows):
            table.align[title] = "r"
    table.add_rows([list(row) for row in rows])
    return str(table)


def print_table(titles: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Print :func:`table_text`."""
    print(table_text(titles, rows))


def print_json(document: Mapping[str, Any]) -> None:
    """A document for programs."""
    print(json.dumps(document, indent=2))
