"""The files of events: lines appended to one, which becomes that of before when it has half of what is kept.

After a crash all that was written is there; a line that was cut is passed over.
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
"""In the state folder."""


class EventStore:
    """Appends to the files at ``path`` and ``path`` with ``.1``. To be used by one thread."""

    def __init__(self, path: Path, max_events: int, max_bytes: int) -> None:
        """No more than ``max_events`` and ``max_bytes`` are kept, in both files; the oldest half goes.

        Nothing is opened before the first event.
        """
        self.path = path
        self.max_events = max_events
        self.max_bytes = max_bytes
        self._descriptor: int | None = None
        self._size = self._count = self._last = 0

    def append(self, events: Iterable[AgentEvent]) -> int:
        """Keep events, numbered; durable when this returns. How many are kept, from the first on.

        :raises OSError: of the events none was kept that was not before.
        """
        kept = 0
        try:
            self._open()
            for event in events:
                self._add(event)
                kept += 1
            if self._descriptor is not None:
                os.fsync(self._descriptor)
        except OSError:
            self.close()
            if not kept:
                raise
        return kept

    def close(self) -> None:
        """Let go of the file; the next event opens it again."""
        if self._descriptor is not None:
            with contextlib.suppress(OSError):
                os.close(self._descriptor)
            self._descriptor = None

    def _add(self, event: AgentEvent) -> None:
        line = to_line(replace(event, id=self._last + 1))
        if self._size and (
            self._size + len(line) > self.max_bytes // 2 or self._count + 1 > max(1, self.max_events // 2)
        ):
            self._turn()
        assert self._descriptor is not None
        try:
            _write(self._descriptor, line)
        except OSError:
            with contextlib.suppress(OSError):  # the part that was written; the next start does it else
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
        content = _content(self.path)
        self._size, self._count = len(content), content.count(b"\n")
        if content and not content.endswith(b"\n"):
            _write(self._descriptor, b"\n")
            self._size += 1
            self._count += 1

    def _turn(self) -> None:
        """Begin a file anew; this one is that of before."""
        if self._descriptor is not None:
            os.fsync(self._descriptor)
        self.close()
        os.replace(self.path, before(self.path))
        self._descriptor = open_own(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o640)
        self._size = self._count = 0
        sync_folder(self.path.parent)


def before(path: Path) -> Path:
    """The file of older events."""
    return path.with_name(f"{path.name}.1")


def read_events(path: Path) -> list[AgentEvent]:
    """All events that are kept, oldest first; empty where nothing ever was.

    Somebody may append meanwhile.

    :raises OSError: a file cannot be read, or is not ours.
    """
    found: dict[int, AgentEvent] = {}
    for content in (_content(path), _content(before(path))):
        for line in content.splitlines():
            if (event := from_line(line)) is not None:
                found.setdefault(event.id, event)
    return [found[one] for one in sorted(found)]


def _content(path: Path) -> bytes:
    """The bytes of a file, whoever's it is: whoever asks may be another user than the agent."""
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
