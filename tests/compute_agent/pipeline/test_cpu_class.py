"""Tests that the classes of CPUs change as guests start and end."""

from types import SimpleNamespace

from compute_agent.controllers.cpu_class import CpuClassController
from compute_agent.controllers.cpu_class_plan import ClassBinding, CpuClasses
from compute_agent.model.cpuset import CpuClass, FormerValues
from compute_agent.pipeline.events import GuestStopped, HostStateChanged, ReconcileGuests
from tests.compute_agent.pipeline.fake_host import HOST_STATE, SETS, FakeHost
from tests.compute_agent.power_trees import CPUS, xeon

FAST = CpuClass("fast", "performance")


def test_a_class_is_in_force_before_the_first_instruction_and_ends_with_the_guest(tmp_path):
    files, rig, seen = xeon(tmp_path), FakeHost(), []
    store = SimpleNamespace(former_values=FormerValues())
    store.keep_former_values = lambda former: setattr(store, "former_values", former)
    configured = CpuClasses({"fast": FAST}, {"LS": ClassBinding(10, FAST)}, SETS)
    controller = CpuClassController(rig.driver, configured, store, files, rig.metrics.drift.labels("x").inc)
    rig.handle(HostStateChanged(HOST_STATE, (controller,)))

    def governor():
        return files.read(f"{CPUS}/cpufreq/policy1/scaling_governor")

    release = rig.driver.release
    rig.driver.release = lambda guest: (seen.append(governor()), release(guest))
    guest = rig.run("a", (0, 1, 0)).guest
    assert seen == ["performance"]
    files.set(f"{CPUS}/cpufreq/policy1/scaling_governor", "powersave")
    rig.handle(ReconcileGuests())
    assert governor() == "performance"
    rig.driver.end(guest)
    rig.handle(GuestStopped(guest))
    assert governor() == "powersave"
