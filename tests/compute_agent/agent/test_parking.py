"""Tests of an agent that parks an idle dedicated core, and wakes it for a guest. Its inventory does not
change.
"""

import os
from pathlib import Path

import pytest

from compute_agent.agent import configured_controllers
from compute_agent.agent.host_access import STATE_FILE
from compute_agent.agent.release import releasing_controllers
from compute_agent.pipeline.state import StateFile
from tests.compute_agent.agent.running import RunningAgent
from tests.compute_agent.cmd.agents import run_here
from tests.compute_agent.power_trees import CPUS, KernelFiles, xeon

pytestmark = pytest.mark.slow

NODE = "sys/devices/system/node/node0"


class ParkingAgent(RunningAgent):
    """An agent on a host of two cores in one NUMA node; CPU 1 is dedicated, and parked while it is idle."""

    def __init__(self, write_ini, client, root, lines):
        self.root = root
        self.written = write_ini
        super().__init__(lambda: self.written_ini(lines), client)

    def written_ini(self, lines):
        return self.written(
            host=f"root = {self.root}",
            compute="cpu_dedicated_set = 1\ncpu_shared_set = 0\nresource_provider_name = testhost",
            **({"cpu_class:idle": lines} if lines else {}),
        )

    def online(self):
        return (self.root / CPUS / "online").read_text().strip()

    def reported(self):
        return self.client.get_inventories(self.node())[0]["PCPU"]["total"]


@pytest.fixture
def rig(two_cpus, write_ini, client, tmp_path, monkeypatch):
    root = tmp_path / "host"
    xeon(root, cpus=2)
    (root / NODE).mkdir(parents=True)
    (root / NODE / "cpulist").write_text("0-1\n")
    (root / NODE / "meminfo").write_text("Node 0 MemTotal: 8388608 kB\n")
    (root / "proc/meminfo").write_text("MemTotal: 8388608 kB\n")
    monkeypatch.setattr(configured_controllers, "KernelFiles", KernelFiles)
    rig = ParkingAgent(write_ini, client, root, "park = offline\npark_after = 0")
    yield rig
    rig.close()


def test_an_idle_core_is_parked_and_woken_for_a_guest_and_its_inventory_stays(rig, uid):
    rig.wait_for(lambda: rig.online() == "0")
    status = rig.ask("status")
    assert (status["parked_cpus"], status["config_error"], status["refused"]) == ("1", "", [])
    assert not any("offline" in warning for warning in status["warnings"])
    assert rig.agent.metrics.registry.get_sample_value("compute_agent_parked_cpus") == 1
    assert rig.reported() == 1
    rig.reload_changes()
    assert rig.reported() == 1

    rig.claim(uid, PCPU=1)
    guest = rig.ask("guest.run", uuid=uid, name="web", command=["sleep", "60"])
    assert (guest["cpus"], guest["stray"], rig.online()) == ("1", "", "0-1")
    assert os.sched_getaffinity(guest["pid"]) == {1}
    rig.reload_changes()
    assert os.sched_getaffinity(guest["pid"]) == {1}
    assert rig.ask("status")["parked_cpus"] == ""

    rig.ask("guest.stop", guest="web")
    rig.wait_for(lambda: rig.online() == "0")
    assert rig.ask("audit")[0]["finding"] == "allocation without guest"


def test_a_restarted_agent_goes_on_with_the_cpus_that_it_parked(rig, uid):
    rig.wait_for(lambda: rig.online() == "0")
    rig.restart()
    assert rig.reported() == 1
    assert rig.online() == "0"
    shown = run_here(rig.ini, "topology", "show").stdout
    assert "Parked CPUs (offline, and counted as present): 1" in shown
    rig.claim(uid, PCPU=1)
    assert rig.ask("guest.run", uuid=uid, command=["sleep", "60"])["cpus"] == "1"
    assert rig.online() == "0-1"


def test_an_agent_that_lost_its_state_brings_parked_cpus_online_and_offers_them(rig):
    rig.wait_for(lambda: rig.online() == "0")
    rig.agent.stop()
    for name in ("state.json", "topology.json"):
        (rig.ini.parent / "state" / name).unlink()
    rig.start_again()
    rig.wait_for(lambda: rig.online() == "0-1")
    rig.reload_changes()
    rig.wait_for(lambda: rig.ask("status")["parked_cpus"] == "1")
    assert rig.agent.reports.report_now()
    assert rig.reported() == 1


def test_without_the_option_the_cpus_are_online_again(rig):
    rig.wait_for(lambda: rig.online() == "0")
    rig.ini = rig.written_ini("")
    rig.reload_changes()
    rig.wait_for(lambda: rig.online() == "0-1")
    rig.reload_changes()
    assert (rig.reported(), rig.ask("status")["config_error"]) == (1, "")


def test_release_brings_all_cpus_online(rig):
    rig.wait_for(lambda: rig.online() == "0")
    rig.agent.stop()
    conf = rig.load_conf()
    state = StateFile(Path(conf.state_path) / STATE_FILE)
    controllers = releasing_controllers(rig.agent.driver, None, state, rig.root, given=True)
    items = [item for one in controllers for item in one.release((), frozenset({0})) if item.give_back]
    assert ["CPU 1 offline" in item.detail for item in items] == [True]
    items[0].give_back()
    assert rig.online() == "0-1"
    assert state.former_values.values == {}
    rig.start_again()
