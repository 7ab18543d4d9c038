"""``placement-manage``: care of the database."""

import sys
from argparse import ArgumentParser, Namespace, _SubParsersAction
from collections.abc import Callable, Sequence
from typing import Final

from alembic.util.exc import CommandError
from oslo_config import cfg
from sqlalchemy import exc

from placement.cmd import adopting, auditing, importing
from placement.cmd.common import open_database
from placement.conf import installed_version, new_config
from placement.conf.unknown import unknown_options
from placement.db import adoption, migration, remedies
from placement.exceptions import ServiceError
from placement.maintenance.sync import sync

Command = Callable[[cfg.ConfigOpts, Namespace], int]

_INVALID_COUNT: Final = 127  # as OpenStack documents it for this command


def db_sync(conf: cfg.ConfigOpts, arguments: Namespace) -> int:
    """Bring the schema of the database up to date."""
    before = migration.version(conf.placement_database.connection)
    outcome = sync(conf, arguments.version or "head")
    if outcome is not None:
        adopting.print_adoption(outcome)
    after = migration.version(conf.placement_database.connection)
    print(f"The database is at revision {after}.")
    if before in migration.EXACT and after != before:
        print(
            f"Releases that made revision {before} answer every request with 503 on any other: before you go"
            " back to one, restore the backup from before this command.",
            file=sys.stderr,
        )
    return 0


def db_version(conf: cfg.ConfigOpts, arguments: Namespace) -> int:
    """Show the revision of the database."""
    found = migration.look(conf.placement_database.connection)
    reason = adoption.explain(found.revision, found.record)
    print(found.revision or ("none: run 'placement-manage db sync'" if reason is None else "none"))
    if reason is not None:
        print(reason, file=sys.stderr)
    return 0


def db_stamp(conf: cfg.ConfigOpts, arguments: Namespace) -> int:
    """Say which revision the database has, without changing its schema."""
    migration.stamp(conf.placement_database.connection, arguments.version)
    return 0


def db_online_data_migrations(conf: cfg.ConfigOpts, arguments: Namespace) -> int:
    """Rewrite data for a newer release while the service runs; this release has nothing to rewrite."""
    if arguments.max_count is not None and arguments.max_count < 1:
        print("placement-manage: --max-count must be at least 1", file=sys.stderr)
        return _INVALID_COUNT
    migration.require_schema(conf.placement_database.connection)
    print("No data need to be migrated.")
    return 0


def db_renew_epoch(conf: cfg.ConfigOpts, arguments: Namespace) -> int:
    """Have every running worker read everything anew, as it has to after a restore, or SQL by hand."""
    with open_database(conf) as database:
        database.write(lambda tx: tx.renew_epoch())
    print("Every worker reads everything anew before its next answer.")
    return 0


def parser() -> ArgumentParser:
    """The command line."""
    top = ArgumentParser(prog="placement-manage", description="Care of the service's database.")
    top.add_argument("--config-file", action="append", help="configuration file; may be given several times")
    top.add_argument("--version", action="version", version=installed_version())
    groups = top.add_subparsers(required=True, metavar="COMMAND")
    db = groups.add_parser("db", help="schema and data of the database").add_subparsers(
        required=True, metavar="ACTION"
    )
    sync = _add(db, "sync", db_sync)
    sync.add_argument("version", nargs="?", help="the revision to stop at; default the newest")
    _add(db, "version", db_version)
    stamp = _add(db, "stamp", db_stamp)
    stamp.add_argument("version", help="a revision, or head")
    _add(db, "online_data_migrations", db_online_data_migrations).add_argument(
        "--max-count", type=int, help="how many rows to rewrite at most"
    )
    _add(db, "renew-epoch", db_renew_epoch)
    adopting.add_adopt_arguments(_add(db, "adopt", adopting.adopt))
    adopting.add_abandon_arguments(_add(db, "abandon", adopting.abandon))
    adopting.add_drop_stock_arguments(_add(db, "drop-stock", adopting.drop_stock))
    importing.add_arguments(_add(groups, "import", importing.import_database))
    auditing.add_audit_arguments(_add(groups, "audit", auditing.audit))
    auditing.add_heal_arguments(_add(groups, "heal", auditing.heal))
    return top


def _add(group: "_SubParsersAction[ArgumentParser]", name: str, command: Command) -> ArgumentParser:
    summary = command.__doc__
    added = group.add_parser(name, help=summary, description=summary)
    added.set_defaults(command=command)
    return added


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; 0 when it did what it should, 1 when not, 2 for a wrong command line.

    ``audit`` and ``heal`` end with 3 when something is (still) wrong in the database.
    """
    arguments = parser().parse_args(argv)
    try:
        conf = new_config(config_files=arguments.config_file)
        for warning in unknown_options(conf):
            print(f"placement-manage: warning: {warning}", file=sys.stderr)
        command: Command = arguments.command
        return command(conf, arguments)
    except (ServiceError, cfg.Error, ValueError) as error:
        print(f"placement-manage: {error}", file=sys.stderr)
    except CommandError as error:  # there is no such revision
        print(f"placement-manage: {error}", file=sys.stderr)
    except (exc.ArgumentError, ImportError) as error:  # no URL, or of a database that is not installed
        print(f"placement-manage: [placement_database] connection cannot be used: {error}", file=sys.stderr)
    except exc.SQLAlchemyError as error:
        print(f"placement-manage: the database refuses: {remedies.explain(error)}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
