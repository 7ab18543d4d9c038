"""Connections to MySQL and MariaDB with a changeable timeout for answers.

Only :mod:`placement.db.engine` uses this module, and imports it only for such a database, because it needs
PyMySQL.
"""

from typing import Any, Final

from pymysql.connections import Connection as PyMySQLConnection
from pymysql.err import OperationalError

_NODE_NOT_READY: Final = 1047

_OF_SERVER: Final = (
    "SHOW VARIABLES WHERE variable_name IN ('wsrep_on', 'server_uid', 'server_uuid', 'hostname', 'port')"
)
"""The statement that reads which variables identify the server: "server_uid" of MariaDB, or "server_uuid" of
MySQL. Old versions have neither variable, so host name and port are read, too.
"""
_OF_CLUSTER: Final = "SHOW STATUS WHERE variable_name IN ('wsrep_ready', 'wsrep_cluster_state_uuid')"


class MysqlConnection(PyMySQLConnection):  # type: ignore[misc]  # PyMySQL has no types
    """A connection that fails and closes if the server sends nothing in time.

    ``history`` identifies the server or its cluster (:mod:`placement.db.position`). ``in_cluster`` is set if
    the server is a node of a cluster.
    """

    history = ""
    in_cluster = False

    @property
    def answer_timeout(self) -> float | None:
        """Seconds to wait for data of the server; None means no limit."""
        timeout: float | None = self._read_timeout
        return timeout

    @answer_timeout.setter
    def answer_timeout(self, seconds: float | None) -> None:
        # PyMySQL reads these two attributes before each read and write
        self._read_timeout = seconds
        self._write_timeout = seconds

    def note_history(self, wsrep_sync_wait: int) -> None:
        """Read the id of the server, or of its cluster, and store it as the history.

        If the server is a node of a cluster, also set the variable ``wsrep_sync_wait``.

        :raises pymysql.err.OperationalError: the server is outside of its cluster.
        """
        server = _shown_values(self, _OF_SERVER)
        self.in_cluster = server.get("wsrep_on") == "ON"
        if not self.in_cluster:
            unique = server.get("server_uid") or server.get("server_uuid")
            self.history = unique or f"{server.get('hostname')}:{server.get('port')}"
            return
        cluster = _shown_values(self, _OF_CLUSTER)
        if cluster.get("wsrep_ready") != "ON":
            # MySQL servers use this error code for such a node, so here too another node is tried
            raise OperationalError(_NODE_NOT_READY, "the node has not joined its cluster, or has lost it")
        self.history = cluster.get("wsrep_cluster_state_uuid", "")
        with self.cursor() as cursor:
            cursor.execute(f"SET SESSION wsrep_sync_wait = {wsrep_sync_wait}")


def connect(answer_timeout: float | None, *args: Any, wsrep_sync_wait: int, **kwargs: Any) -> MysqlConnection:
    """Connect with this timeout for answers. All other arguments are passed to :func:`pymysql.connect`.

    Until the connection is ready, ``connect_timeout`` also limits the wait for each answer of the server.

    :raises pymysql.err.OperationalError: no connection is possible, or the node is outside of its cluster.
    """
    brief = kwargs.get("connect_timeout")
    connection = MysqlConnection(*args, **{**kwargs, "read_timeout": brief, "write_timeout": brief})
    try:
        # until here, connect_timeout limits the wait for answers, so that a server which hangs after its
        # greeting is noticed
        connection.note_history(wsrep_sync_wait)
    except BaseException:
        connection.close()
        raise
    connection.answer_timeout = answer_timeout
    return connection


def _shown_values(connection: MysqlConnection, statement: str) -> dict[str, str]:
    with connection.cursor() as cursor:
        cursor.execute(statement)
        return {name.lower(): value for name, value in cursor.fetchall()}
