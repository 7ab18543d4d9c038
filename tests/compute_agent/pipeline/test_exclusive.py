"""Tests that no guest may use a CPU that another guest holds, in random histories of a host."""

import contextlib
import itertools
import random

import pytest

from compute_agent.controllers.cpu import CpusetController
from compute_agent.inventory.provider_tree import ProviderNode, ProviderTree
from compute_agent.model.cpuset import CpuSets
from compute_agent.model.guest_settings import EmulatorPolicy, GuestSettings, ThreadPolicy
from compute_agent.pipeline.events import (
    AdoptGuest,
    AllocationsRead,
    GuestStarted,
    GuestStopped,
    HostStateChanged,
    MoveGuest,
    ReconcileGuests,
    StartGuest,
)
from compute_agent.pipeline.host_state import HostState
from compute_agent.pipeline.metrics import AgentMetrics
from compute_agent.pipeline.state import AgentState
from compute_agent.pipeline.worker import GuestPipeline, GuestRefusedError
from compute_agent.policy import POLICIES
from tests.compute_agent.fakes import FakeDriver
from tests.compute_agent.inventory.machines import machine


def cpus(first, last):
    return frozenset(range(first, last + 1))


NONE = frozenset()
SETS = {
    "both": CpuSets(cpus(2, 7), cpus(8, 9), cpus(8, 9)),
    "the other way round": CpuSets(cpus(8, 11), cpus(0, 5), cpus(0, 5)),
    "dedicated only": CpuSets(cpus(2, 7), NONE, NONE),
    "all dedicated": CpuSets(cpus(0, 11), NONE, NONE),
    "shared only": CpuSets(NONE, cpus(4, 9), cpus(4, 9)),
    "vcpu_pin_set": CpuSets(cpus(2, 7), cpus(2, 7), cpus(2, 7)),
    "vcpu_pin_set and shared": CpuSets(NONE, cpus(2, 7), cpus(8, 9)),
}
OFFLINE = [NONE, frozenset({3}), frozenset({4, 5, 8}), cpus(0, 5)]


def host_state(sets, offline=NONE, policy="topology-aware", gain=None, refuse=False):
    """A host with two NUMA nodes of three cores with two threads. Some CPUs may be offline."""
    topology = machine(nodes=2, cores=3, threads=2, offline=offline)
    tree = ProviderTree(
        (
            ProviderNode("h", "root", None, cpus=topology.online),
            *(ProviderNode(f"h_{n.id}", f"node{n.id}", "root", cpus=n.cpus) for n in topology.numa_nodes),
        )
    )
    return HostState(
        topology, SETS[sets], tree, POLICIES[policy], rebalance_gain=gain, refuse_unplaced=refuse
    )


class Watchful(FakeDriver):
    """A driver that records each time that a guest is pinned to CPUs on which another guest still floats."""

    def __init__(self, cpus):
        super().__init__(cpus)
        self.pipeline = None
        self.too_early = []

    def apply_cpu_settings(self, guest, settings):
        entries = {view.guest.uuid: view for view in self.pipeline.guest_views()}
        own = entries[guest.uuid].assignment.held_cpus & self.pipeline.host_state.topology.online
        for uuid, entry in entries.items():
            floats = entry.assignment is not None and not entry.assignment.held_cpus
            if floats and uuid != guest.uuid and any(own & seen for seen in self.affinities[uuid].values()):
                self.too_early.append((guest.uuid, uuid))
        return super().apply_cpu_settings(guest, settings)


class History:
    """A host with random guests and allocations. The test checks the host after each event."""

    def __init__(self, seed):
        self.chance = random.Random(seed)
        self.driver = Watchful(cpus(0, 11))
        self.saved, self.unclaimed = {}, {}
        self.host_state = host_state("both")
        self.names = (f"g{number}" for number in itertools.count())
        self.clock = itertools.count(1)
        self.new_pipeline()
        self.pipeline.start()
        self.pipeline.stop()

    def new_pipeline(self):
        controllers = (CpusetController(self.driver),)
        self.pipeline = GuestPipeline(self.host_state, self.driver, controllers, self.save, AgentMetrics())
        self.driver.pipeline = self.pipeline

    def save(self, guests, unclaimed, migrations):
        self.saved, self.unclaimed = dict(guests), dict(unclaimed)

    def allocation(self):
        if self.chance.random() < 0.2:
            return {}
        node = self.chance.choice(["node0", "node1"])
        amounts = {"PCPU": self.chance.choice([0, 0, 1, 1, 2, 3]), "VCPU": self.chance.choice([0, 1, 2])}
        return {node: amounts} if any(amounts.values()) else {}

    def settings(self):
        return GuestSettings(
            self.chance.randint(1, 3),
            self.chance.choice([ThreadPolicy.PREFER, *ThreadPolicy]),
            self.chance.choice([EmulatorPolicy.SHARE, *EmulatorPolicy]),
        )

    def some_guest(self):
        return self.chance.choice(sorted(self.driver.running)) if self.driver.running else None

    def play(self):
        """Play one event; return the guests that it concerns, or None for all guests."""
        kinds = {
            self.start: 4, self.started: 4, self.end: 4, self.read: 4, self.change: 2,
            self.restart: 1, self.reconcile: 1, self.move: 1,
        }  # fmt: skip
        (kind,) = self.chance.choices(list(kinds), list(kinds.values()))
        return kind()

    def start(self):
        name, how = next(self.names), self.chance.choice([StartGuest, AdoptGuest])
        origin = ("x",) if how is StartGuest else 1
        try:
            allocation = self.allocation()
            self.pipeline.handle_event(how(name, name, self.settings(), origin, allocation, next(self.clock)))
        except GuestRefusedError:
            assert name not in self.driver.running
        return {name}

    def started(self):
        name = (self.some_guest() if self.chance.random() < 0.2 else None) or next(self.names)
        if self.unclaimed and self.chance.random() < 0.5:
            name = self.chance.choice(sorted(self.unclaimed))  # it comes back
        guest = self.driver.running.get(name) or self.driver.create_guest(name, name, self.settings(), ())
        allocation = None if self.chance.random() < 0.3 else self.allocation()
        self.pipeline.handle_event(GuestStarted(guest, allocation, next(self.clock)))
        return {name}

    def end(self):
        if (name := self.some_guest()) is not None:
            guest = self.driver.running[name]
            self.driver.discard(guest)
            event = self.chance.choice([GuestStopped(guest), ReconcileGuests()])
            self.pipeline.handle_event(event)
            if isinstance(event, ReconcileGuests) and self.host_state.rebalance_gain:
                return None
        return {name}

    def read(self):
        told = {name: self.allocation() for name in self.driver.running if self.chance.random() < 0.5}
        self.pipeline.handle_event(AllocationsRead(told, next(self.clock), {}))
        return set(told)

    def change(self):
        self.host_state = host_state(
            self.chance.choice(list(SETS)),
            self.chance.choice(OFFLINE),
            self.chance.choice(["topology-aware", "topology-aware", "static"]),
            self.chance.choice([None, 2.0]),
            self.chance.random() < 0.2,
        )
        self.pipeline.handle_event(HostStateChanged(self.host_state))

    def restart(self):
        if self.chance.random() < 0.3:
            self.saved, self.unclaimed = {}, {}
        if self.chance.random() < 0.5:
            self.driver.create_guest(name := next(self.names), name, self.settings(), ())
        if (name := self.some_guest()) is not None and self.chance.random() < 0.5:
            self.driver.discard(self.driver.running[name])
        self.new_pipeline()
        self.pipeline.start(AgentState(self.saved, unclaimed=self.unclaimed))
        self.pipeline.stop()

    def reconcile(self):
        if self.chance.random() < 0.3:
            self.driver.create_guest(name := next(self.names), name, self.settings(), ())
        for name in self.driver.running:
            if self.chance.random() < 0.3:
                self.driver.affinities[name] = dict.fromkeys(self.driver.affinities[name], cpus(0, 11))
        self.pipeline.handle_event(ReconcileGuests())
        return None if self.host_state.rebalance_gain else set()

    def move(self):
        if (name := self.some_guest()) is not None:
            with contextlib.suppress(GuestRefusedError):
                self.pipeline.handle_event(MoveGuest(name, self.chance.random() < 0.5))
        return {name}

    def views(self):
        return {view.guest.uuid: view for view in self.pipeline.guest_views()}

    def holdings(self):
        return {
            name: view.assignment.held_cpus
            for name, view in self.views().items()
            if view.assignment is not None and not view.refusal
        }

    def check(self):
        views = self.views()
        assert views.keys() == self.driver.running.keys()
        online = self.host_state.topology.online
        held = {
            name: view.assignment.held_cpus for name, view in views.items() if view.assignment is not None
        }
        for name, view in views.items():
            others = frozenset().union(*(own for other, own in held.items() if other != name))
            if view.assignment is None:
                assert online <= others or not others, name
                continue
            assert not others & (view.assignment.cpus | view.assignment.emulator_cpus), name
            if not online <= others:
                for seen in self.driver.affinities[name].values():
                    assert not others & seen, name
            pcpu = sum(amounts.get("PCPU", 0) for amounts in (view.allocation or {}).values())
            if view.allocation is not None and not view.refusal:
                assert len(view.assignment.held_cpus) == pcpu, name
            if view.allocation is not None and not pcpu:
                assert not view.assignment.held_cpus, name
        assert self.driver.too_early == []


@pytest.mark.parametrize("seed", range(60))
def test_no_cpu_that_a_guest_holds_is_in_the_set_of_another(seed):
    history = History(seed)
    for _ in range(60):
        before = history.holdings()
        about = history.play()
        history.check()
        if about is not None:
            for name, own in history.holdings().items():
                assert name in about or before.get(name, own) == own, f"{name} was moved for others"
