"""Tests of applying a fleet's settings of guests, with crashes between two writes."""

from types import SimpleNamespace

import pytest

from compute_agent.fleet.revision import FleetError
from compute_agent.loops import fleet
from compute_agent.loops.fleet import FILE, FleetGuests
from compute_agent.model.guest_settings import GuestSettings

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
