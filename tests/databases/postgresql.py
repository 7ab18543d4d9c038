"""PostgreSQL servers for tests."""

import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import psycopg
from psycopg import sql
from sqlalchemy.engine import URL, make_url

from tests.databases.process import ProcessServer, program

_OWNER = "placement"


class PostgreSQL(ProcessServer):
    """A cluster whose superuser ``placement`` needs no password on loopback."""

    kind: ClassVar[str] = "postgresql"
    stop_signal: ClassVar[signal.Signals] = signal.SIGINT  # "fast": connections are broken, not waited for
    users: ClassVar[tuple[str, ...]] = ("postgres", "nobody")

    def __init__(self, *, durable: bool) -> None:
        super().__init__(durable=durable)
        newest_first = sorted(
            Path("/usr/lib/postgresql").glob("*/bin"),
            key=lambda path: path.parent.name.zfill(4),
            reverse=True,
        )
        self._initdb = program("initdb", "postgresql", folders=newest_first)
        self._postgres = program("postgres", "postgresql", folders=newest_first)

    def _initialise(self) -> None:
        self._run(
            self._initdb,
            f"--pgdata={self.folder / 'data'}",
            f"--username={_OWNER}",
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
            # commits are written, not flushed: they outlive the server, not the machine
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

    def drop_database(self, url: str) -> None:
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
            "postgresql+psycopg", username=_OWNER, host="127.0.0.1", port=self.port, database=name
        )
        return url.render_as_string()

    def _connect(self) -> psycopg.Connection[Any]:
        return psycopg.connect(
            host="127.0.0.1", port=self.port, user=_OWNER, dbname="postgres", autocommit=True
        )
