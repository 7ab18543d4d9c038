"""Commands of ``placement-manage`` that move a database from OpenStack Placement and back."""

import logging
import sys
from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import Final

from oslo_config import cfg

from placement.cmd.common import ManageCommand, open_database, print_table, table_text, warn_of_password
from placement.db import adoption, migration
from placement.exceptions import Conflict, InvalidRequest, Unavailable
from placement.maintenance.sync import incomplete_owner
from placement_extras.migration import abandonment, importer
from placement_extras.migration import adoption as adoption_move
from placement_extras.migration.abandonment import AbandonWay
from placement_extras.migration.content import TallyPairs
from placement_extras.migration.stock_database import open_source

LOG = logging.getLogger(__name__)

# maximum number of characters that are read from a file. Without a maximum, a file without an end, such as
# /dev/zero, would fill the memory.
_MAX_URL: Final = 64 * 1024
_STANDARD_INPUT: Final = "-"


def _add_move_arguments(parser: ArgumentParser, checked: str) -> None:
    parser.add_argument("--dry-run", action="store_true", help=f"check {checked} and write nothing")
    parser.add_argument(
        "--skip-orphans",
        action="store_true",
        help="leave out rows that refer to a missing resource provider, resource class, trait or aggregate;"
        " without this option the command refuses them",
    )


def _add_adopt_arguments(parser: ArgumentParser) -> None:
    _add_move_arguments(parser, "the database")


def _add_abandon_arguments(parser: ArgumentParser) -> None:
    ways = parser.add_mutually_exclusive_group()
    ways.add_argument(
        "--carry-back",
        action="store_true",
        help="write the changes since the adoption into the tables of OpenStack Placement",
    )
    ways.add_argument("--discard", action="store_true", help="drop the changes since the adoption")


def _add_drop_stock_arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--yes",
        action="store_true",
        help="remove the old tables of OpenStack Placement; without this option the command only lists them",
    )


def run_adopt(conf: cfg.ConfigOpts, arguments: Namespace) -> int:
    """Adopt the database of a stopped OpenStack Placement service in place, and keep its tables."""
    url, owner = conf.placement_database.connection, incomplete_owner(conf)
    if arguments.dry_run:
        adoption_move.require_stock(url)
        with open_source(url, owner) as source:
            adoption_move.require_move_rights(source.conn)
            notes = importer.examine_source(source, skip_orphans=arguments.skip_orphans)
        print(*notes, "The database can be adopted.", sep="\n")
        return 0
    outcome = adoption_move.adopt_database(
        url, owner, conf.placement.additional_resource_classes, skip_orphans=arguments.skip_orphans
    )
    print(_describe_adoption(outcome))
    return 0


def _describe_adoption(outcome: importer.ImportOutcome) -> str:
    """Describe an adoption to the operator: a table of the rows, notes, and the command that undoes it."""
    if not outcome.copied:
        return "The database is adopted already."
    return "\n".join(
        (
            _comparison_text(outcome.comparison),
            *outcome.notes,
            "The database is adopted. The old tables are kept as stock_*;"
            " 'placement-manage db abandon' goes back to them.",
        )
    )


def _comparison_text(comparison: TallyPairs) -> str:
    """Return a table with the numbers and sums of rows in the source and in our database."""
    return table_text(
        ("Content", "Rows there", "Rows here", "Sum there", "Sum here"),
        [
            (title, there.rows, here.rows, there.total, here.total)
            for title, (there, here) in comparison.items()
        ],
    )


def take_over(conf: cfg.ConfigOpts) -> str | None:
    """Adopt the database if the option ``[placement_database] adopt`` is set.

    This function is a :class:`placement.maintenance.sync.Takeover`.

    :return: a description of the adoption for the operator; None if nothing was adopted.
    :raises Unavailable: the database does not answer, or cannot be adopted.
    """
    url = conf.placement_database.connection
    if not conf.placement_database.adopt or not _is_stock(migration.find_database(url)):
        return None
    try:
        outcome = adoption_move.adopt_database(
            url, incomplete_owner(conf), conf.placement.additional_resource_classes
        )
    except Conflict as error:
        raise Unavailable(f"The database cannot be adopted: {error}") from error
    LOG.info("The database of OpenStack Placement was adopted")
    return _describe_adoption(outcome)


def _is_stock(found: migration.FoundDatabase) -> bool:
    """Return whether an adoption of the database can begin or continue."""
    if found.record is not None:
        return found.record.stage is adoption.AdoptionStage.ADOPTING
    return found.revision in adoption.REVISIONS


def run_abandon(conf: cfg.ConfigOpts, arguments: Namespace) -> int:
    """Give an adopted database back to OpenStack Placement, with its own tables. Stop this service first."""
    way = (
        AbandonWay.CARRY_BACK
        if arguments.carry_back
        else AbandonWay.DISCARD
        if arguments.discard
        else AbandonWay.REFUSE
    )
    outcome = abandonment.abandon_adoption(conf.placement_database.connection, incomplete_owner(conf), way)
    if outcome.changes:
        # on MySQL, the options of an interrupted first run can decide, so the outcome says what was done
        done = "dropped" if outcome.is_discarded else "carried back"
        print(importer.shorten_list(outcome.changes), f"All {len(outcome.changes)} are {done}.", sep="\n")
    print(*outcome.notes, "The database is that of OpenStack Placement again.", sep="\n")
    return 0


def run_drop_stock(conf: cfg.ConfigOpts, arguments: Namespace) -> int:
    """Remove the tables of OpenStack Placement that an adoption has kept.

    Afterwards, an abandonment is impossible.
    """
    url = conf.placement_database.connection
    if not arguments.yes:
        counts = adoption_move.count_kept_rows(url)
        kept = "".join(f"  {name}: {rows} rows\n" for name, rows in counts.items())
        raise Conflict(
            f"These tables would be removed:\n{kept}"
            "Without them 'placement-manage db abandon' cannot go back to OpenStack Placement any more."
            " Nothing is changed; '--yes' removes them."
        )
    names = adoption_move.drop_stock(url)
    print(f"{len(names)} tables are removed: {', '.join(names)}.")
    print("The database is that of this service alone.")
    return 0


def _add_import_arguments(parser: ArgumentParser) -> None:
    named = parser.add_mutually_exclusive_group(required=True)
    named.add_argument(
        "source",
        nargs="?",
        metavar="SOURCE_URL",
        help="SQLAlchemy URL of the database of OpenStack Placement; if the URL has a password, use"
        " --source-file instead",
    )
    named.add_argument(
        "--source-file", metavar="FILE", help="file with the URL of the database; '-' for standard input"
    )
    _add_move_arguments(parser, "both databases")


def run_import(conf: cfg.ConfigOpts, arguments: Namespace) -> int:
    """Copy the database of a stopped OpenStack Placement service into the empty database of this service."""
    url = _source_url(arguments)
    with open_database(conf) as database, open_source(url, incomplete_owner(conf)) as source:
        if arguments.dry_run:
            notes = importer.examine_source(source, skip_orphans=arguments.skip_orphans)
            with database.read() as conn:
                present = importer.check_target(conn, source)
            print_table(
                ("Content", "Rows", "Sum"),
                [(title, tally.rows, tally.total) for title, tally in source.row_tallies().items()],
            )
            print(*notes, "All of it is there already." if present else "It can be imported.", sep="\n")
            return 0
        outcome = importer.run(
            database,
            source,
            conf.placement.additional_resource_classes,
            skip_orphans=arguments.skip_orphans,
        )
    print(_comparison_text(outcome.comparison))
    print(*outcome.notes, "All is imported." if outcome.copied else "All of it was there already.", sep="\n")
    return 0


def _source_url(arguments: Namespace) -> str:
    """Return the URL of the database to copy, from the command line or from ``--source-file``."""
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
    # the file must contain exactly one word; blanks and line ends around the word are allowed
    if len(text.split()) != 1:
        raise InvalidRequest(
            f"--source-file {arguments.source_file} has to hold exactly one URL, and nothing else."
        )
    return text.strip()


COMMANDS: Final = (
    ManageCommand("db adopt", run_adopt, _add_adopt_arguments),
    ManageCommand("db abandon", run_abandon, _add_abandon_arguments),
    ManageCommand("db drop-stock", run_drop_stock, _add_drop_stock_arguments),
    ManageCommand("import", run_import, _add_import_arguments),
)
