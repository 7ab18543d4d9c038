"""MariaDB servers for tests."""

import signal
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import ClassVar, Final

import pymysql
from pymysql.cursors import Cursor
from sqlalchemy.engine import URL, make_url

from tests.databases.process import ProcessServer, program

_SYSTEM_FOLDERS: Final = (Path("/usr/sbin"), Path("/usr/libexec"))


class MariaDB(ProcessServer):
    """A server with a ``root`` user without a password on loopback."""

    kind: ClassVar[str] = "mariadb"
    stop_signal: ClassVar[signal.Signals] = signal.SIGTERM
    users: ClassVar[tuple[str, ...]] = ("mysql", "nobody")

    def __init__(self, *, durable: bool) -> None:
        super().__init__(durable=durable)
        self._install = program("mariadb-install-db", "mariadb-server")
        self._mariadbd = program("mariadbd", "mariadb-server", folders=_SYSTEM_FOLDERS)

    def _initialise(self) -> None:
        self._run(
            self._install,
            "--no-defaults",
            f"--datadir={self.folder / 'data'}",
            "--auth-root-authentication-method=normal",
            "--skip-test-db",
            "--skip-name-resolve",
        )

    def _command(self) -> Sequence[str | Path]:
        options = [
            "--no-defaults",  # only known as the first option
            f"--datadir={self.folder / 'data'}",
            f"--socket={self.folder / 'socket'}",
            f"--pid-file={self.folder / 'pid'}",
            "--bind-address=127.0.0.1",
            f"--port={self.port}",
            "--skip-name-resolve",
            "--skip-log-bin",
            "--max-connections=500",
            "--character-set-server=utf8mb4",
            # a benchmark has more rows than tests, and the pages of a cloud are in memory
            f"--innodb-buffer-pool-size={'1G' if self.durable else '64M'}",
        ]
        if not self.durable:
            # commits are written, not flushed: they survive a crash of the server, not of the machine
            options += ["--innodb-flush-log-at-trx-commit=2", "--skip-innodb-doublewrite"]
        return [self._mariadbd, *options]

    def _answers(self) -> bool:
        try:
            self._connect().close()
        except pymysql.err.OperationalError:
            return False
        return True

    def fresh_database(self) -> str:
        name = self._new_name()
        with self._connect() as connection, connection.cursor() as cursor:
            cursor.execute(f"CREATE DATABASE `{name}`")
        url = URL.create("mysql+pymysql", username="root", host="127.0.0.1", port=self.port, database=name)
        # without "ssl_disabled" each connection loads the machine's certificates first
        return url.update_query_dict({"charset": "utf8mb4", "ssl_disabled": "1"}).render_as_string()

    def clone(self, url: str) -> str:
        source = make_url(url).database
        copy = self.fresh_database()
        with self._connect() as connection, connection.cursor() as cursor:
            cursor.execute("SET foreign_key_checks = 0")  # the order of the tables is arbitrary
            cursor.execute(f"USE `{make_url(copy).database}`")
            cursor.execute(
                "SELECT table_name FROM information_schema.tables WHERE table_schema = %s", (source,)
            )
            for (table,) in cursor.fetchall():
                cursor.execute(f"SHOW CREATE TABLE `{source}`.`{table}`")
                cursor.execute(_only_row(cursor)[1])
                cursor.execute(f"INSERT INTO `{table}` SELECT * FROM `{source}`.`{table}`")
        return copy

    def backup(self, url: str) -> Path:
        path = self.folder / f"{self._new_name()}.backup"
        self._run(*self._client("mariadb-dump", url), "--single-transaction", f"--result-file={path}")
        return path

    def restore(self, url: str, backup: Path) -> None:
        self._run(*self._client("mariadb", url), f"--execute=source {backup}")

    def replace(self, url: str, backup: Path) -> None:
        self._drop(url)
        with self._connect() as connection, connection.cursor() as cursor:
            cursor.execute(f"CREATE DATABASE `{make_url(url).database}`")
        self.restore(url, backup)

    def _client(self, name: str, url: str) -> Sequence[str | Path]:
        """Build the command of a client program that connects to the database."""
        return [
            program(name, "mariadb-client"),
            "--no-defaults",
            "--host=127.0.0.1",
            f"--port={self.port}",
            "--user=root",
            "--skip-ssl",
            str(make_url(url).database),
        ]

    def _drop(self, url: str) -> None:
        name = make_url(url).database
        with self._connect() as connection, connection.cursor() as cursor:
            # open transactions would keep the tables from being dropped
            cursor.execute("SELECT id FROM information_schema.processlist WHERE db = %s", (name,))
            for (number,) in cursor.fetchall():
                with suppress(pymysql.err.OperationalError):  # the connection may have ended meanwhile
                    cursor.execute(f"KILL {number}")
            cursor.execute(f"DROP DATABASE IF EXISTS `{name}`")

    def _connect(self, timeout: int | None = None) -> "pymysql.connections.Connection[Cursor]":
        """:param timeout: seconds for a connection, and for each answer"""
        return pymysql.connect(
            host="127.0.0.1",
            port=self.port,
            user="root",
            autocommit=True,
            ssl_disabled=True,
            connect_timeout=timeout or 10,
            read_timeout=timeout,
            write_timeout=timeout,
        )


def _only_row(cursor: Cursor) -> tuple[str, ...]:
    row = cursor.fetchone()
    assert row is not None
    return tuple(row)
