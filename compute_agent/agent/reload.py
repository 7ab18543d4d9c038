"""Reloads the agent: notices changes of the configuration and the hardware, and applies them.

Some options take effect only when the agent starts. These options name things that stay open while the agent
runs: the state folder, sockets, locks, and the driver of guests. For example, the state folder has the uuid
of the agent's provider. If a reload changed the state folder, the agent would report another host.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Protocol

from oslo_config import cfg
from prometheus_client import Gauge

from compute_agent.agent import host_access, logs
from compute_agent.agent.config_warnings import config_warnings
from compute_agent.agent.configured_controllers import ControllerFactory
from compute_agent.agent.configured_host import ConfiguredHost, build_host_state, configured_host
from compute_agent.agent.dry_run import try_configuration
from compute_agent.agent.host_access import HostDriver
from compute_agent.agent.parked_cpus import known_topology
from compute_agent.conf import log_options, written
from compute_agent.conf.origins import changed_values, option_values
from compute_agent.events.event import EventKind, EventOutcome, EventRecorder
from compute_agent.fleet.configuration import KEPT_FILE
from compute_agent.host.cpus import read_online
from compute_agent.host.kernel_files import read_optional
from compute_agent.host.pci_devices import PciDevice, PciEvents, pci_addresses, read_lasting_facts
from compute_agent.host.reader import read_topology
from compute_agent.inventory.host_identity import IdentityError
from compute_agent.inventory.provider_files import files_in
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

LOG = logging.getLogger(__name__)

# The agent's own options. restart_only_options() adds the options of the log.
_DEFAULT: Final = "DEFAULT"

_OWN: Final = (
    (_DEFAULT, "state_path"),
    (_DEFAULT, "lock_path"),
    ("guests", "drivers"),
    ("libvirt", "uri"),
    ("cgroup", "root"),
    ("systemd", "bus_socket"),
    ("systemd", "guest_names"),
    ("podman", "socket"),
    ("podman", "guest_names"),
    ("podman", "pods"),
    ("docker", "socket"),
    ("docker", "guest_names"),
    ("daemon", "socket"),
    ("daemon", "http_address"),
    ("daemon", "http_port"),
)

_LEVEL: Final = "debug"
"""The only option of the log that a reload applies."""


def restart_only_options() -> Iterator[tuple[str, str]]:
    """Section and name of each option that takes effect only at a start, including options of the log."""
    yield from _OWN
    for _, options in log_options():
        for option in options:
            if option.dest != _LEVEL:
                yield _DEFAULT, option.dest


def keep_started(started: cfg.ConfigOpts, reloaded: cfg.ConfigOpts) -> list[str]:
    """Restore, in a reloaded configuration, the options that take effect only at a start.

    :param started: the configuration in force, which the agent has read at its start or last reload.
    :param reloaded: the new configuration, which this function changes.
    :returns: a warning for each option that has a new value in the files.
    """
    warnings = []
    for section, name in restart_only_options():
        if section == _DEFAULT and name not in reloaded:
            continue  # oslo.log lists the option, but only other programs register it
        before, now = _option_value(started, section, name), _option_value(reloaded, section, name)
        if before != now:
            reloaded.set_override(name, before, group=None if section == _DEFAULT else section)
            warnings.append(f"[{section}] {name} was changed, and takes effect when the agent is restarted")
    return warnings


def _option_value(conf: cfg.ConfigOpts, section: str, name: str) -> Any:
    return conf[name] if section == _DEFAULT else conf[section][name]


_HUGE_PAGES: Final = "node/node*/hugepages/hugepages-*/nr_hugepages"
"""The files with the numbers of huge pages per NUMA node and page size, below /sys/devices/system."""


SETTLE_SECONDS: Final = 0.5
"""Seconds for which a changed file must stay unchanged before the agent reads it."""


@dataclass(frozen=True, slots=True)
class FileStamp:
    """Attributes of a file that differ after each write.

    The modification time alone is not enough: two writes within one tick of the kernel's clock have the same
    time.

    :ivar modified: the modification time in nanoseconds since the epoch.
    :ivar size: the size in bytes.
    """

    modified: int
    size: int
    inode: int


FileStamps = tuple[tuple[Path, FileStamp | None], ...]
"""The stamps of files, by path; None means that the file is absent."""


def emptied_files(before: FileStamps, now: FileStamps) -> list[Path]:
    """The files that are empty now and had text before, for example after a full disk."""
    written = {path for path, stamp in before if stamp and stamp.size}
    return [path for path, stamp in now if stamp and not stamp.size and path in written]


@dataclass(frozen=True, slots=True)
class HostSignature:
    """Facts about the host that the agent can read often at low cost.

    These facts differ after a change of the host that needs a reload of the agent.

    :ivar online: the online CPUs.
    :ivar files: the files of configuration, fleet, providers and nova-compute.
    :ivar rest: the NUMA nodes and the state of resctrl. Huge pages and PCI devices are added if an option
        needs them.
    """

    online: CpuSet
    files: FileStamps
    rest: tuple[Any, ...]

    def differs_from(self, other: HostSignature, powered: CpuSet) -> bool:
        """Whether the host has changed since ``other`` was read.

        :param powered: the CPUs that a power manager takes offline and brings online as guests come and go.
            Changes of these CPUs are ignored.
        """
        online = self.online - powered != other.online - powered
        return online or self.files != other.files or self.rest != other.rest

    def is_settled(self, now: float) -> bool:
        """Whether no file was written in the last SETTLE_SECONDS.

        An editor empties a file before it writes the new text. Between the two steps, the file can be read
        without an error, but its options are missing.

        :param now: the time in seconds since the epoch. A file that is newer than ``now`` counts as settled.
            Otherwise, the agent would not read changes of such a file for a long time after the clock was set
            back.
        """
        return not any(stamp and 0 <= now - stamp.modified / 1e9 < SETTLE_SECONDS for _, stamp in self.files)


def host_signature(conf: cfg.ConfigOpts, devices: tuple[PciDevice, ...] = ()) -> HostSignature:
    """Read the signature of this host.

    :param devices: the PCI devices of the host; empty if the configuration does not offer any.
    """
    system = Path(conf.host.root) / "sys/devices/system"
    pools = sorted(system.glob(_HUGE_PAGES)) if conf.compute.huge_pages else ()
    return HostSignature(
        read_online(Path(conf.host.root)),
        file_stamps(conf),
        (
            read_optional(f"{system}/node/online"),
            *(read_optional(str(pool)) for pool in pools),
            devices,
            host_access.resctrl_signature(conf),
        ),
    )


class DeviceSurvey:
    """Reads the PCI devices of the host again only after an event or a change of addresses.

    Only one thread may use the object.

    Devices appear and disappear by hotplug, and virtual functions by writes to ``sriov_numvfs``. A comparison
    of addresses would not show that another device now has the same address. An event reports such a change.
    """

    def __init__(self) -> None:
        self._events: PciEvents | None = None
        self._seen: tuple[object, ...] = ()
        self._devices: tuple[PciDevice, ...] = ()

    def read_devices(self, conf: cfg.ConfigOpts) -> tuple[PciDevice, ...]:
        """The PCI devices with their permanent properties; empty if no option needs devices."""
        if not conf.pci.device_spec and conf.pci.nodes == "none":
            return ()
        # The socket is opened only if an option needs devices: an unread socket would fill up.
        self._events = self._events or PciEvents()
        root = Path(conf.host.root)
        seen = (root, self._events.count_events(), pci_addresses(root))
        if seen != self._seen:
            self._seen = seen
            self._devices = read_lasting_facts(root)
        return self._devices

    def close(self) -> None:
        """Close the socket that receives the kernel's events."""
        if self._events is not None:
            self._events.close()


def _other_files(conf: cfg.ConfigOpts) -> tuple[Path, ...]:
    """The paths of the provider files, nova-compute's files and the fleet's revision, which can be absent."""
    of_fleet = (Path(conf.state_path) / KEPT_FILE,) if conf.fleet.group else ()
    of_nova = (Path(each) for each in conf.pci.nova_config if each and conf.pci.device_spec)
    always = (*of_fleet, *of_nova)
    location = conf.compute.provider_config_location
    try:
        return (*always, *(files_in(location) if location else ()))
    except OSError:
        return always  # a reload reads the provider files, and reports the error


def file_stamps(conf: cfg.ConfigOpts) -> FileStamps:
    """Read the stamps of the files of configuration, fleet, providers and nova-compute."""
    return tuple((path, _file_stamp(path)) for path in (*written.files_of(conf), *_other_files(conf)))


def _file_stamp(path: Path) -> FileStamp | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return FileStamp(status.st_mtime_ns, status.st_size, status.st_ino)


WORKER_SECONDS: Final = 60.0
"""The seconds that a reload waits until the worker has applied the new host state."""


class ConfigurationLoader(Protocol):
    """A function that reads the agent's configuration files."""

    def __call__(self) -> cfg.ConfigOpts:
        """Read the configuration files, and return the options.

        :raises cfg.Error: a file cannot be read or parsed, or an option has an invalid value.
        :raises ConfigError: options contradict each other.
        """
        ...


class ConfigReloader:
    """Applies changed files and hardware.

    The main thread calls the methods. Other threads may call use_root() and check_options().
    """

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
        """Begin with the configuration in force, and log the warnings about its options.

        :param registry: the metrics that watermarks can name.
        :param host: the configured host that the agent starts with.
        :raises ConfigError: a class of block I/O is wrong.
        :raises OSError: a file of the host has disappeared since ``host`` was read.
        """
        self._load_conf = load_conf
        self._registry = registry
        self._factory = factory
        self._root = root
        self._driver = driver
        self._pipeline = pipeline
        self._refused = Gauge(
            "compute_agent_configuration_refused",
            "1 if the present configuration was refused, so that an older one is in force, otherwise 0.",
            registry=metrics.registry,
        )
        self._lock = threading.Lock()
        self._in_force = in_force
        self.resctrl = host.resctrl
        self.error = ""
        """The reason why the configuration in the files is refused; empty if it is in force."""
        self._waiting: list[str] = []
        """Warnings about changed options that take effect only after a restart of the agent."""
        self._config_warnings = self._warnings_of(host)
        for warning in self._config_warnings:  # the driver's own notice was logged before
            LOG.warning("The configuration needs attention: %s", warning)
        self._devices = DeviceSurvey()
        self._signature = self._read_signature(host.options)
        self._accepted = self._signature.files
        """The stamps of the files of the configuration in force."""
        self._recorder = recorder
        # The values are stored now, because option_values() reads files that can change before the next
        # reload.
        self._values = option_values(host.options)

    @property
    def all_warnings(self) -> list[str]:
        """The warnings about the driver, about options that need a restart, and about useless options."""
        return [*filter(None, [self._driver.notice]), *self._waiting, *self._config_warnings]

    def reload_changes(self) -> None:
        """Reload if configuration files or hardware have changed since the last call."""
        signature = self._read_signature(self._in_force.current.options)
        # Parked CPUs go offline and come online all the time; a reload for them would have no effect.
        changed = signature.differs_from(self._signature, self._pipeline.host_state.powered)
        if changed and signature.is_settled(time.time()):
            # The signature is stored before the reload, so that a refused configuration is read again only
            # after another change.
            self._signature = signature
            self.reload()

    def close(self) -> None:
        """Close the socket of events. Call this method after the last reload_changes()."""
        self._devices.close()

    def _read_signature(self, options: cfg.ConfigOpts) -> HostSignature:
        return host_signature(options, self._devices.read_devices(options))

    def reload(self) -> None:
        """Read the configuration and the host, and apply them.

        If the configuration is refused, report the reason; the old configuration stays in force.
        """
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
        LOG.info("These options have changed since the agent read its configuration last: %s", changed)
        self._recorder.record_event(
            LOG.info, EventKind.RELOAD, None, "The configuration and the host were read again", reason=changed
        )

    def _take_up(self) -> str:
        """Read the configuration files and the hardware, and apply the new configuration.

        :returns: the reason why the new configuration is refused; empty if the new configuration is in force.
        """
        before = file_stamps(self._in_force.current.options)
        try:
            options = self._load_conf()
            if problem := self._find_unfinished(before):
                raise ConfigError(problem)
            # Some objects exist for as long as the process. Their options keep the old values, so that all
            # objects use the same values.
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
            # All checks come before the first change, because a refused configuration must change nothing.
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
                LOG.warning("The configuration needs attention: %s", warning)
            off = host.resctrl.off
            if off != self.resctrl.off:
                LOG.info("Cache and bandwidth control is %s", f"off: {off}" if off else "on")
            self.resctrl = host.resctrl
            # The worker gets the new controllers before the loops: a loop must not use a controller that the
            # worker does not have.
            changed = self._pipeline.submit(HostStateChanged(host.host_state, controllers))
            try:
                changed.result(WORKER_SECONDS)
            except TimeoutError:
                # The worker will handle the queued event later. The main thread must not wait longer, because
                # it also serves SIGTERM.
                LOG.warning("The worker applies the new configuration to guests after its current work")
            self._in_force.reload()
        self._accepted = before
        return ""

    def _find_unfinished(self, before: FileStamps) -> str:
        """The reason why a file was possibly incomplete when it was read; empty if all files were complete.

        :param before: the stamps that were taken before the files were read.
        """
        now = file_stamps(self._in_force.current.options)
        if now != before:
            return "a file was written while the agent read it; the agent reads it again"
        if emptied := emptied_files(self._accepted, now):
            files = ", ".join(map(str, emptied))
            return (
                f"empty, but had options before: {files}; restore the text, or write a comment into it if it"
                " is to have no options"
            )
        return ""

    def _follow_hardware(self) -> None:
        """Apply the present hardware, but keep the old options, because the changed options are refused."""
        with self._lock:
            options = self._in_force.current.options
            try:
                topology = read_topology(Path(options.host.root))
            except OSError as error:
                LOG.warning(
                    "The agent cannot read the changed hardware, and continues with the former state: %s",
                    error,
                )
                return
            try:
                host_state = build_host_state(
                    options, topology, control=self.resctrl.control, root=self._root.owner
                )
            except (ConfigError, IdentityError, cfg.Error, OSError):
                # In this case, the options in force do not fit the hardware either, or a provider file is
                # refused. Guests then use the present CPUs. The reported inventories stay the same until an
                # operator corrects the configuration.
                known = known_topology(options, topology)
                host_state = replace(self._pipeline.host_state, topology=known)
            self._pipeline.submit(HostStateChanged(host_state))

    def use_root(self, owner: RootOwner) -> None:
        """Change to another owner of the root provider, and to the controllers for that owner.

        The thread of reports calls this method.

        :raises TimeoutError: the worker has not applied the owner within WORKER_SECONDS.
        """
        # The lock is held until the worker has applied the owner, so that the main thread cannot reload in
        # between.
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
        """Check whether this host can use a configuration, without any change.

        Any thread may call this method.

        :raises ConfigError: the agent would refuse the configuration.
        :raises OSError: the host cannot be read.
        """
        try_configuration(options, self._root.owner, self._factory)

    def _warnings_of(self, host: ConfiguredHost) -> list[str]:
        return config_warnings(host.options, host.settings.rules, host.resctrl, self._driver.driver.name)
