"""Base classes of loops: their threads, pauses, configuration and files.

Pauses between reports are random, around their mean length. A Placement that was away is missed by all hosts
within one interval; with equal pauses they would all come back at the same moment, again and again.

A kept file holds what a loop has learnt, so that the next start goes on with it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Generic, Protocol, TypeVar

from oslo_config import cfg

from compute_agent import kept_json
from compute_agent.controllers.base import KernelController
from compute_agent.files import UnsafeFileError, put_aside, read_own, write_durably
from compute_agent.inventory.provider_tree import ProviderTree
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
    """A part of the agent with a thread."""

    def start(self) -> None:
        """Start the thread."""
        ...

    def reload(self, conf: ReloadedConfiguration) -> None:
        """Go on by another configuration, from the next round on; for any thread."""
        ...

    def stop(self) -> None:
        """Stop the thread. A thread that hangs is waited for a few seconds at most."""
        ...


class ConfigurationInForce:
    """The configuration by which the agent works, for all parts that go by it. Read by any thread.

    Made before the loops, which follow it; so a reload, which is made before them, too, has to know none.
    """

    def __init__(self, conf: ReloadedConfiguration) -> None:
        self.current = conf
        """Replaced as a whole, so that no thread sees options of one and controllers of another."""
        self._followers: tuple[AgentLoop, ...] = ()

    @property
    def controllers(self) -> tuple[KernelController, ...]:
        """The controllers that the worker has."""
        return self.current.controllers

    def follow(self, loops: Sequence[AgentLoop]) -> None:
        """Have these loops reload with each configuration from now on, in this order."""
        self._followers = tuple(loops)

    def reload(self) -> None:
        """Have all loops go by the current configuration; after the worker has its controllers."""
        for loop in self._followers:
            loop.reload(self.current)


class WakeReport(Protocol):
    """Has the host reported soon. Called from any thread, and returns at once."""

    def __call__(self) -> None:
        """Wake the thread of reports."""
        ...


class TreeAddition(Protocol):
    """A part that adds to the provider tree what changes from report to report."""

    def offering(self, tree: ProviderTree) -> ProviderTree:
        """The tree with that added; called by the thread of reports, and to show the inventory."""
        ...


T = TypeVar("T")

LOG = logging.getLogger(__name__)


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
        """The content; None where it cannot be used. A file with other content is put aside."""
        try:
            return self._parse(read_own(self._path))
        except FileNotFoundError:
            pass
        except UnsafeFileError as error:
            LOG.warning("%s is not used: %s", self._what, error)
        except (OSError, ValueError) as error:
            LOG.warning("%s cannot be used and starts empty: %s", self._what, error)
            try:
                put_aside(self._path)
            except OSError as failure:
                LOG.warning("%s cannot be put aside: %s", self._path, failure)
        return None

    def look(self) -> T | None:
        """The content, as by load(); a file that cannot be used is left alone."""
        try:
            return self._parse(read_own(self._path))
        except (OSError, ValueError):
            return None

    def is_due(self, now: float) -> bool:
        """Whether it is to be saved though nothing of note has changed; ``now`` is as save() has it."""
        return now - self._saved >= kept_json.SAVE_SECONDS or now < self._saved

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
"""Part by which intervals differ: hosts that were started together drift apart within some rounds."""
_LEAST: Final = 0.5
"""The least part of a pause after failures."""


def pause(failures: int, interval: float, longest: float, draw: Callable[[], float]) -> float:
    """Seconds until the next report, after a number of failures in a row.

    After none it is the ``interval``, more or less by a tenth. After failures it doubles each time, up to the
    ``longest``, and is any part of that from the half upwards.

    :param draw: a random number from 0 to 1.
    """
    if failures == 0:
        return interval * (1 - _SPREAD + 2 * _SPREAD * draw())
    whole = min(FIRST_PAUSE * 2.0 ** min(failures - 1, 30), longest)
    return whole * (_LEAST + (1 - _LEAST) * draw())
