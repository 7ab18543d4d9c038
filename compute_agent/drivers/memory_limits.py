"""Memory limits of guests in cgroup v2, ``oom_score_adj`` of processes (proc(5)), and OOM kills.

A value that is not the kernel's default and was not written by the agent belongs to somebody else and
stays. The agent notes each value in the record of the guest before it writes it; from then on another value
is drift. Limits of huge pages (controller ``hugetlb``) are in bytes, too.

OOM kills are counted in ``memory.events`` of the guest's group. A killed guest often ends by that, and its
group goes with it: the counters are read a last time before a group is removed.

Files of a process in /proc are writable by their owner. The agent's unit drops CAP_DAC_OVERRIDE, so root
cannot write them either; with CAP_SETUID a thread becomes another user for file systems only (setfsuid(2)).
"""

from __future__ import annotations

import ctypes
import logging
import os
import threading
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Final

from compute_agent.drivers.base import UNLIMITED, MemoryLimits, OomKill
from compute_agent.drivers.cgroup import GuestCgroup
from compute_agent.host import kernel_files
from compute_agent.model.guest import Guest
from compute_agent.model.resource import HUGE_PAGES

_LIBC = ctypes.CDLL(None)


@contextmanager
def acting_as_owner(path: str) -> Iterator[None]:
    """To file systems this thread is the owner of a file meanwhile; who may not be that stays who it is.

    :raises OSError: the file is not there.
    """
    before = _LIBC.setfsuid(os.stat(path).st_uid)
    try:
        yield
    finally:
        _LIBC.setfsuid(before)


class OomWatch:
    """What was counted of each guest, and what has yet to be told. Methods may be called from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counted: dict[str, tuple[int, int]] = {}
        self._news: list[OomKill] = []

    def begin_counting(self, guest_uuid: str, group: GuestCgroup | None) -> None:
        """Count from now on what happens to a guest that ran before: who came before has told of the rest."""
        if group is not None and (counts := group.oom_events()) is not None:
            with self._lock:
                self._counted[guest_uuid] = counts

    def look_at_group(self, guest: Guest, group: GuestCgroup, last: bool = False) -> None:
        """Look for kills in the group of a guest; ``last``: it has ended."""
        counts = group.oom_events()
        with self._lock:
            if counts is not None:
                at_limit, kills = self._counted.get(guest.uuid, (0, 0))
                if counts[1] > kills:
                    self._news.append(OomKill(guest, counts[1] - kills, counts[0] > at_limit))
                    # Not before: the kernel counts the limit first, and kills some time after that.
                    self._counted[guest.uuid] = counts
            if last:
                self._counted.pop(guest.uuid, None)

    def take_news(self) -> list[OomKill]:
        """What is new since the last call."""
        with self._lock:
            found, self._news = self._news, []
        return found


LOG = logging.getLogger(__name__)

MAX, HIGH, LOW = "memory.max", "memory.high", "memory.low"
OOM_SCORE: Final = "oom_score_adj"

_PAGES: Final = "hugetlb."
"""What files with limits of huge pages begin with.

``hugetlb.2MB.max`` is of those in use, ``hugetlb.2MB.rsvd.max`` of those that are reserved: beyond it mmap(2)
fails, and no later access does.
"""

_UNTOUCHED: Final = {LOW: 0}
"""What limits are at first, where they are not without a limit."""
_PAGE: Final = os.sysconf("SC_PAGE_SIZE")


def differing_limits(
    group: GuestCgroup | None, pids: Iterable[int], wanted: MemoryLimits, noted: Collection[str]
) -> dict[str, int]:
    """What is to be written to become as ``wanted``, by file; those in ``noted`` are the agent's.

    Others that are to be as the kernel begins with are not read: whatever they say is somebody else's.
    """
    todo = {}
    for name, amount in _amounts_by_file(wanted, noted).items():
        untouched = _UNTOUCHED.get(name, UNLIMITED)
        if group is None or amount is None or (amount == untouched and name not in noted):
            continue
        has = group.memory_limit(name)
        if has is None or has == attainable_amount(amount):
            continue
        if name in noted or has == untouched:
            todo[name] = amount
    score = wanted.oom_score_adj
    found = None if score is None else {oom_score_adj(pid) for pid in pids} - {None, score}
    if score is not None and found and (OOM_SCORE in noted or found <= {0}):
        todo[OOM_SCORE] = score
    return todo


def present_limits(group: GuestCgroup | None, pids: Iterable[int], wanted: MemoryLimits) -> MemoryLimits:
    """The limits as they are, as far as something is wanted of them."""
    has = {
        name: None if group is None or amount is None else group.memory_limit(name)
        for name, amount in _amounts_by_file(wanted).items()
    }
    pages = None
    if wanted.huge_pages is not None:
        found = {size: has.get(f"{_pages_file(size)}.max") for size, _ in wanted.huge_pages}
        pages = tuple((size, amount) for size, amount in found.items() if amount is not None)
    scores = {score for pid in pids if (score := oom_score_adj(pid)) is not None}
    others = scores - {wanted.oom_score_adj}
    score = min(others or scores, default=None)
    score = None if wanted.oom_score_adj is None else score
    return MemoryLimits(has[MAX], has[HIGH], has[LOW], score, pages)


def attainable_amount(amount: int) -> int:
    """An amount as the kernel keeps it: in whole pages."""
    return UNLIMITED if amount >= UNLIMITED else amount // _PAGE * _PAGE


def oom_score_adj(pid: int) -> int | None:
    """Of a process; None if it has ended."""
    text = kernel_files.read_optional(f"/proc/{pid}/oom_score_adj")
    return int(text) if text else None


class OomScores:
    """Writes oom_score_adj, and remembers of whom the kernel does not let it be written."""

    def __init__(self) -> None:
        self._refused: set[str] = set()

    def without_refused(self, guest: Guest, wanted: MemoryLimits) -> MemoryLimits:
        """What is wanted, without what was refused before."""
        return replace(wanted, oom_score_adj=None) if guest.uuid in self._refused else wanted

    def write(self, guest: Guest, pids: Iterable[int], score: int) -> None:
        """Write it for all processes of a guest; what the agent may not do costs a log line.

        :raises OSError:
        """
        for pid in pids:
            path = f"/proc/{pid}/oom_score_adj"
            try:
                with acting_as_owner(path), open(path, "w", encoding="ascii") as file:
                    file.write(str(score))
            except (FileNotFoundError, ProcessLookupError):
                continue  # it has ended
            except PermissionError as error:
                self._refused.add(guest.uuid)
                LOG.warning(
                    "The oom_score_adj of guest %s stays as it is, in place of %d: %s; less than it was takes"
                    " CAP_SYS_RESOURCE, a process of another user CAP_SETUID (CapabilityBoundingSet= in"
                    " a drop-in of the unit)",
                    guest,
                    score,
                    error,
                )
                return


def huge_page_use(group: GuestCgroup | None) -> dict[int, int]:
    """Bytes in huge pages that a group uses or has reserved, by the size of the page in KiB."""
    if group is None:
        return {}
    found = {}
    for size in HUGE_PAGES:
        files = (f"{_pages_file(size)}.current", f"{_pages_file(size)}.rsvd.current")
        used = [amount for file in files if (amount := group.memory_limit(file)) is not None]
        if used:
            found[size] = max(used)
    return found


def _pages_file(size_kib: int) -> str:
    """What the files of pages of a size begin with: ``hugetlb.2MB``, as the kernel names them."""
    for unit, kib in (("GB", 1024**2), ("MB", 1024)):
        if size_kib >= kib:
            return f"{_PAGES}{size_kib // kib}{unit}"
    return f"{_PAGES}{size_kib}KB"


def _amounts_by_file(limits: MemoryLimits, noted: Collection[str] = ()) -> dict[str, int | None]:
    """What files are to hold; those ``noted`` that limit pages are lifted where they are not limited."""
    found: dict[str, int | None] = {MAX: limits.maximum, HIGH: limits.high, LOW: limits.low}
    if limits.huge_pages is None:
        return found
    found |= {name: UNLIMITED for name in noted if name.startswith(_PAGES)}
    for size, amount in limits.huge_pages:
        found |= dict.fromkeys((f"{_pages_file(size)}.max", f"{_pages_file(size)}.rsvd.max"), amount)
    return found
