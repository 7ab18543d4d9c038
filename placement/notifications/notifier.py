"""Delivers time events in rounds, from the position in a file, which is complete even after a crash."""

from __future__ import annotations

import fcntl
import json
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from placement.db.clock import server_time
from placement.db.database import ServiceDatabase
from placement.exceptions import Conflict, InvalidRequest
from placement.notifications.webhook import DeliveryFailed
from placement.store.time_events import EventInterval, TimeEvent, list_events

_VERSION: Final = 1
# a wrong path, such as /dev/zero, must not fill the memory
_MAX_BYTES: Final = 64 * 1024 * 1024
"""The maximum number of bytes of the file."""


@dataclass(frozen=True, slots=True)
class NotifierPosition:
    """The time of a position in seconds since 1970, and the times of recent delivered events by event id."""

    time: float
    recent: Mapping[str, float] = field(default_factory=dict)

    def to_document(self) -> dict[str, Any]:
        """Return the position as JSON."""
        return {"version": _VERSION, "position": self.time, "recent": dict(self.recent)}

    @classmethod
    def from_document(cls, document: Any) -> NotifierPosition:
        """Return the position from a JSON document.

        :raises ValueError: the document has no valid position.
        """
        if not isinstance(document, dict) or document.get("version") != _VERSION:
            raise ValueError(f"it is no document of version {_VERSION}")
        time, recent = document.get("position"), document.get("recent")
        if (
            time is None
            or not _is_time(time)
            or not isinstance(recent, dict)
            or not all(map(_is_time, recent.values()))
        ):
            raise ValueError("its position or its recent events are wrong")
        return cls(float(time), {name: float(each) for name, each in recent.items()})


def _is_time(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


@dataclass(frozen=True, slots=True)
class PositionFile:
    """The file with a position."""

    path: Path

    def read(self) -> NotifierPosition | None:
        """Return the position; None if the file does not exist.

        :raises InvalidRequest: the file cannot be read, or its content is no position.
        """
        try:
            with self.path.open("rb") as file:
                content = file.read(_MAX_BYTES)
            return NotifierPosition.from_document(json.loads(content))
        except FileNotFoundError:
            return None
        # a hostile document can be nested too deeply for the parser
        except (OSError, ValueError, RecursionError) as error:
            raise InvalidRequest(
                f"--state {self.path} cannot be used: {error}. Restore it; or remove it, to begin with the"
                " events from now on."
            ) from error

    def write(self, position: NotifierPosition) -> None:
        """Replace the file; after a power cut, either the old file or the new file is there, and complete.

        :raises InvalidRequest: the file cannot be written.
        """
        new = self.path.with_name(f"{self.path.name}.new")
        try:
            fd = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            with open(fd, "w", encoding="utf-8") as file:
                json.dump(position.to_document(), file)
                file.flush()
                os.fsync(fd)
            os.replace(new, self.path)
            folder = os.open(self.path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)
        except OSError as error:
            raise InvalidRequest(
                f"--state {self.path} cannot be written: {error}. Give a file in a folder where this user may"
                " create files."
            ) from error

    @contextmanager
    def hold_lock(self) -> Iterator[None]:
        """Hold the lock of the file; the kernel releases the lock if the process ends.

        :raises Conflict: another process holds the lock.
        :raises InvalidRequest: the lock's own file cannot be created.
        """
        # the lock has its own file, because each write replaces the file that has the position
        path = self.path.with_name(f"{self.path.name}.lock")
        try:
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise InvalidRequest(
                f"--state {self.path} cannot be locked: {error}. Give a file in a folder where this user may"
                " create files."
            ) from error
        try:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise Conflict(
                    f"Another notifier uses --state {self.path}: end it, or give this one a file of its own."
                ) from None
            yield
        finally:
            os.close(fd)


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
    :param page_size: the number of events that one statement reads.
    """

    database: ServiceDatabase
    file: PositionFile
    post: Callable[[Mapping[str, Any]], None]
    pause: Callable[[float], None]
    report: Callable[[str], None]
    notice: float
    max_attempts: int | None = None
    page_size: int = 500

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
                page = list_events(conn, interval, after, self.page_size)
            if page:
                yield page
            if len(page) < self.page_size:
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
