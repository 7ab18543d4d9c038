"""An event, which is one decision of the agent in words, and the recorder that deciding code calls."""

from __future__ import annotations

import enum
import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from typing import Any, Final, Protocol

from compute_agent.model.messages import full_name, printable_text

# Up to this number a float keeps whole numbers exact, and readers of JSON may have floats alone.
_MAX_ID: Final = 1 << 53


class EventKind(enum.StrEnum):
    """The kind of decision. Watermarks use the words of their options and metrics.

    ``OOM_KILL`` is a decision of the kernel.
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
    VERDICT = "verdict"
    VERIFY = "verify"
    CACHE = "cache"
    RELOAD = "reload"
    DISABLE_SCHEDULING = "disable_scheduling"
    ENABLE_SCHEDULING = "enable_scheduling"


class EventOutcome(enum.StrEnum):
    """The outcome of a decision."""

    DONE = "done"
    FAILED = "failed"
    PREVIEW = "preview"


@dataclass(frozen=True, slots=True)
class AgentEvent:
    """One decision. Texts are printable and on one line.

    :ivar time: seconds since the epoch.
    :ivar kind: an :class:`EventKind`, or one of a later release.
    :ivar text: the sentence of the log.
    :ivar guest: uuid of the guest; empty for a decision about the host.
    :ivar name: name of the guest.
    :ivar reason: the reason of the decision, or of its failure.
    :ivar id: number in the order of events; 0 before it is stored.
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
    """An event as a line of its file: JSON, in ASCII."""
    return json.dumps(asdict(event), separators=(",", ":")).encode() + b"\n"


def from_line(line: bytes) -> AgentEvent | None:
    """The event of a line; None for another content, such as a line that a crash has cut."""
    # The file may be damaged or written by another program, and its texts go to terminals.
    try:
        content = json.loads(line)
    except (ValueError, RecursionError):  # thousands of brackets exceed the parser's depth
        return None
    if not isinstance(content, dict):
        return None
    values: dict[str, Any] = {name: content.get(name) for name in _FIELDS}
    for name, value in values.items():
        if type(value) not in _TYPES[_FIELDS[name]]:  # not isinstance: a bool is an int
            return None
        if isinstance(value, str) and value and not value.isprintable():
            return None
    event = AgentEvent(**values)
    usable = 0 < event.id < _MAX_ID and 0 <= event.time < _MAX_ID
    return event if usable else None


FIELDS: Final = "event"
"""The attribute of a log record with its event, for the systemd journal."""


class LogMethod(Protocol):
    """A method of a logger, such as ``LOG.info``."""

    def __call__(self, message: str, /, *args: object, extra: dict[str, object], stacklevel: int) -> None:
        """Log ``message % args``."""
        ...


class EventSubject(Protocol):
    """The subject of an event: a guest."""

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
    """A guest of which only uuid and name are known, such as an ended one."""

    uuid: str
    name: str = ""

    def __str__(self) -> str:
        return full_name(self.name, self.uuid)


class EventRecorder:
    """Logs decisions, and hands them on as events. Several threads may use it."""

    def __init__(self, keep: Callable[[AgentEvent], None] = lambda event: None) -> None:
        """Make a recorder. ``keep`` must neither wait nor raise; without it, decisions are only logged."""
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
        """Record a decision that was carried out. The first argument of the message is the guest."""
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
        """Log ``message % args`` by ``log``, and hand it on as an event in printable characters.

        :param guest: None for a decision about the host.
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
        # stacklevel: the log names the deciding code, two calls above this method.
        log(message, *args, extra={FIELDS: event}, stacklevel=3)
