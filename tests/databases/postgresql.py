"""PostgreSQL servers for tests."""

import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import psycopg
from psycopg import sql
from sqlalchemy.engine import URL, make_url

from tests.databases.process import ProcessServer, program

OWNER = "placement"


class PostgreSQL(ProcessServer):
    """A cluster with the superuser ``placement``, without a password on loopback."""

    kind: ClassVar[str] = "postgresql"
    stop_signal: ClassVar[signal.Signals] = signal.SIGINT  # "fast": connections are broken, not waited for
    users: ClassVar[tuple[str, ...]] = ("postgres", "nobody")

    def __init__(self, *, durable: bool) -> None:
        super().__init__(durable=durable)
        self._folders = sorted(
            Path("/usr/lib/postgresql").glob("*/bin"),
            key=lambda path: path.parent.name.zfill(4),
            reverse=True,
        )
        self._initdb = program("initdb", "postgresql", folders=self._folders)
        self._postgres = program("postgres", "postgresql", folders=self._folders)

    def _initialise(self) -> None:
        self._run(
            self._initdb,
            f"--pgdata={self.folder / 'data'}",
            f"--username={OWNER}",
            "--auth=trust",
            "--encoding=UTF8",
            "--locale=C.UTF-8",
            "--no-sync",
        )

    def _command(self) -> Sequence[str | Path]:
        settings = {
            "listen_addresses": "127.0.0.1",
            "port": str(self.port),
            "unix_socket_directories": "",
            "max_connections": "300",
            "shared_buffers": "64MB",
        }
        if not self.durable:
            # commits are written, not flushed: they survive a crash of the server, not of the machine
            settings |= {"fsync": "off", "full_page_writes": "off"}
        options = [f"--{name}={value}" for name, value in settings.items()]
        return [self._postgres, "-D", self.folder / "data", *options]

    def _answers(self) -> bool:
        try:
            self._connect().close()
        except psycopg.OperationalError:
            return False
        return True

    def fresh_database(self) -> str:
        return self._create("template1")

    def clone(self, url: str) -> str:
        return self._create(str(make_url(url).database))

    def backup(self, url: str) -> Path:
        path = self.folder / f"{self._new_name()}.backup"
        self._run(*self._client("pg_dump", url), "--format=custom", f"--file={path}")
        return path

    def restore(self, url: str, backup: Path) -> None:
        self._run(*self._client("pg_restore", url), "--clean", "--single-transaction", backup)

    def replace(self, url: str, backup: Path) -> None:
        self._drop(url)
        with self._connect() as connection:
            name = sql.Identifier(str(make_url(url).database))
            connection.execute(sql.SQL("CREATE DATABASE {}").format(name))
        self._run(*self._client("pg_restore", url), backup)

    def _client(self, name: str, url: str) -> Sequence[str | Path]:
        """Build the command of a client program of the same version that connects to the database."""
        database = make_url(url).database
        connection = f"host=127.0.0.1 port={self.port} user={OWNER} dbname={database}"
        return [program(name, "postgresql-client", folders=self._folders), f"--dbname={connection}"]

    def _drop(self, url: str) -> None:
        name = sql.Identifier(str(make_url(url).database))
        with self._connect() as connection:
            connection.execute(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(name))

    def _create(self, template: str) -> str:
        name = self._new_name()
        command = sql.SQL("CREATE DATABASE {} TEMPLATE {}").format(
            sql.Identifier(name), sql.Identifier(template)
        )
        with self._connect() as connection:
            connection.execute(command)
        url = URL.create(
            "postgresql+psycopg", username=OWNER, host="127.0.0.1", port=self.port, database=name
        )
        return url.render_as_string()

    def _connect(self) -> psycopg.Connection[Any]:
        return psycopg.connect(
            host="127.0.0.1", port=self.port, user=OWNER, dbname="postgres", autocommit=True
        )
