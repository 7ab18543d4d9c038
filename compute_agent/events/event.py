"""An event: one decision of the agent, in words.

Whom those tell who decide.
"""

from __future__ import annotations

import enum
import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from typing import Any, Final, Protocol

from compute_agent.model.messages import called, printable

_MAX_ID: Final = 1 << 53


class EventKind(enum.StrEnum):
    """What was decided. For watermarks these are the words of their options and metrics.

    ``OOM_KILL`` the kernel has decided.
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
    BREAK = "break"
    THROTTLE_DOWN = "throttle_down"
    THROTTLE_UP = "throttle_up"
    EVICT = "evict"
    VERDICT = "verdict"
    DISABLE_SCHEDULING = "disable_scheduling"
    ENABLE_SCHEDULING = "enable_scheduling"


class EventOutcome(enum.StrEnum):
    """What came of a decision."""

    DONE = "done"
    FAILED = "failed"
    PREVIEW = "preview"


@dataclass(frozen=True, slots=True)
class AgentEvent:
    """One decision. ``time`` is in seconds since the epoch; ``id`` grows with it, 0: not kept yet.

    ``guest`` and ``name`` are the uuid and name of whom it is about, empty where it is about the host.
    ``text`` is the sentence of the log, ``reason`` why it was decided, or why it failed. Texts are printable
    and on one line. ``kind`` is one of :class:`Kind`, or of a later release.
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
    """The event of a line; None for what is none, such as a line that a crash has cut."""
    try:
        content = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(content, dict):
        return None
    values: dict[str, Any] = {name: content.get(name) for name in _FIELDS}
    for name, value in values.items():
        if type(value) not in _TYPES[_FIELDS[name]]:
            return None
        if isinstance(value, str) and value and not value.isprintable():
            return None
    event = AgentEvent(**values)
    usable = 0 < event.id < _MAX_ID and 0 <= event.time < _MAX_ID
    return event if usable else None


FIELDS: Final = "event"
"""The attribute of a log record that has the event which it tells of."""


class LogMethod(Protocol):
    """A method of a logger, such as ``LOG.info``."""

    def __call__(self, message: str, /, *args: object, extra: dict[str, object], stacklevel: int) -> None:
        """Log ``message % args``."""
        ...


class EventSubject(Protocol):
    """Whom an event is about: a guest."""

    @property
    def uuid(self) -> str:
        """The uuid of its consumer."""
        ...

    @property
    def name(self) -> str:
        """Its name."""
        ...


@dataclass(frozen=True, slots=True)
class NamedSubject:
    """A guest of which there is no more than this."""

    uuid: str
    name: str = ""

    def __str__(self) -> str:
        return called(self.name, self.uuid)


class EventRecorder:
    """Logs decisions, and hands them on as events. For several threads."""

    def __init__(self, keep: Callable[[AgentEvent], None] = lambda event: None) -> None:
        """``keep`` must neither wait nor raise anything. Without it decisions are logged and no more."""
        self._keep = keep

    def tell(
        self,
        log: LogMethod,
        kind: EventKind,
        guest: EventSubject,
        message: str,
        *args: object,
        reason: str = "",
    ) -> None:
        """As record(), of a decision that was carried out; the first argument of the message is the guest."""
        self._record(log, kind, guest, message, (guest, *args), reason, EventOutcome.DONE)

    def record(
        self,
        log: LogMethod,
        kind: EventKind,
        guest: EventSubject | None,
        message: str,
        *args: object,
        reason: str = "",
        outcome: EventOutcome = EventOutcome.DONE,
    ) -> None:
        """Log ``message % args`` by ``log``, and have it kept as an event, in printable characters.

        ``guest`` is None where it is about the host.
        """
        self._record(log, kind, guest, message, args, reason, outcome)

    def _record(
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
            text=printable(message % args),
            outcome=outcome,
            guest="" if guest is None else printable(guest.uuid),
            name="" if guest is None else printable(guest.name),
            reason=printable(reason),
        )
        self._keep(event)
        log(message, *args, extra={FIELDS: event}, stacklevel=3)
