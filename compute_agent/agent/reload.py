"""Reloading: notices changes of the configuration and the hardware, and applies them while guests run."""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Protocol

from oslo_config import cfg
from prometheus_client import Gauge

from compute_agent.agent import host_access, logs
from compute_agent.agent.config_warnings import config_warnings
from compute_agent.agent.configured_host import (
    ConfiguredHost,
    ControllerFactory,
    build_host_state,
    configured_host,
)
from compute_agent.agent.dry_run import try_configuration
from compute_agent.agent.host_access import HostDriver
from compute_agent.agent.parked_cpus import known_topology
from compute_agent.conf import written
from compute_agent.conf.origins import changed_values, option_values
from compute_agent.conf.restart_only import keep_started
from compute_agent.events.event import EventKind, EventOutcome, EventRecorder
from compute_agent.fleet.kept import KEPT
from compute_agent.host.cpus import read_online
from compute_agent.host.kernel_files import read_optional
from compute_agent.host.pci_devices import PciDevice, pci_addresses, read_lasting_facts
from compute_agent.host.reader import read_topology
from compute_agent.host.uevents import PciEvents
from compute_agent.inventory.provider_files import files_in
from compute_agent.inventory.provider_tree import IdentityError
from compute_agent.loops.base import ConfigurationInForce
from compute_agent.loops.root_watch import RootWatch
from compute_agent.model.cpuset import CpuSet
from compute_agent.model.messages import ConfigError
from compute_agent.pipeline.events import HostStateChanged
from compute_agent.pipeline.metrics import AgentMetrics
from compute_agent.pipeline.worker import GuestPipeline
from compute_agent.report.answers import PlacementError
from compute_agent.report.client import PlacementClient
from compute_agent.report.root_provider import RootOwner
from compute_agent.throttling.watermarks.metrics import MetricRegistry

_HUGE_PAGES: Final = "node/node*/hugepages/hugepages-*/nr_hugepages"


@dataclass(frozen=True, slots=True)
class HostSignature:
    """Something cheap to ask for that changes when the host does: the online CPUs, and the rest.

    The rest changes with each file of the configuration, of the fleet and of providers. The signature changes
    with NUMA nodes, with pools of huge pages and PCI devices where these are offered, and with foreign
    resctrl groups.
    """

    online: CpuSet
    rest: tuple[Any, ...]

    def differs_from(self, other: HostSignature, powered: CpuSet) -> bool:
        """Whether the host changed, apart from CPUs that a power manager switches as guests come and go."""
        return self.online - powered != other.online - powered or self.rest != other.rest


def host_signature(conf: cfg.ConfigOpts, devices: tuple[PciDevice, ...] = ()) -> HostSignature:
    """The signature of this host now.

    :param devices: its PCI devices, if it offers any.
    """
    system = Path(conf.host.root) / "sys/devices/system"
    pools = sorted(system.glob(_HUGE_PAGES)) if conf.compute.huge_pages else ()
    return HostSignature(
        read_online(Path(conf.host.root)),
        (
            *((path, _file_stamp(path)) for path in (*written.files_of(conf), *_other_files(conf))),
            read_optional(f"{system}/node/online"),
            *(read_optional(str(pool)) for pool in pools),
            devices,
            host_access.resctrl_signature(conf),
        ),
    )


class DeviceSurvey:
    """The PCI devices of the host, read again only after an event or with other addresses. For one thread.

    Devices come and go with hotplug, and virtual functions with sriov_numvfs. An event tells of a device that
    was replaced between two looks.
    """

    def __init__(self) -> None:
        self._events: PciEvents | None = None
        self._seen: tuple[object, ...] = ()
        self._devices: tuple[PciDevice, ...] = ()

    def read_devices(self, conf: cfg.ConfigOpts) -> tuple[PciDevice, ...]:
        """The facts about the devices that do not change with their guests; none if no option needs them."""
        if not conf.pci.device_spec and conf.pci.nodes == "none":
            return ()
        # Without these options a socket that is not read would fill up.
        self._events = self._events or PciEvents()
        root = Path(conf.host.root)
        seen = (root, self._events.count_events(), pci_addresses(root))
        if seen != self._seen:
            self._seen = seen
            self._devices = read_lasting_facts(root)
        return self._devices

    def close(self) -> None:
        """Close the socket of events."""
        if self._events is not None:
            self._events.close()


def _other_files(conf: cfg.ConfigOpts) -> tuple[Path, ...]:
    """Files that add to providers, and the kept revision of the fleet, which may not exist so far."""
    of_fleet = (Path(conf.state_path) / KEPT,) if conf.fleet.group else ()
    location = conf.compute.provider_config_location
    try:
        return (*of_fleet, *(files_in(location) if location else ()))
    except OSError:
        return of_fleet  # told when it is read


def _file_stamp(path: Path) -> tuple[int, int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    # The size and the inode tell two writes within one tick of the clock apart.
    return status.st_mtime_ns, status.st_size, status.st_ino


LOG = logging.getLogger(__name__)

WORKER_SECONDS: Final = 60.0
"""How long the worker is waited for."""


class ConfigurationLoader(Protocol):
    """Reads the configuration of the agent."""

    def __call__(self) -> cfg.ConfigOpts:
        """The options that the files have.

        :raises cfg.Error:
        :raises ConfigError:
        """
        ...


class ConfigReloader:
    """The configuration in force, and the way to another one. For the main thread; use_root() for any."""

    def __init__(
        self,
        load_conf: ConfigurationLoader,
        registry: MetricRegistry,
        factory: ControllerFactory,
        root: RootWatch,
        driver: HostDriver,
        pipeline: GuestPipeline,
        metrics: AgentMetrics,
        host: ConfiguredHost,
        in_force: ConfigurationInForce,
        recorder: EventRecorder,
    ) -> None:
        """``host`` is what the agent starts with; ``registry`` has the metrics of watermarks.

        :raises ConfigError: a class of block I/O cannot be.
        :raises OSError: a file of the host went away meanwhile.
        """
        self._load_conf = load_conf
        self._registry = registry
        self._factory = factory
        self._root = root
        self._driver = driver
        self._pipeline = pipeline
        self._refused = Gauge(
            "compute_agent_configuration_refused",
            "Whether the present configuration was refused (1), so that an older one is in force.",
            registry=metrics.registry,
        )
        self._lock = threading.Lock()
        self._in_force = in_force
        self.resctrl = host.resctrl
        self.error = ""
        """Why the configuration of the files is refused; empty if it is in force."""
        self._waiting: list[str] = []
        """Options that were changed and wait for a restart, a sentence each."""
        self._config_warnings = self._warnings_of(host)
        for warning in self._config_warnings:  # the driver's have been told
            LOG.warning("%s", warning)
        self._devices = DeviceSurvey()
        self._signature = self._read_signature(host.options)
        self._recorder = recorder
        # Kept as values: the files that they came from are other ones by the time of the next reload.
        self._values = option_values(host.options)

    @property
    def all_warnings(self) -> list[str]:
        """Sentences on the choice of the driver, and on options that wait for a restart or have no effect."""
        return [*filter(None, [self._driver.notice]), *self._waiting, *self._config_warnings]

    def reload_changes(self) -> None:
        """Look whether configuration or hardware changed since the last time, and apply that."""
        signature = self._read_signature(self._in_force.current.options)
        # CPUs that the agent itself parks go offline and come back, and are no change of the host.
        if signature.differs_from(self._signature, self._pipeline.host_state.powered):
            # Kept before the reload: a refused configuration is tried again when something changes once more.
            self._signature = signature
            self.reload()

    def close(self) -> None:
        """Close the socket of events. For after the last look."""
        self._devices.close()

    def _read_signature(self, options: cfg.ConfigOpts) -> HostSignature:
        return host_signature(options, self._devices.read_devices(options))

    def reload(self) -> None:
        """Read configuration and host again. A refused configuration changes nothing and is reported."""
        self.error = self._take_up()
        self._refused.set(bool(self.error))
        if self.error:
            self._recorder.record_event(
                LOG.error,
                EventKind.RELOAD,
                None,
                "The old configuration stays in force: %s",
                self.error,
                reason=self.error,
                outcome=EventOutcome.FAILED,
            )
            return
        before, now = self._values, option_values(self._in_force.current.options)
        self._values = now or before
        changed = "the files have changed meanwhile, so the changed options are not known"
        if before is not None and now is not None:
            changed = "; ".join(changed_values(before, now)) or "no option has changed"
        LOG.info("Options: %s", changed)
        self._recorder.record_event(
            LOG.info, EventKind.RELOAD, None, "The configuration and the host were read again", reason=changed
        )

    def _take_up(self) -> str:
        """Work by the current configuration and host. Returns why that cannot be."""
        try:
            options = self._load_conf()
            # Parts of the process were made from these options: a new value would hold for the others alone.
            waiting = keep_started(self._in_force.current.options, options)
            topology = read_topology(Path(options.host.root))
            client = PlacementClient.from_conf(options)
        except (cfg.Error, ConfigError, PlacementError, OSError) as error:
            self._follow_hardware()
            return str(error)
        try:
            self._root.reload(options)
            host = configured_host(options, self._registry, topology, root=self._root.owner, acting=True)
            controllers = self._factory.build_controllers(options, host.resctrl, host.host_state)
            # All that may be refused comes before the first change: a refused configuration changes nothing.
            warnings = self._warnings_of(host)
        except (ConfigError, IdentityError, cfg.Error, OSError) as error:
            self._root.reload(self._in_force.current.options)
            self._follow_hardware()
            return str(error)
        with self._lock:
            self._in_force.current = host.with_controllers(client, controllers)
            self._config_warnings, self._waiting = warnings, waiting
            logs.set_level(options)
            for warning in self.all_warnings:
                LOG.warning("%s", warning)
            off = host.resctrl.off
            if off != self.resctrl.off:
                LOG.info("Cache and bandwidth control is %s", f"off: {off}" if off else "on")
            self.resctrl = host.resctrl
            # The worker first: loops must not ask controllers that it does not have.
            changed = self._pipeline.submit(HostStateChanged(host.host_state, controllers))
            try:
                changed.result(WORKER_SECONDS)
            except TimeoutError:
                # It waits in the queue and will be done. This thread also has to stop the agent when asked.
                LOG.warning("The guests change to the new configuration once the worker is free")
            self._in_force.reload()
        return ""

    def _follow_hardware(self) -> None:
        """Work by the present hardware and the options in force, while those of the files are refused."""
        with self._lock:
            options = self._in_force.current.options
            try:
                topology = read_topology(Path(options.host.root))
            except OSError as error:
                LOG.warning("The agent continues with the hardware that it knows: %s", error)
                return
            try:
                host_state = build_host_state(
                    options, topology, control=self.resctrl.control, root=self._root.owner
                )
            except (ConfigError, IdentityError, cfg.Error, OSError):
                # They do not fit the hardware either, or a provider file is refused. Guests keep running on
                # the present CPUs; the report stays as it was until an operator decides.
                known = known_topology(options, topology)
                host_state = replace(self._pipeline.host_state, topology=known)
            self._pipeline.submit(HostStateChanged(host_state))

    def use_root(self, owner: RootOwner) -> None:
        """Work with another root provider, and with the controllers that go with its owner.

        For the thread of reports.

        :raises TimeoutError: the worker has no time.
        """
        # Held while the worker changes over, so that no reload of the main thread comes in between.
        with self._lock:
            conf = self._in_force.current
            options = conf.options
            host_state = build_host_state(options, control=self.resctrl.control, root=owner)
            if owner.beside == self._pipeline.host_state.tree.beside:
                self._pipeline.submit(HostStateChanged(host_state)).result(WORKER_SECONDS)
                return
            controllers = self._factory.build_controllers(options, self.resctrl, host_state)
            self._in_force.current = replace(conf, controllers=controllers)
            self._pipeline.submit(HostStateChanged(host_state, controllers)).result(WORKER_SECONDS)
            self._in_force.reload()

    def check_options(self, options: cfg.ConfigOpts, /) -> None:
        """Try a configuration on this host, which does not change. For any thread.

        :raises ConfigError: the agent would refuse it.
        :raises OSError: the host cannot be read.
        """
        try_configuration(options, self._root.owner, self._factory)

    def _warnings_of(self, host: ConfiguredHost) -> list[str]:
        return config_warnings(host.options, host.settings.rules, host.resctrl, self._driver.driver.name)
