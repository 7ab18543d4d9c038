"""Connections to MySQL and MariaDB whose timeout for an answer can be changed."""

from typing import Any

from pymysql.connections import Connection as PyMySQLConnection


class Connection(PyMySQLConnection):  # type: ignore[misc]  # PyMySQL has no types
    """A connection that fails, and is closed, when nothing came from the server for too long."""

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


def connect(answer_timeout: float | None, *args: Any, **kwargs: Any) -> Connection:
    """A connection with this timeout; the other arguments are those of :func:`pymysql.connect`.

    The greeting of the server has to come within ``connect_timeout``, too.
    """
    brief = kwargs.get("connect_timeout")
    connection = Connection(*args, **{**kwargs, "read_timeout": brief, "write_timeout": brief})
    connection.answer_timeout = answer_timeout
    return connection
