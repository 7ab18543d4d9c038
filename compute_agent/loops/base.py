"""The base classes of loops, the configuration in force, and the length of the pause between reports.

Pauses between reports are random within limits. Otherwise, after an outage of Placement, all hosts would send
their reports at the same time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from oslo_config import cfg

from compute_agent.controllers.base import KernelController
from compute_agent.inventory.provider_tree import ProviderTree
from compute_agent.model.cpuset import CpuSet
from compute_agent.report.client import PlacementClient
from compute_agent.resctrl.mount import ResctrlHandle
from compute_agent.threads import PeriodicTask
from compute_agent.throttling.settings import ThrottlingSettings


@dataclass(frozen=True, slots=True)
class ReloadedConfiguration:
    """A checked configuration, and the objects of the agent that were made from it on this host.

    - ``options`` are the options of the configuration files.
    - ``client`` calls Placement.
    - ``settings`` are the settings of throttling.
    - ``controllers`` are the controllers of the worker.
    - ``control`` is the resctrl mount; None if there is no mount.
    - ``reader_cpus`` are the CPUs from which counters of caches are read, by L3 cache id.
    """

    options: cfg.ConfigOpts
    client: PlacementClient
    settings: ThrottlingSettings
    controllers: tuple[KernelController, ...] = ()
    control: ResctrlHandle | None = None
    reader_cpus: Mapping[int, CpuSet] = field(default_factory=dict)


STOP_SECONDS: Final = 2.0
"""Maximum seconds for which a stop of a loop waits for a round that hangs."""


class AgentLoop:
    """A periodic task of the agent with a thread of its own, which follows changes of the configuration.

    Subclasses set ``_thread``, and ``_conf`` if they read the configuration.
    """

    _conf: ReloadedConfiguration
    _thread: PeriodicTask

    def start(self) -> None:
        """Start the thread, if there is anything to do."""
        self._thread.start()

    def reload(self, conf: ReloadedConfiguration) -> None:
        """Use another configuration, beginning with the next round. Any thread may call this method."""
        self._conf = conf
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread. If a round hangs, wait at most a few seconds for it."""
        self._thread.stop(STOP_SECONDS)


class ConfigurationInForce:
    """Holds the present configuration for all threads, and passes a new configuration to all loops.

    So the code that reloads the configuration need not know the loops.
    """

    def __init__(self, conf: ReloadedConfiguration) -> None:
        self.current = conf
        """The present configuration.

        It is replaced as a whole, so that no thread reads a mixture of two configurations.
        """
        self._followers: tuple[AgentLoop, ...] = ()

    @property
    def controllers(self) -> tuple[KernelController, ...]:
        """The controllers that the worker uses."""
        return self.current.controllers

    def set_followers(self, loops: Sequence[AgentLoop]) -> None:
        """Set the loops to which reload() passes each new configuration, in the given order."""
        self._followers = tuple(loops)

    def reload(self) -> None:
        """Pass the present configuration to all loops. The worker must already have its new controllers."""
        for loop in self._followers:
            loop.reload(self.current)


WakeReport = Callable[[], None]
"""Requests a report to Placement. Any thread may call this function, which returns at once."""

TreeAddition = Callable[[ProviderTree], ProviderTree]
"""Adds inventories, traits or attributes to a tree of providers, for reports and for commands."""

FIRST_PAUSE: Final = 1.0
"""Seconds of the pause after the first failed report, before the pause is varied at random."""
_SPREAD: Final = 0.1
"""An interval is randomly shorter or longer by up to this share, so that reports of hosts drift apart."""
_LEAST: Final = 0.5
"""The shortest random pause after a failure, as a share of the full pause."""


def pause(failures: int, interval: float, longest: float, draw: Callable[[], float]) -> float:
    """Draw at random the seconds until the next report; the pause is longer after failed reports.

    Without failures, the result differs from ``interval`` by at most a tenth. Each further failure doubles
    the pause, from one second up to ``longest`` seconds. The result is then between half of this pause and
    the whole pause.

    :param draw: returns a random number from 0 to 1.
    """
    if failures == 0:
        return interval * (1 - _SPREAD + 2 * _SPREAD * draw())
    # The exponent is limited, because thousands of failures would overflow a float.
    whole = min(FIRST_PAUSE * 2.0 ** min(failures - 1, 30), longest)
    return whole * (_LEAST + (1 - _LEAST) * draw())
