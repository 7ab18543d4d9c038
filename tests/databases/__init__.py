"""Database servers of the tests' own: started on free loopback ports, gone when the tests are.

``with create("postgresql") as server: url = server.fresh_database()`` is all there is to it.
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

    Without ``durable`` a commit outlives the end of the server, however sudden,
    but not that of the machine, which most tests gladly trade for speed.

    :raises ServerMissing: when its programs are not installed.
    """
    return _SERVERS[kind](durable=durable)
