"""Memory limits of guests in cgroup v2, ``oom_score_adj`` of their processes (proc(5)), and OOM kills.

A file that the agent never wrote can have a value other than the kernel's default. This value belongs to
another program, and stays. Before the agent writes to a file, it records the file in the guest's record. From
then on, the agent corrects any other value in this file. Limits of huge pages (controller ``hugetlb``) are in
bytes, like all other limits.

The kernel counts OOM kills in ``memory.events`` of the guest's group. A guest often ends when the kernel
kills one of its processes, and the agent then removes the guest's group. So the agent reads the counters a
last time before it removes a group.

Only the owner of a process is allowed to write to the files of this process in /proc. The agent's unit drops
CAP_DAC_OVERRIDE, so even as root the agent cannot write to these files. With CAP_SETUID a thread can take
another user's rights for file systems alone (setfsuid(2)).

:func:`reclaim_memory` uses ``memory.reclaim`` (cgroup-v2.rst, since Linux 5.19). The kernel writes back and
swaps out the pages that the group has not used for longest. The group has no limit afterwards, and gets pages
back when it uses them, so nothing has to be undone.
"""

from __future__ import annotations

import ctypes
import errno
import logging
import os
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from typing import Final, NamedTuple

from compute_agent.drivers.base import UNLIMITED, MemoryLimits, OomKill
from compute_agent.drivers.cgroup import GuestCgroup
from compute_agent.host import kernel_files
from compute_agent.model.guest import Guest
from compute_agent.model.resource import HUGE_PAGES

# Python has no function for setfsuid(2). os.seteuid() changes all threads of the process; setfsuid changes
# the calling thread only.
_LIBC = ctypes.CDLL(None)


@contextmanager
def acting_as_owner(path: str) -> Iterator[None]:
    """Give this thread the file system rights of a file's owner.

    Without CAP_SETUID the rights stay unchanged.

    :raises OSError: the file does not exist.
    """
    # setfsuid(2) reports no errors: a refused change shows in the write that follows.
    before = _LIBC.setfsuid(os.stat(path).st_uid)
    try:
        yield
    finally:
        _LIBC.setfsuid(before)


class OomWatch:
    """Finds new OOM kills of guests by their last counters; any thread is allowed to call its methods."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counted: dict[str, tuple[int, int]] = {}
        self._news: list[OomKill] = []

    def begin_counting(self, guest_uuid: str, group: GuestCgroup | None) -> None:
        """Begin to count the OOM kills of a guest; kills before this agent started are not reported again."""
        if group is not None and (counts := group.oom_events()) is not None:
            with self._lock:
                self._counted[guest_uuid] = counts

    def look_at_group(self, guest: Guest, group: GuestCgroup, last: bool = False) -> None:
        """Compare the counters of a guest's group with the values of the last call, and record new kills.

        :param last: whether the guest has ended, and its group is about to be removed.
        """
        counts = group.oom_events()
        with self._lock:
            if counts is not None:
                at_limit, kills = self._counted.get(guest.uuid, (0, 0))
                if counts[1] > kills:
                    self._news.append(OomKill(guest, counts[1] - kills, counts[0] > at_limit))
                    # Counts are stored only with a new kill. The kernel first counts that the limit was
                    # reached, and kills a moment later. If the first count were stored without the kill, the
                    # kill would later look like a kill for lack of memory on the host.
                    self._counted[guest.uuid] = counts
            if last:
                self._counted.pop(guest.uuid, None)

    def take_news(self) -> list[OomKill]:
        """Return the OOM kills that were recorded since the last call."""
        with self._lock:
            found, self._news = self._news, []
        return found


LOG = logging.getLogger(__name__)

MAX, HIGH, LOW, MIN = "memory.max", "memory.high", "memory.low", "memory.min"
OOM_GROUP: Final = "memory.oom.group"
OOM_SCORE: Final = "oom_score_adj"

# Prefix of the files that limit huge pages. ``hugetlb.2MB.max`` limits pages in use: an access beyond it ends
# in SIGBUS. ``hugetlb.2MB.rsvd.max`` limits reserved pages: beyond it mmap(2) fails, which a program can
# handle.
_PAGES: Final = "hugetlb."

# The kernel's defaults of files with a default other than "no limit".
_UNTOUCHED: Final = {LOW: 0, MIN: 0, OOM_GROUP: 0}
_PAGE: Final = os.sysconf("SC_PAGE_SIZE")


def differing_limits(group: GuestCgroup, wanted: MemoryLimits, noted: Collection[str]) -> dict[str, int]:
    """The bytes to write, by file, so that the guest's group has the ``wanted`` limits.

    :param noted: the files that the agent has already written.
    """
    todo = {}
    for name, amount in _amounts_by_file(wanted, noted).items():
        untouched = _UNTOUCHED.get(name, UNLIMITED)
        # If the agent never wrote a file, and the file should have the kernel's default, any other value in
        # the file belongs to another program.
        if amount is None or (amount == untouched and name not in noted):
            continue
        has = group.memory_limit(name)
        if has is None or has == (amount if name == OOM_GROUP else attainable_amount(amount)):
            continue
        if name in noted or has == untouched:
            todo[name] = amount
    return todo


def present_limits(group: GuestCgroup | None, wanted: MemoryLimits, score: int | None) -> MemoryLimits:
    """The present values of the limits that ``wanted`` sets; all other limits are None.

    :param score: the present ``oom_score_adj``.
    """
    has = {
        name: None if group is None or amount is None else group.memory_limit(name)
        for name, amount in _amounts_by_file(wanted).items()
    }
    pages = None
    if wanted.huge_pages is not None:
        found = {size: has.get(f"{_pages_file(size)}.max") for size, _ in wanted.huge_pages}
        pages = tuple((size, amount) for size, amount in found.items() if amount is not None)
    kills_all = None if (value := has[OOM_GROUP]) is None else bool(value)
    return MemoryLimits(has[MAX], has[HIGH], has[LOW], score, pages, has[MIN], kills_all)


def attainable_amount(amount: int) -> int:
    """A limit in bytes as the kernel stores it: rounded down to whole pages."""
    return UNLIMITED if amount >= UNLIMITED else amount // _PAGE * _PAGE


def oom_score_adj(pid: int) -> int | None:
    """The ``oom_score_adj`` of a process; None if the process has ended."""
    text = kernel_files.read_optional(f"/proc/{pid}/oom_score_adj")
    return int(text) if text else None


class ScoreComparison(NamedTuple):
    """The ``oom_score_adj`` of a guest, and the value to write.

    - ``present`` is the lowest score that differs from the wanted score, because processes of one guest can
      have different scores. It is None if no score is wanted, if the kernel has refused the score, or if no
      process shows its score.
    - ``goal`` is the score to write; None if nothing has to be written.
    """

    present: int | None
    goal: int | None


class OomScores:
    """Compares and writes ``oom_score_adj`` of guests, and remembers the guests with a refused score."""

    def __init__(self) -> None:
        self._refused: set[str] = set()

    def compare_scores(
        self, guest: Guest, pids: Iterable[int], wanted: int | None, is_own: bool
    ) -> ScoreComparison:
        """Compare the scores of a guest's processes with the ``wanted`` score.

        :param is_own: whether the agent has set the score. Otherwise a score other than the default 0 belongs
            to another program.
        """
        # A refused score would be tried again in each round.
        if wanted is None or guest.uuid in self._refused:
            return ScoreComparison(None, None)
        scores = {score for pid in pids if (score := oom_score_adj(pid)) is not None}
        others = scores - {wanted}
        # One process with another score is enough for a write, because processes inherit the score of their
        # parent.
        goal = wanted if others and (is_own or others <= {0}) else None
        return ScoreComparison(min(others or scores, default=None), goal)

    def write(self, guest: Guest, pids: Iterable[int], score: int) -> None:
        """Write the score to all processes of a guest.

        If the kernel denies permission, the function logs a warning and returns.

        :raises OSError: any other error.
        """
        for pid in pids:
            path = f"/proc/{pid}/oom_score_adj"
            try:
                with acting_as_owner(path), open(path, "w", encoding="ascii") as file:
                    file.write(str(score))
            except (FileNotFoundError, ProcessLookupError):
                continue  # The process has ended.
            except PermissionError as error:
                self._refused.add(guest.uuid)
                LOG.warning(
                    "The oom_score_adj of guest %s cannot be set to %d: %s. A lower value than before needs"
                    " CAP_SYS_RESOURCE, and a process of another user needs CAP_SETUID: add them to"
                    " CapabilityBoundingSet= in a drop-in of the unit",
                    guest,
                    score,
                    error,
                )
                return


def huge_page_use(group: GuestCgroup | None) -> dict[int, int]:
    """The bytes of huge pages that a group uses or reserves (the larger number), by page size in KiB."""
    # Used and reserved pages have separate limits, and the agent sets both limits to the same value. So the
    # larger number has to fit into the limit.
    if group is None:
        return {}
    found = {}
    for size in HUGE_PAGES:
        files = (f"{_pages_file(size)}.current", f"{_pages_file(size)}.rsvd.current")
        used = [amount for file in files if (amount := group.memory_limit(file)) is not None]
        if used:
            found[size] = max(used)
    return found


def page_limit_files(size_kib: int) -> tuple[str, str]:
    """The files that limit used and reserved huge pages of a size in KiB."""
    return f"{_pages_file(size_kib)}.max", f"{_pages_file(size_kib)}.rsvd.max"


def _pages_file(size_kib: int) -> str:
    """The prefix of the hugetlb files for a page size in KiB, such as ``hugetlb.2MB``."""
    for unit, kib in (("GB", 1024**2), ("MB", 1024)):
        if size_kib >= kib:
            return f"{_PAGES}{size_kib // kib}{unit}"
    return f"{_PAGES}{size_kib}KB"


def _amounts_by_file(limits: MemoryLimits, noted: Collection[str] = ()) -> dict[str, int | None]:
    """The limits in bytes by file; None means that the agent leaves the file unchanged.

    :param noted: the files that the agent has written. If one of these files limits huge pages of a size that
        ``limits`` does not name, its amount is "no limit".
    """
    found: dict[str, int | None] = {
        MAX: limits.maximum,
        HIGH: limits.high,
        LOW: limits.low,
        MIN: limits.minimum,
        OOM_GROUP: None if limits.oom_group is None else int(limits.oom_group),
    }
    if limits.huge_pages is None:
        return found
    found |= {name: UNLIMITED for name in noted if name.startswith(_PAGES)}
    for size, amount in limits.huge_pages:
        found |= dict.fromkeys(page_limit_files(size), amount)
    return found


RECLAIM: Final = "memory.reclaim"

# A write takes as long as the reclaim. 16 MiB take a tenth of a second on a disk of 160 MB/s.
PIECE: Final = 16 * 2**20
"""Number of bytes of one write. The number is small, so that the last write exceeds the time limit only by
little."""


def reclaim_memory(
    group: str, amount: int, seconds: float, monotonic: Callable[[], float] = time.monotonic
) -> int:
    """Make the kernel reclaim up to ``amount`` bytes of a group's memory, for about ``seconds``.

    The last write can end after this time.

    :param group: the folder of the group.
    :return: the reclaimed bytes, as far as the kernel confirms them.
    :raises OSError: the kernel has no such file, or refuses the write.
    """
    end, done = monotonic() + seconds, 0
    file = os.open(f"{group}/{RECLAIM}", os.O_WRONLY)
    try:
        while done < amount:
            piece = min(PIECE, amount - done)
            os.write(file, str(piece).encode())
            done += piece
            if monotonic() >= end:
                break
    except OSError as error:
        # EAGAIN: the kernel has reclaimed less than this piece.
        if error.errno != errno.EAGAIN:
            raise
    finally:
        os.close(file)
    return done
