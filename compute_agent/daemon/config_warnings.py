"""What in the configuration does not stop the agent, and still is not as whoever wrote it will have meant."""

from __future__ import annotations

from pathlib import Path

from oslo_config import cfg

from compute_agent.conf import find_unknown_options
from compute_agent.conf.guests import FOLLOW
from compute_agent.daemon.cache_control import Resctrl
from compute_agent.daemon.watermark_support import unmeasured_metrics, unusable_levers
from compute_agent.host.block_devices import read_block_devices
from compute_agent.inventory.options import name_warning
from compute_agent.qos.blockio import blockio_warnings, parse_blockio_classes
from compute_agent.qos.rules import Rules
from compute_agent.qos.unenforceable import unenforceable


def config_warnings(conf: cfg.ConfigOpts, rules: Rules | None, resctrl: Resctrl, driver: str) -> list[str]:
    """A sentence each, that names section, option and remedy.

    ``rules`` are those of the watermarks (None: refused), ``resctrl`` is the mount of this host, ``driver``
    the name of that of the guests.

    :raises cfg.Error:
    :raises ConfigError: a class of block I/O cannot be.
    :raises OSError: a file went away meanwhile.
    """
    found = [*find_unknown_options(conf), *filter(None, [name_warning(conf)])]
    if not conf.placement.auth_type and not conf.placement.auth_section:
        found.append(
            "[placement] auth_type is not set: the agent has no way to Placement, reports nothing and starts"
            " no guest; the section has the options of Nova's own [placement]"
        )
    if conf.policy.name == FOLLOW and conf.guests.unallocated == "ignore":
        found.append(
            "[guests] unallocated = ignore has no effect with [policy] name = follow, which leaves all guests"
            " where they are: remove it"
        )
    devices = read_block_devices(Path(conf.host.root))
    found += blockio_warnings(parse_blockio_classes(conf), devices)
    if rules is not None:
        measures = unmeasured_metrics(conf, resctrl.control), unusable_levers(conf, resctrl, driver)
        found += unenforceable(rules.watermarks, rules.registry, *measures)
    return found
