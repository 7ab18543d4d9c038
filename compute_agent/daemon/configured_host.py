"""The host as a configuration has it: what is read, and perhaps refused, before anything is made of it."""

from __future__ import annotations

from dataclasses import dataclass

from oslo_config import cfg

from compute_agent.controllers.base import KernelController
from compute_agent.daemon.cache_control import HostResctrl, open_resctrl
from compute_agent.daemon.world import build_world
from compute_agent.host.topology import HostTopology
from compute_agent.interference.watch import InterferenceWatch, parse_watches
from compute_agent.loops.base import ReloadedConfiguration
from compute_agent.pipeline.world import HostState
from compute_agent.qos.metrics import MetricRegistry
from compute_agent.qos.settings import QosSettings, read_settings
from compute_agent.report.client import PlacementClient
from compute_agent.report.root_provider import RootOwner


@dataclass(frozen=True, slots=True)
class ConfiguredHost:
    """What follows from ``options`` on this host, but for what needs the driver of its guests."""

    options: cfg.ConfigOpts
    resctrl: HostResctrl
    world: HostState
    settings: QosSettings
    watches: tuple[InterferenceWatch, ...]

    def configuration(
        self, client: PlacementClient, controllers: tuple[KernelController, ...]
    ) -> ReloadedConfiguration:
        """The configuration that loops take."""
        return ReloadedConfiguration(
            self.options, client, self.settings, controllers, self.resctrl.control, self.watches
        )


def configured_host(
    options: cfg.ConfigOpts,
    registry: MetricRegistry,
    topology: HostTopology | None = None,
    *,
    root: RootOwner | None = None,
    root_uuid: str | None = None,
    acting: bool = False,
) -> ConfiguredHost:
    """See ``build_world`` for ``topology``, ``root`` and ``root_uuid``, ``open_resctrl`` for ``acting``.

    :raises ConfigError: the configuration is refused.
    :raises cfg.Error: it is.
    :raises IdentityError:
    :raises OSError: the host cannot be read.
    """
    resctrl = open_resctrl(options, acting)
    world = build_world(options, topology, root_uuid=root_uuid, control=resctrl.control, root=root)
    settings = read_settings(options, registry)
    return ConfiguredHost(options, resctrl, world, settings, parse_watches(options, settings.classes))
