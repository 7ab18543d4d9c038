"""Counter files that stay open from one round to the next: a read is then one system call."""

from __future__ import annotations

import errno
import os
import re
import resource
from collections.abc import Collection, Iterable
from typing import Final, NamedTuple

from compute_agent.resctrl.filesystem import Filesystem, ResctrlError
from compute_agent.resctrl.monitor import LOCAL_BYTES, OCCUPANCY, TOTAL_BYTES, Sample, Value, parse_counter
from compute_agent.resctrl.reader import inside

EVENTS: Final = (OCCUPANCY, TOTAL_BYTES, LOCAL_BYTES)

_LENGTH: Final = 64
"""Bytes that the content of a counter file fits in."""

Key = tuple[int, str]
"""An L3 cache id and an event."""


class _Counters(NamedTuple):
    """The counters of a group, and where each is read: a descriptor, or the path where too many are open."""

    keys: tuple[Key, ...] = ()
    places: tuple[int | str, ...] = ()


def descriptors_to_keep() -> int:
    """How many files may stay open: half of what the process may have, at most."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 1 << 16 if soft == resource.RLIM_INFINITY else soft // 2


class CounterFiles:
    """The counters of groups, control groups and monitoring groups alike."""

    def __init__(self, files: Filesystem, keep: int | None = None) -> None:
        """At most ``keep`` files stay open; the rest is opened for each reading."""
        self._files = files
        self._spare = descriptors_to_keep() if keep is None else keep
        self._groups: dict[str, _Counters] = {}

    def read(self, group: str, time: float) -> Sample:
        """The counters of a group.

        :raises ResctrlError: it, or a cache that it had, is gone.
        """
        counters = self._groups.get(group)
        try:
            if counters is None:
                counters = self._open(group)
            texts = [
                os.pread(where, _LENGTH, 0) if isinstance(where, int) else _read_path(where)
                for where in counters.places
            ]
        except OSError as error:
            self.forget(group)
            if isinstance(error, ResctrlError):
                raise
            raise ResctrlError(error.errno or errno.EIO, str(self._files.root / group)) from error
        try:
            return Sample(time, dict(zip(counters.keys, map(int, texts), strict=True)))
        except ValueError:  # some have no number
            return Sample(time, _parsed(counters.keys, texts))

    def forget(self, group: str) -> None:
        """Close the files of a group; they are looked for anew when it is read again."""
        for where in self._groups.pop(group, _Counters()).places:
            if isinstance(where, int):
                os.close(where)
                self._spare += 1

    def keep(self, groups: Collection[str]) -> None:
        """Forget all groups but these."""
        for group in self._groups.keys() - set(groups):
            self.forget(group)

    def close(self) -> None:
        """Forget all groups."""
        self.keep(())

    def _open(self, group: str) -> _Counters:
        folder = inside(group, "mon_data")
        found: dict[Key, int | str] = {}
        try:
            for name in self._files.folders(folder):
                match = re.fullmatch(r"mon_L3_([0-9]+)", name)
                for event in EVENTS if match else ():
                    path = str(self._files.root / folder / name / event)
                    if not match or not os.path.exists(path):
                        continue
                    if self._spare > 0:
                        found[int(match[1]), event] = os.open(path, os.O_RDONLY)
                        self._spare -= 1
                    else:
                        found[int(match[1]), event] = path
        finally:
            self._groups[group] = _Counters(tuple(found), tuple(found.values()))
        if not found and not (self._files.root / group).is_dir():
            raise ResctrlError(errno.ENOENT, str(self._files.root / folder))
        return self._groups[group]


def _parsed(keys: Iterable[Key], texts: Iterable[bytes]) -> dict[Key, Value]:
    parsed = (
        (key, parse_counter(text.decode(errors="replace"))) for key, text in zip(keys, texts, strict=True)
    )
    return {key: value for key, value in parsed if value is not None}


def _read_path(path: str) -> bytes:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        return os.read(descriptor, _LENGTH)
    finally:
        os.close(descriptor)
