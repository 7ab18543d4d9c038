"""Database servers for tests: started on free loopback ports, removed at the end of the tests.

Example: ``with create("postgresql") as server: url = server.fresh_database()``.
A server that is not installed raises :class:`ServerMissing`, which names the Debian package.
"""

from tests.databases.base import DatabaseServer, ServerMissing
from tests.databases.mariadb import MariaDB
from tests.databases.postgresql import PostgreSQL
from tests.databases.sqlite import SQLite

__all__ = ["KINDS", "DatabaseServer", "ServerMissing", "create"]

_SERVERS: dict[str, type[DatabaseServer]] = {server.kind: server for server in (SQLite, PostgreSQL, MariaDB)}

KINDS = tuple(_SERVERS)


def create(kind: str, *, durable: bool = False) -> DatabaseServer:
    """A server of one of the :data:`KINDS`, not started yet.

    Without ``durable`` a commit survives SIGKILL of the server but not a power cut, which is faster and
    enough for most tests.

    :raises ServerMissing: its programs are not installed
    """
    return _SERVERS[kind](durable=durable)
