"""The log of the daemon: oslo.log's, with each thing said once."""

from __future__ import annotations

import copy
import logging
import time
from collections.abc import Callable
from typing import Final

from oslo_config import cfg
from oslo_log import log
from oslo_log.formatters import ContextFormatter

from compute_agent.daemon.journal import send_events_to_journal

VERBOSE_LOGGERS: Final = "keystoneauth"
"""The logger of the library that warns, at length and at every attempt, of what does not answer."""

PAUSE_SECONDS: Final = 60.0
_SHORT: Final = 100


def set_up(conf: cfg.ConfigOpts) -> None:
    """Log as section [DEFAULT] says."""
    log.setup(conf, "compute-agent")
    for handler in logging.getLogger().handlers:
        if isinstance(old := handler.formatter, ContextFormatter):
            handler.setFormatter(
                _LogFormatter(datefmt=old.datefmt, project=old.project, version=old.version, config=old.conf)
            )
    send_events_to_journal(logging.getLogger())
    talkative = logging.getLogger(VERBOSE_LOGGERS)
    talkative.handlers = [RateLimitedHandler(logging.getLogger().callHandlers)]
    talkative.propagate = False


def set_level(conf: cfg.ConfigOpts) -> None:
    """Take up another ``[DEFAULT] debug``, unless there is a logging configuration of its own."""
    if not conf.log_config_append:
        logging.getLogger().setLevel(logging.DEBUG if conf.debug else logging.INFO)


class _LogFormatter(ContextFormatter):
    """Leaves away what oslo.log adds to warnings: the exception that is being handled just then.

    Messages have the reason in them. That exception says it twice, or is another's, such as the queue.Empty
    of a timer.
    """

    def format(self, record: logging.LogRecord) -> str:
        level, record.levelno = record.levelno, min(record.levelno, logging.INFO)
        try:
            return super().format(record)
        finally:
            record.levelno = level


class RateLimitedHandler(logging.Handler):
    """Passes warnings on, but what was just said again once a minute only, in short and with a count."""

    def __init__(
        self, pass_on: Callable[[logging.LogRecord], object], clock: Callable[[], float] = time.monotonic
    ) -> None:
        super().__init__()
        self._pass_on = pass_on
        self._clock = clock
        self._said: dict[tuple[str, str], float] = {}
        self._silent: dict[tuple[str, str], int] = {}

    def emit(self, record: logging.LogRecord) -> None:
        """Pass a record on, or count it."""
        key, now = (record.name, str(record.msg)), self._clock()
        before = self._said.get(key)
        if before is not None and now < before + PAUSE_SECONDS:
            self._silent[key] = self._silent.get(key, 0) + 1
            return
        self._said[key] = now
        if before is not None:
            record = copy.copy(record)
            record.msg, record.args = f"{_shortened(record.getMessage())} ({self._again(key)})", ()
            record.exc_info = record.exc_text = None
        self._pass_on(record)

    def _again(self, key: tuple[str, str]) -> str:
        count = self._silent.pop(key, 0)
        return f"and {count} more like it since the last time" if count else "again"


def _shortened(text: str) -> str:
    return text if len(text) <= _SHORT else f"{text[:_SHORT]}..."
