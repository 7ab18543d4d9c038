"""The store of events: a newer file, to which events are appended, and an older file.

When the newer file reaches half of the limits, it replaces the older file. All events that append() has
reported as written survive a crash. A line that the crash has cut short is ignored.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Final

from compute_agent.events.event import AgentEvent, from_line, to_line
from compute_agent.files import MAX_BYTES, open_own, sync_folder

FILE: Final = "events.jsonl"
"""Name of the newer file in the agent's state folder."""


class EventStore:
    """Appends events to the file ``path``; older events are in ``path.1``. Only one thread may use it."""

    def __init__(self, path: Path, max_events: int, max_bytes: int) -> None:
        """Set limits for both files together.

        append() opens the newer file, and drops the older file to stay below the limits.
        """
        self.path = path
        self.max_events = max_events
        self.max_bytes = max_bytes
        self._descriptor: int | None = None
        self._size = self._count = self._last = 0

    def append(self, events: Iterable[AgentEvent]) -> int:
        """Give numbers to events and write them. The events are on disk when the method returns.

        :returns: the number of events that were written. If an error ends the writes, only the returned
            number of ``events``, from the beginning, are stored.
        :raises OSError: no event was written.
        """
        kept = 0
        try:
            self._open()
            for event in events:
                self._add(event)
                kept += 1
            # All events of the call have one sync, because a sync can take seconds.
            if self._descriptor is not None:
                os.fsync(self._descriptor)
        except OSError:
            self.close()
            if not kept:
                raise
        return kept

    def close(self) -> None:
        """Close the file; the next append() opens it again."""
        if self._descriptor is not None:
            with contextlib.suppress(OSError):
                os.close(self._descriptor)
            self._descriptor = None

    def _add(self, event: AgentEvent) -> None:
        line = to_line(replace(event, id=self._last + 1))
        if self._size and (
            self._size + len(line) > self.max_bytes // 2 or self._count + 1 > max(1, self.max_events // 2)
        ):
            self._start_file()
        # append() has opened the file.
        assert self._descriptor is not None
        try:
            _write(self._descriptor, line)
        except OSError:
            # Remove the part of the line that was written. If this fails, _open() ends the line with a
            # newline.
            with contextlib.suppress(OSError):
                os.ftruncate(self._descriptor, self._size)
            raise
        self._size += len(line)
        self._count += 1
        self._last += 1

    def _open(self) -> None:
        if self._descriptor is not None:
            return
        events = read_events(self.path)
        self._last = max(self._last, events[-1].id if events else 0)
        self._descriptor = open_own(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o640)
        content = _read_content(self.path)
        self._size, self._count = len(content), content.count(b"\n")
        # A crash has cut the last line short. A newline ends this line, so that the next event is a line of
        # its own.
        if content and not content.endswith(b"\n"):
            _write(self._descriptor, b"\n")
            self._size += 1
            self._count += 1

    def _start_file(self) -> None:
        """Replace the older file by the present one, and start an empty file."""
        # The file is synced before the rename, because the rename could otherwise reach the disk before the
        # content.
        if self._descriptor is not None:
            os.fsync(self._descriptor)
        self.close()
        os.replace(self.path, older_file(self.path))
        self._descriptor = open_own(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o640)
        self._size = self._count = 0
        sync_folder(self.path.parent)


def older_file(path: Path) -> Path:
    """The path of the older file that belongs to the newer file at ``path``."""
    return path.with_name(f"{path.name}.1")


def read_events(path: Path) -> list[AgentEvent]:
    """Read all stored events, the oldest first. Another process can append events at the same time.

    :raises OSError: a file cannot be read, or is not a regular file.
    """
    # The newer file is read first. If the newer file becomes the older file between both reads, it is read
    # twice. If the older file were read first, the newer file would be missed. Events with equal ids count
    # once.
    found: dict[int, AgentEvent] = {}
    for content in (_read_content(path), _read_content(older_file(path))):
        for line in content.splitlines():
            if (event := from_line(line)) is not None:
                found.setdefault(event.id, event)
    return [found[one] for one in sorted(found)]


def _read_content(path: Path) -> bytes:
    """Read a file of any owner, because an operator can read events as another user than the agent."""
    # O_NOFOLLOW refuses a link, and O_NONBLOCK does not wait for the writer of a pipe.
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return b""
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "no regular file", str(path))
        with os.fdopen(descriptor, "rb", closefd=False) as file:
            return file.read(MAX_BYTES)
    finally:
        os.close(descriptor)


def _write(descriptor: int, content: bytes) -> None:
    while content:
        content = content[os.write(descriptor, content) :]
