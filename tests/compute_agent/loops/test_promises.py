"""Tests of verifying promises to running guests. Broken promises become events, a metric and an attribute of
the host.
"""

from dataclasses import replace
from types import SimpleNamespace

import pytest
from prometheus_client import CollectorRegistry

from compute_agent.controllers.core_cookies import CoreCookieController
from compute_agent.controllers.isolation import IsolationController, IsolationSettings
from compute_agent.controllers.realtime import RealtimeController
from compute_agent.events.event import EventRecorder
from compute_agent.inventory.attributes import BROKEN_PROMISES, is_ours
from compute_agent.inventory.provider_tree import ProviderNode, ProviderTree
from compute_agent.loops.base import ConfigurationInForce
from compute_agent.loops.promises import PromiseVerifier, PromiseWatch, make_promises, read_caches
from compute_agent.model.guest_settings import IsolationLevel
from compute_agent.model.resource import CACHE_WAYS, MEMORY_BANDWIDTH, CoreScope, ThrottleControl
from compute_agent.pipeline.events import ConfigureGuest
from compute_agent.promises.verdict import (
    HostFacts,
    ObservedGuest,
    PromiseKind,
    PromiseState,
    PromiseVerdict,
    judge_promises,
)
from compute_agent.resctrl.filesystem import ResctrlError
from compute_agent.schedules.cookies import CookieError
from compute_agent.schedules.realtime import ThreadSchedule, realtime_schedule
from compute_agent.schedules.run_notes import RunNotesFile
from tests.compute_agent.controllers.resctrl_host import GuestThreads, ResctrlHost
from tests.compute_agent.inventory.machines import machine
from tests.compute_agent.isolation.fake_kernel import IsolationHost
from tests.compute_agent.loops.configurations import configuration
from tests.compute_agent.pipeline.fake_host import HOST_STATE, TOPOLOGY, FakeHost
from tests.compute_agent.resctrl import fake

KEPT, LIMITED, BROKEN, UNKNOWN = PromiseState


def options(root, interval=300.0):
    return SimpleNamespace(
        host=SimpleNamespace(root=str(root)), guests=SimpleNamespace(verify_interval=interval)
    )


class VerifiedHost(FakeHost):
    """A fake host with one guest on CPU 1, and a verifier of promises."""

    def __init__(self, root, *controllers, topology=TOPOLOGY):
        super().__init__(replace(HOST_STATE, topology=topology))
        self.driver.nodes = {"a": frozenset({0}), "b": frozenset({1})}
        self.run("a", (0, 1, 0))
        self.looks = 0
        self.meanwhile = lambda: None
        conf = configuration(options(root), controllers=controllers)
        self.schedules, self.cookies = {}, {}
        self.verifier = PromiseVerifier(
            ConfigurationInForce(conf),
            self.pipeline,
            self.driver,
            self.affinity_of,
            self.pause,
            SimpleNamespace(read=self.schedules.get),
            SimpleNamespace(read_cookie=self.read_cookie),
        )

    def read_cookie(self, tid):
        if self.cookies is None:
            raise CookieError("no core scheduling")
        return self.cookies.get(tid)

    def affinity_of(self, tid):
        return next((each[tid] for each in self.driver.affinities.values() if tid in each), None)

    def pause(self, seconds):
        self.looks += 1
        self.meanwhile()

    def verdicts(self):
        found = {(one.guest, one.kind): (one.state, one.found) for one in self.verifier.verify_all()}
        assert all(
            kind is not PromiseKind.MEMORY or state[0] is not BROKEN for (_, kind), state in found.items()
        )
        return {key: state for key, state in found.items() if key[1] is not PromiseKind.MEMORY}

    def move_threads(self, uuid, cpus):
        threads = self.driver.affinities[uuid]
        threads.update(dict.fromkeys(threads, frozenset(cpus)))


CPUS = ("a", PromiseKind.CPUS)


@pytest.fixture
def host(tmp_path):
    return VerifiedHost(tmp_path)


def test_a_guest_in_its_place_is_read_once(host):
    assert host.verdicts() == {CPUS: (KEPT, "")}
    assert host.looks == 0


def test_a_guest_elsewhere_is_read_twice(host):
    host.move_threads("a", {3})
    state, found = host.verdicts()[CPUS]
    assert (state, found) == (BROKEN, "2 threads elsewhere, such as 100 on CPUs 3")
    assert host.looks == 1


def test_a_guest_that_is_placed_meanwhile_breaks_no_promise(host):
    host.move_threads("a", {3})
    host.meanwhile = lambda: host.move_threads("a", {1})
    assert host.verdicts()[CPUS] == (KEPT, "")


def test_a_promise_that_breaks_between_two_readings_is_unknown(host):
    host.run("b", (1, 1, 0))
    host.move_threads("b", {3})
    host.meanwhile = lambda: host.move_threads("a", {3})
    found = host.verdicts()
    assert found["b", PromiseKind.CPUS][0] is BROKEN
    assert found[CPUS][0] is UNKNOWN


def test_an_ended_guest_is_unknown(host):
    del host.driver.affinities["a"]
    assert host.verdicts()[CPUS] == (UNKNOWN, "it has ended")


def test_a_guest_that_is_preserved_has_no_promises_and_may_break_those_of_others(host):
    host.run("b", (1, 1, 0))
    host.handle(ConfigureGuest("b", {"preserve": "true"}))
    host.move_threads("b", {1})
    assert host.verdicts() == {CPUS: (BROKEN, "guest b may run on CPUs 1")}


def test_quiet_cpus_are_read_from_masks(tmp_path):
    kernel = IsolationHost(tmp_path)
    settings = IsolationSettings({"LS": IsolationLevel.QUIET}, frozenset({1, 2, 5, 6}))
    host = VerifiedHost(kernel.kernel.root, IsolationController(None, settings, kernel.store, kernel.kernel))
    quiet = ("a", PromiseKind.QUIET)
    state, found = host.verdicts()[quiet]
    assert state is BROKEN
    assert found.startswith("default mask of interrupts, lockup watchdog, unbound workqueues")
    for path in kernel.kernel.masks():
        kernel.kernel.change(path, {0})
    assert host.verdicts()[quiet] == (KEPT, "")
    kernel.kernel.add_interrupt(30, "eth0", {0, 1})
    assert host.verdicts()[quiet] == (BROKEN, "interrupt 30 (eth0) may run there")


def test_schedules_are_read_from_threads(tmp_path):
    store = RunNotesFile(tmp_path / "notes")
    realtime = RealtimeController(None, {"LS": 5}, store, None)
    cores = CoreCookieController(None, {"LS": CoreScope.CLASS}, store, None)
    host = VerifiedHost(tmp_path, realtime, cores, topology=machine(nodes=2, cores=2, threads=2))
    priority, scheduling = ("a", PromiseKind.REALTIME), ("a", PromiseKind.CORE_SCHEDULING)
    threads = host.driver.affinities["a"]
    host.schedules |= dict.fromkeys(threads, realtime_schedule(5, in_turn=True))
    host.cookies |= dict.fromkeys(threads, 9)
    found = host.verdicts()
    assert (found[priority], found[scheduling]) == ((KEPT, ""), (KEPT, ""))
    host.schedules |= dict.fromkeys(threads, ThreadSchedule())
    host.cookies |= dict.fromkeys(threads, 0)
    found = host.verdicts()
    assert (found[priority][0], found[scheduling][0]) == (BROKEN, BROKEN)
    realtime.refused, cores.refused = {"a": ("it takes CAP_SYS_NICE",)}, {"a": ("no core scheduling",)}
    host.cookies = None
    found = host.verdicts()
    assert found[priority] == (LIMITED, "it takes CAP_SYS_NICE")
    assert found[scheduling] == (LIMITED, "no core scheduling")


@pytest.fixture
def watched():
    """A watch over promises, with verdicts that a test sets, and the recorded events."""
    seen = SimpleNamespace(verdicts=[], events=[], woken=0, registry=CollectorRegistry())

    def wake():
        seen.woken += 1

    seen.conf = configuration(options("/"))
    seen.watch = PromiseWatch(
        seen.conf, lambda: seen.verdicts, EventRecorder(seen.events.append), seen.registry, wake
    )
    return seen


def verdict(state, kind=PromiseKind.CPUS, found="it is elsewhere"):
    return PromiseVerdict("u", "web", kind, state, "CPU 1", found)


def broken(seen, kind="cpus"):
    return seen.registry.get_sample_value("compute_agent_broken_promises", {"promise": kind})


TREE = ProviderTree((ProviderNode("host", "r", None),))


def attribute(seen):
    [node] = seen.watch.add_to_tree(TREE).nodes
    return (node.attributes or {}).get(BROKEN_PROMISES)


def test_a_broken_promise_is_told_once_and_told_when_it_is_kept_again(watched):
    watched.verdicts = [verdict(KEPT), verdict(LIMITED, PromiseKind.QUIET)]
    watched.watch.check_promises()
    assert (watched.events, watched.woken, broken(watched), attribute(watched)) == ([], 0, 0, None)
    watched.verdicts = [verdict(BROKEN), verdict(UNKNOWN, PromiseKind.QUIET)]
    watched.watch.check_promises()
    watched.watch.check_promises()
    [event] = watched.events
    assert (event.kind, event.guest) == ("verify", "u")
    assert event.text == "Guest web (u): the promise cpus is broken: it is elsewhere"
    assert (watched.woken, broken(watched), broken(watched, "quiet")) == (1, 1, 0)
    assert attribute(watched) == "1 cpus"
    assert is_ours(BROKEN_PROMISES)
    watched.verdicts = [verdict(KEPT)]
    watched.watch.check_promises()
    assert watched.events[-1].text == "Guest web (u): the promise cpus is kept again"
    assert (watched.woken, broken(watched), attribute(watched)) == (2, 0, None)


def test_an_interval_of_zero_verifies_nothing(watched):
    watched.verdicts = [verdict(BROKEN)]
    watched.watch.check_promises()
    watched.watch.reload(configuration(options("/", 0)))
    watched.watch.check_promises()
    assert (broken(watched), attribute(watched)) == (0, None)


def test_promises_that_break_and_are_never_kept_again_end_with_their_guest(watched):
    watched.verdicts = [verdict(BROKEN)]
    watched.watch.check_promises()
    watched.verdicts = []
    watched.watch.check_promises()
    assert len(watched.events) == 1
    assert broken(watched) == 0


@pytest.fixture
def caches(tmp_path):
    """Guests with cache ways and bandwidth in a fake resctrl tree."""
    threads = GuestThreads(8)
    yield ResctrlHost(fake.FakeResctrl.of(fake.INTEL, tmp_path / "resctrl"), fake.INTEL, threads.ids)
    threads.close()


def cache_verdicts(caches, uuid):
    """The verdicts on the promises of cache ways and bandwidth to a guest."""
    views = [
        SimpleNamespace(guest=one.guest, assignment=None, allocation=one.allocation, limits=one.limits)
        for one in caches.targets.values()
    ]
    state = read_caches((caches.controller,), views, caches.zones, frozenset(range(8)))
    [promises] = [make_promises(view, (), state) for view in views if view.guest.uuid == uuid]
    threads = dict.fromkeys(caches.driver.threads[uuid], frozenset({1}))
    group = None if promises.group is None else state.facts_of(promises.group, threads)
    facts = HostFacts(TOPOLOGY, {uuid: ObservedGuest(threads=threads, group=group)})
    return {one.kind: (one.state, one.found) for one in judge_promises([promises], facts)}


CACHE, BANDWIDTH = PromiseKind.CACHE, PromiseKind.BANDWIDTH


def test_ways_and_bandwidth_are_read_from_the_groups(caches):
    caches.guest("a", {"l3-1": {"LLC": 4, "MBA": 30}})
    caches.guest("b", {})
    caches.guest("c", {}, qos_class="BE")
    caches.work()
    assert cache_verdicts(caches, "a") == {CACHE: (KEPT, ""), BANDWIDTH: (KEPT, "")}
    assert cache_verdicts(caches, "b") == {}
    assert cache_verdicts(caches, "c") == {CACHE: (KEPT, "")}
    group = caches.group("a")
    caches.files.write_file(f"{group}/schemata", "MB:1=10\n")
    assert cache_verdicts(caches, "a")[BANDWIDTH] == (BROKEN, "10 % of L3 1")
    caches.files.write_file("schemata", "L3:1=ffff\n")
    state, found = cache_verdicts(caches, "a")[CACHE]
    assert (state, found) == (BROKEN, "another group can fill 4 of its 4 ways of L3 1")
    outside = caches.driver.threads["a"][0]
    caches.files.write_file("tasks", f"{outside}\n")
    state, found = cache_verdicts(caches, "a")[CACHE]
    assert found.startswith(f"1 thread outside of its resctrl group, such as {outside}")


def test_throttling_limits_a_promise_and_does_not_break_it(caches):
    limits = {ThrottleControl(CACHE_WAYS, "1"): 2.0, ThrottleControl(MEMORY_BANDWIDTH, "1"): 10.0}
    caches.guest("a", {"l3-1": {"LLC": 4, "MBA": 30}}, limits=limits)
    caches.work()
    assert cache_verdicts(caches, "a") == {
        CACHE: (LIMITED, "throttled to 2 ways of L3 1"),
        BANDWIDTH: (LIMITED, "throttled to 10 % of L3 1"),
    }


def test_groups_that_cannot_be_read_keep_no_promise(caches, monkeypatch):
    caches.guest("a", {"l3-1": {"LLC": 4}})
    caches.work()

    def refuse(path):
        raise ResctrlError(5, path)

    monkeypatch.setattr(caches.files, "read_file", refuse)
    assert cache_verdicts(caches, "a")[CACHE][0] is BROKEN
