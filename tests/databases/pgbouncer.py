"""PgBouncer between a service and a PostgreSQL server, for tests."""

from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from tests.databases.postgresql import OWNER, PostgreSQL
from tests.databases.process import program

_SERVER_CONNECTIONS = 3


class PgBouncer(PostgreSQL):
    """A pooler in the mode ``session`` or ``transaction``, which clients use like a server."""

    kind: ClassVar[str] = "pgbouncer"

    def __init__(self, mode: str, server_port: int) -> None:
        super().__init__(durable=False)
        self._program = program("pgbouncer", "pgbouncer", folders=[Path("/usr/sbin")])
        self.mode = mode
        self._server_port = server_port

    def _initialise(self) -> None:
        """Does nothing, because the server has the databases."""

    def _command(self) -> Sequence[str | Path]:
        size = 100 if self.mode == "session" else _SERVER_CONNECTIONS
        settings = {
            "listen_addr": "127.0.0.1",
            "listen_port": self.port,
            "unix_socket_dir": "",
            "auth_type": "any",
            "pool_mode": self.mode,
            "default_pool_size": size,
            "max_client_conn": 500,
            "ignore_startup_parameters": "options",
        }
        lines = [f"{name} = {value}" for name, value in settings.items()]
        server = f"* = host=127.0.0.1 port={self._server_port} user={OWNER}"
        path = self.folder / "pgbouncer.ini"
        path.write_text("\n".join(["[databases]", server, "[pgbouncer]", *lines, ""]))
        path.chmod(0o644)
        return [self._program, path]
