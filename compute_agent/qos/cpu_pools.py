"""The pools of CPUs, from their sections."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from oslo_config import cfg

from compute_agent.conf.qos import cpu_pool_sections
from compute_agent.model import cpuset
from compute_agent.model.cpuset import CPU_POOL, CpuPool
from compute_agent.model.guest import class_section
from compute_agent.model.messages import ConfigError


def parse_cpu_pools(conf: cfg.ConfigOpts, guest_classes: Collection[str]) -> tuple[CpuPool, ...]:
    """The pools, in the order of their names; ``guest_classes`` are those that there are.

    :raises ConfigError: naming section and option.
    """
    return tuple(_pool(name, options, guest_classes) for name, options in cpu_pool_sections(conf))


def _pool(name: str, options: Any, guest_classes: Collection[str]) -> CpuPool:
    section = class_section(CPU_POOL, name)
    cpus = frozenset[int]()
    if options.cpus is not None:
        try:
            cpus = cpuset.parse(options.cpus)
        except cpuset.BadCpuSet as error:
            raise ConfigError(f"{section} cpus: {error}") from error
    numbers = options.dedicated_cpus or options.shared_cpus
    if bool(cpus) == bool(numbers):
        raise ConfigError(
            f"{section}: a pool has either cpus, such as 4-7, or a number of dedicated_cpus and shared_cpus"
        )
    if options.per_node and not numbers:
        raise ConfigError(f"{section} per_node: it goes with dedicated_cpus and shared_cpus; remove it")
    if unknown := sorted(set(options.guest_classes) - set(guest_classes)):
        raise ConfigError(
            f"{section} guest_classes: there is no class {', '.join(unknown)}; there are"
            f" {', '.join(sorted(guest_classes))}"
        )
    return CpuPool(
        name,
        cpus,
        options.dedicated_cpus,
        options.shared_cpus,
        options.per_node,
        options.max_cpus,
        frozenset(options.guest_classes),
        options.max_guests,
    )
