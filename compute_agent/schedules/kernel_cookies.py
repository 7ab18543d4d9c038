"""Cookies of threads by prctl(2) with PR_SCHED_CORE (Linux 5.14, CONFIG_SCHED_CORE).

The kernel has no call to give the cookie of one process to another: a thread takes it over and passes it on.
Such a thread lives for one grant, since it keeps the cookie.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
from collections.abc import Iterable
from typing import Final

from compute_agent.threads import NO_LOCK, ONCE, ThreadSpec, run_aside

_PR_SCHED_CORE: Final = 62
_GET, _CREATE, _SHARE_TO, _SHARE_FROM = range(4)
_THREAD, _PROCESS = 0, 1
"""Scopes of the call: one thread, or all threads of a process."""

_GRANT_SECONDS: Final = 5.0

COOKIE_THREAD: Final = ThreadSpec(
    "cookie", ONCE, "gives the core cookie of a guest to its other threads", NO_LOCK, "none"
)

_LIBC: Final = ctypes.CDLL(None, use_errno=True)

NOT_PERMITTED: Final = "the kernel refuses it: it needs CAP_SYS_PTRACE"
NOT_KNOWN: Final = "the kernel has no core scheduling (CONFIG_SCHED_CORE, Linux 5.14)"


class NoSiblingsError(Exception):
    """No core of the host has two threads online, so that guests cannot share one."""


class CookieError(Exception):
    """The kernel does not give cookies; the text is the reason."""


class KernelCookies:
    """Reads and gives cookies of this kernel."""

    def read_cookie(self, tid: int) -> int | None:
        """The cookie of a thread, 0 for none; None when it has ended.

        :raises NoSiblingsError:
        :raises CookieError:
        """
        found = ctypes.c_ulong()
        try:
            _call_kernel(_GET, tid, _THREAD, found)
        except ProcessLookupError:
            return None
        return found.value

    def create_cookie(self, pid: int) -> None:
        """Give all threads of a process a new cookie. A process that has ended is no error.

        :raises NoSiblingsError:
        :raises CookieError:
        """
        with contextlib.suppress(ProcessLookupError):
            _call_kernel(_CREATE, pid, _PROCESS)

    def grant_cookie(self, source: int, tids: Iterable[int]) -> None:
        """Give threads the cookie of a process, or none where ``source`` is 0. Ended ones are no error.

        :raises NoSiblingsError:
        :raises CookieError:
        """

        def pass_on() -> None:
            if source:
                _call_kernel(_SHARE_FROM, source, _THREAD)
            for tid in tids:
                with contextlib.suppress(ProcessLookupError):
                    _call_kernel(_SHARE_TO, tid, _THREAD)

        try:
            run_aside(COOKIE_THREAD, pass_on).result(_GRANT_SECONDS)
        except ProcessLookupError:
            return
        except TimeoutError as error:
            raise CookieError(f"the kernel gave no answer within {_GRANT_SECONDS:g} s") from error


def _call_kernel(command: int, tid: int, scope: int, found: ctypes.c_ulong | None = None) -> None:
    address = None if found is None else ctypes.byref(found)
    # The C library reads its arguments as unsigned long.
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
