"""The thread of a loop: round after round while there is something to do, and anew when there is again."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable


class RoundsThread:
    """Begun and ended from any thread. What goes wrong in a round is tried again in the next."""

    def __init__(
        self,
        name: str,
        round_: Callable[[], None],
        is_needed: Callable[[], bool],
        pause: Callable[[float], float],
        failed: Callable[[bool], None],
        begin: Callable[[], None] = lambda: None,
        rest: Callable[[], None] = lambda: None,
        keep: Callable[[], None] = lambda: None,
    ) -> None:
        """``pause`` says how many seconds are between a round, which took so many, and the next.

        ``failed`` is called while an exception of a round is handled, and told whether it is another one than
        the last time. ``begin`` and ``rest`` are called when the thread begins and when there is nothing to
        do any more; neither may call anything of this. ``keep`` is the last that a thread does which was
        stopped.
        """
        self._name = name
        self._round = round_
        self._is_needed = is_needed
        self._pause = pause
        self._failed = failed
        self._begin = begin
        self._rest = rest
        self._keep = keep
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def is_running(self) -> bool:
        """Whether there is something to do, and it has not been stopped."""
        return self._thread is not None

    def start(self) -> None:
        """Begin, if there is anything to do: to be called whenever there may be, unless it was stopped."""
        with self._lock:
            if self._thread is None and not self._stopped.is_set() and self._is_needed():
                self._begin()
                thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                thread.start()
                self._thread = thread  # which waits for the lock before it looks

    def stop(self, timeout: float) -> None:
        """End for good. What hangs, whatever it is, is waited for ``timeout`` seconds at most."""
        self._stopped.set()  # without the lock, which who hangs may have
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
            self._stopped.wait(self._pause(time.monotonic() - began))
        if self._stopped.is_set():
            self._keep()

    def _goes_on(self) -> bool:
        with self._lock:
            if not self._stopped.is_set() and self._is_needed():
                return True
            # First: who asks for more later gets another thread, whatever goes wrong here.
            self._thread = None
            if not self._stopped.is_set():
                self._rest()
            return False
