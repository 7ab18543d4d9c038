"""Cookies of core scheduling: the decision about cookies, and the kernel's interface to read and set them.

The decision is a pure function of present cookies and notes. If a guest of a group has a note and a cookie,
all threads of the group get the cookie of this guest's main thread. If several guests have a note and a
cookie, the first of them decides. If no guest of a group has a cookie, the agent first creates a cookie. A
guest that comes from another group loses its old cookie. A guest that leaves its group has no cookie
afterwards, like most guests. If the guest shared a cookie of another program before, it gets this cookie back
from a guest that still has it.

Cookies are read and set by prctl(2) with PR_SCHED_CORE. The kernel needs CONFIG_SCHED_CORE (Linux 5.14). The
kernel has no call to give the cookie of one process to another. So a thread of the agent takes over the
cookie of a process, and copies this cookie to the other. To remove a cookie, the thread takes over
"no cookie" from a process without a cookie, and copies that state. Each grant has its own thread, because a
thread keeps the cookie that it has taken over.

A function that reads or sets a cookie raises NoSiblingsError if no core has two threads online, and
CookieError if the kernel refuses the call or does not support cookies.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from compute_agent.drivers.procfs import ProcessIdentity
from compute_agent.host import kernel_files
from compute_agent.schedules.run_notes import CookieLender, RunNote, RunNotes, note_of
from compute_agent.threads import NO_LOCK, ONCE, ThreadSpec, run_aside


@dataclass(frozen=True, slots=True)
class CookieGuest:
    """A guest with the cookies of its threads, by thread id; 0 stands for no cookie.

    :ivar group: the group with which the guest should share a cookie; empty if the guest should have no
        cookie.
    :ivar preserved: whether the guest keeps its present cookies.
    """

    uuid: str
    main: ProcessIdentity
    group: str = ""
    cookies: Mapping[int, int] = field(default_factory=dict)
    preserved: bool = False

    @property
    def main_cookie(self) -> int:
        """The cookie of the guest's main thread; 0 for no cookie."""
        return self.cookies.get(self.main.pid, 0)


@dataclass(frozen=True, slots=True)
class CookieGrant:
    """Threads that get the cookie of the process ``source``. If it is None, they lose their cookies."""

    guest: CookieGuest
    source: ProcessIdentity | None
    threads: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class CookiePlan:
    """The changes of cookies that are planned.

    First the notes are stored, then the guests in ``created`` get new cookies, and then the grants are
    carried out.

    :ivar foreign: guests that have cookies of another program.
    """

    notes: RunNotes
    created: tuple[CookieGuest, ...] = ()
    grants: tuple[CookieGrant, ...] = ()
    foreign: frozenset[str] = frozenset()


def decide_cookies(guests: Iterable[CookieGuest], notes: RunNotes) -> CookiePlan:
    """The plan for all guests of a host. Notes of guests that have ended are dropped."""
    guests = sorted(guests, key=lambda guest: guest.uuid)
    users = Counter(cookie for guest in guests for cookie in set(guest.cookies.values()) if cookie)
    known = {guest.uuid: note for guest in guests if (note := note_of(notes, guest.uuid, guest.main))}
    kept, created, grants, foreign = {}, [], [], set()
    groups: defaultdict[str, list[CookieGuest]] = defaultdict(list)
    for guest in guests:
        note = known.get(guest.uuid)
        has = set(guest.cookies.values())
        if guest.preserved:
            if note is not None:
                kept[guest.uuid] = note
        elif note is not None and not guest.group:
            source = _find_lender(note, guests)
            cookie = 0 if source is None else source.main_cookie
            if has - {cookie}:
                kept[guest.uuid] = note
                grants.append(_grant_to(guest, None if source is None else source.main, cookie))
        elif guest.group and note is None and has and all(users[cookie] == 1 for cookie in has):
            # All threads of the guest have a cookie, and no other guest has these cookies. So these cookies
            # already keep all other guests off the guest's cores.
            foreign.add(guest.uuid)
        elif guest.group:
            if note is None:
                note = RunNote(guest.main, lender=_choose_lender(guest, guests, known.keys()))
            if note.group != guest.group:
                note = replace(note, before=guest.main_cookie, group=guest.group)
            kept[guest.uuid] = note
            groups[guest.group].append(guest)
    taken: set[int] = set()
    for _, members in sorted(groups.items()):
        cookies = [
            guest for guest in members if guest.main_cookie not in taken | {0, kept[guest.uuid].before}
        ]
        if not cookies:
            created.append(members[0])
            continue
        first = cookies[0]
        taken.add(first.main_cookie)
        given = (_grant_to(guest, first.main, first.main_cookie) for guest in members)
        grants += [grant for grant in given if grant.threads]
    return CookiePlan(kept, tuple(created), tuple(grants), frozenset(foreign))


def _choose_lender(
    guest: CookieGuest, guests: Iterable[CookieGuest], noted: Collection[str]
) -> CookieLender | None:
    """Find another guest that has the same cookie, is in no group, and therefore keeps the cookie."""
    cookie = guest.main_cookie
    for other in guests:
        if cookie and other.main_cookie == cookie and not (other.group or other.uuid in noted):
            return CookieLender(other.main, cookie)
    return None


def _find_lender(note: RunNote, guests: Iterable[CookieGuest]) -> CookieGuest | None:
    """Find the guest that can give back the cookie from before a note; None if there is no such guest."""
    lender = note.lender
    for other in guests:
        # The kernel can use the number of a cookie again, but hardly for the same run of the same guest.
        if lender is not None and (other.main, other.main_cookie) == (lender.main, lender.cookie):
            return other
    return None


def _grant_to(guest: CookieGuest, source: ProcessIdentity | None, cookie: int) -> CookieGrant:
    return CookieGrant(guest, source, tuple(tid for tid, has in guest.cookies.items() if has != cookie))


_PR_SCHED_CORE: Final = 62
_GET, _CREATE, _SHARE_TO, _SHARE_FROM = range(4)
_THREAD, _PROCESS = 0, 1
"""Scopes of the system call: one thread, or all threads of a process."""

_WITHOUT_COOKIE: Final = (kernel_files.KTHREADD, 1)
"""Processes that usually have no cookie: the parent of the kernel's threads, and the init process."""

_GRANT_SECONDS: Final = 5.0

COOKIE_THREAD: Final = ThreadSpec(
    "cookie", ONCE, "gives the core cookie of a guest to its other threads", NO_LOCK, "none"
)

_LIBC: Final = ctypes.CDLL(None, use_errno=True)

NOT_PERMITTED: Final = "the kernel refuses it: it needs CAP_SYS_PTRACE"
NOT_KNOWN: Final = "the kernel has no core scheduling (CONFIG_SCHED_CORE, Linux 5.14)"
OWN_COOKIE: Final = "it finds no process without a cookie; start the agent without one"


class NoSiblingsError(Exception):
    """No core of the host has two threads online, so guests cannot share a core."""


class CookieError(Exception):
    """The kernel refuses to show or set a cookie; the text is the reason."""


class OwnCookieError(CookieError):
    """The agent was started with a cookie, and cannot remove this cookie."""


class KernelCookies:
    """Reads and sets cookies of threads in the running kernel."""

    def read_cookie(self, tid: int) -> int | None:
        """The cookie of a thread, 0 for no cookie; None if the thread has ended."""
        found = ctypes.c_ulong()
        try:
            _call_kernel(_GET, tid, _THREAD, found)
        except ProcessLookupError:
            return None
        return found.value

    def create_cookie(self, pid: int) -> None:
        """Give all threads of a process a new cookie. The function ignores a process that has ended."""
        with contextlib.suppress(ProcessLookupError):
            _call_kernel(_CREATE, pid, _PROCESS)

    def grant_cookie(self, source: int, tids: Iterable[int]) -> None:
        """Give threads the cookie of the process ``source``; remove their cookies if ``source`` is 0.

        The function ignores a thread that has ended.
        """

        def pass_on() -> None:
            if source:
                _call_kernel(_SHARE_FROM, source, _THREAD)
            else:
                self._drop_cookie()
            for tid in tids:
                with contextlib.suppress(ProcessLookupError):
                    _call_kernel(_SHARE_TO, tid, _THREAD)

        self._run_apart(pass_on)

    def clear_own_cookie(self) -> None:
        """Remove the cookie with which this process was started, if any, from all threads of the process.

        Otherwise guests that this process starts would inherit the cookie, and could share cores with each
        other.

        :raises OwnCookieError: no process without a cookie was found.
        """

        def pass_on() -> None:
            self._drop_cookie()
            _call_kernel(_SHARE_TO, os.getpid(), _PROCESS)

        # The id 0 stands for the calling thread.
        if self.read_cookie(0):
            self._run_apart(pass_on)

    def _drop_cookie(self) -> None:
        """Remove the cookie of the calling thread."""
        if not self.read_cookie(0):
            return
        for pid in _WITHOUT_COOKIE:
            if self.read_cookie(pid) == 0:
                _call_kernel(_SHARE_FROM, pid, _THREAD)
                return
        raise OwnCookieError(OWN_COOKIE)

    def _run_apart(self, pass_on: Callable[[], None]) -> None:
        """Run a function in a thread of its own."""
        try:
            run_aside(COOKIE_THREAD, pass_on).result(_GRANT_SECONDS)
        except ProcessLookupError:
            return
        except TimeoutError as error:
            raise CookieError(f"the kernel gave no answer within {_GRANT_SECONDS:g} s") from error


def _call_kernel(command: int, tid: int, scope: int, found: ctypes.c_ulong | None = None) -> None:
    address = None if found is None else ctypes.byref(found)
    # The C library reads the arguments of prctl() as unsigned long.
    numbers = map(ctypes.c_ulong, (command, tid, scope))
    if _LIBC.prctl(_PR_SCHED_CORE, *numbers, address) == 0:
        return
    number = ctypes.get_errno()
    if number == errno.ESRCH:
        raise ProcessLookupError(number, os.strerror(number))
    if number == errno.ENODEV:
        raise NoSiblingsError
    if number == errno.EINVAL:
        raise CookieError(NOT_KNOWN)
    raise CookieError(NOT_PERMITTED if number == errno.EPERM else os.strerror(number))
