"""The controllers of this host, from a configuration, in the order in which they act."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from oslo_config import cfg

from compute_agent.agent.configured_host import policy_of
from compute_agent.agent.host_access import HostResctrl
from compute_agent.agent.parked_cpus import (
    parking_rules,
)
from compute_agent.classes.blockio_classes import parse_blockio_classes
from compute_agent.classes.cpu_classes import parse_cpu_classes
from compute_agent.classes.guest_classes import parse_classes
from compute_agent.conf.isolation import MOVE
from compute_agent.conf.policy import FOLLOW
from compute_agent.controllers.base import KernelController
from compute_agent.controllers.blockio import BlockIoController
from compute_agent.controllers.core_cookies import CoreCookieController
from compute_agent.controllers.cpu import CpuController, CpusetController
from compute_agent.controllers.cpu_class import CpuClassController, FormerStore, KernelFiles
from compute_agent.controllers.cpu_class_plan import NO_CPU_CLASSES, ClassBinding, CpuClasses
from compute_agent.controllers.emulator import (
    STAYING_EMULATORS,
    EmulatorController,
    EmulatorSettings,
)
from compute_agent.controllers.isolation import NO_ISOLATION, IsolationController, IsolationSettings
from compute_agent.controllers.memory import MemoryController, MemoryLimitController
from compute_agent.controllers.realtime import RealtimeController
from compute_agent.controllers.resctrl import ResctrlController
from compute_agent.drivers.base import GuestDriver
from compute_agent.events.event import EventRecorder
from compute_agent.host.block_devices import read_block_devices
from compute_agent.isolation.facts import MaskReader
from compute_agent.isolation.originals import ORIGINALS_FILE, OriginalsFile
from compute_agent.isolation.shell import MaskOwnership, OwnThreads
from compute_agent.model.guest_settings import MemoryType
from compute_agent.model.resource import BlockIoClass, CpuShare, MemoryShare
from compute_agent.pipeline.host_state import HostState
from compute_agent.pipeline.metrics import AgentMetrics
from compute_agent.resctrl.mount import ResctrlHandle
from compute_agent.resctrl.share_spec import ShareSpec
from compute_agent.schedules.cookies import KernelCookies
from compute_agent.schedules.realtime import KernelSchedules
from compute_agent.schedules.run_notes import COOKIES_FILE, PRIORITIES_FILE, RunNotesFile


@dataclass(frozen=True, slots=True)
class ControllerSettings:
    """The settings of all controllers. The defaults are those of an empty configuration.

    The keys of the mappings are names of QoS classes, or of classes of block I/O, unless stated otherwise.

    :ivar pins: whether the agent pins guests and binds their memory.
    :ivar best_effort: the names of the QoS classes of best-effort guests.
    :ivar memory_overhead: the MiB that a process guest can use in addition to its allocation of MEMORY_MB.
    :ivar limits_pages: whether guests are limited to the huge pages that they hold.
    :ivar memory_types: the memory types by NUMA node.
    """

    pins: bool = True
    best_effort: frozenset[str] = frozenset()
    cpu_shares: Mapping[str, CpuShare] = field(default_factory=dict)
    memory_shares: Mapping[str, MemoryShare] = field(default_factory=dict)
    memory_overhead: int = 0
    limits_pages: bool = False
    memory_types: Mapping[int, MemoryType] = field(default_factory=dict)
    blockio_classes: Mapping[str, BlockIoClass] = field(default_factory=dict)
    cpu_classes: CpuClasses = NO_CPU_CLASSES
    emulator: EmulatorSettings = STAYING_EMULATORS
    isolation: IsolationSettings = NO_ISOLATION
    cache_shares: Mapping[str, ShareSpec] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ControllerStores:
    """The stores from which controllers restore what they have changed.

    These stores outlive each reload of the configuration.

    :ivar former: the contents that kernel files had before the agent changed them.
    :ivar originals: the CPU masks that interrupts and threads had before the agent changed them.
    :ivar cookies: the guests with core-scheduling cookies from the agent.
    :ivar priorities: the guests with realtime priorities from the agent.
    :ivar ownership: the right to change the CPU masks of this host.
    :ivar own_threads: the CPUs that the agent's own threads had at its start.
    """

    former: FormerStore
    originals: OriginalsFile
    cookies: RunNotesFile
    priorities: RunNotesFile
    ownership: MaskOwnership = field(default_factory=MaskOwnership)
    own_threads: OwnThreads = field(default_factory=OwnThreads)


def open_stores(former: FormerStore, folder: Path, locks: Path | None = None) -> ControllerStores:
    """Open the stores of a state folder. A store reads its file at the first use.

    :param former: the store of the former contents of files.
    :param locks: the folder with the locks that all agents of the host share; None means that no lock is
        taken.
    """
    return ControllerStores(
        former,
        OriginalsFile(folder / ORIGINALS_FILE),
        RunNotesFile(folder / COOKIES_FILE),
        RunNotesFile(folder / PRIORITIES_FILE),
        MaskOwnership(locks),
    )


def make_controllers(
    driver: GuestDriver,
    control: ResctrlHandle | None,
    settings: ControllerSettings,
    stores: ControllerStores,
    root: Path,
    drift_counter: Callable[[str], Callable[[], object]] = lambda name: lambda: None,
    recorder: EventRecorder | None = None,
) -> tuple[KernelController, ...]:
    """Make all controllers, in the order in which they act. The agent and a release use the same list.

    :param control: the resctrl mount that the controllers can change; None means that there is no cache
        control.
    :param root: the folder with ``sys`` and ``proc``.
    :param drift_counter: takes the name of a controller and returns a function. The controller calls that
        function for each file or mask that another program has changed.
    """
    files = KernelFiles(root)
    pinning: KernelController = EmulatorController(driver, settings.emulator)
    if settings.pins:
        pinning = CpusetController(driver)
    caches: tuple[KernelController, ...] = ()
    if control is not None:
        caches = (ResctrlController(driver, control, settings.cache_shares, recorder),)
    return (
        # Guests are pinned before they get weights: a weight means little on CPUs that a guest is about to
        # leave.
        pinning,
        CpuController(driver, settings.best_effort, settings.cpu_shares),
        MemoryLimitController(
            driver, settings.memory_shares, settings.memory_overhead, settings.limits_pages
        ),
        BlockIoController(driver, settings.blockio_classes, lambda: read_block_devices(root)),
        CpuClassController(
            driver, settings.cpu_classes, stores.former, files, drift_counter(CpuClassController.name)
        ),
        # This controller acts after the controller that brings parked CPUs online, because the kernel refuses
        # masks of offline CPUs.
        IsolationController(
            driver,
            settings.isolation,
            stores.originals,
            MaskReader(root),
            drift_counter(IsolationController.name),
            stores.ownership,
            stores.own_threads,
        ),
        RealtimeController(
            driver,
            {
                name: share.realtime_priority
                for name, share in settings.cpu_shares.items()
                if share.realtime_priority is not None
            },
            stores.priorities,
            KernelSchedules(),
            drift_counter(RealtimeController.name),
        ),
        CoreCookieController(
            driver,
            {name: share.core_scheduling for name, share in settings.cpu_shares.items()},
            stores.cookies,
            KernelCookies(),
            drift_counter(CoreCookieController.name),
        ),
        MemoryController(driver, settings.memory_types, settings.pins),
        *caches,
    )


@dataclass(frozen=True, slots=True)
class ControllerFactory:
    """Makes the controllers of one agent, at its start and again at each reload."""

    driver: GuestDriver
    stores: ControllerStores
    metrics: AgentMetrics
    recorder: EventRecorder | None = None

    def build_controllers(
        self, conf: cfg.ConfigOpts, resctrl: HostResctrl, host_state: HostState
    ) -> tuple[KernelController, ...]:
        """Make the controllers of a configuration, in the order in which they act.

        If another program pins guests (by default nova-compute), no controller pins guest CPUs. One
        controller moves emulator threads, if ``[isolation] emulator`` asks for it. Memory is bound only for
        guests with a memory type.

        :param resctrl: the resctrl mount of this host.
        :raises ConfigError: a section that defines a class is invalid.
        """
        guest_classes = parse_classes(conf)
        known = guest_classes.classes
        cpu_classes = parse_cpu_classes(conf)
        settings = ControllerSettings(
            pins=policy_of(conf, host_state.tree.beside) != FOLLOW,
            best_effort=frozenset(guest_classes.best_effort),
            cpu_shares={name: one.cpu for name, one in known.items()},
            memory_shares={name: one.memory for name, one in known.items()},
            memory_overhead=conf.compute.memory_overhead,
            limits_pages=conf.compute.huge_pages and not host_state.tree.beside,
            memory_types=host_state.topology.memory_types,
            blockio_classes=parse_blockio_classes(conf),
            cpu_classes=CpuClasses(
                cpu_classes,
                {name: ClassBinding(one.rank, cpu_classes.get(one.cpu_class)) for name, one in known.items()},
                host_state.cpu_sets,
                parking_rules(conf, host_state.topology, host_state.cpu_sets, host_state.tree.beside),
            ),
            emulator=EmulatorSettings(
                conf.isolation.emulator == MOVE,
                host_state.cpu_sets.emulator - host_state.cpu_sets.pooled,
                {node.id: node.cpus for node in host_state.topology.numa_nodes},
            ),
            isolation=IsolationSettings(
                {name: one.isolation for name, one in known.items()},
                host_state.cpu_sets.dedicated,
                {node.id: node.cpus for node in host_state.topology.numa_nodes},
                frozenset(name for name, one in known.items() if one.cpu.realtime_priority),
            ),
            cache_shares=guest_classes.share_specs,
        )
        # With cache control off, the agent can read the mount, but no controller is allowed to write there.
        control = None if resctrl.off else resctrl.control
        return make_controllers(
            self.driver,
            control,
            settings,
            self.stores,
            Path(conf.host.root),
            # labels() creates the counter with the value 0, because Prometheus sees no increase in a series
            # that starts at 1.
            lambda name: self.metrics.drift.labels(name).inc,
            self.recorder,
        )
