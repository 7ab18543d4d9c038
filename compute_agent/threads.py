"""Threads of the agent: this module starts each of them, and a :class:`ThreadSpec` describes each.

A :class:`PeriodicTask` repeats rounds, with pauses that a :class:`WakeSignal` ends. :func:`start_thread` runs
a function that blocks for its whole life, such as a server. Helper threads live as long as one piece of work:
:func:`run_aside` for work that may hang where no timeout reaches, :func:`start_timer` for a deadline.

All are daemon threads: a thread that hangs never keeps the process from ending. The table of threads for
developers (``doc/_ext/threads.py``) consists of the roles that modules define.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Final, TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ThreadSpec:
    """A row of the table of threads.

    The interval is in seconds, or in words what the thread waits for.

    The duty is what the thread does. The locks are those that it shares with other threads. The calls are the
    parts that it may call, and wait for.
    """

    name: str
    interval: float | str
    duty: str
    locks: str
    calls: str


NO_LOCK: Final = "none"
ONCE: Final = "once"
"""The interval of a helper thread: it ends with its work."""


class WakeSignal:
    """Ends the pause of one task.

    A signal is created before its task, so that objects made earlier can hold it.
    """

    def __init__(self) -> None:
        self._event = threading.Event()

    def wake(self) -> None:
        """Have a round at once; for any thread, without waiting."""
        self._event.set()

    def wait(self, seconds: float | None) -> None:
        """Wait until woken, ``seconds`` at most (None: without end); for the thread of the task."""
        self._event.wait(seconds)
        # The event is cleared before the round, not after it: a change during the round is for the next
        # round.
        self._event.clear()


def until_woken(took: float) -> float | None:
    """The pause of a task that works only when woken."""
    return None


def log_failures(log: logging.Logger, message: str) -> Callable[[bool], None]:
    """Log the exception that is being handled, unless it is the same as in the round before."""

    def log_failure(is_new: bool) -> None:
        if is_new:  # a defect that stays would fill the log, round by round
            log.exception("%s", message)

    return log_failure


def _is_always_needed() -> bool:
    return True


def _do_nothing() -> None:
    return None


class PeriodicTask:
    """A thread that repeats rounds. Started and stopped from any thread.

    An exception of a round costs that round; the next one comes after the usual pause.
    """

    def __init__(
        self,
        role: ThreadSpec,
        round_: Callable[[], None],
        pause: Callable[[float], float | None],
        failed: Callable[[bool], None],
        *,
        is_needed: Callable[[], bool] = _is_always_needed,
        begin: Callable[[], None] = _do_nothing,
        rest: Callable[[], None] = _do_nothing,
        keep: Callable[[], None] = _do_nothing,
        signal: WakeSignal | None = None,
        name: str = "",
    ) -> None:
        """Prepare the thread; start() starts it.

        :param pause: the seconds until the next round, from the seconds that this one took; None until woken.
        :param failed: called while an exception of a round is handled, with whether the exception differs
            from that of the round before.
        :param is_needed: tells whether there is anything to do. If there is nothing, the thread ends until
            start() is called again.
        :param begin: called when the thread starts. Neither ``begin`` nor ``rest`` may call methods of the
            task.
        :param rest: called when there is nothing to do any more.
        :param keep: called last, in a thread that was stopped.
        :param signal: wakes the task; without a signal, only wake() wakes it.
        :param name: the name of the thread where several have the role.
        """
        self._name = name or role.name
        self._round = round_
        self._pause = pause
        self._failed = failed
        self._is_needed = is_needed
        self._begin = begin
        self._rest = rest
        self._keep = keep
        self._signal = signal or WakeSignal()
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def is_running(self) -> bool:
        """Whether there is something to do; also True of a thread that was stopped while there was."""
        return self._thread is not None

    def is_alive(self) -> bool:
        """Whether the thread lives: False before start(), and after a defect that ended it."""
        thread = self._thread
        return thread is not None and thread.is_alive()

    def start(self) -> None:
        """Start, if there is anything to do. Called whenever there may be; nothing happens once stopped."""
        with self._lock:
            if self._thread is None and not self._stopped.is_set() and self._is_needed():
                self._begin()
                # The new thread takes the lock before it reads the attribute, so it finds itself there.
                self._thread = _start(self._name, self._run)

    def wake(self) -> None:
        """Have the next round at once; for any thread, without waiting."""
        self._signal.wake()

    def stop(self, timeout: float | None) -> None:
        """Stop for good. A round that hangs is waited for ``timeout`` seconds at most (None: without end)."""
        self._stopped.set()  # without the lock, as a hanging thread may hold it
        self._signal.wake()
        thread = self._thread
        if thread is not None:
            thread.join(timeout)

    def _run(self) -> None:
        failure = ""
        while self._goes_on():
            began = time.monotonic()
            try:
                self._round()
                failure = ""
            except Exception as error:
                self._failed(repr(error) != failure)
                failure = repr(error)
            self._signal.wait(self._pause(time.monotonic() - began))
        if self._stopped.is_set():
            self._keep()

    def _goes_on(self) -> bool:
        with self._lock:
            if not self._stopped.is_set() and self._is_needed():
                return True
            # The attribute is cleared first, so that a later start() makes another thread, whatever fails
            # below.
            self._thread = None
            if not self._stopped.is_set():
                self._rest()
            return False


def start_thread(role: ThreadSpec, work: Callable[[], object], suffix: str = "") -> threading.Thread:
    """A started thread of a role. ``suffix`` tells the threads of one role apart."""
    return _start(f"{role.name}{suffix}", work)


def _start(name: str, work: Callable[[], object]) -> threading.Thread:
    # A thread that hangs, such as in a call of libvirt, must not keep the process from ending.
    thread = threading.Thread(target=work, name=name, daemon=True)
    thread.start()
    return thread


def run_aside(role: ThreadSpec, work: Callable[[], T], suffix: str = "") -> Future[T]:
    """The result of ``work``, or its exception, when it ends; in a thread that nothing has to wait for."""
    found: Future[T] = Future()

    def run() -> None:
        try:
            found.set_result(work())
        except BaseException as error:
            found.set_exception(error)  # SystemExit, too: the waiting thread has to learn of every end

    start_thread(role, run, suffix)
    return found


def start_timer(role: ThreadSpec, seconds: float, work: Callable[[], object]) -> threading.Timer:
    """A started timer that calls ``work`` after ``seconds``, unless it is cancelled before."""
    timer = threading.Timer(seconds, work)
    timer.name, timer.daemon = role.name, True
    timer.start()
    return timer
