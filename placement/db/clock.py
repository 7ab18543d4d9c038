"""The clock of the database, which all workers share, because their own clocks may differ by hours."""

from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.functions import FunctionElement


class ServerNow(FunctionElement[float]):  # named as functions of SQL are
    """Seconds since 1970 (UTC) when the server executes the statement, not when the transaction began."""

    type = sa.Double()
    inherit_cache = True


@compiles(ServerNow)
def _sqlite_now(element: ServerNow, compiler: Any, **kwargs: Any) -> str:
    return "((julianday('now') - 2440587.5) * 86400.0)"


@compiles(ServerNow, "postgresql")
def _postgresql_now(element: ServerNow, compiler: Any, **kwargs: Any) -> str:
    return "CAST(extract(epoch FROM clock_timestamp()) AS DOUBLE PRECISION)"


@compiles(ServerNow, "mysql")
@compiles(ServerNow, "mariadb")
def _mysql_now(element: ServerNow, compiler: Any, **kwargs: Any) -> str:
    # this difference does not jump with daylight saving time, as one to the local time of the session would
    return "(timestampdiff(MICROSECOND, '1970-01-01', utc_timestamp(6)) / 1000000e0)"
