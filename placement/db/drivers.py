"""The drivers whose connections give up waiting for an answer.

None of them has to be installed: each is imported here by those who use its database, in plain sight of the
import contracts.
"""

from collections.abc import Callable
from typing import Any


def connector(driver: str) -> Callable[..., Any] | None:
    """What makes connections: a function of the timeout for answers and of what the driver's own one takes.

    None for a driver that nobody tried here: the server's timeouts count, and the system's.

    :raises ImportError: the driver is not installed.
    """
    if driver == "psycopg":
        from placement.db import postgresql

        return postgresql.connect
    if driver == "pymysql":
        from placement.db import mysql

        return mysql.connect
    return None
