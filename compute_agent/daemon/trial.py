"""Whether this host could work by another configuration."""

from __future__ import annotations

from collections.abc import Callable

from oslo_config import cfg

from compute_agent.daemon.cache_control import Resctrl, open_resctrl
from compute_agent.daemon.world import NOBODY, build_world
from compute_agent.inventory.identity import IdentityError
from compute_agent.model.errors import ConfigError
from compute_agent.pipeline.world import World
from compute_agent.qos.metrics import load_registry
from compute_agent.qos.settings import read_settings
from compute_agent.report.client import PlacementClient
from compute_agent.report.errors import PlacementError
from compute_agent.report.nova_root import RootOwner

Build = Callable[[cfg.ConfigOpts, Resctrl, World], object]


def try_configuration(
    options: cfg.ConfigOpts, owner: RootOwner | None = None, build: Build | None = None
) -> None:
    """Make what follows from a configuration on this host, and drop it. Nothing changes.

    :param owner: whose the root provider is; without it what the configuration says.
    :param build: makes what needs a running agent.
    :raises ConfigError: the agent would refuse it.
    :raises OSError: the host cannot be read.
    """
    try:
        PlacementClient.from_conf(options)
        resctrl = open_resctrl(options)
        world = build_world(options, root_uuid=NOBODY, control=resctrl.control, root=owner)
        read_settings(options, load_registry())
        if build is not None:
            build(options, resctrl, world)
    except (PlacementError, IdentityError, cfg.Error) as error:
        raise ConfigError(str(error)) from error
