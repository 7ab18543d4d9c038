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
    ) -> None:
        """``pause`` says how many seconds are between a round, which took so many, and the next.

        ``failed`` is called while an exception of a round is handled, and told whether it is another one than
        the last time. ``begin`` and ``rest`` are called when the thread begins and when there is nothing to
        do any more; neither may call anything of this.
        """
        self._name = name
        self._round = round_
        self._is_needed = is_needed
        self._pause = pause
        self._failed = failed
        self._begin = begin
        self._rest = rest
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
                self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                self._thread.start()

    def stop(self, timeout: float) -> bool:
        """End for good; whether it ran. A round that hangs is waited for ``timeout`` seconds at most."""
        with self._lock:
            self._stopped.set()
            thread = self._thread
        if thread is None:
            return False
        thread.join(timeout)
        return True

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

    def _goes_on(self) -> bool:
        with self._lock:
            if not self._stopped.is_set() and self._is_needed():
                return True
            self._thread = (
                None  # first: who asks for more later gets another thread, whatever goes wrong here
            )
            if not self._stopped.is_set():
                self._rest()
            return False
