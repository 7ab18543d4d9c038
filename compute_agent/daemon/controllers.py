"""Which controllers there are on this host, as the configuration says."""

from __future__ import annotations

from pathlib import Path

from oslo_config import cfg

from compute_agent.conf.guests import FOLLOW
from compute_agent.controllers.base import KernelController
from compute_agent.controllers.blockio import BlockIoController
from compute_agent.controllers.cpu import CpuController, CpusetController
from compute_agent.controllers.cpu_class import (
    ClassBinding,
    CpuClassController,
    CpuClasses,
    FormerStore,
    KernelFiles,
)
from compute_agent.controllers.memory import MemoryController, MemoryLimitController
from compute_agent.controllers.resctrl import ResctrlController
from compute_agent.daemon.cache_control import HostResctrl
from compute_agent.daemon.world import policy_of
from compute_agent.drivers.base import GuestDriver
from compute_agent.host.block_devices import read_block_devices
from compute_agent.pipeline.metrics import AgentMetrics
from compute_agent.pipeline.world import HostState
from compute_agent.qos.blockio import parse_blockio_classes
from compute_agent.qos.classes import parse_classes
from compute_agent.qos.cpu_classes import parse_cpu_classes


def build_controllers(
    conf: cfg.ConfigOpts,
    driver: GuestDriver,
    resctrl: HostResctrl,
    world: HostState,
    store: FormerStore,
    metrics: AgentMetrics,
) -> tuple[KernelController, ...]:
    """The controllers in the order in which they act. ``resctrl`` is the mount of this host.

    Where the agent follows somebody else, as it does beside nova-compute unless told otherwise, none of them
    pins guests or binds memory. ``store`` keeps what kernel files held before.

    :raises ConfigError:
    """
    guest_classes = parse_classes(conf)
    known = guest_classes.classes
    cpu_classes = parse_cpu_classes(conf)
    configured = CpuClasses(
        cpu_classes,
        {name: ClassBinding(one.rank, cpu_classes.get(one.cpu_class)) for name, one in known.items()},
        world.cpu_sets,
    )
    shares = {name: one.memory for name, one in known.items()}
    offers_pages = conf.compute.huge_pages and not world.tree.beside
    limits = MemoryLimitController(driver, shares, conf.compute.memory_overhead, offers_pages)
    root = Path(conf.host.root)
    blockio = BlockIoController(driver, parse_blockio_classes(conf), lambda: read_block_devices(root))
    count_drift = metrics.drift.labels(CpuClassController.name).inc
    power = CpuClassController(driver, configured, store, KernelFiles(root), count_drift)
    controllers: list[KernelController] = [
        CpuController(driver, guest_classes.best_effort),
        limits,
        blockio,
        power,
    ]
    if policy_of(conf, world.tree.beside) != FOLLOW:
        binding = MemoryController(driver, world.topology.memory_types)
        controllers = [CpusetController(driver), *controllers, binding]
    if resctrl.control is not None and not resctrl.off:
        controllers.append(ResctrlController(driver, resctrl.control, guest_classes.wishes))
    return tuple(controllers)
