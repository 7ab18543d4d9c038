"""The agent's log: oslo.log without repetitions; events have fields of their own in systemd's journal.

The journal's protocol is described at systemd.io/JOURNAL_NATIVE_PROTOCOL: a datagram of ``NAME=value`` lines.
No value here contains a line break.
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
IDENTIFIER: Final = "compute-agent"

_PRIORITIES: Final = ((logging.ERROR, 3), (logging.WARNING, 4), (logging.INFO, 6))
_DEBUG: Final = 7


def journal_is_stderr(environment: Mapping[str, str] = os.environ, descriptor: int = 2) -> bool:
    """Whether standard error goes to the journal: systemd says to which file (systemd.exec(5))."""
    try:
        status = os.fstat(descriptor)
    except OSError:
        # Standard error is closed.
        return False
    return environment.get("JOURNAL_STREAM") == f"{status.st_dev}:{status.st_ino}"


class EventHandler(logging.Handler):
    """In place of the handler for standard error: events go to the journal, all else where it went."""

    def __init__(self, rest: logging.Handler, path: str = SOCKET) -> None:
        super().__init__()
        self._rest = rest
        self._path = path
        self.setFormatter(rest.formatter)

    def emit(self, record: logging.LogRecord) -> None:
        """Write one line; to standard error where the journal does not take it at once."""
        event = getattr(record, FIELDS, None)
        if isinstance(event, AgentEvent):
            try:
                with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
                    # The journal may hang, and no log line may wait for it.
                    sender.setblocking(False)
                    sender.sendto(journal_entry(record, event, self.format), self._path)
                    return
            # The journal is away or its queue is full: standard error is the other way.
            except OSError:
                pass
        self._rest.handle(record)


def journal_entry(
    record: logging.LogRecord, event: AgentEvent, line: Callable[[logging.LogRecord], str]
) -> bytes:
    """The datagram of an event; ``line`` makes the whole line of the log of a record."""
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
    # Names of files may have surrogates, which stand for bytes that are not UTF-8.
    return "".join(f"{name}={value}\n" for name, value in fields.items() if value).encode(
        errors="backslashreplace"
    )


def send_events_to_journal(root: logging.Logger) -> None:
    """Send events to the journal instead of standard error, if standard error leads to the journal."""
    if journal_is_stderr():
        root.handlers = [
            EventHandler(one) if getattr(one, "stream", None) is sys.stderr else one for one in root.handlers
        ]


VERBOSE_LOGGERS: Final = "keystoneauth"
"""The logger of the library that warns, at length and at every attempt, of what does not answer."""

# A line a minute shows that an outage goes on.
PAUSE_SECONDS: Final = 60.0
# Characters of a repeated warning, of which the log has the whole text already.
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

    Messages contain their reason. The added exception would repeat it, or belongs to something else, such as
    the queue.Empty of a timer.

    Control characters are replaced: libraries quote peers, such as the address of a redirection. A message is
    one line, so that a peer's text cannot look like a line of the log; a traceback keeps its lines.
    """

    def format(self, record: logging.LogRecord) -> str:
        shown = copy.copy(record)  # other handlers have the record as it is
        # oslo.log adds the exception to records from level WARNING on.
        shown.levelno = min(record.levelno, logging.INFO)
        if not (message := record.getMessage()).isprintable():
            shown.msg, shown.args = on_one_line(message), ()
        return "\n".join(map(on_one_line, super().format(shown).split("\n")))


class RateLimitedHandler(logging.Handler):
    """Passes warnings on; a repeated one only once a minute, in short and with a count."""

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
            record.msg, record.args = f"{_shortened_text(record.getMessage())} ({self._count_again(key)})", ()
            record.exc_info = record.exc_text = None
        self._pass_on(record)

    def _count_again(self, key: tuple[str, str]) -> str:
        count = self._silent.pop(key, 0)
        return f"and {count} more like it since the last time" if count else "again"


def _shortened_text(text: str) -> str:
    return text if len(text) <= _SHORT else f"{text[:_SHORT]}..."
