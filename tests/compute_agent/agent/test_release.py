"""Tests of the release of a host: the agent undoes quotas, pins, memory, weights and cache ways, each
independently.
"""

from pathlib import Path

import pytest

from compute_agent.agent.release import (
    HostRelease,
    ReleaseOptions,
    blocked_providers,
    children_first,
    combine_items,
    mark_released,
    releasing_controllers,
    remove_mark,
)
from compute_agent.controllers.base import PINS, ReleaseItem
from compute_agent.drivers.base import UNLIMITED, CpuLimits, CpuSettings, MemoryLimits
from compute_agent.drivers.combined import CombinedDriver
from compute_agent.inventory.provider_tree import ProviderInventory
from compute_agent.model.cpuset import FormerValues
from compute_agent.model.guest_settings import GuestSettings
from compute_agent.model.messages import DriverError
from compute_agent.model.resource import BlockIo, ThrottleControl
from compute_agent.pipeline.state import StateFile
from compute_agent.report.plan import OwnedNames, ReportedProvider
from compute_agent.report.root_provider import RELEASE_REASON, DisableCause, HostMaintenance
from compute_agent.resctrl.groups import DEFAULT_GROUP, read_groups, read_schemata
from compute_agent.resctrl.monitoring import make_monitoring_group
from compute_agent.throttling.state_file import ThrottlingFile, look_up_state
from compute_agent.throttling.watermarks.state import ThrottledGuest, WatermarkState
from tests.compute_agent.controllers.resctrl_host import GuestThreads, ResctrlHost
from tests.compute_agent.fakes import FakeDriver
from tests.compute_agent.power_trees import xeon
from tests.compute_agent.resctrl import fake

ONLINE = frozenset(range(4))
ROOT = "11111111-0000-4000-8000-000000000000"


@pytest.fixture
def state(tmp_path):
    return StateFile(tmp_path / "state.json")


@pytest.fixture
def throttling(tmp_path, state):
    return ThrottlingFile(tmp_path, state)


@pytest.fixture
def driver():
    """A driver with two guests that are pinned and have weights and memory of a NUMA node. One has a
    quota.
    """
    driver = FakeDriver(ONLINE)
    for name in ("a", "b"):
        guest = driver.create_guest(name, name, GuestSettings(), ("x",))
        driver.apply_cpu_settings(guest, CpuSettings((frozenset({1}),), frozenset({1})))
        driver.bind_memory(guest, frozenset({0}))
        driver.apply_cpu_limits(guest, CpuLimits(300, 0.5 if name == "a" else None))
    return driver


@pytest.fixture
def release(driver, client, state, throttling):
    """A function that releases the host and returns the outcomes by kind and name."""

    def release(pins=False, control=None, given=False):
        controllers = releasing_controllers(driver, control, state, Path("/"), given)
        made = HostRelease(
            driver, controllers, client, state, throttling, ROOT, ONLINE, ReleaseOptions(pins=pins)
        )
        return {(row.kind, row.name): row.outcome for row in made.carry_out()}

    return release


STAYS = "stays: --pins gives it back"


def test_quotas_are_given_back_and_pins_stay(release, driver):
    assert release() == {("quota", "a"): "given back", ("pins", "a"): STAYS, ("pins", "b"): STAYS}
    assert driver.limits == {"a": CpuLimits(300), "b": CpuLimits(300)}
    assert all(has == {1} for threads in driver.affinities.values() for has in threads.values())
    assert release() == {("pins", "a"): STAYS, ("pins", "b"): STAYS}


def test_pins_are_given_back_with_memory_and_weights(release, driver):
    assert release(pins=True) == dict.fromkeys([("quota", "a"), ("pins", "a"), ("pins", "b")], "given back")
    assert driver.limits == {"a": CpuLimits(100), "b": CpuLimits(100)}
    assert driver.nodes == {"a": frozenset(), "b": frozenset()}
    assert all(has == ONLINE for threads in driver.affinities.values() for has in threads.values())
    assert release(pins=True) == {}


def test_a_busy_realtime_guest_gets_the_usual_schedule_before_it_floats(driver, client, state, throttling):
    given = []

    class Answers:
        def __init__(self, kind):
            self.kind = kind

        def release(self, guests, online):
            yield ReleaseItem(self.kind, "a", "", lambda: given.append(self.kind))

    controllers = [Answers(kind) for kind in (PINS, "quota", "realtime")]
    options = ReleaseOptions(pins=True)
    HostRelease(driver, controllers, client, state, throttling, ROOT, ONLINE, options).carry_out()
    assert given == ["realtime", PINS, "quota"]


def test_classes_of_cpus_are_given_back(driver, client, state, throttling, tmp_path):
    files = xeon(tmp_path)
    governor = "sys/devices/system/cpu/cpufreq/policy0/scaling_governor"
    files.set(governor, "performance")
    state.keep_former_values(FormerValues("boot-1", {governor: "powersave"}))
    for guest in driver.guests():
        driver.end(guest)
    controllers = releasing_controllers(driver, None, state, files.root, given=False)
    made = HostRelease(driver, controllers, client, state, throttling, ROOT, ONLINE, ReleaseOptions())
    assert [(row.kind, row.detail, row.outcome) for row in made.carry_out()] == [
        ("CPU classes", "1 files of frequencies and idle states", "given back")
    ]
    assert files.read(governor) == "powersave"
    assert made.carry_out() == []


def test_a_failed_release_is_reported_and_does_not_stop_the_rest(release, driver):
    driver.broken = DriverError("the kernel does not take it")
    failed = "failed: the kernel does not take it"
    assert release(pins=True) == {
        ("quota", "a"): "given back",
        ("pins", "a"): failed,
        ("pins", "b"): failed,
    }
    driver.broken = None
    assert release(pins=True) == {("pins", "a"): "given back", ("pins", "b"): "given back"}


def test_guests_of_a_driver_that_is_away_are_a_failure_and_those_of_others_are_released(
    driver, client, state, throttling
):
    away = FakeDriver(ONLINE, "away")
    away.awaited, away.outage_reason = True, "libvirtd is away"
    both = CombinedDriver([away, driver])
    controllers = releasing_controllers(both, None, state, Path("/"), given=False)
    made = HostRelease(both, controllers, client, state, throttling, ROOT, ONLINE, ReleaseOptions())
    outcomes = {(row.kind, row.name): row.outcome for row in made.carry_out()}
    assert outcomes["guests", "away"] == "failed: libvirtd is away"
    assert outcomes["quota", "a"] == "given back"


def test_an_agent_that_works_here_again_does_not_throttle_for_past_watermarks(release, throttling, tmp_path):
    throttling.keep_watermarks(
        WatermarkState((ThrottledGuest("a", ThrottleControl("cpu_quota"), 0.5),), scheduling_off=True)
    )
    assert release()["scheduling", ROOT] == "given back"
    assert look_up_state(tmp_path).watermarks == WatermarkState(scheduling_off=False)


@pytest.mark.parametrize("was_enabled", [True, False])
def test_the_switch_of_the_release_itself_is_not_listed(release, client, state, was_enabled):
    root = client.create_provider(ROOT, "host", None)
    reason = RELEASE_REASON if was_enabled else "a disk is broken"
    state.keep_maintenance(HostMaintenance(True, reason, 1.0))
    mark = DisableCause.MAINTENANCE.value
    client.create_trait(mark)
    client.set_traits(ROOT, frozenset({mark, "COMPUTE_STATUS_DISABLED"}), root.generation)
    assert (("scheduling", f"host ({ROOT})") in release()) is not was_enabled
    assert client.get_traits(ROOT)[0] == frozenset()


def test_cache_ways_and_bandwidth_go_back_to_the_default_group_and_groups_of_others_stay(
    release, tmp_path, driver
):
    files = fake.FakeResctrl.of(fake.INTEL, tmp_path / "resctrl")
    before = read_schemata(files, DEFAULT_GROUP)
    threads = GuestThreads(4)
    try:
        rig = ResctrlHost(files, fake.INTEL, threads.ids)
        files.make_folder("theirs")
        rig.guest("a", {"l3-1": {"LLC": 4, "MBA": 30}})
        rig.work()
        control = rig.controller.control
        make_monitoring_group(files, DEFAULT_GROUP, "compute-agent.mon.b")
        assert read_schemata(files, DEFAULT_GROUP) != before
        outcomes = release(control=control)
        assert {
            kind: outcome for (kind, _), outcome in outcomes.items() if kind not in ("pins", "quota")
        } == {
            "cache and bandwidth": "given back",
            "monitoring": "given back",
        }
        present = read_groups(files)
        assert (set(present.groups), present.default_group.monitoring_groups) == ({"", "theirs"}, ())
        assert read_schemata(files, DEFAULT_GROUP) == before
        assert {kind for kind, _ in release(control=control)} == {"pins"}
    finally:
        threads.close()


def provider(name, parent, *classes):
    return ReportedProvider(name, name, parent, 1, {one: ProviderInventory(1) for one in classes})


def test_providers_are_deleted_leaves_first_and_those_with_something_of_others_stay():
    reported = {
        "r": provider("r", None, "DISK_GB"),
        "n0": provider("n0", "r", "PCPU"),
        "n1": provider("n1", "r", "PCPU", "CUSTOM_GPU"),
        "l0": provider("l0", "n0", "LLC"),
        "x": provider("x", "n0"),
    }
    assert children_first(reported) == ["l0", "x", "n0", "n1", "r"]
    owned = {uuid: OwnedNames(frozenset({"DISK_GB", "PCPU", "LLC"})) for uuid in ("r", "n0", "n1", "l0")}
    assert blocked_providers(reported, owned, "r") == {
        "x": "it is not the agent's, as far as its state file knows",
        "n0": "x below it stays",
        "n1": "it has inventories that are not the agent's: CUSTOM_GPU",
        "r": "n0, n1 below it stays",
    }
    del reported["x"], reported["n1"]
    assert blocked_providers(reported, owned, "r") == {}


def test_an_agent_that_works_here_again_does_not_limit_for_past_interference(tmp_path):
    (tmp_path / "interference.json").write_text("{}")
    mark_released(tmp_path)
    remove_mark(tmp_path, 0.0)
    assert [each.name for each in tmp_path.iterdir()] == ["agent.lock"]


def test_foreign_pins_stay_and_weights_are_given_back(release, driver):
    assert release(pins=True, given=True)["pins", "a"] == "given back"
    assert driver.limits == {"a": CpuLimits(100), "b": CpuLimits(100)}
    assert driver.nodes == {"a": frozenset({0}), "b": frozenset({0})}
    assert all(has == {1} for threads in driver.affinities.values() for has in threads.values())


def test_block_io_and_memory_limits_are_given_back(release, driver):
    guests = driver.guests()
    driver.apply_blockio(guests[0], BlockIo(weight=50))
    driver.limit_memory(guests[1], MemoryLimits(maximum=1 << 30, oom_score_adj=300))
    outcomes = release()
    assert outcomes["block I/O", "a"] == "given back"
    assert driver.blockio.get("a") is None
    assert outcomes["pins", "b"] == STAYS
    assert release(pins=True)["pins", "b"] == "given back"
    assert driver.memory_limits(guests[1], MemoryLimits(UNLIMITED, UNLIMITED, 0, 0, ())) is None


def test_parts_of_one_thing_are_given_back_in_order_and_a_failed_part_is_reported():
    told = []
    parts = [ReleaseItem(PINS, "a", word, lambda word=word: told.append(word)) for word in ("CPUs", "weight")]
    (whole,) = combine_items(parts)
    whole.give_back()
    assert (whole.detail, told) == ("CPUs, weight", ["CPUs", "weight"])
    (failed,) = combine_items([*parts, ReleaseItem(PINS, "a", "", None, "failed: it is away")])
    assert failed.cannot_be_released
    assert (failed.give_back, failed.reason) == (None, "failed: it is away")
