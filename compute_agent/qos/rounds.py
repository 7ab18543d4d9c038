"""One round of reading: every file at most once, whoever asks for it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from compute_agent.host.kernel_files import read_optional
from compute_agent.qos.snapshot import GuestUsage

LOG = logging.getLogger(__name__)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class MeasuredGuest:
    """A guest with what is needed to measure it: its cgroup v2 folder or, where it has none, its processes.

    ``facts`` are what decisions need beside its usage, which is empty here.
    """

    facts: GuestUsage
    cgroup: str = ""
    pids: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class CacheReading:
    """What the last-level caches say, by L3 cache id as text; guests by uuid, then by cache id.

    Bandwidths are in bytes a second, occupancies in bytes. What is not measured is not in it.
    """

    bandwidth: Mapping[str, float] = field(default_factory=dict)
    bandwidth_capacity: Mapping[str, float] = field(default_factory=dict)
    occupancy: Mapping[str, float] = field(default_factory=dict)
    cache_size: Mapping[str, float] = field(default_factory=dict)
    guest_bandwidth: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    guest_occupancy: Mapping[str, Mapping[str, float]] = field(default_factory=dict)


class CacheReader(Protocol):
    """Whoever keeps the monitoring groups of resctrl."""

    def read(self) -> CacheReading:
        """The latest counters as rates and sizes; empty where nothing is measured.

        :raises OSError:
        """
        ...


class MeasuringRound:
    """The host at ``time`` (monotonic seconds), read below ``root`` as far as somebody asks.

    What was asked for is kept, so that the next round can tell what has changed since. A closed round reads
    nothing more: it is of another time.
    """

    def __init__(
        self, time: float, root: str, subjects: Sequence[MeasuredGuest], cache: CacheReader | None = None
    ) -> None:
        self.time = time
        self.root = root.rstrip("/")
        self.subjects = subjects
        self._reader = cache
        self._cache: CacheReading | None = None
        self._parsed: dict[tuple[str, Callable[[str], Any]], Any] = {}
        self._texts: dict[str, str | None] = {}
        self._closed = False

    def parsed(self, path: str, parse: Callable[[str], T]) -> T | None:
        """What ``parse`` makes of a file; None if it is missing or ``parse`` raises ValueError, LookupError.

        A file may vanish at any time, and old kernels lack some.
        """
        key = (path, parse)
        if key not in self._parsed and not self._closed:
            self._parsed[key] = self._parse(path, parse)
        found: T | None = self._parsed.get(key)
        return found

    def cache(self) -> CacheReading:
        """What resctrl says; empty where there is none."""
        if self._cache is None:
            self._cache = CacheReading()
            if self._reader is not None and not self._closed:
                try:
                    self._cache = self._reader.read()
                except OSError as error:
                    LOG.warning("Caches cannot be measured in this round: %s", error)
        return self._cache

    def close(self) -> None:
        """Read nothing more, and forget the contents of files; what was made of them stays."""
        self._closed = True
        self._texts.clear()

    def _parse(self, path: str, parse: Callable[[str], T]) -> T | None:
        if path not in self._texts:
            self._texts[path] = read_optional(path)
        text = self._texts[path]
        if text is None:
            return None
        try:
            return parse(text)
        except (ValueError, LookupError) as error:
            LOG.debug("%s is not understood: %s", path, error)
            return None
