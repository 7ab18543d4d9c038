"""What in the configuration does not stop the agent, and still is not as whoever wrote it will have meant."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

from oslo_config import cfg

from compute_agent.conf import find_unknown_options
from compute_agent.conf.cpu_class import CPU_CLASS
from compute_agent.conf.guests import FOLLOW
from compute_agent.controllers.cpu_class import CpuClassClaim, decide
from compute_agent.daemon.cache_control import HostResctrl
from compute_agent.daemon.interference_support import interference_warnings
from compute_agent.daemon.watermark_support import unmeasured_metrics, unusable_levers
from compute_agent.host.block_devices import read_block_devices
from compute_agent.host.cpu_power import CpuPower, read_cpu_power
from compute_agent.inventory.options import name_warning
from compute_agent.model.cpuset import IDLE, SHARED, CpuClass
from compute_agent.qos.blockio import blockio_warnings, parse_blockio_classes
from compute_agent.qos.classes import parse_classes
from compute_agent.qos.cpu_classes import parse_cpu_classes
from compute_agent.qos.guest_command import missing_program
from compute_agent.qos.rules import QosRules
from compute_agent.qos.unenforceable import unenforceable


def cpu_class_warnings(
    classes: Mapping[str, CpuClass], power: CpuPower, named: Collection[str]
) -> Iterator[str]:
    """What of the classes of CPUs has no effect; ``named`` are those that classes of guests name."""
    for name, one in classes.items():
        if name not in (IDLE, SHARED) and name not in named:
            yield (
                f"[{CPU_CLASS}{name}] is of no CPU: name it in cpu_class of a [qos_class:NAME], or call it"
                f" {IDLE} or {SHARED}"
            )
        for reasons in decide(power, [CpuClassClaim(power.cpus, one)]).missing.values():
            yield from reasons


def config_warnings(
    conf: cfg.ConfigOpts, rules: QosRules | None, resctrl: HostResctrl, driver: str
) -> list[str]:
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
    classes, power = parse_cpu_classes(conf), read_cpu_power(Path(conf.host.root))
    found += cpu_class_warnings(
        classes, power, {one.cpu_class for one in parse_classes(conf).classes.values()}
    )
    measures = unmeasured_metrics(conf, resctrl.control), unusable_levers(conf, resctrl, driver)
    found += interference_warnings(conf, *measures)
    if conf.qos.evict_command and (reason := missing_program(conf.qos.evict_command)):
        found.append(f"[qos] evict_command: it will fail, as {reason}")
    if rules is not None:
        found += unenforceable(rules.watermarks, rules.registry, *measures)
    return found
