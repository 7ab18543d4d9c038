"""``placement-manage db adopt``, ``abandon`` and ``drop-stock``: moves within one database."""

from argparse import ArgumentParser, Namespace

from oslo_config import cfg

from placement.cmd.common import print_comparison
from placement.exceptions import Conflict
from placement.maintenance import abandon as back
from placement.maintenance import adopt as there
from placement.maintenance import drop_stock as removal
from placement.maintenance import importer
from placement.maintenance.abandon import AbandonWay
from placement.maintenance.reference import open_source
from placement.maintenance.sync import incomplete_owner


def add_adopt_arguments(parser: ArgumentParser) -> None:
    """The command line of ``db adopt``."""
    parser.add_argument("--dry-run", action="store_true", help="look at what is there and write nothing")
    parser.add_argument(
        "--skip-orphans",
        action="store_true",
        help="leave behind rows that belong to no resource provider, resource class, trait or aggregate",
    )


def add_abandon_arguments(parser: ArgumentParser) -> None:
    """The command line of ``db abandon``."""
    ways = parser.add_mutually_exclusive_group()
    ways.add_argument(
        "--carry-back", action="store_true", help="write what has changed since into the old tables"
    )
    ways.add_argument("--discard", action="store_true", help="forget what has changed since")


def add_drop_stock_arguments(parser: ArgumentParser) -> None:
    """The command line of ``db drop-stock``."""
    parser.add_argument("--yes", action="store_true", help="remove them; without it they are only shown")


def adopt(conf: cfg.ConfigOpts, arguments: Namespace) -> int:
    """Take over the database of a (stopped) OpenStack Placement service, in place; its tables are kept."""
    url, owner = conf.placement_database.connection, incomplete_owner(conf)
    if arguments.dry_run:
        there.require_stock(url)
        with open_source(url, owner) as source:
            there.require_means(source.conn)
            notes = importer.examine(source, skip_orphans=arguments.skip_orphans)
        print(*notes, "It can be adopted.", sep="\n")
        return 0
    outcome = there.adopt(
        url, owner, conf.placement.additional_resource_classes, skip_orphans=arguments.skip_orphans
    )
    print_adoption(outcome)
    return 0


def print_adoption(outcome: importer.ImportOutcome) -> None:
    """What was done."""
    if not outcome.copied:
        print("The database is adopted already.")
        return
    print_comparison(outcome.comparison)
    print(
        *outcome.notes,
        "The database is adopted. The old tables are kept as stock_*;"
        " 'placement-manage db abandon' goes back to them.",
        sep="\n",
    )


def abandon(conf: cfg.ConfigOpts, arguments: Namespace) -> int:
    """Give an adopted database back to OpenStack Placement, in its own tables; stop the service before."""
    way = (
        AbandonWay.CARRY_BACK
        if arguments.carry_back
        else AbandonWay.DISCARD
        if arguments.discard
        else AbandonWay.REFUSE
    )
    outcome = back.abandon(conf.placement_database.connection, incomplete_owner(conf), way)
    if outcome.changes:
        done = "forgotten" if way is AbandonWay.DISCARD else "carried back"
        print(importer.listed(outcome.changes), f"All {len(outcome.changes)} are {done}.", sep="\n")
    print(*outcome.notes, "The database is that of OpenStack Placement again.", sep="\n")
    return 0


def drop_stock(conf: cfg.ConfigOpts, arguments: Namespace) -> int:
    """Remove the tables of OpenStack Placement that an adoption has kept; there is no way back then."""
    url = conf.placement_database.connection
    if not arguments.yes:
        kept = "".join(f"  {each.name}: {each.rows} rows\n" for each in removal.look(url))
        raise Conflict(
            f"These tables would be removed:\n{kept}"
            "Without them 'placement-manage db abandon' cannot go back to OpenStack Placement any more."
            " Nothing is changed; '--yes' removes them."
        )
    names = removal.drop_stock(url)
    print(f"{len(names)} tables are removed: {', '.join(names)}.")
    print("The database is that of this service alone.")
    return 0
