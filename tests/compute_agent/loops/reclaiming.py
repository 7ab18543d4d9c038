"""A host on which unused CPUs and memory are measured, with a folder for /proc and a clock that the test
sets.
"""

from types import SimpleNamespace

from compute_agent.classes.guest_classes import QosClass, QosClasses
from compute_agent.events.event import EventRecorder
from compute_agent.inventory.cpu_sets import CpuOptions, resolve_cpu_sets
from compute_agent.inventory.derive import InventorySettings, derive_provider_tree
from compute_agent.loops.reclaimed import ReclaimLoop
from compute_agent.model.guest_settings import GuestSettings
from compute_agent.model.resource import RECLAIMED_VCPU
from compute_agent.pipeline.events import StartGuest
from compute_agent.pipeline.host_state import HostState
from compute_agent.pipeline.metrics import AgentMetrics
from compute_agent.policy import POLICIES
from compute_agent.reclaim.estimate import EstimateLimits
from compute_agent.throttling.watermarks.metrics import BUILT_IN, MetricRegistry
from tests.compute_agent.builders import CalledPipeline, make_pipeline
from tests.compute_agent.fakes import FakeDriver
from tests.compute_agent.inventory.machines import machine

TOPOLOGY = machine(cores=9)
SETS = resolve_cpu_sets(CpuOptions(cpu_dedicated_set="0", cpu_shared_set="1-8"), TOPOLOGY)
TREE = derive_provider_tree(
    TOPOLOGY, SETS, InventorySettings(reclaimed=True), "8f0c0000-0000-4000-8000-000000000000", "host"
)
(NODE,) = TREE.providers_of("VCPU")
(ZONE,) = TREE.providers_of(RECLAIMED_VCPU)
CLASSES = QosClasses({"LS": QosClass("LS", 10), "BE": QosClass("BE", 0)}, 0)


class ReclaimingHost:
    """A host of 8 shared CPUs with a folder for /proc, and a clock that the test sets."""

    def __init__(self, folder, tree=TREE):
        self.folder, self.tree, self.now = folder, tree, 3.6e9
        self.ticks, self.stolen, self.cpu_seconds = [0.0] * 9, 0.0, {}
        self.driver, self.events, self.wakes = FakeDriver(TOPOLOGY.online), [], 0
        host_state = HostState(TOPOLOGY, SETS, tree, POLICIES["topology-aware"])
        self.pipeline = make_pipeline(host_state, self.driver, kind=CalledPipeline)
        self.pipeline.start()
        self.pipeline.stop()
        self.mode, self.steal, self.memory = "act", "off", False
        self.cold = {}
        self.new_loop()

    def conf(self):
        limits = EstimateLimits(burst=0.0)
        capacity = SimpleNamespace(
            mode=self.mode,
            steal=self.steal,
            collectors=[],
            memory=self.memory,
            sigma=limits.sigma,
            percentile=limits.percentile,
            margin=limits.margin,
            burst=limits.burst,
        )
        rules = SimpleNamespace(registry=MetricRegistry(BUILT_IN))
        host = SimpleNamespace(root=str(self.folder))
        options = SimpleNamespace(capacity=capacity, host=host, state_path=str(self.folder))
        return SimpleNamespace(options=options, settings=SimpleNamespace(classes=CLASSES, rules=rules))

    def new_loop(self):
        """Make another loop, as a restarted agent does."""
        recorder = EventRecorder(self.events.append)
        clock = lambda: self.now  # noqa: E731
        metrics = AgentMetrics()
        self.registry = metrics.registry
        self.loop = ReclaimLoop(
            self.conf(),
            self.pipeline,
            self.driver,
            recorder,
            metrics,
            clock,
            clock,
            self.wake,
            cold=lambda: self.cold,
        )

    def wake(self):
        self.wakes += 1

    def run(self, uuid, amounts, vcpus=2, qos_class="LS"):
        settings = GuestSettings(vcpus, qos_class=qos_class)
        self.cpu_seconds[uuid] = 0.0
        return self.pipeline.handle_event(StartGuest(uuid, uuid, settings, ("x",), amounts, 1.0)).guest

    def minutes(self, count, system=0.5, stolen=0.0, **cores):
        """Run `count` rounds of a minute with the given CPU use (cores) of guests and the system, and share
        of stolen time.
        """
        for _ in range(count):
            self.now += 60
            self.stolen += 6000 * stolen
            for uuid, used in cores.items():
                self.cpu_seconds[uuid] += 60 * used
            for cpu in range(1, 9):
                self.ticks[cpu] += 6000 * (system + sum(cores.values())) / 8
            self.write()
            self.loop.run_round()

    def write(self):
        elapsed = round(self.now * 100) % 10**10
        lines = [
            f"cpu{n} {round(busy)} 0 0 {elapsed - round(busy + self.stolen)} 0 0 0 {round(self.stolen)}"
            for n, busy in enumerate(self.ticks)
        ]
        (self.folder / "proc").mkdir(exist_ok=True)
        (self.folder / "proc" / "stat").write_text("\n".join(["cpu 1 1 1 1", *lines, "intr 0\n"]))
        for guest in self.driver.guests():
            place = self.folder / "proc" / str(guest.pid)
            place.mkdir(exist_ok=True)
            used = round(self.cpu_seconds[guest.uuid] * 100)
            (place / "stat").write_text(f"{guest.pid} (x) S 1 1 1 0 0 0 0 0 0 0 {used} 0 0 0 0 0 1 0 77 0 0")

    @property
    def reserved(self):
        return self.loop.add_to_tree(self.tree).get(ZONE.uuid).inventories[RECLAIMED_VCPU].reserved

    def terms(self):
        return {row["term"]: row["amount"] for row in self.loop.list_rows()}
