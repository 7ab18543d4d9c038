"""``placement-status upgrade_schema check``: whether the service can be (re)started with this version."""

import os
import sys
from collections.abc import Callable, Sequence
from typing import Final

import sqlalchemy as sa
from oslo_config import cfg
from oslo_upgradecheck import common_checks, upgradecheck
from oslo_upgradecheck.upgradecheck import Code, Result

from placement.api.identity import obstacle
from placement.cmd.common import open_database
from placement.conf import PROJECT, files_from_environment, installed_version, new_config, opts
from placement.conf.unknown import misspelt_options
from placement.db import migration, sqlite_file
from placement.db.tables import consumers
from placement.exceptions import Unavailable
from placement.maintenance import audit

_UNEXPECTED: Final = 255
# no answer or an old schema; no URL, or tables that are not ours; a database or driver that is not installed
_UNUSABLE: Final = (Unavailable, sa.exc.SQLAlchemyError, ImportError)
_AUDIT: Final = "'placement-manage audit' names them;"


class UpgradeChecks(upgradecheck.UpgradeCommands):
    """The checks in the order in which they are shown."""

    def __init__(self, conf: cfg.ConfigOpts) -> None:
        super().__init__()
        self._conf = conf
        self._told: set[str] = set()
        self._upgrade_checks = (
            ("Configuration", UpgradeChecks._configuration),
            ("Database", UpgradeChecks._database),
            ("Schema", UpgradeChecks._schema),
            ("Missing Root Provider IDs", UpgradeChecks._missing_roots),
            ("Missing Consumers", UpgradeChecks._missing_consumers),
            ("Incomplete Consumers", UpgradeChecks._incomplete_consumers),
            ("Keystone", UpgradeChecks._keystone),
            ("Policy File JSON to YAML Migration", (common_checks.check_policy_json, {"conf": conf})),
        )

    def _configuration(self) -> Result:
        try:
            opts.check(self._conf)
        except (cfg.Error, ValueError) as error:
            return Result(Code.FAILURE, str(error))
        if found := list(misspelt_options(self._conf)):
            return Result(Code.WARNING, "; ".join(found))
        return Result(Code.SUCCESS)

    def _database(self) -> Result:
        result = self._attempt(migration.version)
        user = sqlite_file.SystemUser.find_user(sqlite_file.SERVICE_USER)
        if result.code is not Code.SUCCESS or os.geteuid() != 0 or user is None:
            return result
        # What root may says nothing of the service.
        reason = sqlite_file.file_obstacle(self._conf.placement_database.connection, user)
        return (
            result
            if reason is None
            else Result(Code.WARNING, f"If the service runs as {user.name}: {reason}")
        )

    def _schema(self) -> Result:
        return self._attempt(migration.require_schema)

    def _attempt(self, action: Callable[[str], object]) -> Result:
        """Success when that can be done with the URL of the database."""
        try:
            self._require_file()
            action(self._conf.placement_database.connection)
        except _UNUSABLE as error:
            self._told.add(str(error))
            return Result(Code.FAILURE, str(error))
        return Result(Code.SUCCESS)

    def _require_file(self) -> None:
        """See that there is a database, as a look at one of SQLite would make it.

        :raises Unavailable: there is none.
        """
        if (reason := sqlite_file.missing_file(self._conf.placement_database.connection)) is not None:
            raise Unavailable(sqlite_file.file_obstacle(self._conf.placement_database.connection) or reason)

    def _missing_roots(self) -> Result:
        def look(conn: sa.Connection) -> str | None:
            count = len(list(audit.wrong_trees(conn)))
            return f"{count} resource providers have a wrong root or parent." if count else None

        return self._look(look, f"{_AUDIT} 'placement-manage heal' sets roots right.")

    def _missing_consumers(self) -> Result:
        def look(conn: sa.Connection) -> str | None:
            count = len(audit.without_consumer(conn))
            return f"{count} consumers that hold allocations do not exist." if count else None

        return self._look(look, f"{_AUDIT} 'placement-manage heal' makes them.")

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

        def look(conn: sa.Connection) -> str | None:
            count = conn.execute(query).scalar_one()
            return f"{count} consumers have no project or user of their own." if count else None

        return self._look(
            look,
            "Clients before microversion 1.8 made them; they are complete once "
            "their allocations are written by a newer one.",
            Code.WARNING,
        )

    def _keystone(self) -> Result:
        """A warning only: this may run where, or when, Keystone cannot be reached."""
        try:
            strategy = self._conf.api.auth_strategy
        except (cfg.Error, ValueError):
            return Result(Code.SUCCESS)  # another check says so
        reason = obstacle(self._conf) if strategy == "keystone" else None
        if reason is None:
            return Result(Code.SUCCESS)
        return Result(Code.WARNING, f"{reason}. As long as that is so, clients are answered 503.")

    def _look(
        self,
        find: Callable[[sa.Connection], str | None],
        advice: str = "",
        code: Code = Code.FAILURE,
    ) -> Result:
        """The result ``code`` with what ``find`` says is wrong, success when it says None."""
        try:
            self._require_file()
            with open_database(self._conf) as database, database.read() as conn:
                wrong = find(conn)
        except _UNUSABLE as error:
            see_above = "the database cannot be used yet, see above: check again when that is done."
            reason = see_above if str(error) in self._told else str(error)
            return Result(Code.FAILURE, f"Not checked: {reason}")
        return Result(Code.SUCCESS) if wrong is None else Result(code, f"{wrong} {advice}")


def main(argv: Sequence[str] | None = None) -> int:
    """Print a table (``--json``: a document) of all checks.

    Returns 0 when all succeeded, 1 for a warning, 2 for a failure or a wrong
    command line, 255 when something unexpected happened; as oslo.upgradecheck documents.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    if arguments == ["--version"]:  # which the library does not know
        print(installed_version())
        return 0
    conf = new_config(config_files=[])
    conf.clear()  # the options are known; the library reads the files that the command line names
    try:
        return upgradecheck.main(
            conf, PROJECT, UpgradeChecks(conf), arguments, files_from_environment(os.environ)
        )
    except (cfg.Error, ValueError) as error:
        print(f"placement-status: {error}", file=sys.stderr)
        return _UNEXPECTED


if __name__ == "__main__":
    sys.exit(main())
