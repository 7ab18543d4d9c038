"""Tests of the settings of running guests from all sources, over starts, restarts, reboots and reloads."""

import json
from dataclasses import replace

import pytest

from compute_agent.classification.resolution import ClassificationPolicy
from compute_agent.classification.rules import make_rule
from compute_agent.controllers.cpu import CpuController, CpusetController
from compute_agent.events.event import EventRecorder
from compute_agent.model.guest import GuestIdentity
from compute_agent.model.guest_settings import GuestSettings, SettingSource
from compute_agent.model.messages import DriverError, GuestGoneError
from compute_agent.model.resource import ThrottleControl
from compute_agent.pipeline import guest_settings
from compute_agent.pipeline.events import (
    AllocationsRead,
    ConfigureGuest,
    GuestStarted,
    GuestStopped,
    HostStateChanged,
    LimitGuest,
    ReconcileGuests,
    StartGuest,
)
from compute_agent.pipeline.guest_settings import GONE_SECONDS, ManualSettings
from compute_agent.pipeline.worker import GuestPipeline
from compute_agent.report.history import ConsumerOwner
from tests.compute_agent.builders import find_view
from tests.compute_agent.pipeline.fake_host import HOST_STATE, FakeHost

QUOTA = ThrottleControl("cpu_quota")


def host_state_with(*rules, **fields):
    """The usual host with these rules, each given by its name, its matches and its settings."""
    made = tuple(
        make_rule(name, order, matches, settings) for order, (name, matches, settings) in enumerate(rules)
    )
    return replace(HOST_STATE, classification=ClassificationPolicy(made, **fields))


class ClassifyingHost(FakeHost):
    """A fake host with a file of settings by hand, a clock for this file, and a list of recorded events."""

    def __init__(self, folder, host_state=HOST_STATE):
        self.path, self.now, self.events = folder / guest_settings.FILE_NAME, 0.0, []
        super().__init__(host_state)

    def new_pipeline(self, host_state=HOST_STATE):
        self.manual = ManualSettings(self.path, lambda: self.now)
        controllers = (CpusetController(self.driver), CpuController(self.driver, frozenset({"BE"})))
        recorder = EventRecorder(self.events.append)
        self.pipeline = GuestPipeline(
            host_state, self.driver, controllers, self.save_state, self.metrics, recorder, manual=self.manual
        )

    def setting(self, name, uuid="a"):
        guest = find_view(self.pipeline, uuid).guest
        return getattr(guest.settings, name), guest.setting_sources[name]

    def start_domain(self, uuid="a", allocation=None, owner=None, **fields):
        """Start a guest that another program has defined, such as a domain of Nova."""
        self.driver.starting_guests = False
        guest = self.driver.create_guest(uuid, uuid, GuestSettings(), ())
        guest = self.driver.running[uuid] = replace(guest, declared_by=SettingSource.DOMAIN, **fields)
        self.handle(GuestStarted(guest, allocation or {"node0": {"VCPU": 1}}, started=True, owner=owner))
        return guest

    def weight(self, uuid="a"):
        return self.driver.limits[uuid].weight


@pytest.fixture
def rig(tmp_path):
    return ClassifyingHost(tmp_path)


BATCH = {"extra_specs": {"compute_agent:qos_class": "BE"}, "flavor": "batch"}


def test_the_class_of_a_flavor_reaches_the_controllers(rig):
    rig.start_domain(identity=GuestIdentity(**BATCH))
    assert rig.setting("qos_class") == ("BE", "flavor")
    assert rig.weight() == 1


def test_a_rule_of_a_reload_applies_to_running_guests(rig):
    rig.start_domain(identity=GuestIdentity(project_name="lab"))
    assert rig.setting("qos_class") == ("LS", "default")
    rig.handle(HostStateChanged(host_state_with(("night", {"project": ["lab"]}, {"qos_class": "BE"}))))
    assert rig.setting("qos_class") == ("BE", "rule night")
    assert rig.weight() == 1
    event = rig.events[-1]
    assert (event.kind, event.text) == ("configure", "Guest a is set to qos_class = BE (rule night)")
    rig.handle(HostStateChanged(host_state_with(default_qos_class="LSR")))
    assert rig.setting("qos_class") == ("LSR", "default")


def test_rules_match_allocation_and_owner_of_a_guest(rig):
    rules = (
        ("cpus", {"resource_class": ["PCPU"]}, {"qos_class": "LSR"}),
        ("type", {"consumer_type": ["BATCH"], "project": ["p"]}, {"qos_class": "BE"}),
    )
    rig.new_pipeline(host_state_with(*rules))
    rig.start_domain(owner=ConsumerOwner("p", "u", "BATCH"))
    assert rig.setting("qos_class") == ("BE", "rule type")
    rig.handle(AllocationsRead({"a": {"node0": {"PCPU": 1}}}, 2.0))
    assert rig.setting("qos_class") == ("LSR", "rule cpus")
    rig.handle(AllocationsRead({"a": {"node0": {"VCPU": 1}}}, 3.0, owners={"a": ConsumerOwner("q", "u")}))
    assert rig.setting("qos_class") == ("LS", "default")


def test_settings_by_hand_override_all_others_until_they_are_unset(rig):
    rig.start_domain(identity=GuestIdentity(**BATCH))
    rig.handle(ConfigureGuest("a", {"qos_class": "LSR", "priority": "4"}))
    assert (rig.setting("qos_class"), rig.setting("priority")) == (("LSR", "by hand"), (4, "by hand"))
    assert rig.weight() == 100
    rig.handle(ConfigureGuest("a", {}, ("qos_class",)))
    assert (rig.setting("qos_class"), rig.setting("priority")) == (("BE", "flavor"), (4, "by hand"))


def test_settings_of_the_fleet_override_rules_and_not_settings_by_hand(rig):
    rig.start_domain(identity=GuestIdentity(**BATCH))
    rig.handle(ConfigureGuest("a", {"qos_class": "LS"}, (), SettingSource.FLEET))
    assert rig.setting("qos_class") == ("LS", "fleet")
    rig.handle(ConfigureGuest("a", {"qos_class": "LSR"}))
    assert rig.setting("qos_class") == ("LSR", "by hand")
    rig.handle(ConfigureGuest("a", {}, ("qos_class",)))
    assert rig.setting("qos_class") == ("LS", "fleet")


def test_settings_by_hand_survive_a_restart_of_the_agent_and_a_hard_reboot(rig):
    guest = rig.start_domain(identity=GuestIdentity(**BATCH))
    rig.handle(ConfigureGuest("a", {"qos_class": "LSR"}))
    rig.driver.end(guest)
    rig.handle(GuestStopped(guest))
    rig.restart()
    rig.start_domain(identity=GuestIdentity(flavor="other"))
    assert rig.setting("qos_class") == ("LSR", "by hand")


def test_settings_by_hand_go_when_a_guest_has_been_away_for_long_and_holds_nothing(rig):
    guest = rig.start_domain()
    rig.handle(ConfigureGuest("a", {"qos_class": "BE"}))
    rig.driver.end(guest)
    rig.handle(GuestStopped(guest))
    for _ in range(2):  # the guest is shut off: it still has an allocation
        rig.now += 2 * GONE_SECONDS
        rig.handle(ReconcileGuests())
    assert rig.manual.guests == {"a"}
    rig.handle(AllocationsRead({}, 9.0, {}))
    rig.handle(ReconcileGuests())
    rig.now += GONE_SECONDS - 1
    rig.handle(ReconcileGuests())
    assert rig.manual.guests == {"a"}
    rig.now += 1
    rig.handle(ReconcileGuests())
    assert (rig.manual.guests, ManualSettings(rig.path).guests) == (frozenset(), frozenset())


def test_settings_of_a_process_go_with_its_end(rig):
    guest = rig.run("a", (0, 0, 1)).guest
    rig.handle(ConfigureGuest("a", {"qos_class": "BE"}))
    rig.driver.end(guest)
    rig.handle(GuestStopped(guest))
    assert ManualSettings(rig.path).guests == frozenset()


def test_settings_of_a_process_at_its_start_count_even_if_they_are_defaults(rig):
    rig.new_pipeline(host_state_with(default_qos_class="BE"))
    event = StartGuest(
        "a", "a", GuestSettings(), ("x",), {"node0": {"VCPU": 1}}, 1.0, declared=("qos_class",)
    )
    rig.handle(event)
    assert rig.setting("qos_class") == ("LS", "start")
    rig.handle(replace(event, uuid="b", declared=()))
    assert rig.setting("qos_class", "b") == ("BE", "default")


def test_settings_that_cannot_be_kept_are_refused_and_stay_as_they_were(rig, monkeypatch):
    rig.start_domain()

    def full(*args):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(guest_settings, "write_durably", full)
        with pytest.raises(DriverError, match=r"cannot be kept: .*No space left"):
            rig.handle(ConfigureGuest("a", {"qos_class": "BE"}))
    assert rig.setting("qos_class") == ("LS", "default")
    with pytest.raises(GuestGoneError):
        rig.handle(ConfigureGuest("nobody", {"qos_class": "BE"}))


def test_a_problem_is_logged_once_also_after_a_reboot(rig, caplog):
    wrong = GuestIdentity(extra_specs={"compute_agent:preserve": "true"})
    guest = rig.start_domain(identity=wrong)
    rig.handle(HostStateChanged(HOST_STATE))
    rig.driver.end(guest)
    rig.handle(GuestStopped(guest))
    rig.start_domain(identity=wrong)
    told = [event for event in rig.events if event.kind == "refuse"]
    assert len(told) == 1
    assert "compute_agent:preserve has no effect" in told[0].text
    assert find_view(rig.pipeline, "a").guest.setting_problems == (
        "flavor: compute_agent:preserve has no effect, because [guests] flavor_settings does not list it",
    )


def test_a_limited_guest_that_becomes_preserved_is_released(rig):
    rig.start_domain(identity=GuestIdentity(**BATCH))
    rig.handle(LimitGuest("a", QUOTA, 0.5))
    assert rig.driver.limits["a"].quota == 0.5
    rig.handle(ConfigureGuest("a", {"preserve": "true"}))
    assert rig.driver.limits["a"].quota is None
    rig.handle(LimitGuest("a", QUOTA, 0.5))
    assert rig.driver.limits["a"].quota is None
    rig.handle(ConfigureGuest("a", {}, ("preserve",)))
    rig.handle(LimitGuest("a", QUOTA, 0.5))
    assert rig.driver.limits["a"].quota == 0.5


@pytest.mark.parametrize("content", ["{", '{"version": 1, "sha256": "x", "data": {}}', '{"version": 7}'])
def test_a_file_that_cannot_be_used_is_put_aside_with_an_error(tmp_path, caplog, content):
    path = tmp_path / guest_settings.FILE_NAME
    path.write_text(content)
    path.chmod(0o600)
    assert ManualSettings(path).guests == frozenset()
    assert "The settings that operators made by hand are lost" in caplog.text
    assert not path.exists()
    assert len(list(tmp_path.iterdir())) == 1


def test_a_reader_leaves_the_file_as_it_is(tmp_path):
    path = tmp_path / guest_settings.FILE_NAME
    ManualSettings(path).change_settings("a", SettingSource.BY_HAND, {"spread": "true"})
    before = path.read_bytes()
    found = ManualSettings.look_up(path)
    assert found.values("a") == {SettingSource.BY_HAND: {"spread": True}}
    found.forget_guest("a")
    assert path.read_bytes() == before
    assert json.loads(before)["version"] == 1
