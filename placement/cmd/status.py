"""The command ``placement-status upgrade check``, which checks whether this version can start."""

import logging
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final

import sqlalchemy as sa
from oslo_config import cfg
from oslo_upgradecheck import common_checks, upgradecheck
from oslo_upgradecheck.upgradecheck import Code, Result

from placement.cmd.common import open_database
from placement.conf import PROJECT, files_from_environment, installed_version, new_config, opts
from placement.conf.reservations import limited_classes
from placement.conf.unknown import misspelt_options
from placement.db import engine, migration, sqlite_file
from placement.db.tables import consumers
from placement.exceptions import Unavailable
from placement.maintenance import audit
from placement.store import known_names

# oslo.upgradecheck documents this number
_UNEXPECTED: Final = 255
"""The exit status after an unexpected error."""
# these errors are raised for an invalid URL, an unreachable database or an old schema, and for tables of
# another program
_UNUSABLE: Final = (Unavailable, sa.exc.SQLAlchemyError)
_AUDIT: Final = "'placement-manage audit' names them;"


class UpgradeChecks(upgradecheck.UpgradeCommands):
    """The checks of ``upgrade check``, in the order in which the command shows them."""

    def __init__(self, conf: cfg.ConfigOpts) -> None:
        super().__init__()
        self._conf = conf
        #: the errors that earlier checks have already shown
        self._told: set[str] = set()
        # checks that OpenStack Placement also has have the same names here
        self._upgrade_checks = (
            ("Configuration", UpgradeChecks._check_options),
            ("Database", UpgradeChecks._check_database),
            ("Schema", UpgradeChecks._check_schema),
            ("Missing Root Provider IDs", UpgradeChecks._missing_roots),
            ("Missing Consumers", UpgradeChecks._missing_consumers),
            ("Incomplete Consumers", UpgradeChecks._incomplete_consumers),
            ("Reservation Limits", UpgradeChecks._check_limits),
            ("Keystone", UpgradeChecks._check_keystone),
            ("Policy File JSON to YAML Migration", (common_checks.check_policy_json, {"conf": conf})),
        )

    def _check_options(self) -> Result:
        try:
            opts.check_values(self._conf)
            # the service is imported only here, because its import takes half as long as the command itself
            from placement.api.middleware import check_requirements

            with _no_logging():
                check_requirements(self._conf)
        except (cfg.Error, ValueError) as error:
            self._told.add(str(error))
            return Result(Code.FAILURE, str(error))
        if found := list(misspelt_options(self._conf)):
            return Result(Code.WARNING, "; ".join(found))
        return Result(Code.SUCCESS)

    def _check_database(self) -> Result:
        result = self._try_action(migration.version)
        user = sqlite_file.SystemUser.find_user(sqlite_file.SERVICE_USER)
        if result.code is not Code.SUCCESS or os.geteuid() != 0 or user is None:
            return result
        # root can read each file, so the permissions of the service's user are checked separately
        reason = sqlite_file.file_obstacle(self._conf.placement_database.connection, user)
        return (
            result
            if reason is None
            else Result(Code.WARNING, f"If the service runs as {user.name}: {reason}")
        )

    def _check_schema(self) -> Result:
        return self._try_action(migration.require_schema)

    def _try_action(self, action: Callable[[str], object]) -> Result:
        """Call the action with the URL of the database; return a failure if the database cannot be used."""
        try:
            self._require_database()
            action(self._conf.placement_database.connection)
        except _UNUSABLE as error:
            self._told.add(str(error))
            return Result(Code.FAILURE, str(error))
        return Result(Code.SUCCESS)

    def _require_database(self) -> None:
        """Raise Unavailable if the URL cannot be used, or if the database is a file that does not exist."""
        try:
            engine.check_url(self._conf.placement_database.connection)
        except ValueError as error:
            raise Unavailable(str(error)) from error
        # this is checked before a connection is made, because SQLite would create a missing file
        if (reason := sqlite_file.missing_file(self._conf.placement_database.connection)) is not None:
            raise Unavailable(sqlite_file.file_obstacle(self._conf.placement_database.connection) or reason)

    def _missing_roots(self) -> Result:
        return self._count_wrong(
            lambda conn: len(list(audit.wrong_trees(conn))),
            "resource providers have a wrong root or parent.",
            f"{_AUDIT} 'placement-manage heal' corrects the healable ones.",
        )

    def _missing_consumers(self) -> Result:
        return self._count_wrong(
            lambda conn: len(audit.without_consumer(conn)),
            "consumers that hold allocations do not exist.",
            f"{_AUDIT} 'placement-manage heal' makes them.",
        )

    def _incomplete_consumers(self) -> Result:
        options = self._conf.placement
        query = (
            sa.select(sa.func.count())
            .select_from(consumers)
            .where(
                sa.or_(
                    consumers.c.project_id == options.incomplete_consumer_project_id,
                    consumers.c.user_id == options.incomplete_consumer_user_id,
                )
            )
        )
        return self._count_wrong(
            lambda conn: conn.execute(query).scalar_one(),
            "consumers have no project or user of their own.",
            "Clients with a microversion before 1.8, or 'placement-manage heal', made these consumers. They"
            " become complete when a client with a newer microversion writes their allocations.",
            Code.WARNING,
        )

    def _check_limits(self) -> Result:
        try:
            limited = limited_classes(self._conf)
        except (cfg.Error, ValueError):
            limited = set()  # another check reports this error
        if not limited:
            return Result(Code.SUCCESS)

        def find_unknown(conn: sa.Connection) -> str | None:
            unknown = ", ".join(known_names.unknown_classes(conn, limited))
            return f"[reservations] limits unknown resource classes: {unknown}." if unknown else None

        return self._query_database(
            find_unknown, "These limits have no effect until the classes exist.", Code.WARNING
        )

    def _check_keystone(self) -> Result:
        # this problem is only a warning, because perhaps only the machine of this check cannot reach
        # Keystone, or only at this time
        try:
            strategy = self._conf.api.auth_strategy
        except (cfg.Error, ValueError):
            return Result(Code.SUCCESS)  # another check reports this error
        if strategy != "keystone":
            return Result(
                Code.WARNING,
                f"[api] auth_strategy is {strategy}: requests are not authenticated, and each client can act"
                " as administrator. Use keystone, except for tests, and for one machine where the service"
                " listens on loopback only.",
            )
        # the libraries for Keystone are imported only here, because their import takes a third of the time of
        # the command
        from placement.api.identity import keystone_obstacle

        with _no_logging():
            reason = keystone_obstacle(self._conf)
        # the check of the options has already shown the reasons for which the service cannot start
        if reason is None or reason in self._told:
            return Result(Code.SUCCESS)
        return Result(Code.WARNING, f"{reason}. Until this is mended, the service cannot validate tokens.")

    def _count_wrong(
        self, count: Callable[[sa.Connection], int], problem: str, advice: str, code: Code = Code.FAILURE
    ) -> Result:
        def find_wrong(conn: sa.Connection) -> str | None:
            number = count(conn)
            return f"{number} {problem}" if number else None

        return self._query_database(find_wrong, advice, code)

    def _query_database(
        self, find: Callable[[sa.Connection], str | None], advice: str, code: Code = Code.FAILURE
    ) -> Result:
        """Return success if ``find`` returns None; otherwise return ``code`` with its text and the advice."""
        try:
            self._require_database()
            with open_database(self._conf) as database, database.read() as conn:
                wrong = find(conn)
        except _UNUSABLE as error:
            # each check of the database would find the same error, so an error is shown only once
            see_above = "the database cannot be used yet: correct the problem above, and run the check again."
            reason = see_above if str(error) in self._told else str(error)
            return Result(Code.FAILURE, f"Not checked: {reason}")
        return Result(Code.SUCCESS) if wrong is None else Result(code, f"{wrong} {advice}")


@contextmanager
def _no_logging() -> Iterator[None]:
    """Log nothing during this context, because the results of the checks have the reasons."""
    logging.disable()
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)


def main(argv: Sequence[str] | None = None) -> int:
    """Print a table of all checks, or a document with ``--json``; return the exit status.

    The status is 0 for success, 1 for a warning, 2 for a failure or a wrong command line, and 255 for an
    unexpected error.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    # oslo.upgradecheck does not have this argument
    if arguments == ["--version"]:
        print(installed_version())
        return 0
    conf = new_config(config_files=[])
    # the values are dropped, and the options stay registered. The library then reads the files from the
    # command line.
    conf.clear()
    try:
        return upgradecheck.main(
            conf, PROJECT, UpgradeChecks(conf), arguments, files_from_environment(os.environ)
        )
    except (cfg.Error, ValueError) as error:
        print(f"placement-status: {error}", file=sys.stderr)
        return _UNEXPECTED


if __name__ == "__main__":
    sys.exit(main())
