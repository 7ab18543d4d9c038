"""A backend of ``/healthcheck`` that checks the database. ``[healthcheck] backends`` can turn it on."""

import logging
import threading
import time
from typing import Any, Final

from oslo_config import cfg
from oslo_middleware.healthcheck.pluginbase import HealthcheckBaseExtension, HealthcheckResult

from placement.db import migration
from placement.exceptions import Unavailable

LOG = logging.getLogger(__name__)

# most proxies wait this time for the answer to a health check
_TIMEOUT: Final = 2.0
"""Maximum seconds for which a health check waits for the database."""
# results are used again, because a health check needs no token, and clients can send any number of them
_KEPT: Final = 1.0
"""Seconds for which the result of a check is used again."""

_OK: Final = "OK"
_SILENT: Final = "the database does not answer"
_AWAY: Final = "the database is not available"
_OTHER_SCHEMA: Final = "the database does not have a schema that this version can work with"


class DatabaseHealthcheck(HealthcheckBaseExtension):
    """The backend ``placement_database`` of oslo.middleware's health check.

    Only one thread at a time sends a query to the database. Health checks that arrive meanwhile wait for the
    result of this query, at most until its time limit.
    """

    def __init__(self, oslo_conf: cfg.ConfigOpts, conf: dict[str, Any]) -> None:
        super().__init__(oslo_conf, conf)
        self._url: str = oslo_conf.placement_database.connection
        self._lock = threading.Lock()
        self._answered = threading.Event()
        self._asked = 0.0
        self._reason = _OK
        self._asking = False

    def healthcheck(self, server_port: int) -> HealthcheckResult:
        """Return whether the database answers and has a usable schema. oslo.middleware calls this method."""
        now = time.monotonic()
        with self._lock:
            if not self._asking and now - self._asked >= _KEPT:
                self._asked, self._asking = now, True
                self._answered.clear()
                # the thread is a daemon, so that the process can end although the query hangs
                threading.Thread(target=self._ask_database, name="healthcheck", daemon=True).start()
            # a check during a running query waits only for the rest of the time limit of this query
            left = self._asked + _TIMEOUT - now
        reason = self._reason if self._answered.wait(max(0.0, left)) else _SILENT
        return HealthcheckResult(available=reason == _OK, reason=reason)

    def _ask_database(self) -> None:
        reason = _AWAY
        try:
            reason = (
                _OK if migration.find_obstacle(migration.find_database(self._url)) is None else _OTHER_SCHEMA
            )
        except Unavailable:
            pass  # clients without a token must not see the error of the database
        except Exception:
            LOG.exception("The health check answers 503, because it could not query the database")
        finally:
            with self._lock:
                self._reason, self._asking = reason, False
                self._answered.set()
