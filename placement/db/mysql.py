"""Connections to MySQL and MariaDB whose limit for an answer can be changed."""

from typing import Any

from pymysql.connections import Connection as PyMySQLConnection


class Connection(PyMySQLConnection):  # type: ignore[misc]  # PyMySQL has no types
    """A connection that fails, and is closed, when nothing came from the server for too long."""

    @property
    def answer_limit(self) -> float | None:
        """How long that is, in seconds; None for ever."""
        limit: float | None = self._read_timeout
        return limit

    @answer_limit.setter
    def answer_limit(self, seconds: float | None) -> None:
        # PyMySQL looks at these before it reads and writes; to its constructor it is one limit for all.
        self._read_timeout = seconds
        self._write_timeout = seconds


def connect(answer_limit: float | None, *args: Any, **kwargs: Any) -> Connection:
    """A connection with this limit; the other arguments are those of :func:`pymysql.connect`.

    The greeting of the server has to come within ``connect_timeout``, too.
    """
    brief = kwargs.get("connect_timeout")
    connection = Connection(*args, **{**kwargs, "read_timeout": brief, "write_timeout": brief})
    connection.answer_limit = answer_limit
    return connection
