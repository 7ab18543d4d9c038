"""Reads and sets core scheduling cookies of threads by prctl(2) with PR_SCHED_CORE.

The kernel needs CONFIG_SCHED_CORE (Linux 5.14).

The kernel has no call to give the cookie of one process to another. So a thread of the agent takes over the
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
from collections.abc import Callable, Iterable
from typing import Final

from compute_agent.host import kernel_files
from compute_agent.threads import NO_LOCK, ONCE, ThreadSpec, run_aside

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
