"""Tests of following a fleet, and of applying its settings of guests with crashes between two writes."""

import logging
from types import SimpleNamespace

import pytest
from prometheus_client import CollectorRegistry

from compute_agent.fleet.configuration import with_kept
from compute_agent.fleet.revision import FleetError
from compute_agent.inventory.provider_tree import ProviderNode, ProviderTree
from compute_agent.loops import fleet
from compute_agent.loops.fleet import FILE, FLEET_THREAD, FleetGuests, FleetLoop, FleetTrouble
from compute_agent.model.guest_settings import GuestSettings
from tests.compute_agent.builders import has_thread
from tests.compute_agent.fleet.fleets import FleetHost, signed
from tests.waits import wait_for

ROOT = ProviderNode("host", "r", None, attributes={"cpu_capacity": 1.0})
BELOW = ProviderNode("host_NUMA_0", "n", "r")


class Followed:
    """The fleet loop of a host, without its thread."""

    def __init__(self, host: FleetHost) -> None:
        self.host = host
        self.registry = CollectorRegistry()
        self.reports = 0
        self.loop = FleetLoop(host.conf(), lambda options: None, self.registry, self._changed)

    def _changed(self) -> None:
        self.reports += 1

    def follow(self) -> None:
        """Read the source, and then read the configuration again, as the main thread does."""
        self.loop.follow_fleet()
        self.loop.reload(SimpleNamespace(options=with_kept(self.host.own_conf())))

    @property
    def numbers(self) -> tuple[float | None, float | None]:
        (generations, troubles) = (
            [sample for sample in metric.samples if sample.name == f"compute_agent_fleet_{name}"]
            for name in ("generation", "trouble")
            for metric in self.registry.collect()
            if metric.name == f"compute_agent_fleet_{name}"
        )
        (generation,) = generations
        assert generation.labels == {"group": self.host.own_conf().fleet.group or ""}
        return generation.value, max(sample.value for sample in troubles)

    @property
    def reasons(self) -> set[str]:
        value = self.registry.get_sample_value
        return {
            reason
            for reason in FleetTrouble
            if value("compute_agent_fleet_trouble", {"reason": reason.value})
        }

    def attributes(self, *, beside: bool = False) -> dict[str, object]:
        tree = self.loop.add_to_tree(ProviderTree((ROOT, BELOW), beside=beside))
        assert tree.nodes[beside].attributes is not None
        return dict(tree.nodes[beside].attributes)


@pytest.fixture
def followed(tmp_path):
    return Followed(FleetHost(tmp_path))


def test_a_host_without_a_group_reports_nothing(tmp_path):
    host = FleetHost(tmp_path)
    host.write(group="")
    followed = Followed(host)
    followed.follow()
    assert followed.loop.status_fields() == {"fleet": "", "fleet_trouble": "", "fleet_overruled": []}
    assert (followed.numbers, followed.reports) == ((0, 0), 0)
    assert followed.attributes() == {"cpu_capacity": 1.0}


def test_followed_settings_are_logged_and_reported_once(followed, caplog):
    caplog.set_level(logging.INFO)
    followed.host.offer(signed(7))
    for _ in range(3):
        followed.follow()
    assert followed.loop.status_fields()["fleet"] == "edge generation 7"
    assert (followed.numbers, followed.reports) == ((7, 0), 1)
    told = {"fleet.group": "edge", "fleet.generation": 7}
    assert followed.attributes() == {"cpu_capacity": 1.0, **told}
    assert followed.attributes(beside=True) == told
    assert (
        caplog.text.count("stored new settings of the fleet, and applies them soon: edge generation 7") == 1
    )


def test_a_trouble_is_logged_once_until_it_is_over(followed, caplog):
    caplog.set_level(logging.INFO)
    followed.host.offer(signed(7))
    followed.follow()
    followed.host.offer(signed(8, "[DEFAULT]\nstate_path = /\n" + "# long\n" * 99))
    for _ in range(3):
        followed.follow()
    assert followed.loop.status_fields()["fleet"] == "edge generation 7"
    trouble = followed.loop.status_fields()["fleet_trouble"]
    assert "edge generation 8 is refused: [DEFAULT] state_path" in trouble
    assert (followed.numbers, followed.reports) == ((7, 1), 2)
    assert followed.attributes()["fleet.trouble"] == trouble[:250]
    assert caplog.text.count("The host does not follow its fleet") == 1
    followed.host.offer(signed(9))
    followed.follow()
    assert followed.numbers == (9, 0)
    assert "fleet.trouble" not in followed.attributes()
    assert "The host follows its fleet again" in caplog.text


def test_options_that_the_host_overrules_are_named(followed):
    followed.host.write("cpu_allocation_ratio = 2")
    followed.host.offer(signed(1, "[DEFAULT]\ncpu_allocation_ratio = 4\nram_allocation_ratio = 3\n"))
    followed.follow()
    assert followed.loop.status_fields()["fleet_overruled"] == ["[DEFAULT] cpu_allocation_ratio"]


def test_the_status_of_a_host_says_that_the_source_is_away_and_no_settings_are_known(followed):
    followed.follow()
    assert followed.loop.status_fields()["fleet"] == "edge, and no settings of it"
    assert followed.numbers == (0, 1)


def test_a_source_that_is_away_causes_no_writes_to_placement(followed):
    followed.host.offer(signed(7))
    followed.follow()
    before = followed.attributes()
    (followed.host.source / "edge.conf").unlink()
    followed.follow()
    assert followed.numbers == (7, 1)
    assert followed.attributes() == before


def test_the_thread_looks_at_once_and_ends(followed):
    followed.host.offer(signed(7))
    followed.loop.start()
    kept = followed.host.state / "fleet.conf"
    wait_for(kept.exists)
    followed.loop.stop()
    assert not has_thread(FLEET_THREAD)


ONE, TWO = (f"{number}1111111-1111-4111-8111-111111111111" for number in (1, 2))


class ListedGuests:
    """A list of guests in memory, in place of a pipeline."""

    has_taken_over = True

    def __init__(self, folder) -> None:
        self.settings = {ONE: GuestSettings(), TWO: GuestSettings()}
        self.refusal = ""
        self.sets = 0
        self.revision = folder / "fleet.conf"
        self.acting = FleetGuests(self, self.set)  # type: ignore[arg-type]

    def guest_views(self):
        return [
            SimpleNamespace(guest=SimpleNamespace(uuid=uuid, settings=settings))
            for uuid, settings in self.settings.items()
        ]

    def set(self, uuid, values, unset=()):
        if not self.refusal:
            self.sets += 1
            self.settings[uuid] = GuestSettings(**values)
        return self.refusal

    def want(self, **values) -> list[str]:
        lines = [f"{name} = {value}" for name, value in values.items()]
        self.revision.write_text("\n".join([f"[guest:{ONE}]", *lines, ""]))
        return self.again()

    def again(self) -> list[str]:
        return self.acting.bring_about(self.revision)


@pytest.fixture
def guests(tmp_path):
    return ListedGuests(tmp_path)


def test_a_setting_is_applied_once_and_not_over_one_of_the_host(guests):
    assert guests.want(qos_class="BE") == []
    assert guests.settings[ONE].qos_class == "BE"
    guests.settings[ONE] = GuestSettings(qos_class="HP")
    (sentence,) = guests.again()
    assert "qos_class was set to 'HP' on the host, after the fleet had set 'BE'" in sentence
    assert (guests.settings[ONE].qos_class, guests.sets) == ("HP", 1)
    guests.settings[ONE] = GuestSettings(qos_class="BE")
    assert guests.again() == []
    assert guests.want(qos_class="LS") == []
    assert (guests.settings[ONE].qos_class, guests.sets) == ("LS", 2)


def test_a_setting_that_a_revision_leaves_out_is_unset(guests):
    guests.want(qos_class="BE")
    assert guests.want(priority=3) == []
    assert guests.settings[ONE] == GuestSettings(priority=3)
    assert guests.again() == []
    assert guests.sets == 2


def test_before_the_guests_are_known_nothing_is_done_nor_forgotten(guests):
    guests.want(priority=5)
    before = guests.revision.with_name(FILE).read_bytes()
    guests.has_taken_over, known = False, guests.settings
    guests.settings = {}
    assert guests.again() == []
    assert guests.revision.with_name(FILE).read_bytes() == before
    guests.has_taken_over, guests.settings = True, known
    assert guests.again() == []


def test_a_refused_setting_is_tried_again_and_is_no_conflict_then(guests):
    guests.refusal = "there is no class 'BE'"
    assert guests.want(qos_class="BE") == [f"guest {ONE}: there is no class 'BE'"]
    guests.refusal = ""
    assert guests.again() == []
    assert guests.settings[ONE].qos_class == "BE"


def test_a_refused_setting_does_not_replace_the_memory_of_the_last_one(guests):
    guests.want(qos_class="BE")
    guests.refusal = "no"
    guests.want(qos_class="HP")
    guests.refusal, guests.settings[ONE] = "", GuestSettings(qos_class="LS")
    assert "was set to 'LS' on the host" in guests.again()[0]


def test_a_crash_between_setting_and_record_is_no_conflict(guests, monkeypatch):
    def full(*args):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(fleet, "write_durably", full)
        with pytest.raises(FleetError, match="No space left"):
            guests.want(qos_class="BE")
    assert guests.settings[ONE].qos_class == "BE"
    assert guests.again() == []
    assert guests.want(qos_class="LS") == []
    assert guests.settings[ONE].qos_class == "LS"


def test_a_damaged_file_is_reported_and_no_setting_applied(guests):
    guests.want(qos_class="BE")
    guests.revision.with_name(FILE).write_text("{")
    with pytest.raises(FleetError, match="cannot be read"):
        guests.want(qos_class="LS")
    assert guests.settings[ONE].qos_class == "BE"


def test_a_restarted_guest_gets_its_settings_again(guests):
    guests.want(qos_class="BE")
    ended = guests.settings.pop(ONE)
    assert guests.again() == []
    guests.settings[ONE] = GuestSettings()
    assert guests.again() == []
    assert guests.settings[ONE] == ended
