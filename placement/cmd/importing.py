"""``placement-manage import``: move in from OpenStack Placement."""

import sys
from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import Final

from oslo_config import cfg

from placement.cmd.common import open_database, print_comparison, print_table, warn_of_password
from placement.exceptions import InvalidRequest
from placement.maintenance import importer
from placement.maintenance.reference import open_source
from placement.maintenance.sync import incomplete_owner

_MAX_URL: Final = 64 * 1024  # characters of a file
_STANDARD_INPUT: Final = "-"


def add_arguments(parser: ArgumentParser) -> None:
    """The command line of ``import``."""
    named = parser.add_mutually_exclusive_group(required=True)
    named.add_argument(
        "source",
        nargs="?",
        metavar="SOURCE_URL",
        help="SQLAlchemy URL of the database to copy; one with a password belongs in a file",
    )
    named.add_argument(
        "--source-file", metavar="FILE", help="file whose content is that URL; '-' for standard input"
    )
    parser.add_argument("--dry-run", action="store_true", help="look at both databases and write nothing")
    parser.add_argument(
        "--skip-orphans",
        action="store_true",
        help="leave behind rows that belong to no resource provider, resource class, trait or aggregate",
    )


def import_database(conf: cfg.ConfigOpts, arguments: Namespace) -> int:
    """Copy the database of a (stopped) OpenStack Placement service into this one, which is empty."""
    url = _source_url(arguments)
    with open_database(conf) as database, open_source(url, incomplete_owner(conf)) as source:
        if arguments.dry_run:
            notes = importer.examine(source, skip_orphans=arguments.skip_orphans)
            with database.read() as conn:
                present = importer.check_target(conn, source)
            print_table(
                ("Content", "Rows", "Sum"),
                [(title, tally.rows, tally.total) for title, tally in source.tallies().items()],
            )
            print(*notes, "All of it is there already." if present else "It can be imported.", sep="\n")
            return 0
        outcome = importer.run(
            database,
            source,
            conf.placement.additional_resource_classes,
            skip_orphans=arguments.skip_orphans,
        )
    print_comparison(outcome.comparison)
    print(*outcome.notes, "All is imported." if outcome.copied else "All of it was there already.", sep="\n")
    return 0


def _source_url(arguments: Namespace) -> str:
    """The URL of the database to copy.

    :raises InvalidRequest: the file that is to hold it cannot be read, or does not.
    """
    if arguments.source_file is None:
        url: str = arguments.source
        warn_of_password("placement-manage", "SOURCE_URL", url, "give the URL by --source-file.")
        return url
    try:
        if arguments.source_file == _STANDARD_INPUT:
            text = sys.stdin.read(_MAX_URL)
        else:
            with Path(arguments.source_file).open(encoding="utf-8") as file:
                text = file.read(_MAX_URL)
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"--source-file {arguments.source_file} cannot be read: {error}") from error
    if len(text.split()) != 1:
        raise InvalidRequest(
            f"--source-file {arguments.source_file} does not hold one URL, and nothing else."
        )
    return text.strip()
