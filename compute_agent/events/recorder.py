"""Whom those tell who decide."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

from compute_agent.events.event import AgentEvent, EventKind, EventOutcome
from compute_agent.model.messages import called, printable

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
