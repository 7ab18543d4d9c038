"""Tests of controller cpu_class on files like those of two machines: values are saved, set, repaired and
restored.
"""

import errno
import random

import pytest

from compute_agent.controllers.cpu_class import CpuClassController
from compute_agent.controllers.cpu_class_plan import ClassBinding, CpuClasses
from compute_agent.model.cpuset import CpuClass, CpuSets, FormerValues, NamedFrequency
from compute_agent.model.messages import DriverError
from tests.compute_agent.controllers.builders import Store, class_target
from tests.compute_agent.fakes import FakeDriver
from tests.compute_agent.power_trees import CPUS, epyc, xeon

FAST = CpuClass(
    "fast", "performance", NamedFrequency.TURBO, NamedFrequency.TURBO, "performance", ("C6", "C1E")
)
QUIET = CpuClass("quiet", None, None, NamedFrequency.MIN, "power", (), NamedFrequency.MIN, NamedFrequency.MIN)
IDLE = CpuClass("idle", "powersave", None, NamedFrequency.MIN)
SHARED = CpuClass("shared", "powersave", NamedFrequency.MIN, NamedFrequency.BASE)
SETS = CpuSets(frozenset(range(2, 8)), frozenset({0, 1}), frozenset({0, 1}))


class CpuClassHost:
    """The controller, which is made again at each start of the agent."""

    def __init__(self, files, *classes):
        self.files, self.store, self.driver = files, Store(), FakeDriver(range(8))
        self.before = self.snapshot()
        self.start(*classes)

    def start(self, *classes):
        by_name = {one.name: one for one in classes}
        bindings = {"LSR": ClassBinding(20, by_name.get("fast")), "BE": ClassBinding(0, by_name.get("quiet"))}
        self.configured = CpuClasses(by_name, bindings, SETS)
        self.drifts = 0
        self.controller = CpuClassController(self.driver, self.configured, self.store, self.files, self.count)

    def count(self):
        self.drifts += 1

    def snapshot(self):
        names = ("cpu*/cpuidle/*/disable", "cpufreq/policy*/*", "intel_uncore_frequency/*/*")
        paths = [path for name in names for path in (self.files.root / CPUS).glob(name)]
        return {str(path.relative_to(self.files.root)): path.read_text().strip() for path in paths}

    def sync(self, *guests):
        self.controller.sync(guests, ())
        return self.controller.status.refusals

    def policy(self, number):
        names = ("scaling_governor", "scaling_min_freq", "scaling_max_freq", "energy_performance_preference")
        return tuple(self.files.read(f"{CPUS}/cpufreq/policy{number}/{name}") for name in names)


@pytest.fixture
def intel(tmp_path):
    return CpuClassHost(xeon(tmp_path), FAST, QUIET, IDLE, SHARED)


@pytest.fixture
def amd(tmp_path):
    return CpuClassHost(epyc(tmp_path), FAST, IDLE, SHARED)


BOOT = ("powersave", "800000", "3200000", "balance_performance")
QUICK = ("performance", "3200000", "3200000", "performance")


def test_guests_have_their_class_and_others_theirs(intel):
    assert (
        intel.sync(class_target("a", "LSR", 2, 3), class_target("b", "LS", 4), class_target("c", "BE", 5))
        == ()
    )
    assert [intel.policy(cpu) for cpu in range(8)] == [
        ("powersave", "800000", "2000000", "balance_performance"),
        ("powersave", "800000", "2000000", "balance_performance"),
        QUICK,
        QUICK,
        BOOT,
        ("powersave", "800000", "800000", "power"),
        ("powersave", "800000", "800000", "balance_performance"),
        ("powersave", "800000", "800000", "balance_performance"),
    ]
    disabled = [path for path, text in intel.snapshot().items() if path.endswith("disable") and text == "1"]
    states = [f"cpu{cpu}/cpuidle/state{state}" for cpu in (2, 3) for state in (2, 3)]
    assert sorted(disabled) == [f"{CPUS}/{state}/disable" for state in states]
    assert intel.controller.status.classes == {
        "fast": {2, 3},
        "idle": {6, 7},
        "quiet": {5},
        "shared": {0, 1},
    }


def test_files_are_written_once_and_a_guest_that_ends_leaves_its_cpus_idle(intel):
    intel.sync(class_target("a", "LSR", 2))
    intel.files.writes.clear()
    intel.sync(class_target("a", "LSR", 2))
    assert intel.files.writes == []
    assert intel.sync() == ()
    assert intel.policy(2) == ("powersave", "800000", "800000", "balance_performance")
    assert intel.files.read(f"{CPUS}/cpu2/cpuidle/state3/disable") == "0"


def test_a_shared_domain_is_as_its_strongest_guest_has_it(amd):
    amd.sync(class_target("a", "LSR", 2))
    assert amd.policy(0)[:3] == ("performance", "2000000", "2000000")
    assert amd.policy(4)[:3] == ("powersave", "1500000", "1500000")
    assert amd.controller.status.classes == {"fast": {0, 1, 2, 3}, "idle": {4, 5, 6, 7}}
    amd.sync()
    assert amd.policy(0)[:3] == ("powersave", "1500000", "2000000")


def test_a_class_that_a_host_cannot_have_is_told_to_guest_and_operator(amd):
    refusals = amd.sync(class_target("a", "LSR", 2), class_target("b", "BE", 4))
    assert refusals == (
        "[cpu_class:fast] disabled_c_states = C1E: this kernel has POLL, C1, C2 (CPU 2)",
        "[cpu_class:fast] disabled_c_states = C6: this kernel has POLL, C1, C2 (CPU 2)",
        "[cpu_class:fast] energy_performance_preference = performance: this kernel has none (CPUs 0-3)",
    )
    assert {uuid: set(reasons) for uuid, reasons in amd.controller.refused.items()} == {"a": set(refusals)}


@pytest.mark.parametrize("machine", [xeon, epyc])
@pytest.mark.parametrize("clamps", [False, True])
def test_all_is_as_it_was_once_no_class_is_configured(machine, clamps, tmp_path):
    host = CpuClassHost(machine(tmp_path), FAST, QUIET, IDLE, SHARED)
    host.files.clamps = clamps
    for guests in (
        [],
        [class_target("a", "LSR", 2, 3), class_target("b", "BE", 5)],
        [class_target("b", "BE", 2)],
        [],
    ):
        host.sync(*guests)
    host.start()
    assert host.sync() == ()
    assert host.snapshot() == host.before
    assert host.store.former_values.values == {}
    host.files.writes.clear()
    host.sync()
    assert host.files.writes == []


def give_back(host):
    """Let the controller restore all former values."""
    for item in host.controller.release((), frozenset()):
        item.give_back()


def test_a_host_that_is_left_has_everything_back(intel):
    intel.sync(class_target("a", "LSR", 2))
    give_back(intel)
    assert intel.snapshot() == intel.before


def test_a_value_that_cannot_be_given_back_is_reported_and_kept(intel):
    intel.sync()
    path = f"{CPUS}/cpufreq/policy2/scaling_max_freq"
    intel.files.broken[path] = errno.EIO
    with pytest.raises(DriverError, match=r"scaling_max_freq = 3200000: the kernel does not accept it"):
        give_back(intel)
    assert intel.store.former_values.values == {path: "3200000"}
    intel.files.broken.clear()
    give_back(intel)
    assert intel.snapshot() == intel.before


def test_values_are_kept_before_anything_is_written(intel):
    intel.store.broken = OSError(errno.ENOSPC, "disk full")
    for _ in range(2):
        with pytest.raises(OSError, match="disk full"):
            intel.sync(class_target("a", "LSR", 2))
    assert intel.files.writes == []
    intel.store.broken = None
    intel.sync(class_target("a", "LSR", 2))
    kept = intel.store.kept[0]
    assert {path: intel.before[path] for path in kept} == kept
    assert {path for path, _ in intel.files.writes} <= kept.keys()


@pytest.mark.parametrize("machine", [xeon, epyc])
def test_a_crash_at_any_write_loses_nothing(machine, tmp_path):
    guests = [class_target("a", "LSR", 2, 3), class_target("b", "BE", 5)]
    for after in range(0, 24, 5):
        root = tmp_path / str(after)
        root.mkdir()
        host = CpuClassHost(machine(root), FAST, QUIET, IDLE, SHARED)
        left = [after]
        written = host.files.write

        def write(path, text, left=left, written=written):
            if left[0] == 0:
                raise KeyboardInterrupt
            left[0] -= 1
            written(path, text)

        host.files.write = write
        try:
            host.sync(*guests)
        except KeyboardInterrupt:
            left[0] = -1
            host.start(FAST, QUIET, IDLE, SHARED)
            host.sync(*guests)
        left[0] = -1
        host.start()
        host.sync()
        assert host.snapshot() == host.before


def test_a_reboot_gave_everything_back(intel):
    intel.sync(class_target("a", "LSR", 2))
    for path, text in intel.before.items():
        intel.files.set(path, text)
    governor = f"{CPUS}/cpufreq/policy6/scaling_governor"
    intel.files.set(governor, "performance")  # by what the distribution starts
    intel.files.set("proc/sys/kernel/random/boot_id", "boot-2")
    intel.start(FAST, IDLE)
    intel.sync()
    assert intel.store.former_values.boot == "boot-2"
    intel.start()
    intel.sync()
    assert intel.files.read(governor) == "performance"


def test_files_that_another_program_changes_are_repaired_and_counted(intel, caplog):
    guests = [class_target("a", "LSR", 2)]
    intel.sync(*guests)
    assert intel.drifts == 0
    intel.files.set(f"{CPUS}/cpufreq/policy2/scaling_governor", "powersave")
    intel.files.set(f"{CPUS}/cpu2/cpuidle/state3/disable", "0")
    intel.sync(*guests)
    assert intel.policy(2) == QUICK
    assert intel.drifts == 2
    assert "policy2/scaling_governor was powersave instead of performance" in caplog.text


def test_a_refused_write_holds_up_that_file_alone_and_is_logged_once(intel, caplog):
    intel.files.broken[f"{CPUS}/cpufreq/policy2/scaling_governor"] = errno.EBUSY
    guests = [class_target("a", "LSR", 2, 3)]
    refusals = intel.sync(*guests)
    reason = "the kernel does not accept it: Device or resource busy"
    assert refusals == (f"CPU 2: scaling_governor = performance: {reason}",)
    assert intel.controller.refused == {"a": list(refusals)}
    assert intel.policy(2)[1:3] == QUICK[1:3]
    assert intel.policy(3) == QUICK
    assert intel.sync(*guests) == refusals
    assert caplog.text.count("Device or resource busy") == 1
    assert intel.drifts == 0
    intel.files.broken.clear()
    assert intel.sync(*guests) == ()


def test_the_same_refusal_of_many_cpus_is_one_sentence(intel):
    for cpu in (2, 3, 4):
        intel.files.broken[f"{CPUS}/cpu{cpu}/cpuidle/state3/disable"] = errno.EIO
    assert intel.sync(class_target("a", "LSR", 2, 3, 4)) == (
        "CPUs 2-4: state3/disable = 1: the kernel does not accept it: Input/output error",
    )


def test_a_frequency_that_the_firmware_holds_down_is_told_and_is_no_drift(intel):
    intel.files.ceiling = 2_800_000
    intel.files.set(f"{CPUS}/cpufreq/policy2/scaling_max_freq", "2800000")
    for _ in range(2):
        assert intel.sync(class_target("a", "LSR", 2)) == (
            "CPU 2: scaling_max_freq = 3200000: the kernel has 2800000 instead",
            "CPU 2: scaling_min_freq = 3200000: the kernel does not accept it: Invalid argument",
        )
    assert intel.drifts == 0


def test_cpus_stay_as_they_are_while_a_guest_is_lost(intel):
    intel.sync(class_target("a", "LSR", 2))
    intel.driver.lost_guests = lambda: {"a": "nobody knows"}
    intel.start(FAST, QUIET, IDLE, SHARED)
    intel.sync()
    assert intel.policy(2) == QUICK


def test_a_cpu_that_was_offline_meanwhile_is_given_back_later(intel):
    intel.sync(class_target("a", "LSR", 2))
    policy, away = intel.files.root / CPUS / "cpufreq/policy2", intel.files.root / "away"
    policy.rename(away)
    intel.files.set(f"{CPUS}/online", "0-1,3-7")
    intel.start()
    intel.sync()
    assert f"{CPUS}/cpufreq/policy2/scaling_governor" in intel.store.former_values.values
    away.rename(policy)
    intel.files.set(f"{CPUS}/online", "0-7")
    intel.sync()
    assert intel.snapshot() == intel.before


def test_planned_changes_are_listed_without_a_write(intel):
    rows = intel.controller.plan_changes([class_target("a", "LSR", 2, 3)], ())
    planned = [(row.subject, row.change) for row in rows]
    assert ("CPUs 2-3", "scaling_governor powersave -> performance") in planned
    assert ("CPUs 2-3", "state3/disable 0 -> 1") in planned
    assert intel.snapshot() == intel.before
    assert intel.store.kept == []


def test_without_classes_nothing_is_read(tmp_path):
    files = xeon(tmp_path)
    host = CpuClassHost(files)
    files.read = lambda path: pytest.fail(path) if path != "proc/sys/kernel/random/boot_id" else "boot-1"
    assert host.sync(class_target("a", "LSR", 2)) == ()


@pytest.mark.parametrize("machine", [xeon, epyc])
def test_histories_of_guests_end_as_they_began(machine, tmp_path, monkeypatch):
    """No CPU is ever taken offline. Only files of frequencies, idle states and the uncore are written."""
    chance = random.Random(5)
    host = CpuClassHost(machine(tmp_path / "one"), FAST, QUIET, IDLE, SHARED)
    written, write = set(), host.files.write
    monkeypatch.setattr(host.files, "write", lambda path, text: [written.add(path), write(path, text)])
    other = CpuClassHost(machine(tmp_path / "other"))
    for _ in range(10):
        cpus = list(range(2, 8))
        chance.shuffle(cpus)
        guests = [
            class_target(name, chance.choice(["LSR", "LS", "BE"]), *cpus[2 * number : 2 * number + 2])
            for number, name in enumerate("abc")
            if chance.random() < 0.6
        ]
        if chance.random() < 0.2:
            host.start(*[one for one in (FAST, QUIET, IDLE, SHARED) if chance.random() < 0.7])
        host.sync(*guests)
        for path, text in other.before.items():
            other.files.set(path, text)
        other.store.former_values = FormerValues()
        other.controller = CpuClassController(other.driver, host.configured, other.store, other.files)
        other.sync(*guests)
        assert host.snapshot() == other.snapshot()
    host.start()
    host.sync()
    assert host.snapshot() == host.before
    assert written <= host.before.keys()
    assert not any(path.endswith("/online") for path in written)
