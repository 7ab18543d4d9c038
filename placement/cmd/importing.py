"""``placement-manage import``: move in from OpenStack Placement."""

from argparse import ArgumentParser, Namespace

from oslo_config import cfg

from placement.cmd.common import open_database, print_comparison, print_table
from placement.maintenance import importer
from placement.maintenance.reference import open_source
from placement.maintenance.sync import incomplete_owner


def add_arguments(parser: ArgumentParser) -> None:
    """The command line of ``import``."""
    parser.add_argument("source", metavar="SOURCE_URL", help="SQLAlchemy URL of the database to copy")
    parser.add_argument("--dry-run", action="store_true", help="look at both databases and write nothing")
    parser.add_argument(
        "--skip-orphans",
        action="store_true",
        help="leave behind rows that belong to no resource provider, resource class, trait or aggregate",
    )


def import_database(conf: cfg.ConfigOpts, arguments: Namespace) -> int:
    """Copy the database of a (stopped) OpenStack Placement service into this one, which is empty."""
    with open_database(conf) as database, open_source(arguments.source, incomplete_owner(conf)) as source:
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
