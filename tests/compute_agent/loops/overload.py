"""An overcommitted host with the real pipeline, worker and loops of the agent. Only its kernel is a
dictionary.
"""

import threading
import time
from functools import partial

from prometheus_client import CollectorRegistry

from compute_agent.controllers.cpu import CpuController, CpusetController
from compute_agent.inventory.provider_tree import ProviderInventory, ProviderNode, ProviderTree
from compute_agent.loops.triggers import WATERMARKS_THREAD, WatermarkLoop
from compute_agent.model.cpuset import CpuSets
from compute_agent.model.guest_settings import GuestSettings
from compute_agent.model.messages import DriverError
from compute_agent.model.resource import ThrottleControl
from compute_agent.pipeline.events import GuestStarted, StartGuest
from compute_agent.pipeline.host_state import HostState
from compute_agent.pipeline.metrics import AgentMetrics
from compute_agent.pipeline.state import StateFile
from compute_agent.pipeline.worker import GuestPipeline
from compute_agent.policy import POLICIES
from compute_agent.throttling.arbiter import LimitArbiter
from compute_agent.throttling.evictions import GuestEvictions, GuestEvictor
from compute_agent.throttling.executor import ThrottleExecutor, reclaim_from_guest
from compute_agent.throttling.levers import CPU_QUOTA
from compute_agent.throttling.settings import read_settings
from compute_agent.throttling.state_file import ThrottlingFile, look_up_state
from compute_agent.throttling.telemetry import ThrottleTelemetry
from compute_agent.throttling.watermarks.metrics import (
    CPU_ORDER,
    MetricRegistry,
    MetricUnit,
    WatermarkMetric,
    host_usage,
)
from compute_agent.throttling.watermarks.thresholds import WeekMoment
from tests.compute_agent.builders import has_thread, load_text
from tests.compute_agent.fakes import FakeDriver
from tests.compute_agent.inventory.machines import machine
from tests.compute_agent.loops.configurations import configuration

TOPOLOGY = machine(nodes=1, cores=8)
NODE = "11111111-0000-4000-8000-000000000000"
HELD = {"VCPU": ProviderInventory(64, max_unit=64)}
TREE = ProviderTree((ProviderNode("h", NODE, None, HELD, cpus=TOPOLOGY.online),))
SETS = CpuSets(frozenset({7}), TOPOLOGY.online - {7}, TOPOLOGY.online - {7})
QUOTA = ThrottleControl("cpu_quota")

LINES = """
[qos]
evict_grace = 0.2
margin = 0

[watermark:cpu]
metric = cpu_usage
throttle_down = 4
throttle_up = 3
for_samples = 1
cool_down = 0
"""


class StubbornDriver(FakeDriver):
    """A driver of guests that may resist. Guests in ``stubborn`` do not end before ``yields`` is set, and
    guests in ``unlimited`` cannot be limited. While ``absent`` is set, the driver knows no guest.
    """

    def __init__(self, cpus):
        super().__init__(cpus)
        self.stubborn = set()
        self.unlimited = set()
        self.stopping = threading.Event()
        self.yields = threading.Event()
        self.absent = False

    def guests(self):
        if self.absent:
            raise DriverError("nobody can say what runs")
        return super().guests()

    def apply_cpu_limits(self, guest, wanted):
        if wanted.quota is not None and guest.uuid in self.unlimited:
            raise DriverError(f"guest {guest.uuid} cannot be limited")
        return super().apply_cpu_limits(guest, wanted)

    def stop(self, guest, timeout):
        self.stopping.set()
        if guest.uuid in self.stubborn:
            self.yields.wait(20)
        super().stop(guest, timeout)


class Overload:
    """An overcommitted host. ``boot`` starts an agent on it, and ``crash`` ends the agent."""

    def __init__(self, folder, client=None):
        self.moment = WeekMoment(0, 0)
        self.clock = time.monotonic
        self.folder, self.client = folder, client
        self.driver = StubbornDriver(TOPOLOGY.online)
        self.demand = {}
        self.switches = []
        self.lines = LINES
        self.registry = MetricRegistry(
            [
                WatermarkMetric(
                    *("cpu_usage", MetricUnit.CORES, 7, self._measure, CPU_ORDER, CPU_QUOTA),
                    throttle_quantified=True,
                    evictable=True,
                    evict_quantified=True,
                )
            ]
        )
        self.watermarks = self.pipeline = None

    # The agent

    def __enter__(self):
        self.boot()
        return self

    def __exit__(self, *_):
        self.driver.yields.set()
        self.crash()

    def settings(self):
        return read_settings(load_text(self.folder, self.lines), self.registry)

    def boot(self):
        """Start another agent with the state that the last agent has saved."""
        self.state = StateFile(self.folder / "state.json")
        self.metrics = CollectorRegistry()
        host_state = HostState(TOPOLOGY, SETS, TREE, POLICIES["topology-aware"])
        controllers = self.controllers()
        self.pipeline = GuestPipeline(
            host_state, self.driver, controllers, self.state.keep_guests, AgentMetrics()
        )
        settings = self.settings()
        self.file = self.state_file()
        self.arbiter = LimitArbiter(self.pipeline)
        self.evictions = GuestEvictions(settings, self.pipeline, self.driver, self.client)
        self.evictor = GuestEvictor(self.evictions.stop_guest, self.evictions.give_back)
        self.executor = ThrottleExecutor(
            self.registry,
            self.arbiter,
            self.evictor,
            self.switches.append,
            self.telemetry(),
            partial(reclaim_from_guest, self.pipeline, self.driver),
        )
        self.watermarks = WatermarkLoop(
            settings,
            self.file,
            self.pipeline,
            self.driver,
            self.executor,
            self.arbiter,
            self.evictions,
            moment=lambda: self.moment,
            clock=self.clock,
            **self.caches(controllers),
        )
        self.pipeline.start(self.state.state, limits=self.arbiter.combined_limits())

    def state_file(self):
        """The state file of throttling that a starting agent reads."""
        return ThrottlingFile(self.folder, self.state)

    def telemetry(self):
        """The telemetry of throttling that a starting agent uses."""
        return ThrottleTelemetry(self.metrics)

    def controllers(self):
        """The controllers of a starting agent."""
        return (CpusetController(self.driver), CpuController(self.driver, {"BE"}))

    def caches(self, controllers):
        """The controls of caches that watermarks may limit, by name."""
        return {}

    def crash(self):
        """End the agent without a clean-up: it changes neither its state nor the kernel any more."""
        self.watermarks.stop()
        self.pipeline.stop()

    def has_loop(self):
        """Whether the loop of watermarks has a running thread."""
        return has_thread(WATERMARKS_THREAD)

    def reload(self, lines):
        """Apply other settings, without the thread that ``WatermarkLoop.reload`` starts."""
        self.lines = lines
        self.watermarks.use_options(configuration(settings=self.settings(), client=self.client))

    # The guests

    def find(self, uuid, cores):
        """Start a guest outside of the agent, with an unknown allocation."""
        self.demand[uuid] = cores
        guest = self.driver.create_guest(uuid, uuid, GuestSettings(vcpus=4, qos_class="BE"), ())
        self.pipeline.submit(GuestStarted(guest, None, 0.0)).result(10)

    def run(self, uuid, cores, qos_class="BE", vcpus=4, allocation=None, **settings):
        self.demand[uuid] = cores
        held = {NODE: {"VCPU": vcpus}} if allocation is None else allocation
        settings = GuestSettings(vcpus=vcpus, qos_class=qos_class, **settings)
        self.pipeline.submit(StartGuest(uuid, uuid, settings, ("x",), held, 0.0)).result(10)

    def usage(self):
        return sum(self._used(uuid) for uuid in self.driver.running)

    def limits(self):
        """The CPU quotas that the kernel has, in cores."""
        quotas = {uuid: self._quota(uuid) for uuid in self.driver.running}
        return {uuid: quota for uuid, quota in quotas.items() if quota is not None}

    def saved(self):
        """The saved state, with which the next agent would start."""
        return look_up_state(self.folder).watermarks

    def rounds(self, most=200, until=None):
        """Run rounds until a condition holds, but at most `most` rounds; return their number."""
        for number in range(most):
            if until is not None and until():
                return number
            self.watermarks.run_round()
            if until is not None:
                time.sleep(0.01)  # evictions have threads of their own
        assert until is None, "it did not happen"
        return most

    def _used(self, uuid):
        quota = self._quota(uuid)
        return self.demand[uuid] if quota is None else min(quota, self.demand[uuid])

    def _quota(self, uuid):
        limits = self.driver.limits.get(uuid)
        return None if limits is None else limits.quota

    def _measure(self, now, before):
        used = {one.facts.uuid: self._used(one.facts.uuid) for one in now.subjects}
        return host_usage(sum(used.values()), used, 8.0)
