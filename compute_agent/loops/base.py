"""Base classes of loops: their threads, pauses and configuration.

Pauses between reports vary around their mean. Otherwise hosts that lost Placement at the same moment would
all return at the same moment, in each interval.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from oslo_config import cfg

from compute_agent.controllers.base import KernelController
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

    The object is made before the loops, which follow it. So the reload, made before the loops as well, need
    not know a single loop.
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
