"""Starts all threads of the agent. A :class:`ThreadSpec` describes each of them.

A :class:`PeriodicTask` repeats rounds with pauses between them; a :class:`WakeSignal` ends a pause early.
:func:`start_thread` runs a function in a new thread, such as the loop of a server. Helper threads do one
piece of work: :func:`run_aside` is for work that can hang without a timeout, and :func:`start_timer` for a
deadline.

All threads are daemon threads, so a thread that hangs never keeps the process from ending. The table of
threads for developers (``doc/_ext/threads.py``) consists of the roles that modules define.
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
    """Describes a kind of thread: one row of the table of threads for developers.

    ``interval`` is in seconds, or a text that names the event for which the thread waits. ``duty`` is the
    work of the thread. ``locks`` names the locks that it shares with other threads. ``calls`` names the
    services and objects for which the thread can wait.
    """

    name: str
    interval: float | str
    duty: str
    locks: str
    calls: str


NO_LOCK: Final = "none"
ONCE: Final = "once"
"""The interval of a helper thread, which ends with its work."""


class WakeSignal:
    """Ends the pause of a task.

    A signal can be made before its task, so that other objects can refer to the signal.
    """

    def __init__(self) -> None:
        self._event = threading.Event()

    def wake(self) -> None:
        """Start the next round at once, without waiting for it. Any thread may call this method."""
        self._event.set()

    def wait(self, seconds: float | None) -> None:
        """Wait until woken, at most ``seconds`` (None: no limit). Only the thread of the task calls it."""
        self._event.wait(seconds)
        # The event is cleared before the round, not after it. So a change during the round starts another
        # round.
        self._event.clear()


def until_woken(took: float) -> float | None:
    """Return None, the pause of a task that works only when it is woken."""
    return None


def log_failures(log: logging.Logger, message: str) -> Callable[[bool], None]:
    """Return a function that logs the exception being handled, unless the last round raised an equal one."""

    def log_failure(is_new: bool) -> None:
        if is_new:  # a defect that stays would fill the log, round by round
            log.exception("%s", message)

    return log_failure


class PeriodicTask:
    """A thread that repeats rounds, even after an exception in a round.

    Any thread may start and stop the task.
    """

    def __init__(
        self,
        role: ThreadSpec,
        round_: Callable[[], None],
        pause: Callable[[float], float | None],
        failed: Callable[[bool], None],
        *,
        is_needed: Callable[[], bool] = lambda: True,
        begin: Callable[[], None] = lambda: None,
        rest: Callable[[], None] = lambda: None,
        keep: Callable[[], None] = lambda: None,
        signal: WakeSignal | None = None,
        name: str = "",
    ) -> None:
        """Prepare the thread; start() starts it.

        :param pause: takes the seconds that a round took, and returns the seconds until the next round. None
            means that the thread waits until it is woken.
        :param failed: called while an exception of a round is handled. The argument is whether the exception
            differs from the exception of the last round.
        :param is_needed: tells whether the task has work. Without work the thread ends, and start() starts it
            again later.
        :param begin: called when the thread starts. Neither ``begin`` nor ``rest`` may call methods of the
            task.
        :param rest: called before the thread ends because the task has no more work.
        :param keep: called last in a thread that was stopped, for example to save data.
        :param signal: wakes the task; without a signal, only wake() wakes it.
        :param name: the name of the thread if several threads have the same role.
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
        """Whether the thread was started, and has not ended because its work was done."""
        return self._thread is not None

    def is_alive(self) -> bool:
        """Whether the thread is alive; False before start(), and after a defect has ended the thread."""
        thread = self._thread
        return thread is not None and thread.is_alive()

    def start(self) -> None:
        """Start the thread if there is anything to do. After stop(), this does nothing."""
        with self._lock:
            if self._thread is None and not self._stopped.is_set() and self._is_needed():
                self._begin()
                # The new thread takes the lock before it reads the attribute, so it finds itself there.
                self._thread = _start(self._name, self._run)

    def wake(self) -> None:
        """Start the next round at once, without waiting for it. Any thread may call this method."""
        self._signal.wake()

    def stop(self, timeout: float | None) -> None:
        """Stop for good. If a round hangs, wait at most ``timeout`` seconds for its end (None: no limit)."""
        self._stopped.set()  # the lock is not taken here, because a hanging thread perhaps holds it
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
    """Start a thread of a role, and return the thread. ``suffix`` distinguishes threads of the same role."""
    return _start(f"{role.name}{suffix}", work)


def _start(name: str, work: Callable[[], object]) -> threading.Thread:
    # A thread that hangs, such as in a call of libvirt, must not keep the process from ending.
    thread = threading.Thread(target=work, name=name, daemon=True)
    thread.start()
    return thread


def run_aside(role: ThreadSpec, work: Callable[[], T], suffix: str = "") -> Future[T]:
    """Run ``work`` in a thread of its own; return a future with its result or exception."""
    found: Future[T] = Future()

    def run() -> None:
        try:
            found.set_result(work())
        except BaseException as error:
            found.set_exception(error)  # the waiting thread also has to learn of SystemExit

    start_thread(role, run, suffix)
    return found


def start_timer(role: ThreadSpec, seconds: float, work: Callable[[], object]) -> threading.Timer:
    """Start and return a timer that calls ``work`` after ``seconds`` unless it is cancelled earlier."""
    timer = threading.Timer(seconds, work)
    timer.name, timer.daemon = role.name, True
    timer.start()
    return timer
