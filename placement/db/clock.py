"""The clock of the database. All workers use this clock, because their own clocks can differ by hours."""

from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.functions import FunctionElement

from placement.db.batch import PreparedStatement, StatementBatch


class ServerNow(FunctionElement[float]):  # the class has a name in the style of SQL functions
    """The time at which the server executes the statement (not the earlier BEGIN), in seconds since 1970."""

    type = sa.Double()
    inherit_cache = True


@compiles(ServerNow)
def _sqlite_now(element: ServerNow, compiler: Any, **kwargs: Any) -> str:
    return "((julianday('now') - 2440587.5) * 86400.0)"


@compiles(ServerNow, "postgresql")
def _postgresql_now(element: ServerNow, compiler: Any, **kwargs: Any) -> str:
    # PostgreSQL executes this subquery once for each statement, so that comparisons with it can use an index
    return "(SELECT CAST(extract(epoch FROM clock_timestamp()) AS DOUBLE PRECISION))"


@compiles(ServerNow, "mysql")
@compiles(ServerNow, "mariadb")
def _mysql_now(element: ServerNow, compiler: Any, **kwargs: Any) -> str:
    # the time is in UTC, because the local time jumps at changes to and from daylight saving time
    return "(timestampdiff(MICROSECOND, '1970-01-01', utc_timestamp(6)) / 1000000e0)"


READ_TIME: Final = PreparedStatement(sa.select(ServerNow()))
"""The statement that reads the time of the database's clock, in seconds since 1970."""


def server_time(conn: sa.Connection) -> float:
    """Return the time of the database's clock, in seconds since 1970."""
    return float(StatementBatch(conn).add(READ_TIME, {}).scalars[0])
