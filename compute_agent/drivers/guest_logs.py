"""The output of process guests: of those that have ended kept for a while, of all as far as there is room.

The log of a guest is ``UUID.log`` beside its record ``UUID.json``; one without a record is of a guest that
has ended. Its time of change is when the guest ended (see :meth:`RecordStore.remove`), or had its last
output.
"""

from __future__ import annotations

import contextlib
import logging
import os
import stat
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from oslo_config import cfg

from compute_agent.files import open_own
from compute_agent.model.messages import is_uuid

LOG = logging.getLogger(__name__)

LOG_SUFFIX: Final = ".log"
RECORD_SUFFIX: Final = ".json"

GRACE_SECONDS: Final = 60.0
"""A log that changed later than so long ago may be of a guest that is just being started."""


TAIL_BYTES: Final = 1 << 20
"""Bytes at most that stay of the output of a guest when there is too much of it."""


@dataclass(frozen=True, slots=True)
class EndedLog:
    """The log of a guest that has ended: its size in bytes, and when (seconds since the epoch) that was."""

    path: Path
    size: int
    ended: float


def choose(logs: Iterable[EndedLog], now: float, retention: float, max_bytes: int) -> list[EndedLog]:
    """The logs to remove.

    These are of guests that ended longer than ``retention`` seconds ago, and the oldest of the others while
    they are more than ``max_bytes`` bytes altogether.
    """
    chosen, taken = [], 0
    for log in sorted(logs, key=lambda one: one.ended, reverse=True):
        taken += log.size
        age = now - log.ended
        if age > GRACE_SECONDS and (age > retention or taken > max_bytes):
            chosen.append(log)
    return chosen


def prune(folder: Path, retention: float, max_bytes: int) -> None:
    """Remove what is to be removed in the folder of the records.

    :raises OSError:
    """
    chosen = choose(_ended(folder), time.time(), retention, max_bytes)
    for log in chosen:
        log.path.unlink(missing_ok=True)
    if chosen:
        size = sum(log.size for log in chosen)
        LOG.info("Removed the logs of %d guests that have ended (%d bytes)", len(chosen), size)


def try_prune(folder: Path, options: cfg.ConfigOpts.GroupAttr) -> None:
    """As prune(), by the options of [guests]; a failure is a line of the log."""
    try:
        prune(folder, options.log_retention, options.log_max_mb * 10**6)
    except OSError as error:
        LOG.warning("The logs of guests that have ended cannot be removed: %s", error)


class RunningLogs:
    """Keeps the logs of guests that run from filling the file system of the agent's own state.

    Guests write them without the agent, whether it runs or not, and go on at the end of what there is
    (O_APPEND): a log is shortened in its place. A guest that writes meanwhile may lose a part of its output.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._told: dict[str, str] = {}

    def shorten(self, max_bytes: int) -> None:
        """Have only the end of each log that is larger; a failure is a line of the log, once."""
        try:
            names = set(os.listdir(self._folder))
        except OSError as error:
            LOG.debug("There are no logs of guests to look at: %s", error)
            return
        for name in names:
            guest_uuid, suffix = os.path.splitext(name)
            if suffix == LOG_SUFFIX and guest_uuid + RECORD_SUFFIX in names and is_uuid(guest_uuid):
                try:
                    if (removed := _shorten(self._folder / name, max_bytes)) > 0:
                        self._tell(
                            guest_uuid, "has much output: [guests] log_guest_mb is what its log may have"
                        )
                        LOG.debug("Removed %d bytes of %s", removed, name)
                except FileNotFoundError:
                    continue
                except OSError as error:
                    self._tell(guest_uuid, f"has a log that cannot be shortened: {error}")
        self._told = {guest: text for guest, text in self._told.items() if guest + LOG_SUFFIX in names}

    def _tell(self, guest_uuid: str, text: str) -> None:
        if self._told.get(guest_uuid) != text:
            self._told[guest_uuid] = text
            LOG.warning("Guest %s %s", guest_uuid, text)


def _shorten(path: Path, max_bytes: int) -> int:
    """The bytes that were removed of a log larger than that.

    :raises OSError:
    """
    if path.lstat().st_size <= max_bytes:
        return 0
    descriptor = open_own(path, os.O_RDWR | os.O_APPEND)
    try:
        size = os.fstat(descriptor).st_size
        start = max(0, size - min(TAIL_BYTES, max_bytes // 2))
        tail = os.pread(descriptor, size - start, start)
        os.ftruncate(descriptor, 0)  # before the tail is written: there may be no room for both
        os.write(descriptor, b"[compute-agent removed %d bytes]\n" % start + tail)
    finally:
        os.close(descriptor)
    return start


def _ended(folder: Path) -> Iterator[EndedLog]:
    names = set(os.listdir(folder)) if folder.is_dir() else set()
    for name in names:
        guest_uuid, suffix = os.path.splitext(name)
        if suffix != LOG_SUFFIX or guest_uuid + RECORD_SUFFIX in names or not is_uuid(guest_uuid):
            continue
        path = folder / name
        with contextlib.suppress(FileNotFoundError):
            status = path.lstat()
            if stat.S_ISREG(status.st_mode):
                yield EndedLog(path, status.st_size, status.st_mtime)
