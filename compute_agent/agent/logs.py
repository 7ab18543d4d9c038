"""Sets up the agent's log: oslo.log, a limit on repeated warnings, and events for systemd's journal.

systemd.io/JOURNAL_NATIVE_PROTOCOL describes the protocol of the journal: a datagram of ``NAME=value`` lines.
Values with line breaks would need another encoding; no value here contains one.
"""

from __future__ import annotations

import copy
import logging
import os
import socket
import sys
import time
from collections.abc import Callable, Mapping
from typing import Final

from oslo_config import cfg
from oslo_log import log
from oslo_log.formatters import ContextFormatter

from compute_agent.events.event import FIELDS, AgentEvent
from compute_agent.model.messages import on_one_line

SOCKET: Final = "/run/systemd/journal/socket"
"""The socket on which systemd-journald receives entries with fields."""

IDENTIFIER: Final = "compute-agent"
"""The program name of the agent's entries in the journal: ``journalctl -t compute-agent``."""

_PRIORITIES: Final = ((logging.ERROR, 3), (logging.WARNING, 4), (logging.INFO, 6))
"""Pairs of a log level and a syslog priority, the highest level first. The priority is for records of at
least this level.
"""

_DEBUG: Final = 7
"""The syslog priority of all records below INFO."""


def journal_is_stderr(environment: Mapping[str, str] = os.environ, descriptor: int = 2) -> bool:
    """Whether standard error is the journal stream in JOURNAL_STREAM, see systemd.exec(5)."""
    try:
        status = os.fstat(descriptor)
    except OSError:
        # Standard error is closed.
        return False
    return environment.get("JOURNAL_STREAM") == f"{status.st_dev}:{status.st_ino}"


class EventHandler(logging.Handler):
    """Sends events to the journal, and passes all other records to the handler that it replaces."""

    def __init__(self, rest: logging.Handler, path: str = SOCKET) -> None:
        super().__init__()
        self._rest = rest
        self._path = path
        self.setFormatter(rest.formatter)

    def emit(self, record: logging.LogRecord) -> None:
        """Send an event to the journal; if the journal does not accept it, write it to standard error."""
        event = getattr(record, FIELDS, None)
        if isinstance(event, AgentEvent):
            try:
                with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
                    # The socket does not block, because the journal can hang, and a thread of the agent must
                    # not wait for its log.
                    sender.setblocking(False)
                    sender.sendto(journal_entry(record, event, self.format), self._path)
                    return
            # If the journal is down or its queue is full, the event goes to standard error like other
            # records.
            except OSError:
                pass
        self._rest.handle(record)


def journal_entry(
    record: logging.LogRecord, event: AgentEvent, line: Callable[[logging.LogRecord], str]
) -> bytes:
    """The datagram that sends an event to the journal.

    :param line: formats a record as a whole line of the log.
    """
    fields = {
        "MESSAGE": " ".join(line(record).splitlines()),
        "PRIORITY": str(next((of for level, of in _PRIORITIES if record.levelno >= level), _DEBUG)),
        "SYSLOG_IDENTIFIER": IDENTIFIER,
        "SYSLOG_PID": str(os.getpid()),
        "LOGGER": record.name,
        "EVENT_KIND": event.kind,
        "EVENT_OUTCOME": event.outcome,
        "EVENT_GUEST": event.guest,
        "EVENT_GUEST_NAME": event.name,
        "EVENT_REASON": event.reason,
    }
    # A text can quote the name of a file with bytes that are not UTF-8. Python has surrogates for these
    # bytes, which cannot be encoded strictly.
    return "".join(f"{name}={value}\n" for name, value in fields.items() if value).encode(
        errors="backslashreplace"
    )


def send_events_to_journal(root: logging.Logger) -> None:
    """Send events to the journal with fields, if standard error goes to the journal anyway."""
    if journal_is_stderr():
        root.handlers = [
            EventHandler(one) if getattr(one, "stream", None) is sys.stderr else one for one in root.handlers
        ]


VERBOSE_LOGGERS: Final = "keystoneauth"
"""The logger of keystoneauth, which logs a long warning at each failed attempt to reach a service."""

PAUSE_SECONDS: Final = 60.0
"""The seconds between two log lines of the same warning: one line a minute shows that an outage goes on."""

_SHORT: Final = 100
"""The maximum number of characters of a repeated warning; its first line in the log has the whole text."""


def set_up(conf: cfg.ConfigOpts) -> None:
    """Set up logging according to section ``[DEFAULT]``."""
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
    """Apply ``[DEFAULT] debug`` after a reload, unless ``log_config_append`` names a file with levels."""
    if not conf.log_config_append:
        logging.getLogger().setLevel(logging.DEBUG if conf.debug else logging.INFO)


class _LogFormatter(ContextFormatter):
    """Formats records like oslo.log, but without the exception that oslo.log adds to warnings and errors.

    oslo.log adds the exception that Python is handling at the moment of the log call. The text of this
    exception repeats the reason in the message, or has nothing to do with the message, such as the
    queue.Empty of a timer.

    Control characters are replaced, because messages of libraries quote texts from other hosts, such as the
    address of a redirection. Each message becomes one line, so that a text from another host cannot look like
    a line of the log. A traceback keeps its lines.
    """

    def format(self, record: logging.LogRecord) -> str:
        shown = copy.copy(record)  # other handlers get the unchanged record
        # oslo.log adds the exception to records from level WARNING on.
        shown.levelno = min(record.levelno, logging.INFO)
        if not (message := record.getMessage()).isprintable():
            shown.msg, shown.args = on_one_line(message), ()
        return "\n".join(map(on_one_line, super().format(shown).split("\n")))


class RateLimitedHandler(logging.Handler):
    """Passes records to another handler.

    A repeated record passes once per PAUSE_SECONDS, shortened and with the number of repetitions.
    """

    def __init__(
        self, pass_on: Callable[[logging.LogRecord], object], clock: Callable[[], float] = time.monotonic
    ) -> None:
        super().__init__()
        self._pass_on = pass_on
        self._clock = clock
        self._said: dict[tuple[str, str], float] = {}
        self._silent: dict[tuple[str, str], int] = {}

    def emit(self, record: logging.LogRecord) -> None:
        """Pass a record on, or count it if the same message passed less than PAUSE_SECONDS ago."""
        key, now = (record.name, str(record.msg)), self._clock()
        before = self._said.get(key)
        if before is not None and now < before + PAUSE_SECONDS:
            self._silent[key] = self._silent.get(key, 0) + 1
            return
        self._said[key] = now
        if before is not None:
            record = copy.copy(record)
            record.msg, record.args = f"{_shortened_text(record.getMessage())} ({self._count_again(key)})", ()
            record.exc_info = record.exc_text = None
        self._pass_on(record)

    def _count_again(self, key: tuple[str, str]) -> str:
        count = self._silent.pop(key, 0)
        return f"and {count} more like it since the last time" if count else "again"


def _shortened_text(text: str) -> str:
    return text if len(text) <= _SHORT else f"{text[:_SHORT]}..."
