"""Whether this host could work by another configuration."""

from __future__ import annotations

from collections.abc import Callable, Collection

from oslo_config import cfg

from compute_agent.conf import written
from compute_agent.daemon.cache_control import HostResctrl
from compute_agent.daemon.configured_host import configured_host
from compute_agent.daemon.parameters import SetSchema, load
from compute_agent.daemon.protocol import RequestError
from compute_agent.daemon.world import NOBODY
from compute_agent.fleet.guests import parse
from compute_agent.fleet.revision import FleetError
from compute_agent.inventory.provider_tree import IdentityError
from compute_agent.model.messages import ConfigError
from compute_agent.pipeline.world import HostState
from compute_agent.qos.blockio import parse_blockio_classes
from compute_agent.qos.cpu_classes import parse_cpu_classes
from compute_agent.qos.metrics import load_registry
from compute_agent.report.answers import PlacementError
from compute_agent.report.client import PlacementClient
from compute_agent.report.root_provider import RootOwner

Build = Callable[[cfg.ConfigOpts, HostResctrl, HostState], object]


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
        host = configured_host(options, load_registry(), root=owner, root_uuid=NOBODY)
        parse_cpu_classes(options)
        _check_guests(options, host.settings.classes.classes.keys(), parse_blockio_classes(options).keys())
        if build is not None:
            build(options, host.resctrl, host.world)
    except (PlacementError, IdentityError, FleetError, RequestError, cfg.Error) as error:
        raise ConfigError(str(error)) from error


def _check_guests(options: cfg.ConfigOpts, classes: Collection[str], of_blockio: Collection[str]) -> None:
    """See that what the fleet wants of guests could be set, whether they are here or not.

    :raises FleetError:
    :raises RequestError:
    """
    for guest, values in parse(written.read(written.files_of(options))).items():
        load(SetSchema(), {"guest": guest, **values})
        for name, known in (("qos_class", classes), ("blockio_class", of_blockio)):
            if values.get(name) and values[name] not in known:
                raise FleetError(f"[guest:{guest}] {name}: there is no class {values[name]}")
