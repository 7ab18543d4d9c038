"""The command ``placement-manage``, which maintains the database."""

from __future__ import annotations

import sys
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import Any, Final

from oslo_config import cfg
from sqlalchemy import exc

from placement import extensions
from placement.cmd.common import Command, ManageCommand, open_database, print_json, print_table
from placement.cmd.report import add_report_arguments, make_report
from placement.conf import installed_version, new_config
from placement.conf.unknown import unknown_options
from placement.db import adoption, errors, migration
from placement.exceptions import ServiceError, Unavailable
from placement.maintenance.audit import DatabaseFinding, find_contradictions
from placement.maintenance.heal import heal_database
from placement.maintenance.sync import incomplete_owner, sync
from placement.notifications.notifier import ROUND_PAUSE, EventNotifier, PositionFile
from placement.notifications.webhook import DeliveryFailed, EventWebhook
from placement.schemas.reservation import DEFAULT_NOTICE, MAX_INTERVAL

FINDINGS: Final = 3
"""The exit status if a command has found contradictions in the database that remain."""

_ONCE_ATTEMPTS: Final = 5
"""Maximum number of attempts to send one event with ``--once``."""


def add_audit_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of ``audit``."""
    parser.add_argument(
        "-f",
        "--format",
        choices=("table", "json"),
        default="table",
        help="format of the output: a table for people, or JSON for programs",
    )


def add_heal_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of ``heal``."""
    add_audit_arguments(parser)
    parser.add_argument("--dry-run", action="store_true", help="show the repairs, but write nothing")


def audit_database(conf: cfg.ConfigOpts, arguments: Namespace) -> int:
    """List contradictions between the rows of the database; the exit status is 3 if there are any."""
    with open_database(conf) as database, database.read() as conn:
        findings = find_contradictions(conn)
    if arguments.format == "json":
        print_json({"findings": _finding_documents(findings)})
    else:
        _print_findings("Nothing is wrong.", findings)
    return FINDINGS if findings else 0


def repair_database(conf: cfg.ConfigOpts, arguments: Namespace) -> int:
    """Repair contradictions between the rows of the database; the exit status is 3 if any remain.

    No repair deletes an allocation.
    """
    with open_database(conf) as database:
        healed = heal_database(database, incomplete_owner(conf), dry_run=arguments.dry_run)
    if arguments.format == "json":
        print_json(
            {
                "repaired": _finding_documents(healed.repaired),
                "remaining": _finding_documents(healed.remaining),
            }
        )
    else:
        print("Would be repaired:" if arguments.dry_run else "Repaired:")
        _print_findings("Nothing.", healed.repaired)
        print("Remains:")
        _print_findings("Nothing.", healed.remaining)
    return FINDINGS if healed.remaining else 0


def _finding_documents(findings: Sequence[DatabaseFinding]) -> list[dict[str, Any]]:
    return [
        {
            "problem": str(finding.problem),
            "subject": finding.subject,
            "detail": finding.detail,
            "healable": finding.problem.is_healable,
        }
        for finding in findings
    ]


def _print_findings(nothing: str, findings: Sequence[DatabaseFinding]) -> None:
    if not findings:
        print(nothing)
        return
    rows = [(str(each.problem), each.subject, each.detail, each.problem.is_healable) for each in findings]
    print_table(
        ("Problem", "Subject", "Detail", "Healable"),
        [(*texts, "yes" if healable else "no") for *texts, healable in rows],
    )


# OpenStack documents this exit status for db online_data_migrations
_INVALID_COUNT: Final = 127
"""The exit status for an invalid ``--max-count``."""


def db_sync(conf: cfg.ConfigOpts, arguments: Namespace) -> int:
    """Migrate the schema of the database to a revision, or to the newest revision if none is given."""
    before = migration.version(conf.placement_database.connection)
    for said in sync(conf, arguments.version or "head"):
        print(said)
    after = migration.version(conf.placement_database.connection)
    print(f"The database is at revision {after}.")
    # a release with one of these revisions accepts only its own revision
    if before in migration.EXACT and after != before:
        print(
            f"Releases with revision {before} accept no other revision, and answer requests with 503. Before"
            " you go back to such a release, restore the backup from before this command.",
            file=sys.stderr,
        )
    return 0


def db_version(conf: cfg.ConfigOpts, arguments: Namespace) -> int:
    """Show the revision of the database's schema."""
    found = migration.find_database(conf.placement_database.connection)
    reason = adoption.explain_adoption(found.revision, found.record)
    print(found.revision or ("none: run 'placement-manage db sync'" if reason is None else "none"))
    if reason is not None:
        print(reason, file=sys.stderr)
    return 0


def db_stamp(conf: cfg.ConfigOpts, arguments: Namespace) -> int:
    """Record in the database that its schema has a revision, without changing the schema."""
    migration.stamp_revision(conf.placement_database.connection, arguments.version)
    return 0


def db_online_data_migrations(conf: cfg.ConfigOpts, arguments: Namespace) -> int:
    """Rewrite data for a newer release, while the service runs. This release has no data to rewrite."""
    if arguments.max_count is not None and arguments.max_count < 1:
        print("placement-manage: --max-count must be at least 1", file=sys.stderr)
        return _INVALID_COUNT
    migration.require_schema(conf.placement_database.connection)
    print("No data need to be migrated.")
    return 0


def db_renew_epoch(conf: cfg.ConfigOpts, arguments: Namespace) -> int:
    """Make every running worker read the whole database again, as needed after a restore or manual SQL."""
    with open_database(conf) as database:
        database.write(lambda tx: tx.renew_epoch())
    print("Every worker reads everything again before its next answer.")
    return 0


def _add_sync_arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "version", nargs="?", help="revision to which the schema is migrated; the default is the newest"
    )


def _add_stamp_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("version", help="revision to record, or the word head for the newest revision")


def _add_migration_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--max-count", type=int, help="maximum number of rows to rewrite")


def add_notify_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of ``windows notify``."""
    parser.add_argument("--url", required=True, help="http or https URL to which each event is sent by POST")
    parser.add_argument(
        "--state",
        required=True,
        type=Path,
        metavar="FILE",
        help="file that records the last delivered event; if the file does not exist, only events from now on"
        " are delivered",
    )
    parser.add_argument(
        "--notice",
        type=int,
        default=DEFAULT_NOTICE,
        metavar="SECONDS",
        help="seconds by which the announcement of a start or an end precedes it (default: %(default)s)",
    )
    parser.add_argument(
        "--once",
        action="store_true",
        help=f"deliver the events since the last call, and exit; after {_ONCE_ATTEMPTS} failed attempts for"
        " an event, exit with status 1",
    )


def notify_webhook(conf: cfg.ConfigOpts, arguments: Namespace) -> int:
    """Send starts and ends of windows, and ends of claims, to a webhook: in order, and each at least once.

    A window is a reservation with a start. Claims without an action at their end (on_end) are left out.
    """
    if not 0 <= arguments.notice <= MAX_INTERVAL:
        raise ValueError(f"--notice has to be a number of seconds from 0 to {MAX_INTERVAL:.0f}")
    webhook, file = EventWebhook(arguments.url), PositionFile(arguments.state)
    with file.hold_lock(), open_database(conf) as database:
        notifier = EventNotifier(
            database,
            file,
            webhook.post_document,
            time.sleep,
            _report_line,
            arguments.notice,
            _ONCE_ATTEMPTS if arguments.once else None,
        )
        if arguments.once:
            return _run_once(notifier)
        # the command can be stopped at any moment, because no event is lost
        with suppress(KeyboardInterrupt):
            _run_forever(notifier)
    return 0


def _run_once(notifier: EventNotifier) -> int:
    try:
        while not notifier.run_round():
            pass
    except DeliveryFailed as error:
        _report_line(f"{error} The next call begins with this event.")
        return 1
    return 0


def _run_forever(notifier: EventNotifier) -> None:
    while True:
        try:
            is_present = notifier.run_round()
        except Unavailable as error:
            _report_line(f"{error} The next round is in {ROUND_PAUSE:g} seconds.")
            is_present = True
        if is_present:
            notifier.pause(ROUND_PAUSE)


def _report_line(text: str) -> None:
    print(f"placement-manage: {text}", file=sys.stderr, flush=True)


COMMANDS: Final = (
    ManageCommand("db sync", db_sync, _add_sync_arguments),
    ManageCommand("db version", db_version),
    ManageCommand("db stamp", db_stamp, _add_stamp_arguments),
    ManageCommand("db online_data_migrations", db_online_data_migrations, _add_migration_arguments),
    ManageCommand("db renew-epoch", db_renew_epoch),
    ManageCommand("audit", audit_database, add_audit_arguments),
    ManageCommand("heal", repair_database, add_heal_arguments),
    ManageCommand("report", make_report, add_report_arguments),
    ManageCommand("windows notify", notify_webhook, add_notify_arguments),
)


_GROUPS: Final = {
    "db": "schema and data of the database",
    "windows": "starts and ends of reservations, and ends of claims",
}
"""The first words of commands with two words, such as ``db``, each with its help."""


def build_parser() -> ArgumentParser:
    """Return the parser of the command line. Commands of extensions come after those of the core."""
    top = ArgumentParser(prog="placement-manage", description="Maintenance of the service's database.")
    top.add_argument("--config-file", action="append", help="configuration file; the option can be repeated")
    top.add_argument("--version", action="version", version=installed_version())
    groups = top.add_subparsers(required=True, metavar="COMMAND")
    by_word = {
        word: groups.add_parser(word, help=summary).add_subparsers(required=True, metavar="ACTION")
        for word, summary in _GROUPS.items()
    }
    for each in chain(COMMANDS, *extensions.registered_objects("commands").values()):
        *in_group, name = each.words.split()
        # the docstring of the function is also the help of the command
        summary = each.run.__doc__
        added = (by_word[in_group[0]] if in_group else groups).add_parser(
            name, help=summary, description=summary
        )
        each.add_arguments(added)
        added.set_defaults(command=each.run)
    return top


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit status: 0 after success, 1 after an error, 2 for a wrong command line.

    The status of ``audit`` is 3 if the database has contradictions. The status of ``heal`` is 3 if some
    contradictions remain. Commands of extensions, and ``db online_data_migrations``, can have another status.
    """
    arguments = build_parser().parse_args(argv)
    try:
        conf = new_config(config_files=arguments.config_file)
        for warning in unknown_options(conf):
            print(f"placement-manage: warning: {warning}", file=sys.stderr)
        command: Command = arguments.command
        return command(conf, arguments)
    except (ServiceError, cfg.Error, ValueError) as error:
        print(f"placement-manage: {error}", file=sys.stderr)
    # the text of the option is no URL, or its driver is not installed
    except (exc.ArgumentError, ImportError) as error:
        print(f"placement-manage: [placement_database] connection cannot be used: {error}", file=sys.stderr)
    except exc.SQLAlchemyError as error:
        print(f"placement-manage: the database refuses: {errors.explain_error(error)}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
