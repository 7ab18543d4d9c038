"""The one question that is asked before every answer, asked as cheaply as the driver can."""

import threading
from contextlib import closing
from typing import Any

import sqlalchemy as sa

from placement.db import errors
from placement.db.tables import change_buckets


class ChangeProbe:
    """Asks for the sum of all change counters, on a connection that each thread keeps for that.

    :param engine: one whose connections commit by themselves.
    """

    def __init__(self, engine: sa.Engine) -> None:
        self._engine = engine
        self._question = str(sa.select(sa.func.sum(change_buckets.c.counter)).compile(dialect=engine.dialect))
        self._ask = self._ask_directly if engine.dialect.driver == "psycopg" else self._ask_by_cursor
        self._local = threading.local()

    def counters_sum(self) -> int:
        """The sum; a connection that died since the last question is replaced.

        :raises sqlalchemy.exc.SQLAlchemyError: the database does not answer, or not to this.
        """
        try:
            return self._asked()
        except self._engine.dialect.loaded_dbapi.Error as error:
            raise errors.of_driver(self._engine.dialect, error, None) from error

    def _asked(self) -> int:
        connection: Any = getattr(self._local, "connection", None)
        if connection is not None:
            try:
                return self._ask(connection)
            except self._engine.dialect.loaded_dbapi.Error:
                self._local.connection = None
                connection.invalidate()
        connection = self._engine.raw_connection()
        try:
            total = self._ask(connection)
        except BaseException:
            connection.invalidate()
            raise
        self._local.connection = connection
        return total

    def _ask_directly(self, connection: Any) -> int:
        return int(connection.driver_connection.ask(self._question.encode()) or 0)

    def _ask_by_cursor(self, connection: Any) -> int:
        with closing(connection.cursor()) as cursor:
            cursor.execute(self._question)
            (total,) = cursor.fetchone()
        return int(total or 0)

    def close(self) -> None:
        """Give this thread's connection back."""
        connection: Any = getattr(self._local, "connection", None)
        self._local.connection = None
        if connection is not None:
            connection.close()
