"""Hear of the end of processes, children or not, through pidfd_open(2)."""

from __future__ import annotations

import contextlib
import logging
import os
import select
import selectors
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

LOG = logging.getLogger(__name__)

Key = TypeVar("Key")


class PidWatch(Generic[Key]):
    """One thread that waits for any number of processes and calls back when one ends."""

    def __init__(self, ended: Callable[[Key], None]) -> None:
        """``ended`` is called with the key of a process, from the watch's thread, once, when it has ended."""
        self._ended = ended
        self._selector = selectors.DefaultSelector()
        self._lock = threading.Lock()
        self._wake_read, self._wake_write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._selector.register(self._wake_read, selectors.EVENT_READ)
        self._closed = False
        self._watched: dict[int, tuple[int, select.poll]] = {}
        """The pidfd of each process that is watched, and what tells whether it has ended."""
        self._thread = threading.Thread(target=self._run, name="pidwatch", daemon=True)
        self._thread.start()

    def add(self, key: Key, pid: int) -> bool:
        """Watch a process. False if it is gone already (``ended`` is then not called)."""
        try:
            descriptor = os.pidfd_open(pid)
        except ProcessLookupError:
            return False
        with self._lock:
            if self._closed:
                os.close(descriptor)
                return True
            self._selector.register(descriptor, selectors.EVENT_READ, (key, pid))
            poll = select.poll()
            poll.register(descriptor, select.POLLIN)
            self._watched[pid] = descriptor, poll
        return True

    def runs(self, pid: int) -> bool:
        """Whether a process is watched and has not ended."""
        with self._lock:
            watched = self._watched.get(pid)
            return watched is not None and not watched[1].poll(0)

    def close(self) -> None:
        """Stop watching and end the thread. Processes are left alone."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        os.write(self._wake_write, b"x")
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _run(self) -> None:
        while not self._closed:
            for ready, _ in self._selector.select():
                if ready.data is None:
                    continue  # the wake-up pipe
                key, pid = ready.data
                with self._lock:
                    self._selector.unregister(ready.fileobj)
                    if pid in self._watched and self._watched[pid][0] == ready.fd:
                        del self._watched[pid]
                    os.close(ready.fd)
                try:
                    self._ended(key)
                except Exception:
                    LOG.exception("Could not handle the end of %s", key)
        with self._lock:
            self._watched.clear()
        with contextlib.suppress(OSError):
            for watched in list(self._selector.get_map().values()):
                os.close(watched.fd)
            os.close(self._wake_write)
            self._selector.close()
