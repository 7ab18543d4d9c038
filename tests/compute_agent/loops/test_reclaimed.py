"""Tests of offers of unused CPUs: their amounts, their log, and their reports to Placement."""

import json
import re

import pytest

from compute_agent.inventory.cpu_sets import CpuOptions, resolve_cpu_sets
from compute_agent.inventory.derive import InventorySettings, derive_provider_tree
from compute_agent.inventory.memory import with_offers
from compute_agent.loops.offers import with_kept
from compute_agent.loops.reclaimed import oversold_capacity
from compute_agent.loops.reports import ReportLoop
from compute_agent.model.resource import RECLAIMED_VCPU
from compute_agent.pipeline.events import GuestStopped
from compute_agent.pipeline.host_state import HostState
from compute_agent.pipeline.metrics import AgentMetrics
from compute_agent.policy import POLICIES
from compute_agent.reclaim.estimate import SYSTEM, ZoneHistory, ZoneReading
from compute_agent.reclaim.offers import ZONES_FORMAT, CapacityOffer, ZoneState
from compute_agent.report.plan import to_api
from compute_agent.report.reporter import HostReporter
from compute_agent.throttling.watermarks.expressions import parse_expression
from compute_agent.usage.rounds import OversoldCapacity
from tests.compute_agent.builders import make_pipeline
from tests.compute_agent.fakes import FakeDriver
from tests.compute_agent.inventory.machines import machine
from tests.compute_agent.loops import configurations
from tests.compute_agent.loops.reclaiming import NODE, TREE, ZONE, ReclaimingHost


@pytest.fixture
def rig(tmp_path):
    return ReclaimingHost(tmp_path)


@pytest.fixture
def learnt(rig):
    """A host after a day and a few minutes in which a guest used one of its two cores."""
    rig.run("a", {NODE.uuid: {"VCPU": 2}})
    history = ZoneHistory()
    for _ in range(25 * 60):
        rig.now += 60
        history = history.with_reading(ZoneReading(rig.now, 1.5, {"a": 1.0, SYSTEM: 0.5}), 80)
    (rig.folder / "capacity.json").write_bytes(
        ZONES_FORMAT.dump({ZONE.uuid: ZoneState(history, CapacityOffer())})
    )
    rig.new_loop()
    rig.minutes(120, a=1.0)
    return rig


def test_the_reason_for_no_offer_is_reported_before_a_day_is_over(rig):
    (waits, none), (offered, _) = rig.terms().items()
    assert waits.startswith("no use is known yet since ")
    assert waits.endswith("takes 24 hours of readings")
    assert (none, offered.split(" (")[0]) == (0.0, "offered")
    rig.minutes(2)  # use is the difference of two readings
    assert not any("nothing was read yet" in term for term in rig.terms())
    rig.minutes(150)
    (waits,) = (term for term in rig.terms() if "are known" in term)
    known, missing = re.search(r"only (\d+) of the 24 .*, and (\S+) hours are missing", waits).groups()
    assert int(known) >= 2
    assert float(missing) == pytest.approx(24 - int(known) - rig.now % 3600 / 3600, abs=0.06)
    assert {row["unit"] for row in rig.loop.list_rows()} == {"CPUs"}


def test_unused_cpus_are_offered_after_a_day_with_the_reason_in_words(learnt):
    assert learnt.reserved == 8 - 6  # of 8 they may use 1.05 * 1.5, and 6.4 are left
    assert learnt.wakes == len(learnt.events) > 0
    assert (learnt.events[-1].kind, learnt.events[-1].outcome) == ("offer", "done")
    assert "the owners may use 1.6, and leave 6.4" in learnt.events[-1].reason
    assert learnt.terms()["others leave"] == pytest.approx(6.42, abs=0.02)


def test_a_new_guest_takes_all_that_it_may_use_at_once(learnt):
    learnt.run("b", {NODE.uuid: {"VCPU": 4}}, vcpus=4)
    learnt.minutes(1, a=1.0)
    assert learnt.reserved == 8 - 2


def test_guests_on_reclaimed_cpus_float_on_the_shared_cpus_of_the_zone_and_do_not_count(learnt):
    guest = learnt.run("rest", {ZONE.uuid: {RECLAIMED_VCPU: 6}}, vcpus=6, qos_class="BE")
    assert learnt.driver.observed_cpus(guest) == set(range(1, 9))
    learnt.minutes(10, a=1.0, rest=5.0)
    assert learnt.reserved == 2
    learnt.driver.running.pop("rest")
    learnt.pipeline.handle_event(GuestStopped(guest))
    learnt.minutes(1, a=1.0)  # its use in its last minute has no owner
    assert learnt.reserved == 2


def test_the_next_agent_continues_the_estimates_unless_they_are_too_old(learnt):
    learnt.loop.save_estimates()
    learnt.new_loop()
    assert learnt.reserved == 2
    learnt.minutes(2, a=1.0)
    assert learnt.reserved == 2
    learnt.now += 1000
    assert learnt.reserved == 8


def test_a_preview_reports_and_offers_nothing(learnt):
    learnt.mode = "preview"
    learnt.loop.save_estimates()
    learnt.new_loop()
    learnt.minutes(2, a=1.0)
    assert learnt.reserved == 8
    assert learnt.terms()["would be offered (more by 10 % of all CPUs at a time)"] == 6


def test_an_unusable_file_of_an_earlier_agent_is_put_aside(rig, caplog):
    (rig.folder / "capacity.json").write_text(json.dumps({"version": 1, "zones": {"x": 7}}))
    rig.new_loop()
    assert "cannot be used and starts empty" in caplog.text
    assert rig.reserved == 8
    assert len(list(rig.folder.glob("capacity.json.damaged-*"))) == 1


def test_a_full_disk_costs_only_the_estimates(rig, monkeypatch, caplog):
    def full(*arguments):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("compute_agent.kept_json.write_durably", full)
    rig.minutes(10)
    assert caplog.text.count("use of CPUs cannot be saved") == 1
    assert rig.loop.cpus.zones[ZONE.uuid].history.time == rig.now


def test_cpus_are_not_measured_while_the_option_is_off(rig):
    rig.mode = "off"
    rig.new_loop()
    rig.loop.start()
    assert not rig.loop.is_running


def broken(rig, cause):
    labels = {"provider": ZONE.name, "resource": RECLAIMED_VCPU, "cause": cause}
    return rig.registry.get_sample_value("compute_agent_reclaimed_broken_total", labels)


def test_a_broken_promise_lowers_the_offer_for_a_day(learnt):
    learnt.minutes(1, a=4.0)  # with the system 4.5, and 6 were promised
    event = next(each for each in learnt.events if each.kind == "break")
    assert event.text == "The provider host_NUMA_0_RECLAIMED could not keep its promise of 6 CPUs"
    assert event.reason.startswith("owners used 4.5 of 8 CPUs; 2.5 CPUs less for a day")
    assert broken(learnt, "use") == 1
    learnt.minutes(30, a=1.0)
    held = [words for words in learnt.terms() if words.startswith("held back for 23.5 more hours")]
    assert len(held) == 1
    learnt.loop.save_estimates()
    learnt.new_loop()
    learnt.minutes(2, a=1.0)
    assert [cores for words, cores in learnt.terms().items() if "held back" in words] == [2.5]


def test_a_throttled_guest_on_reclaimed_cpus_is_a_broken_promise(learnt):
    learnt.run("rest", {ZONE.uuid: {RECLAIMED_VCPU: 2}}, vcpus=2, qos_class="BE")
    for guest, metric in (("rest", "memory_usage"), ("a", "cpu_usage"), ("gone", "cpu_usage"), ("rest", "x")):
        learnt.loop.count_blame(guest, metric)
    learnt.minutes(2, a=1.0, rest=0.5)
    assert not [each for each in learnt.events if each.kind == "break"]
    learnt.loop.count_blame("rest", "cpu_usage")
    learnt.loop.count_blame("rest", "cpu_usage", "run_delay")
    learnt.minutes(1, a=1.0, rest=0.5)
    event = next(each for each in learnt.events if each.kind == "break")
    assert "throttled or evicted for cpu_usage, run_delay; 0.8 CPUs less for a day" in event.reason
    assert (broken(learnt, "cpu_usage"), broken(learnt, "run_delay")) == (1, 1)
    assert learnt.reserved == 8 - 5  # 6.4 less 0.8


def test_eviction_of_oversold_capacity_makes_no_offer_smaller(learnt):
    oversold = "reclaimed_cpu_oversold > 2"
    conf = learnt.conf()
    rules = conf.settings.rules
    rules.registry = rules.registry.with_metrics([parse_expression(oversold, rules.registry)])
    learnt.loop.use_options(conf)
    learnt.run("rest", {ZONE.uuid: {RECLAIMED_VCPU: 2}}, vcpus=2, qos_class="BE")
    for metric in ("reclaimed_cpu_oversold", "reclaimed_memory_oversold", oversold):
        learnt.loop.count_blame("rest", metric)
    learnt.minutes(1, a=1.0, rest=0.5)
    assert not [each for each in learnt.events if each.kind == "break"]
    learnt.loop.count_blame("rest", "cpu_usage")
    learnt.minutes(1, a=1.0, rest=0.5)
    assert [each for each in learnt.events if each.kind == "break"]


def withheld(rig):
    return rig.loop.add_to_tree(TREE).get(NODE.uuid).withheld


def test_stolen_time_is_withheld_reported_and_outlives_the_agent(rig):
    rig.mode, rig.steal = "off", "act"
    rig.new_loop()
    rig.minutes(5, stolen=0.3)
    assert withheld(rig) == {"VCPU": 3}
    assert rig.wakes == 1
    assert [(each.kind, each.outcome) for each in rig.events] == [("stolen", "done")]
    assert rig.events[0].text == "The provider host_NUMA_0 withholds 3 of 8 CPUs (before: 0)"
    assert (
        rig.terms().items()
        >= {
            "stolen of 8 CPUs: at most 30.0 % in all but one of the last 15 minutes": 2.4,
            "to be withheld of VCPU (5 minutes between changes, less after 15)": 3.0,
        }.items()
    )
    rig.new_loop()
    assert withheld(rig) == {"VCPU": 3}
    rig.minutes(3)
    assert withheld(rig) == {"VCPU": 3}
    for mode, amounts in (("act", {"VCPU": 3}), ("preview", {})):
        assert with_kept(TREE, mode, rig.folder).get(NODE.uuid).withheld == amounts


def test_a_preview_of_stolen_time_withholds_nothing(rig):
    rig.mode, rig.steal = "off", "preview"
    rig.new_loop()
    rig.minutes(5, stolen=0.3)
    assert (withheld(rig), rig.wakes) == ({}, 0)
    assert [(each.kind, each.outcome) for each in rig.events] == [("stolen", "preview")]
    assert rig.terms()["would be withheld of VCPU (5 minutes between changes, less after 15)"] == 3.0


def test_switching_stolen_time_off_withholds_nothing_and_forgets_the_estimates(rig):
    rig.mode, rig.steal = "off", "act"
    rig.new_loop()
    rig.minutes(5, stolen=0.3)
    rig.steal = "off"
    rig.loop.reload(rig.conf())
    assert withheld(rig) == {}
    assert not [term for term in rig.terms() if "hypervisor" in term or "withheld" in term]


def test_an_unusable_file_of_stolen_time_is_put_aside_and_estimates_begin_again(rig):
    (rig.folder / "stolen.json").write_text("[]")
    rig.mode, rig.steal = "off", "act"
    rig.new_loop()
    assert withheld(rig) == {}
    assert with_kept(TREE, "act", rig.folder) == TREE
    assert list(rig.folder.glob("stolen.json.damaged-*"))


def test_held_beyond_the_offer_is_oversold_and_no_more_without_new_readings(learnt):
    oversold = learnt.loop.read_oversold
    learnt.run("be", {ZONE.uuid: {RECLAIMED_VCPU: 4}}, vcpus=4, qos_class="BE")
    learnt.minutes(1, a=1.0, be=1.0)
    assert oversold(RECLAIMED_VCPU) == OversoldCapacity(0.0, {})
    # The owners take nearly all of the zone: the offer shrinks, and the guest keeps what it holds.
    learnt.run("b", {NODE.uuid: {"VCPU": 6}}, vcpus=6)
    learnt.minutes(3, a=2.0, b=5.0, be=0.5)
    found = oversold(RECLAIMED_VCPU)
    assert found.guests == {"be": 4.0}
    assert 3.0 <= found.total <= 4.0
    learnt.now += 3600
    assert oversold(RECLAIMED_VCPU) is None
    assert oversold("CUSTOM_OTHER") is None


def test_preview_sells_nothing_and_so_oversells_nothing(learnt):
    learnt.mode = "preview"
    learnt.new_loop()
    learnt.minutes(3, a=1.0)
    assert learnt.loop.read_oversold(RECLAIMED_VCPU) is None


def test_oversold_amounts_are_summed_over_the_providers_that_lack_them():
    held = {"a": {"x": 4, "y": 1}, "b": {"x": 2}, "c": {"y": 1}}
    assert oversold_capacity({"x": 5, "y": 3}, held, 2.0) == OversoldCapacity(2.0, {"a": 8.0, "b": 4.0})
    assert oversold_capacity({}, held, 1.0) is None


ROOT = "5b0c0000-0000-4000-8000-000000000001"
TOPOLOGY = machine(nodes=2, cores=4)
SETS = resolve_cpu_sets(CpuOptions(cpu_shared_set="1-3,5-7"), TOPOLOGY)
OFFERING_TREE = derive_provider_tree(TOPOLOGY, SETS, InventorySettings(reclaimed=True), ROOT, "offering")
ZONES = [node.uuid for node in OFFERING_TREE.providers_of(RECLAIMED_VCPU)]


class ReclaimReporting:
    def __init__(self, client):
        self.client, self.offers = client, {}
        driver = FakeDriver(TOPOLOGY.online)
        host_state = HostState(TOPOLOGY, SETS, OFFERING_TREE, POLICIES["topology-aware"])
        metrics = AgentMetrics()
        pipeline = make_pipeline(host_state, driver, metrics)
        pipeline.start()
        self.pipeline = pipeline
        self.reporter = HostReporter(client, {}, lambda owned: None)
        self.loop = ReportLoop(
            configurations.reporting(client), self.reporter, pipeline, metrics, additions=(self.add_to_tree,)
        )

    def add_to_tree(self, tree):
        return with_offers(tree, self.offers)

    def reserved(self):
        reported = self.reporter.read_reported(ROOT)
        return [reported[uuid].inventories[RECLAIMED_VCPU].reserved for uuid in ZONES]


@pytest.fixture
def reporting(client):
    reporting = ReclaimReporting(client)
    yield reporting
    reporting.pipeline.stop()


def test_reserved_follows_the_offers_and_no_other_program_can_lower_it(reporting):
    assert reporting.loop.report_now()
    assert reporting.reserved() == [3, 3]
    reporting.offers = {ZONES[0]: 2}
    assert reporting.loop.report_now()
    assert reporting.reserved() == [1, 3]
    sent = reporting.loop.status.sent
    assert reporting.loop.report_now()
    assert reporting.loop.status.sent == sent  # no write without a difference
    reporting.offers = {}
    assert reporting.loop.report_now()
    assert reporting.reserved() == [3, 3]
    assert reporting.loop.status.adjustments == ()
    record = reporting.reporter.read_reported(ROOT)[ZONES[0]]
    lowered = {**to_api(record.inventories[RECLAIMED_VCPU]), "reserved": 0}
    body = {"resource_provider_generation": record.generation, "inventories": {RECLAIMED_VCPU: lowered}}
    reporting.client.send_request("PUT", f"/resource_providers/{ZONES[0]}/inventories", body)
    assert reporting.loop.report_now()
    assert reporting.reserved() == [3, 3]
