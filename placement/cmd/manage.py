"""``placement-manage``: care of the database."""

import sys
from argparse import ArgumentParser, Namespace, _SubParsersAction
from collections.abc import Callable, Sequence
from importlib.metadata import version

from placement.conf import new_config
from placement.db import migration
from placement.exceptions import PlacementError

Command = Callable[[str, Namespace], int]


def db_sync(url: str, arguments: Namespace) -> int:
    """Bring the schema of the database up to date."""
    migration.upgrade(url, arguments.version or "head")
    print(f"The database is at revision {migration.version(url)}.")
    return 0


def db_version(url: str, arguments: Namespace) -> int:
    """Show the revision of the database."""
    print(migration.version(url) or "none: run 'placement-manage db sync'")
    return 0


def db_stamp(url: str, arguments: Namespace) -> int:
    """Say which revision the database has, without changing its schema."""
    migration.stamp(url, arguments.version)
    return 0


def db_online_data_migrations(url: str, arguments: Namespace) -> int:
    """Rewrite data for a newer release while the service runs; this release has nothing to rewrite."""
    print("No data need to be migrated.")
    return 0


def parser() -> ArgumentParser:
    """The command line."""
    top = ArgumentParser(prog="placement-manage", description=__doc__)
    top.add_argument("--config-file", action="append", help="configuration file; may be given several times")
    top.add_argument("--version", action="version", version=version("placement-compute"))
    groups = top.add_subparsers(required=True, metavar="COMMAND")
    db = groups.add_parser("db", help="schema and data of the database").add_subparsers(
        required=True, metavar="ACTION"
    )
    sync = _add(db, "sync", db_sync)
    sync.add_argument("version", nargs="?", help="the revision to stop at; default the newest")
    _add(db, "version", db_version)
    stamp = _add(db, "stamp", db_stamp)
    stamp.add_argument("version", help="a revision, or head")
    _add(db, "online_data_migrations", db_online_data_migrations).add_argument("--max-count", type=int)
    return top


def _add(group: "_SubParsersAction[ArgumentParser]", name: str, command: Command) -> ArgumentParser:
    summary = command.__doc__
    added = group.add_parser(name, help=summary, description=summary)
    added.set_defaults(command=command)
    return added


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; 0 when it did what it should, 1 when not, 2 for a wrong command line."""
    arguments = parser().parse_args(argv)
    conf = new_config(config_files=arguments.config_file)
    try:
        command: Command = arguments.command
        return command(conf.placement_database.connection, arguments)
    except PlacementError as error:
        print(f"placement-manage: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
