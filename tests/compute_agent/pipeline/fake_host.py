"""A pipeline on a fake host with two NUMA nodes. CPUs 1, 2, 5 and 6 are dedicated, 3 and 7 shared."""

from compute_agent.controllers.base import GuestController
from compute_agent.inventory.provider_tree import ProviderNode, ProviderTree
from compute_agent.model.cpuset import CpuSets
from compute_agent.model.guest_settings import GuestSettings
from compute_agent.pipeline.events import (
    StartGuest,
)
from compute_agent.pipeline.host_state import HostState
from compute_agent.pipeline.metrics import AgentMetrics
from compute_agent.pipeline.state import AgentState
from compute_agent.policy import POLICIES
from tests.compute_agent.builders import make_pipeline, read_metric
from tests.compute_agent.fakes import FakeDriver
from tests.compute_agent.inventory.machines import machine

TOPOLOGY = machine(nodes=2, cores=4)
SETS = CpuSets(frozenset({1, 2, 5, 6}), frozenset({3, 7}), frozenset({3, 7}))
TREE = ProviderTree(
    (
        ProviderNode("h", "root", None, cpus=TOPOLOGY.online),
        *(ProviderNode(f"h_{n.id}", f"node{n.id}", "root", cpus=n.cpus) for n in TOPOLOGY.numa_nodes),
    )
)
HOST_STATE = HostState(TOPOLOGY, SETS, TREE, POLICIES["topology-aware"])
ALL = TOPOLOGY.online


class FakeHost:
    """A pipeline on a fake host. It handles events in the thread of the test."""

    def __init__(self, host_state=HOST_STATE, driver=None):
        self.driver = driver or FakeDriver(ALL)
        self.saved, self.unclaimed = {}, {}
        self.full_disk, self.on_save = False, lambda: None
        self.metrics = AgentMetrics()
        self.new_pipeline(host_state)

    recorder = None

    def new_pipeline(self, host_state=HOST_STATE):
        """Make another pipeline, as a restart of the agent does."""
        self.pipeline = make_pipeline(
            host_state, self.driver, self.metrics, self.save_state, recorder=self.recorder
        )

    def take_over(self):
        """Let the pipeline take over the running guests. Its thread has ended afterwards."""
        self.pipeline.start()
        self.pipeline.stop()

    def save_state(self, guests, unclaimed, migrations):
        if self.full_disk:
            raise OSError(28, "No space left on device")
        self.on_save()
        self.saved, self.unclaimed = dict(guests), dict(unclaimed)

    def restart(self, saved=None, host_state=HOST_STATE):
        self.new_pipeline(host_state)
        before = AgentState(self.saved, unclaimed=self.unclaimed) if saved is None else AgentState(saved)
        self.pipeline.start(before)
        self.pipeline.stop()

    def handle(self, event):
        return self.pipeline.handle_event(event)

    def run(self, uuid, *amounts, vcpus=1, as_of=1.0):
        allocation = {f"node{n}": {"PCPU": pcpu, "VCPU": vcpu} for n, pcpu, vcpu in amounts}
        return self.handle(StartGuest(uuid, uuid, GuestSettings(vcpus), ("sleep", "9"), allocation, as_of))

    def observed(self, uuid):
        return set(self.driver.observed_cpus(self.driver.running[uuid]))

    def metric(self, name, **labels):
        return read_metric(self.metrics, name, **labels)


class Recorder(GuestController):
    """A controller that records the calls of its methods."""

    name = "recorder"

    def __init__(self):
        self.applied, self.synced, self.compared, self.broken = {}, [], [], None

    def sync(self, targets, zones):
        if self.broken:
            raise self.broken
        self.synced.append({target.guest.uuid for target in targets})

    def describe_drift(self, target):
        self.compared.append(target.guest.uuid)
        return

    def apply(self, target):
        if self.broken:
            raise self.broken
        self.applied[target.guest.uuid] = target
        return True
