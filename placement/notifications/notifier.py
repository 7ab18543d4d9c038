"""Delivers time events in rounds, from the position in a file."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from placement.db.clock import server_time
from placement.db.database import ServiceDatabase
from placement.notifications.position_file import NotifierPosition, PositionFile
from placement.notifications.webhook import DeliveryFailed
from placement.store.time_events import EventInterval, TimeEvent, list_events

# a transaction can last some seconds, and after a failover the clock can be some seconds behind
OVERLAP: Final = 60.0
"""Each round reads again this number of seconds before the position."""
# after months without a notifier, the next notifier reads these months in parts
MAX_INTERVAL: Final = 7 * 86_400.0
"""Maximum number of seconds that a round reads."""
ROUND_PAUSE: Final = 10.0
"""The number of seconds between two rounds."""
MAX_PAUSE: Final = 60.0
"""Maximum number of seconds between two attempts to deliver an event."""
_SAVED_PART: Final = 50
"""After a crash, the notifier repeats at most one event, or one in this number of recent events."""
_PAGE: Final = 500
"""Number of events that one statement reads."""


def pause_after(attempts: int) -> float:
    """Return the number of seconds to wait after failed attempts: 1, 2, 4, and so on up to the maximum."""
    return min(MAX_PAUSE, 2.0 ** min(attempts - 1, 10))


def advance_position(position: NotifierPosition, until: float) -> NotifierPosition:
    """Return a position at ``until``, with its recent events; all events before ``until`` are delivered."""
    recent = {name: each for name, each in position.recent.items() if each >= until - OVERLAP}
    return NotifierPosition(until, recent)


@dataclass(frozen=True, slots=True)
class EventNotifier:
    """Delivers the events of a database.

    :param post: a function that sends a document; it raises :class:`DeliveryFailed` if it cannot send it.
    :param pause: a function that waits for a number of seconds.
    :param report: a function that shows a sentence to the operator.
    :param notice: the number of seconds from an announcement to the announced time.
    :param max_attempts: the maximum number of attempts to deliver an event; None means no limit.
    """

    database: ServiceDatabase
    file: PositionFile
    post: Callable[[Mapping[str, Any]], None]
    pause: Callable[[float], None]
    report: Callable[[str], None]
    notice: float
    max_attempts: int | None = None

    def run_round(self) -> bool:
        """Deliver the events since the last round; return whether all events up to now are delivered.

        The first round with a new file delivers no events, and stores the current time as the position.

        :raises DeliveryFailed: all attempts to deliver an event failed.
        """
        with self.database.read() as conn:
            now = server_time(conn)
        position = self.file.read()
        if position is None:
            self.file.write(NotifierPosition(now))
            return True
        # after a failover, the database's clock can be behind the clock of an earlier round
        until = max(position.time, min(now, position.time + MAX_INTERVAL))
        interval = EventInterval(position.time - OVERLAP, until, self.notice)
        for page in self._read_pages(interval):
            position = self._deliver_page(position, page)
        if position.time < until:
            self.file.write(advance_position(position, until))
        return until >= now

    def _deliver_page(self, position: NotifierPosition, page: Sequence[TimeEvent]) -> NotifierPosition:
        """Deliver the new events of a page; return the position after its last event."""
        recent, unsaved = dict(position.recent), 0
        try:
            for event in page:
                if event.event_id in recent:
                    continue
                self._deliver_event(event)
                recent[event.event_id] = event.instant
                unsaved += 1
                # in a burst, the file is not written after each event, because all recent events are in it
                if unsaved * _SAVED_PART >= len(recent):
                    self.file.write(NotifierPosition(position.time, recent))
                    unsaved = 0
        finally:
            if unsaved:
                self.file.write(NotifierPosition(position.time, recent))
        # perhaps the first page contains only events of the overlap
        time = max(position.time, page[-1].instant)
        return advance_position(NotifierPosition(position.time, recent), time)

    def _read_pages(self, interval: EventInterval) -> Iterator[Sequence[TimeEvent]]:
        after = None
        while True:
            # no connection is held while events are delivered
            with self.database.read() as conn:
                page = list_events(conn, interval, after, _PAGE)
            if page:
                yield page
            if len(page) < _PAGE:
                return
            after = page[-1].position

    def _deliver_event(self, event: TimeEvent) -> None:
        document, attempts = event.to_document(), 0
        while True:
            try:
                self.post(document)
            except DeliveryFailed as error:
                attempts += 1
                name = f"The event {event.event_id} ({event.kind} of {event.consumer})"
                if self.max_attempts is not None and attempts >= self.max_attempts:
                    raise DeliveryFailed(f"{name} was not delivered: {error}.") from error
                seconds = pause_after(attempts)
                self.report(f"{name} was not delivered: {error}; the next attempt is in {seconds:g} seconds.")
                self.pause(seconds)
            else:
                return
