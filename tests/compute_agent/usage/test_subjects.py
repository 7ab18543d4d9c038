"""Tests of guests of drivers as watermarks see them: the values of their drivers and their allotments."""

import pytest

from compute_agent.classes.guest_classes import DEFAULT_CLASSES, QosClass, QosClasses, parse_classes
from compute_agent.controllers.resctrl import cache_demands
from compute_agent.inventory.provider_tree import ProviderNode
from compute_agent.model.guest import Guest
from compute_agent.model.guest_settings import GuestSettings
from compute_agent.model.resource import BLOCKIO, ThrottleControl
from compute_agent.pipeline.guest_cache import CachedGuest, view_guest
from compute_agent.resctrl.bandwidth import choose_codec
from compute_agent.resctrl.mount import ResctrlHandle, ResctrlOptions, read_platform
from compute_agent.usage import subjects
from compute_agent.usage.snapshot import GuestAllotment
from compute_agent.usage.subjects import CacheControlAllotments, SubjectFactory, SubjectInputs, build_subject
from tests.compute_agent.builders import build_guest, load_options
from tests.compute_agent.fakes import FakeDriver
from tests.compute_agent.resctrl import fake
from tests.compute_agent.throttling.watermarks.builders import QUOTA


@pytest.mark.parametrize(
    ("qos_class", "dedicated", "rank", "protected"),
    [
        ("BE", False, 0, False),
        ("BE", True, 0, True),
        ("LS", False, 10, True),
        ("unheard of", False, 21, True),
    ],
)
def test_class_and_dedicated_cpus_protect(qos_class, dedicated, rank, protected):
    guest = Guest("u", "process", "n", 42, GuestSettings(vcpus=3, qos_class=qos_class, priority=7))
    ways = {ThrottleControl("cache_ways", "0"): GuestAllotment(11.0, 1.0, 2.0**20)}
    view = view_guest(CachedGuest(guest, {"host": {"PCPU": 3}} if dedicated else {}))
    subject = build_subject(SubjectInputs(view, parse_classes(load_options()), caches=ways), 5.0)
    facts = subject.facts
    assert (facts.rank, facts.protected, facts.priority, facts.started) == (rank, protected, 7, 5.0)
    assert facts.allotments == {
        QUOTA: GuestAllotment(3.0),
        ThrottleControl(BLOCKIO): GuestAllotment(100.0, 1.0, None),
        **ways,
    }
    assert (subject.cgroup, subject.pids) == ("", (42,))


CLASSES = QosClasses({"BE": QosClass("BE", 0)}, 0)


class Forking(FakeDriver):
    """A driver of guests with a main process that has started two other processes."""

    def process_ids(self, guest):
        return [guest.pid, guest.pid + 1, guest.pid + 2]


def measured(guest):
    (subject,) = SubjectFactory(Forking({0})).build_subjects([view_guest(CachedGuest(guest, {}))], CLASSES)
    return subject.cgroup, subject.pids


MEMORY = ThrottleControl("memory_high")


@pytest.mark.parametrize(
    ("swaps", "allocation", "allotment"),
    [
        (
            "Filename Type Size\n/dev/vdb partition 9\n",
            {"p": {"MEMORY_MB": 8}},
            GuestAllotment(2.0**23, 2.0**20),
        ),
        ("Filename Type Size\n/dev/vdb partition 9\n", {"p": {"VCPU": 8}}, None),
        ("Filename Type Size\n", {"p": {"MEMORY_MB": 8}}, None),
        (None, {"p": {"MEMORY_MB": 8}}, None),
    ],
)
def test_memory_is_limited_on_hosts_with_swap(tmp_path, swaps, allocation, allotment):
    if swaps is not None:
        (tmp_path / "proc").mkdir()
        (tmp_path / "proc/swaps").write_text(swaps)
    factory = SubjectFactory(Forking({0}), root=str(tmp_path))
    view = view_guest(CachedGuest(build_guest("a", qos_class="BE"), allocation))
    (subject,) = factory.build_subjects([view], CLASSES)
    assert subject.facts.allotments.get(MEMORY) == allotment


def test_a_guest_without_a_group_is_measured_by_the_processes_that_its_driver_names():
    guest = build_guest("a", pid=4_000_000, qos_class="BE")
    assert measured(guest) == ("", (4_000_000, 4_000_001, 4_000_002))


def test_a_guest_with_a_group_of_its_own_is_measured_by_that():
    guest = build_guest("a", pid=4_000_000, cgroup="/sys/fs/cgroup/a", qos_class="BE")
    assert measured(guest) == ("/sys/fs/cgroup/a", (4_000_000,))


ZONES = (
    ProviderNode("host", "root", None, l3_ids=frozenset({0, 1})),
    ProviderNode("host_L3_0", "l3-0", "root", l3_ids=frozenset({0})),
    ProviderNode("host_L3_1", "l3-1", "root", l3_ids=frozenset({1})),
)


def allotments(tmp_path, machine, gbps=None):
    files = fake.FakeResctrl.of(machine, tmp_path / "resctrl")
    platform = read_platform(files, machine.cpuinfo)
    control = ResctrlHandle(
        files, platform, choose_codec(platform, gbps), ResctrlOptions(memory_bandwidth_gbps=gbps)
    )
    return CacheControlAllotments(control, DEFAULT_CLASSES, lambda: ZONES), platform


def guest_view(qos_class="BE", allocation=None, resctrl="", name="g"):
    return view_guest(CachedGuest(build_guest(name, qos_class=qos_class, resctrl=resctrl), allocation))


@pytest.fixture
def intel(tmp_path):
    return allotments(tmp_path, fake.INTEL)


def ways(found, cache="0"):
    return found[ThrottleControl("cache_ways", cache)]


def bandwidth(found, cache="0"):
    return found[ThrottleControl("memory_bandwidth", cache)]


def test_a_class_has_its_part_of_the_open_ways(intel):
    of, platform = intel
    total = len(platform.l3.rules.all_ways)
    assert ways(of(guest_view("LS", {}))).full == total
    assert ways(of(guest_view("BE", {}))).full == -(-total * 30 // 100)
    assert ways(of(guest_view("BE", {})), "1").granule == 1


def test_allocation_comes_before_annotation_and_class(intel):
    of, _ = intel
    found = of(guest_view("BE", {"l3-0": {"LLC": 5, "MBA": 40}}, '{"MB": {"schemata": {"percent": 70}}}'))
    assert ways(found).full == 5
    assert (bandwidth(found).full, bandwidth(found, "1").full) == (40, 70)
    assert ways(found, "1").full == ways(of(guest_view("BE", {}))).full


def test_the_percent_of_each_core_tells_no_bytes(intel):
    of, platform = intel
    found = bandwidth(of(guest_view("BE", {})))
    assert (found.full, found.granule, found.per_unit) == (100, platform.mb.granularity, None)


def test_an_absolute_cap_tells_bytes(tmp_path):
    of, _ = allotments(tmp_path, fake.AMD, gbps=100)
    assert bandwidth(of(guest_view("BE", {}))) == GuestAllotment(100, 1, 1e9)


def test_without_the_memorys_bandwidth_megabytes_cannot_be_limited(tmp_path):
    of, _ = allotments(tmp_path, fake.INTEL_MBPS)
    assert {knob.lever for knob in of(guest_view("BE", {}))} == {"cache_ways"}


def test_a_guest_with_unknown_allocation_has_unknown_allotments(intel):
    of, _ = intel
    assert of(guest_view("BE", None)) == {}


def test_allotments_are_computed_once_until_a_guest_changes(intel, monkeypatch):
    of, _ = intel
    computed = []
    monkeypatch.setattr(subjects, "cache_demands", lambda *given: computed.append(1) or cache_demands(*given))
    views = guest_view("BE", {}), guest_view("LS", {}), guest_view("LS", {"l3-0": {"LLC": 5}})
    for view in views:
        assert of(view) == of(view)
    assert len(computed) == 3
    others = [guest_view("BE", {}, name=name) for name in ("a", "b")]
    for view in others * 2:
        of(view)
    assert len(computed) == 5
    # At the maximum number of guests, all of them are forgotten.
    monkeypatch.setattr(subjects, "_MAX_KNOWN", 1)
    for view in (guest_view("BE", {}, name="c"), *others):
        of(view)
    assert len(computed) == 8
