"""Base classes of loops: their threads, pauses, configuration and files.

Pauses between reports are random, around their mean length. A Placement that was away is missed by all hosts
within one interval; with equal pauses they would all come back at the same moment, again and again.

A kept file holds what a loop has learnt, so that the next start goes on with it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Generic, Protocol, TypeVar

from oslo_config import cfg

from compute_agent.controllers.base import KernelController
from compute_agent.files import UnsafeFileError, put_aside, read_own, write_durably
from compute_agent.report.client import PlacementClient
from compute_agent.resctrl.mount import ResctrlHandle
from compute_agent.throttling.settings import ThrottlingSettings


@dataclass(frozen=True, slots=True)
class ReloadedConfiguration:
    """A configuration that was found to be good, and what was made of it on this host.

    ``options`` are those of the files, ``client`` is the way to Placement, ``settings`` are those of
    throttling. ``control`` is the mount of resctrl, if there is one.
    """

    options: cfg.ConfigOpts
    client: PlacementClient
    settings: ThrottlingSettings
    controllers: tuple[KernelController, ...] = ()
    control: ResctrlHandle | None = None


class AgentLoop(Protocol):
    """A thread of the agent."""

    def start(self) -> None:
        """Begin."""
        ...

    def reload(self, conf: ReloadedConfiguration) -> None:
        """Go on by another configuration, from the next round on; for any thread."""
        ...

    def stop(self) -> None:
        """End; what hangs is not waited for for long."""
        ...


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


T = TypeVar("T")

LOG = logging.getLogger(__name__)

SAVE_SECONDS: Final = 300.0
"""What was learnt in so many seconds a crash may cost; what others were told is saved before."""


class KeptFile(Generic[T]):
    """One file of one loop. For one thread."""

    def __init__(self, path: Path, parse: Callable[[bytes], T], what: str) -> None:
        """``parse`` raises ValueError for what it cannot use. ``what`` is in the file, in words."""
        self._path = path
        self._parse = parse
        self._what = what
        self._saved = 0.0
        self._failure = ""

    def load(self) -> T | None:
        """What is in the file; None where it cannot be used. One with other content is put aside."""
        try:
            return self._parse(read_own(self._path))
        except FileNotFoundError:
            pass
        except UnsafeFileError as error:
            LOG.warning("%s is not used: %s", self._what, error)
        except (OSError, ValueError) as error:
            LOG.warning("%s cannot be used and is started anew: %s", self._what, error)
            try:
                put_aside(self._path)
            except OSError as failure:
                LOG.warning("%s cannot be put aside: %s", self._path, failure)
        return None

    def look(self) -> T | None:
        """As load(), for who just looks: what cannot be used is left alone."""
        try:
            return self._parse(read_own(self._path))
        except (OSError, ValueError):
            return None

    def is_due(self, now: float) -> bool:
        """Whether it is to be saved though nothing of note has changed; ``now`` is as save() has it."""
        return now - self._saved >= SAVE_SECONDS or now < self._saved

    def save(self, content: bytes, now: float) -> None:
        """Keep it. A full disk costs no more than what is learnt until it is not full, and is told once."""
        self._saved = now
        try:
            write_durably(self._path, content)
            self._failure = ""
        except OSError as error:
            if str(error) != self._failure:
                LOG.error("%s cannot be saved: %s; will be tried again", self._what, error)
            self._failure = str(error)


FIRST_PAUSE: Final = 1.0
_SPREAD: Final = 0.1
"""Intervals differ by so much: hosts that were all started at once drift apart within some rounds."""
_LEAST: Final = 0.5
"""The least part of a pause after failures."""


def pause(failures: int, interval: float, longest: float, draw: Callable[[], float]) -> float:
    """Seconds until the next report, after so many failures in a row.

    After none it is the ``interval``, more or less by a tenth. After failures it doubles each time, up to the
    ``longest``, and is any part of that from the half upwards.

    :param draw: a random number from 0 to 1.
    """
    if failures == 0:
        return interval * (1 - _SPREAD + 2 * _SPREAD * draw())
    whole = min(FIRST_PAUSE * 2.0 ** min(failures - 1, 30), longest)
    return whole * (_LEAST + (1 - _LEAST) * draw())
