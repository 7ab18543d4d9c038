"""The file with the position of a notifier, and the lock of this file.

The file is complete even after a crash.
"""

from __future__ import annotations

import fcntl
import json
import math
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from placement.exceptions import Conflict, InvalidRequest

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
