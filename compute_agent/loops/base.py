"""What every loop has, and the configuration that it takes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from oslo_config import cfg

from compute_agent.controllers.base import KernelController
from compute_agent.interference.watch import InterferenceWatch
from compute_agent.qos.settings import QosSettings
from compute_agent.report.client import PlacementClient
from compute_agent.resctrl.mount import ResctrlHandle


@dataclass(frozen=True, slots=True)
class ReloadedConfiguration:
    """A configuration that was found to be good, and what was made of it on this host.

    ``options`` are those of the files, ``client`` is the way to Placement, ``settings`` are those of the
    watermarks, ``watches`` those of interference. ``control`` is the mount of resctrl, if there is one.
    """

    options: cfg.ConfigOpts
    client: PlacementClient
    settings: QosSettings
    controllers: tuple[KernelController, ...] = ()
    control: ResctrlHandle | None = None
    watches: tuple[InterferenceWatch, ...] = ()


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
