"""Tests of carrying out plans on kernels that refuse some steps."""

import errno
import itertools

import pytest

from compute_agent.resctrl import apply, groups
from compute_agent.resctrl.bandwidth import ArmCodec
from compute_agent.resctrl.filesystem import ResctrlError
from compute_agent.resctrl.groups import read_groups, read_schemata
from compute_agent.resctrl.plan import CreateGroup, RemoveGroup, WriteSchemata
from compute_agent.resctrl.platform import BandwidthControl
from compute_agent.resctrl.schemata import Schemata
from tests.compute_agent.resctrl import fake


class Unruly(fake.FakeResctrl):
    """A tree that fails at the n-th write, or shows other values than were written."""

    fail_at = 0
    shows = None

    def __init__(self, root):
        super().__init__(root)
        self.log = []

    def _count(self, what, path):
        self.log.append((what, path))
        if len(self.log) == self.fail_at:
            raise ResctrlError(errno.EBUSY, path, "Out of RMIDs")

    def write_file(self, path, text):
        self._count("write", path)
        super().write_file(path, text if self.shows is None else self.shows(text))

    def make_folder(self, path):
        self._count("make", path)
        super().make_folder(path)

    def remove_folder(self, path):
        self._count("remove", path)
        super().remove_folder(path)


@pytest.fixture
def files(tmp_path):
    return Unruly.of(fake.INTEL, tmp_path / "tree")


STEPS = [
    WriteSchemata("", Schemata({"L3": {0: 0xFFF0, 1: 0xFFF0}})),
    CreateGroup("a", Schemata({"L3": {0: 0x3}, "MB": {0: 30}})),
    WriteSchemata("a", Schemata({"L3": {1: 0xC}})),
    CreateGroup("b", Schemata({"L3": {0: 0xC}})),
    WriteSchemata("", Schemata({"MB": {1: 50}})),
]


def state(files):
    return {name: group.schemata for name, group in read_groups(files).groups.items()}


def test_steps_are_done_in_their_order(files):
    apply.apply_plan(files, STEPS)
    assert files.log == [
        ("write", "schemata"),
        ("make", "a"),
        ("write", "a/schemata"),
        ("write", "a/schemata"),
        ("make", "b"),
        ("write", "b/schemata"),
        ("write", "schemata"),
    ]
    assert str(read_schemata(files, "a").restricted_to(Schemata({"L3": {0: 0, 1: 0}}))) == "L3:0=3;1=c\n"


GROUP_OF = {1: "", 2: "a", 3: "a", 4: "a", 5: "b", 6: "b", 7: ""}
"""The group of the n-th operation."""


@pytest.mark.parametrize("fail_at", range(1, 8))
def test_a_failed_step_stops_only_its_own_group(files, fail_at):
    group = GROUP_OF[fail_at]
    files.fail_at = fail_at
    (error,) = (held_up := apply.apply_plan(files, STEPS)).values()
    assert list(held_up) == [group]
    assert (error.errno, "Out of RMIDs" in str(error)) == (errno.EBUSY, True)
    files.fail_at = 0
    done = state(files)
    for name in {"a", "b"} - {group}:
        assert done[name].get_value("L3", 0) == {"a": 0x3, "b": 0xC}[name]
    assert done[""].get_value("L3", 0) == (0xFFFF if fail_at == 1 else 0xFFF0)
    assert done[""].get_value("MB", 1) == (100 if group == "" else 50)
    # The group is as it was before the step: not there, or with what came before.
    if group in ("a", "b"):
        assert (group in done) == (fail_at == 4)
    if fail_at == 4:
        assert (done["a"].get_value("L3", 0), done["a"].get_value("L3", 1)) == (0x3, 0xFFFF)


def test_no_group_gets_ways_that_a_stopped_group_still_has(files):
    files.fail_at = 1  # the default group does not shrink
    held_up = apply.apply_plan(files, [STEPS[0], *STEPS[1:4]], exclusive={"a": {0}, "b": {1}})
    assert list(held_up) == ["", "a"]
    assert "its ways are held by resctrl group (default)" in str(held_up["a"])
    assert set(state(files)) == {"", "b"}  # which has ways of its own on another cache


def test_ways_planned_for_a_stopped_guest_stay_free(files):
    first = [WriteSchemata("", Schemata({"L3": {0: 0xFF00}})), CreateGroup("a", Schemata({"L3": {0: 0x0F}}))]
    apply.apply_plan(files, first)
    files.log.clear()
    files.fail_at = 1
    steps = [
        WriteSchemata("a", Schemata({"L3": {0: 0xF0}})),
        WriteSchemata("", Schemata({"L3": {0: 0xFF0F}})),
    ]
    assert list(apply.apply_plan(files, steps, exclusive={"a": {0}})) == ["a", ""]
    assert state(files)[""].get_value("L3", 0) == 0xFF00


def test_a_change_that_cannot_be_undone_is_logged(files, caplog):
    apply.apply_plan(files, [CreateGroup("a", Schemata())])

    class Dying(Unruly):
        def _count(self, what, path):
            self.log.append((what, path))
            if len(self.log) >= 2:
                raise ResctrlError(errno.EIO, path, "no more")

    dying = Dying(files.root)
    dying.shows = lambda text: text.replace("1", "3")
    (error,) = apply.apply_plan(dying, [WriteSchemata("a", Schemata({"L3": {0: 1}}))]).values()
    assert any("could not be undone" in note for note in error.__notes__)
    assert "has neither its old nor its new schemata: " in caplog.text


def test_orphans_stay_removed_when_a_later_step_fails(files):
    files.make_folder("orphan")
    files.fail_at = 4
    assert list(
        apply.apply_plan(files, [RemoveGroup("orphan"), *STEPS[:1], CreateGroup("a", Schemata())])
    ) == ["a"]
    assert set(state(files)) == {""}
    assert read_schemata(files, "").lines["L3"] == {0: 0xFFF0, 1: 0xFFF0}


def test_removing_a_missing_group_is_no_error(files):
    apply.apply_plan(files, [RemoveGroup("none")])


def test_values_that_read_back_differently_are_an_error_and_are_restored(files):
    before = state(files)
    files.shows = lambda text: text.replace("fff0", "ff00")
    (error,) = apply.apply_plan(files, STEPS[:1]).values()
    assert error.errno == errno.EIO
    assert "L3:0=fff0 was written, but it reads 65280" in str(error)
    assert state(files) == before


def test_every_written_value_is_read_back(files):
    files.shows = lambda text: text.replace("MB:0=41", "MB:0=50")
    with pytest.raises(ResctrlError, match="MB:0=41 was written, but it reads 50"):
        groups.write_schemata(files, "", Schemata({"L3": {0: 0xF}, "MB": {0: 41}}))


def test_bandwidth_may_be_rounded_where_the_hardware_rounds(files):
    control = BandwidthControl((0, 1), 1, 1, 8)
    files.shows = lambda text: text.replace("=41", "=31")  # shown as 40
    wanted = Schemata({"MB": {0: 41}})
    with pytest.raises(ResctrlError):
        groups.write_schemata(files, "", wanted)
    files.shows = lambda text: text.replace("=41", "=40")
    groups.write_schemata(files, "", wanted, ArmCodec(control))
    with pytest.raises(ResctrlError):
        groups.write_schemata(files, "", Schemata({"MB": {0: 43}}), ArmCodec(control))


def test_an_empty_change_writes_nothing(files):
    groups.write_schemata(files, "", Schemata())
    assert files.log == []


class ChangingThreads:
    """Threads that appear while other threads are moved."""

    def __init__(self, *passes):
        self.passes = passes
        self.asked = 0

    def __call__(self):
        self.asked += 1
        return self.passes[min(self.asked, len(self.passes)) - 1]


@pytest.fixture
def alive(monkeypatch):
    """Thread ids that all exist, except those in the set."""
    dead = set()
    monkeypatch.setattr(fake.Path, "exists", lambda path, real=fake.Path.exists: (
        int(path.name) not in dead if path.parent.name == "proc" and path.name.isdigit() else real(path)
    ))  # fmt: skip
    return dead


def test_threads_are_moved_until_no_new_one_appears(files, alive):
    files.make_folder("a")
    threads = ChangingThreads([1001], [1001, 1002, 1003], [1001, 1002, 1003, 1004])
    assert groups.move_tasks(files, "a", threads) == 4
    assert groups.read_tasks(files, "a") == {1001, 1002, 1003, 1004}
    assert threads.asked == 4
    assert [path for what, path in files.log if what == "write"] == ["a/tasks"] * 4


def test_ended_threads_are_skipped(files, alive):
    alive.add(1002)
    files.make_folder("a")
    assert groups.move_tasks(files, "a", lambda: [1001, 1002, 0]) == 1
    assert groups.read_tasks(files, "a") == {1001}


def test_endless_new_threads_are_an_error(files, alive):
    files.make_folder("a")
    numbers = itertools.count(1000)
    with pytest.raises(ResctrlError, match="keep appearing") as caught:
        groups.move_tasks(files, "a", lambda: [next(numbers)])
    assert caught.value.errno == errno.EAGAIN


def test_a_refused_thread_is_an_error(files, alive):
    files.make_folder("a")
    files.fail_at = len(files.log) + 1
    with pytest.raises(ResctrlError, match="RMID"):
        groups.move_tasks(files, "a", lambda: [1001])
