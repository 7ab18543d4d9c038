"""Events and their recorder.

An event is one decision of the agent; code calls the recorder for each decision.
"""

from __future__ import annotations

import enum
import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from typing import Any, Final, Protocol

from compute_agent.model.messages import full_name, printable_text

# A float represents integers up to this number exactly, and some readers of JSON have only floats.
_MAX_ID: Final = 1 << 53


class EventKind(enum.StrEnum):
    """The kinds of decisions. Actions of watermarks have the same names as in options and metrics.

    Some kinds are not decisions of the agent, but changes that the agent has noticed, such as ``OOM_KILL``,
    ``LEAVE`` and ``CPU_OFFLINE``.
    """

    START = "start"
    FIND = "find"
    PLACE = "place"
    MOVE = "move"
    REFUSE = "refuse"
    HOLD = "hold"
    CONFIGURE = "configure"
    REPAIR = "repair"
    LEAVE = "leave"
    STOP = "stop"
    OOM_KILL = "oom_kill"
    AUDIT = "audit"
    HISTORY = "history"
    CLAIM = "claim"
    OFFER = "offer"
    STOLEN = "stolen"
    CPU_OFFLINE = "cpu_offline"
    CPU_ONLINE = "cpu_online"
    DEVICE_GONE = "device_gone"
    DEVICE_BACK = "device_back"
    BREAK = "break"
    THROTTLE_DOWN = "throttle_down"
    THROTTLE_UP = "throttle_up"
    EVICT = "evict"
    RECLAIM = "reclaim"
    VERDICT = "verdict"
    VERIFY = "verify"
    CACHE = "cache"
    RELOAD = "reload"
    DISABLE_SCHEDULING = "disable_scheduling"
    ENABLE_SCHEDULING = "enable_scheduling"


class EventOutcome(enum.StrEnum):
    """The outcome of a decision: carried out, failed, or only reported in preview."""

    DONE = "done"
    FAILED = "failed"
    PREVIEW = "preview"


@dataclass(frozen=True, slots=True)
class AgentEvent:
    """One decision. Its texts are printable and on one line.

    :ivar time: the time of the decision, in seconds since the epoch.
    :ivar kind: a value of :class:`EventKind`, or a kind that only later releases have.
    :ivar text: the message that was logged.
    :ivar outcome: a value of :class:`EventOutcome`.
    :ivar guest: uuid of the guest; empty for a decision about the host.
    :ivar name: name of the guest; empty if unknown.
    :ivar reason: the reason for the decision, or for its failure; can be empty.
    :ivar id: number of the event in the order of storing; 0 before it is stored.
    """

    time: float
    kind: str
    text: str
    outcome: str = EventOutcome.DONE
    guest: str = ""
    name: str = ""
    reason: str = ""
    id: int = 0


_FIELDS: Final = {field.name: str(field.type) for field in fields(AgentEvent)}
_TYPES: Final[dict[str, tuple[type, ...]]] = {"float": (int, float), "str": (str,), "int": (int,)}


def to_line(event: AgentEvent) -> bytes:
    """The line of an event in its file: a JSON object in ASCII, with a newline."""
    return json.dumps(asdict(event), separators=(",", ":")).encode() + b"\n"


def from_line(line: bytes) -> AgentEvent | None:
    """Parse a line of a file of events; None for other content, such as a line that a crash has cut short."""
    # Each value is checked: the file is perhaps damaged, or from another program, and terminals show its
    # texts.
    try:
        content = json.loads(line)
    except (ValueError, RecursionError):  # thousands of nested brackets exceed the parser's stack
        return None
    if not isinstance(content, dict):
        return None
    values: dict[str, Any] = {name: content.get(name) for name in _FIELDS}
    for name, value in values.items():
        if type(value) not in _TYPES[_FIELDS[name]]:  # isinstance() is not used, because a bool is an int
            return None
        if isinstance(value, str) and value and not value.isprintable():
            return None
    event = AgentEvent(**values)
    usable = 0 < event.id < _MAX_ID and 0 <= event.time < _MAX_ID
    return event if usable else None


FIELDS: Final = "event"
"""Name of the attribute of a log record that contains the event, for the handler of the systemd journal."""


class LogMethod(Protocol):
    """A method of a logger, such as ``LOG.info``."""

    def __call__(self, message: str, /, *args: object, extra: dict[str, object], stacklevel: int) -> None:
        """Log ``message % args``."""
        ...


class EventSubject(Protocol):
    """The guest that an event is about."""

    @property
    def uuid(self) -> str:
        """The uuid of the guest's consumer."""
        ...

    @property
    def name(self) -> str:
        """The name of the guest."""
        ...


@dataclass(frozen=True, slots=True)
class NamedSubject:
    """A guest of which only uuid and name are known, such as a guest that has ended."""

    uuid: str
    name: str = ""

    def __str__(self) -> str:
        return full_name(self.name, self.uuid)


class EventRecorder:
    """Logs decisions, and passes each decision to a function as an event. Any thread may use the object."""

    def __init__(self, keep: Callable[[AgentEvent], None] = lambda event: None) -> None:
        """Call ``keep`` with each event; by default, only log events.

        :param keep: stores an event. The function must neither wait nor raise an error.
        """
        self._keep = keep

    def record_done(
        self,
        log: LogMethod,
        kind: EventKind,
        guest: EventSubject,
        message: str,
        *args: object,
        reason: str = "",
    ) -> None:
        """Record a decision about a guest that was carried out.

        The guest is the first argument of ``message``, and ``args`` are the other arguments.

        :param log: the method of a logger that logs the message.
        """
        self._log_event(log, kind, guest, message, (guest, *args), reason, EventOutcome.DONE)

    def record_event(
        self,
        log: LogMethod,
        kind: EventKind,
        guest: EventSubject | None,
        message: str,
        *args: object,
        reason: str = "",
        outcome: EventOutcome = EventOutcome.DONE,
    ) -> None:
        """Log ``message % args`` with ``log``, and send the message as an event with printable text.

        :param guest: the guest that the decision concerns; None means the decision concerns the host.
        :param reason: the reason for the decision or its failure.
        """
        self._log_event(log, kind, guest, message, args, reason, outcome)

    def _log_event(
        self,
        log: LogMethod,
        kind: EventKind,
        guest: EventSubject | None,
        message: str,
        args: tuple[object, ...],
        reason: str,
        outcome: EventOutcome,
    ) -> None:
        event = AgentEvent(
            time=time.time(),
            kind=kind,
            text=printable_text(message % args),
            outcome=outcome,
            guest="" if guest is None else printable_text(guest.uuid),
            name="" if guest is None else printable_text(guest.name),
            reason=printable_text(reason),
        )
        self._keep(event)
        # With this stack level, the log names the code that has decided. It is two calls above this method.
        log(message, *args, extra={FIELDS: event}, stacklevel=3)
