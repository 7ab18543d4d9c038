"""Base classes of loops: their threads, pauses, configuration and files.

Pauses between reports vary around their mean. Hosts that lost Placement at one moment would otherwise all
come back at one moment, in each interval again.

A kept file holds the knowledge of a loop, so that the next start continues with it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Generic, Protocol, TypeVar

from oslo_config import cfg

from compute_agent import kept_json
from compute_agent.controllers.base import KernelController
from compute_agent.files import UnsafeFileError, put_aside, read_own, write_durably
from compute_agent.inventory.provider_tree import ProviderTree
from compute_agent.model.cpuset import CpuSet
from compute_agent.report.client import PlacementClient
from compute_agent.resctrl.mount import ResctrlHandle
from compute_agent.throttling.settings import ThrottlingSettings


@dataclass(frozen=True, slots=True)
class ReloadedConfiguration:
    """A checked configuration with the objects that were made from it on this host.

    ``options`` are the options of the files, ``client`` calls Placement, ``settings`` are for throttling.
    ``control`` is the mount of resctrl, if there is one. ``reader_cpus`` are the CPUs from which its counters
    are read, by L3 cache id.
    """

    options: cfg.ConfigOpts
    client: PlacementClient
    settings: ThrottlingSettings
    controllers: tuple[KernelController, ...] = ()
    control: ResctrlHandle | None = None
    reader_cpus: Mapping[int, CpuSet] = field(default_factory=dict)


class AgentLoop(Protocol):
    """A part of the agent with a thread of its own."""

    def start(self) -> None:
        """Start the thread."""
        ...

    def reload(self, conf: ReloadedConfiguration) -> None:
        """Use another configuration from the next round on; for any thread."""
        ...

    def stop(self) -> None:
        """Stop the thread, and wait a few seconds at most for a thread that hangs."""
        ...


class ConfigurationInForce:
    """The configuration in force, which any thread may read.

    It is made before the loops, which follow it. So the reload, made before the loops as well, need not know
    a single loop.
    """

    def __init__(self, conf: ReloadedConfiguration) -> None:
        self.current = conf
        """Replaced as a whole: no thread sees the options of one and the controllers of another."""
        self._followers: tuple[AgentLoop, ...] = ()

    @property
    def controllers(self) -> tuple[KernelController, ...]:
        """The controllers that the worker uses."""
        return self.current.controllers

    def add_followers(self, loops: Sequence[AgentLoop]) -> None:
        """Reload these loops with each configuration from now on, in this order."""
        self._followers = tuple(loops)

    def reload(self) -> None:
        """Make all loops use the current configuration. Call it after the worker has the new controllers."""
        for loop in self._followers:
            loop.reload(self.current)


class WakeReport(Protocol):
    """Requests a report soon. Any thread may call it; it returns at once."""

    def __call__(self) -> None:
        """Wake the thread of reports."""
        ...


class TreeAddition(Protocol):
    """A part of the provider tree that changes from report to report, such as offers and attributes."""

    def add_to_tree(self, tree: ProviderTree) -> ProviderTree:
        """Return the tree with the addition; called by the thread of reports, and to show the inventory."""
        ...


T = TypeVar("T")

LOG = logging.getLogger(__name__)


class KeptFile(Generic[T]):
    """One file of one loop. For one thread."""

    def __init__(self, path: Path, parse: Callable[[bytes], T], subject: str) -> None:
        """Describe the file.

        :param parse: raises ValueError for content that cannot be used.
        :param subject: the content in words, as the subject of a sentence in the log.
        """
        self._path = path
        self._parse = parse
        self._subject = subject
        self._saved = 0.0
        self._failure = ""

    def load(self) -> T | None:
        """Read the content; None where it cannot be used. A file with other content is put aside."""
        try:
            return self._parse(read_own(self._path))
        # There is no file before the first save.
        except FileNotFoundError:
            pass
        except UnsafeFileError as error:
            LOG.warning("%s is not used: %s", self._subject, error)
        except (OSError, ValueError) as error:
            LOG.warning("%s cannot be used and starts empty: %s", self._subject, error)
            try:
                put_aside(self._path)
            except OSError as failure:
                LOG.warning("%s cannot be put aside: %s", self._path, failure)
        return None

    def peek_content(self) -> T | None:
        """Read the content like load(), but leave a file that cannot be used where it is."""
        try:
            return self._parse(read_own(self._path))
        except (OSError, ValueError):
            return None

    def is_due(self, now: float) -> bool:
        """Tell whether a save is due by time alone; ``now`` is on the clock of save()."""
        # A clock that was set back must not stop saves until it catches up.
        return now - self._saved >= kept_json.SAVE_SECONDS or now < self._saved

    def save(self, content: bytes, now: float) -> None:
        """Write the content. A full disk costs only what is learnt meanwhile, and is logged once."""
        # Also before a write that fails: a full disk is tried again at the usual interval.
        self._saved = now
        try:
            write_durably(self._path, content)
            self._failure = ""
        except OSError as error:
            if str(error) != self._failure:
                LOG.error("%s cannot be saved: %s; the agent tries again", self._subject, error)
            self._failure = str(error)


FIRST_PAUSE: Final = 1.0
_SPREAD: Final = 0.1
"""The relative spread of intervals: hosts that were started together drift apart within some rounds."""
_LEAST: Final = 0.5
"""The smallest part of the whole pause that is drawn after failures."""


def pause(failures: int, interval: float, longest: float, draw: Callable[[], float]) -> float:
    """Draw the seconds until the next report, after a number of failures in a row.

    Without failures it is the ``interval``, more or less by a tenth. Each failure doubles the pause, up to
    ``longest``; the result is drawn from its upper half.

    :param draw: returns a random number from 0 to 1.
    """
    if failures == 0:
        return interval * (1 - _SPREAD + 2 * _SPREAD * draw())
    # Limited, since the power of thousands of failures would overflow a float.
    whole = min(FIRST_PAUSE * 2.0 ** min(failures - 1, 30), longest)
    return whole * (_LEAST + (1 - _LEAST) * draw())
