"""Lines of the log that tell of events, to systemd's journal with fields of their own.

The protocol is that of systemd.io/JOURNAL_NATIVE_PROTOCOL: a datagram of ``NAME=value`` lines, of which none
here has a line break in it.
"""

from __future__ import annotations

import logging
import os
import socket
import sys
from collections.abc import Callable, Mapping
from typing import Final

from compute_agent.events.event import FIELDS, AgentEvent

SOCKET: Final = "/run/systemd/journal/socket"
IDENTIFIER: Final = "compute-agent"

_PRIORITIES: Final = ((logging.ERROR, 3), (logging.WARNING, 4), (logging.INFO, 6))
_DEBUG: Final = 7


def journal_is_stderr(environment: Mapping[str, str] = os.environ, descriptor: int = 2) -> bool:
    """Whether standard error goes to the journal: systemd says to which file (systemd.exec(5))."""
    try:
        status = os.fstat(descriptor)
    except OSError:
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
                    sender.setblocking(False)
                    sender.sendto(entry(record, event, self.format), self._path)
                    return
            except OSError:
                pass
        self._rest.handle(record)


def entry(record: logging.LogRecord, event: AgentEvent, line: Callable[[logging.LogRecord], str]) -> bytes:
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
    return "".join(f"{name}={value}\n" for name, value in fields.items() if value).encode(
        errors="backslashreplace"
    )


def send_events_to_journal(root: logging.Logger) -> None:
    """Have events among what goes to standard error go to the journal instead, if that is where it ends."""
    if journal_is_stderr():
        root.handlers = [
            EventHandler(one) if getattr(one, "stream", None) is sys.stderr else one for one in root.handlers
        ]
