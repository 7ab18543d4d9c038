"""Assembles the agent: one constructor makes all objects of the agent, each from objects that already exist.

No object refers to an object that is made later. If an earlier object has to call a later object, both
objects use a third object that is made first. There are three such objects: a :class:`WakeSignal` wakes the
loop of reports, :class:`ConfigurationInForce` passes a reload to the loops, and the worker's queue receives
all events.
"""

from __future__ import annotations

import os
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from oslo_config import cfg
from prometheus_client import ProcessCollector

from compute_agent.agent.configured_controllers import ControllerFactory, open_stores
from compute_agent.agent.configured_host import configured_host
from compute_agent.agent.guest_settings import GuestConfigurator
from compute_agent.agent.host_access import GUESTS_FOLDER, STATE_FILE, open_host_driver
from compute_agent.agent.operator_orders import MaintenanceMode, ManualThrottling, causes_kept
from compute_agent.agent.reload import ConfigReloader, ConfigurationLoader
from compute_agent.controllers.cpu_class import count_refusals
from compute_agent.controllers.isolation import count_isolation
from compute_agent.drivers.factory import foreign_drivers, lock_path
from compute_agent.events.event import EventRecorder
from compute_agent.host.cpus import read_online
from compute_agent.host.kernel_files import read_boot_id, read_host_id
from compute_agent.inventory import host_identity
from compute_agent.loops.allocations import ClaimWatch, HistoryWatch
from compute_agent.loops.arrivals import GuestEvents, PreStartHook
from compute_agent.loops.audit import locate_consumers
from compute_agent.loops.base import AgentLoop, ConfigurationInForce
from compute_agent.loops.claim_ends import ClaimEnds
from compute_agent.loops.events import EventLog, OomEvents
from compute_agent.loops.fleet import FleetGuests, FleetLoop
from compute_agent.loops.guest_claims import GuestClaims
from compute_agent.loops.holders import DeviceSource, NoiseSource
from compute_agent.loops.host_attributes import NeighbourReporter, add_heartbeat, add_positions
from compute_agent.loops.metric_sources import MetricSources
from compute_agent.loops.monitoring import CacheMonitoring, MonitoredGuests
from compute_agent.loops.note_files import ClaimStore, EndStore, EvictionStore
from compute_agent.loops.promises import PromiseVerifier, PromiseWatch
from compute_agent.loops.reclaimed import ReclaimLoop
from compute_agent.loops.reports import ReportLoop
from compute_agent.loops.root_watch import RootWatch
from compute_agent.loops.triggers import InterferenceLoop, WatermarkLoop
from compute_agent.loops.usage import ColdMemoryLoop, CpuUse
from compute_agent.pipeline.guest_settings import FILE_NAME as MANUAL_FILE
from compute_agent.pipeline.guest_settings import ManualSettings
from compute_agent.pipeline.metrics import AgentMetrics
from compute_agent.pipeline.state import StateFile
from compute_agent.pipeline.worker import GuestPipeline
from compute_agent.report.client import PlacementClient
from compute_agent.report.reporter import HostReporter
from compute_agent.report.root_provider import DisableCause
from compute_agent.threads import WakeSignal
from compute_agent.throttling.arbiter import LimitArbiter
from compute_agent.throttling.evictions import MAX_ENDS, GuestEvictions, GuestEvictor
from compute_agent.throttling.executor import ThrottleExecutor, reclaim_from_guest
from compute_agent.throttling.samplers import GuestReader
from compute_agent.throttling.state_file import ThrottlingFile
from compute_agent.throttling.telemetry import ThrottleTelemetry
from compute_agent.throttling.watermarks.metrics import load_registry
from compute_agent.usage.guest_metrics import GuestMetrics
from compute_agent.usage.subjects import open_allotments


class AssembledAgent:
    """The objects of an agent. No thread runs yet, except those of the driver.

    :ivar early: the loops that start before the listeners, because requests need them.
    :ivar late: the loops that start after the listeners. All loops stop in reverse order.
    """

    def __init__(self, load_conf: ConfigurationLoader, options: cfg.ConfigOpts, folder: Path) -> None:
        """Make all objects of an agent.

        The caller must lock the state folder before this call, and start the threads after it.

        :param load_conf: reads the configuration again at a reload.
        :param options: the options that the first call of ``load_conf`` returned.
        :param folder: the state folder.
        :raises ConfigError: the configuration does not fit this host, or contradicts itself.
        :raises cfg.Error: an option has an invalid value.
        :raises IdentityError: the uuid or the name of the root provider cannot be determined.
        :raises DriverError: the driver of guests cannot be used.
        :raises OSError: a file of the host or of the state folder cannot be read or written.
        """
        with ExitStack() as undo:
            # The state of the previous run of the agent: the state file, and the owner of the root provider
            self.state = state = StateFile(folder / STATE_FILE)
            # The state file is passed, because former versions of the agent kept limits in the state file.
            self.throttling = throttling = ThrottlingFile(folder, state)
            saved, registry = state.state, load_registry()
            # If the agent already has providers in Placement, an earlier run has chosen the owner of the
            # root.
            root = RootWatch(
                options,
                host_identity.load_or_create(folder),
                saved.nova_root,
                bool(saved.owned),
                state.keep_nova_root,
            )

            # The host: a wrong configuration raises its error here, before any other object exists
            host = configured_host(options, registry, root=root.owner, acting=True)
            self.metrics = metrics = AgentMetrics()
            self.events = events = EventLog(options, metrics.registry)
            self.recorder = recorder = EventRecorder(events.add)
            ProcessCollector(registry=metrics.registry)  # the CPU time and the memory of the agent
            holder = f"pid {os.getpid()}, agent of {host.host_state.tree.root.name}, state folder {folder}"
            name = host.host_state.tree.root.name
            self.host_driver = host_driver = open_host_driver(
                options, state, folder / GUESTS_FOLDER, holder, metrics, name
            )
            # The driver has threads, connections and a lock. If a later step fails, the driver must be
            # closed.
            undo.callback(host_driver.close)
            self.driver = driver = host_driver.driver
            if (flavors := driver.flavor_source) is not None:
                # The root provider of nova-compute has the name that libvirtd has for this host.
                root.use_hypervisor(lambda: flavors.host_name)

            # The worker and its controllers, and the configuration by which they are made
            stores = open_stores(state, folder, lock_path(options))
            factory = ControllerFactory(driver, stores, metrics, recorder)
            conf = host.with_controllers(
                PlacementClient.from_conf(options),
                factory.build_controllers(options, host.resctrl, host.host_state),
            )
            manual = ManualSettings(folder / MANUAL_FILE)
            self.pipeline = pipeline = GuestPipeline(
                host.host_state,
                driver,
                conf.controllers,
                state.keep_guests,
                metrics,
                recorder,
                partial(read_online, Path(options.host.root)),
                manual,
            )
            self.in_force = in_force = ConfigurationInForce(conf)
            count_refusals(metrics.registry, in_force)
            count_isolation(metrics.registry, in_force)
            self.reloader = reloader = ConfigReloader(
                load_conf, registry, factory, root, host_driver, pipeline, metrics, host, in_force, recorder
            )
            undo.callback(reloader.close)
            self.configurator = configurator = GuestConfigurator(pipeline, in_force)

            # The loops that contribute to reports are made before the loop of reports. The signal is made
            # before all of them, because these loops use the signal to wake the loop of reports.
            changed = WakeSignal()
            cold = ColdMemoryLoop(conf, pipeline, driver, metrics.registry)
            self.reclaimed = reclaimed = ReclaimLoop(
                conf, pipeline, driver, recorder, metrics, changed=changed.wake, cold=lambda: cold.cold_memory
            )
            fleet_guests = FleetGuests(pipeline, configurator.set_guest)
            self.fleet = fleet = FleetLoop(
                options, reloader.check_options, metrics.registry, changed.wake, fleet_guests.bring_about
            )
            self.verifier = verifier = PromiseVerifier(in_force, pipeline, driver)
            self.noise = NoiseSource(in_force, pipeline, driver, metrics.registry)
            self.devices = DeviceSource(Path(options.host.root), pipeline, metrics.registry)
            promises = PromiseWatch(conf, verifier.verify_all, recorder, metrics.registry, changed.wake)
            monitored = MonitoredGuests(driver, pipeline, in_force)
            self.monitoring = monitoring = CacheMonitoring(conf, monitored.list_targets, metrics.registry)
            # All triggers, and the operators' commands, pass limits to one arbiter. The arbiter applies the
            # lowest limit of each guest.
            self.limits = limits = LimitArbiter(pipeline)
            evictions = GuestEvictions(conf.settings, pipeline, driver, conf.client)
            machine = read_host_id(Path(options.host.root))
            history = HistoryWatch(metrics, saved.history, state.keep_history, recorder)
            self.claim_ends = claim_ends = ClaimEnds(
                in_force,
                pipeline,
                driver,
                EndStore(folder, machine),
                # The allocation of an evicted guest ends with its claim, so this evictor does not delete the
                # allocation. Until the claim ends, a client can extend it.
                GuestEvictor(evictions.stop_guest, evictions.forget_guest, MAX_ENDS),
                evictions.stop_guest,
                recorder,
                metrics.registry,
                lambda: history.older_copy is not None,
            )
            self.guest_claims = guest_claims = GuestClaims(
                in_force,
                pipeline,
                foreign_drivers(driver),
                ClaimStore(folder, machine),
                recorder,
                is_leaving=claim_ends.is_leaving,
            )
            self.reports = reports = ReportLoop(
                conf,
                HostReporter(conf.client, saved.owned, state.keep_owned, saved.history.generations),
                pipeline,
                metrics,
                locate=partial(locate_consumers, driver, pipeline),
                causes=causes_kept(
                    saved,
                    throttling.state.watermarks.scheduling_off,
                    bool(host.settings.rules.watermarks),
                ),
                root=root,
                use_root=reloader.use_root,
                additions=(
                    reclaimed.add_to_tree,
                    fleet.add_to_tree,
                    partial(add_positions, in_force, pipeline.guest_views),
                    partial(add_heartbeat, in_force),
                    NeighbourReporter(
                        in_force,
                        monitoring.loop.newest_reading,
                        limits.requested_limits,
                        lambda: throttling.state.interference.cases,
                    ).add_to_tree,
                    promises.add_to_tree,
                ),
                history=history,
                claims=ClaimWatch(in_force, recorder),
                guest_claims=guest_claims,
                claim_ends=claim_ends,
                signal=changed,
            )
            self.maintenance = MaintenanceMode(
                saved.maintenance, state.keep_maintenance, reports, metrics.registry, recorder
            )

            # The loops that measure guests, and the loops that throttle guests
            GuestMetrics(
                pipeline.guest_views,
                driver,
                lambda: in_force.current.settings.classes,
                limits.requested_limits,
                lambda: in_force.current.options.metrics.guests,
                metrics.registry,
                options.host.root,
            )
            executor = ThrottleExecutor(
                registry,
                limits,
                GuestEvictor(evictions.stop_guest, evictions.give_back),
                partial(reports.switch_scheduling, DisableCause.WATERMARK),
                ThrottleTelemetry(metrics.registry, recorder, reclaimed.count_blame),
                partial(reclaim_from_guest, pipeline, driver),
            )
            self.manual_throttling = manual_throttling = ManualThrottling(
                limits,
                evictions,
                recorder,
                pipeline,
                EvictionStore(folder, machine),
                read_boot_id(Path(options.host.root)),
                driver.lost_guests,
            )
            self.sources = sources = MetricSources(conf, metrics.registry)
            self.watermarks = watermarks = WatermarkLoop(
                conf.settings,
                throttling,
                pipeline,
                driver,
                executor,
                limits,
                evictions,
                root=options.host.root,
                cache=monitoring.reader,
                cache_allotments=open_allotments(conf.controllers, lambda: pipeline.host_state.all_zones),
                read_source=sources.read_value,
                read_oversold=reclaimed.read_oversold,
            )
            # Monitoring and watermarks need each other: monitoring exports the usage that watermarks measure,
            # and watermarks read the counters of monitoring. So monitoring gets the watermarks after both
            # objects are made.
            monitored.use_watermarks(watermarks)
            guest_reader = GuestReader(
                driver, lambda: in_force.current.settings.classes, options.host.root, monitoring.reader
            )
            self.interference = interference = InterferenceLoop(
                conf, throttling, pipeline, guest_reader, executor, limits
            )

            # The receivers of events about guests
            self.oom = oom = OomEvents(driver, recorder, metrics.registry, options.host.root)
            self.arrivals = arrivals = GuestEvents(conf, pipeline, changed.wake, guest_claims.is_awaited)
            self.announcements = announcements = PreStartHook(conf, pipeline, driver.expecting_driver)

            # The early loops start before the socket answers, because requests need events and arrivals. The
            # late loops start afterwards, because their first round can wait long for Placement.
            self.early: tuple[AgentLoop, ...] = (events, monitoring, arrivals, announcements)
            cpu_use = CpuUse(conf, pipeline, driver)
            self.late: tuple[AgentLoop, ...] = (
                *(reports, sources, watermarks, interference, oom, cold, reclaimed, cpu_use, fleet),
                *(promises, claim_ends, manual_throttling),
            )
            in_force.set_followers((*self.early, *self.late))
            # The assembly has not failed, so the callback that would close the driver is dropped.
            undo.pop_all()

    @property
    def options(self) -> cfg.ConfigOpts:
        """The options of the configuration in force."""
        return self.in_force.current.options

    @property
    def client(self) -> PlacementClient:
        """The Placement client that the configuration in force describes."""
        return self.in_force.current.client
