"""Connections to MySQL and MariaDB whose timeout for an answer can be changed."""

from typing import Any, Final

from pymysql.connections import Connection as PyMySQLConnection
from pymysql.err import OperationalError

_NODE_NOT_READY: Final = 1047

_OF_SERVER: Final = (
    "SHOW VARIABLES WHERE variable_name IN ('wsrep_on', 'server_uid', 'server_uuid', 'hostname', 'port')"
)
"""MariaDB has a "server_uid" and MySQL a "server_uuid"; old versions have neither."""
_OF_CLUSTER: Final = "SHOW STATUS WHERE variable_name IN ('wsrep_ready', 'wsrep_cluster_state_uuid')"


class Connection(PyMySQLConnection):  # type: ignore[misc]  # PyMySQL has no types
    """A connection that fails, and is closed, when nothing came from the server for too long.

    ``history`` is that of the server (:mod:`placement.db.position`).
    """

    history = ""

    @property
    def answer_timeout(self) -> float | None:
        """How long that is, in seconds; None for ever."""
        timeout: float | None = self._read_timeout
        return timeout

    @answer_timeout.setter
    def answer_timeout(self, seconds: float | None) -> None:
        # PyMySQL looks at these before it reads and writes; to its constructor it is one timeout for all.
        self._read_timeout = seconds
        self._write_timeout = seconds


def connect(answer_timeout: float | None, *args: Any, wsrep_sync_wait: int, **kwargs: Any) -> Connection:
    """A connection with this timeout; the other arguments are those of :func:`pymysql.connect`.

    The greeting of the server has to come within ``connect_timeout``, too.

    :raises pymysql.err.OperationalError: none can be made, or to a node that is outside of its cluster.
    """
    brief = kwargs.get("connect_timeout")
    connection = Connection(*args, **{**kwargs, "read_timeout": brief, "write_timeout": brief})
    try:
        connection.history = _introduced(connection, wsrep_sync_wait)
    except BaseException:
        connection.close()
        raise
    connection.answer_timeout = answer_timeout
    return connection


def _introduced(connection: Connection, sync_wait: int) -> str:
    """Whose history the server shows: its own, or that of its cluster, which all nodes share.

    In a cluster each node is told to wait for the others' commits before it answers.
    """
    server = _shown(connection, _OF_SERVER)
    if server.get("wsrep_on") != "ON":
        unique = server.get("server_uid") or server.get("server_uuid")
        return unique or f"{server.get('hostname')}:{server.get('port')}"
    cluster = _shown(connection, _OF_CLUSTER)
    if cluster.get("wsrep_ready") != "ON":
        raise OperationalError(_NODE_NOT_READY, "the node is not (yet, or any more) part of its cluster")
    with connection.cursor() as cursor:
        cursor.execute(f"SET SESSION wsrep_sync_wait = {sync_wait}")
    return cluster.get("wsrep_cluster_state_uuid", "")


def _shown(connection: Connection, statement: str) -> dict[str, str]:
    with connection.cursor() as cursor:
        cursor.execute(statement)
        return {name.lower(): value for name, value in cursor.fetchall()}
