"""Tests of a whole agent that follows the settings of its fleet: options, guests, and reports to
Placement.
"""

import uuid

import pytest

from compute_agent.fleet.configuration import with_kept
from tests.compute_agent.agent.running import RunningAgent
from tests.compute_agent.builders import load_options
from tests.compute_agent.fleet.fleets import PUBLIC, signed

pytestmark = pytest.mark.slow


class FollowingAgent(RunningAgent):
    """An agent that reads the settings of its fleet from a folder."""

    def __init__(self, write_ini, client, source) -> None:
        self.source = source
        self.fleet = f"group = edge\nsource = {source}\npublic_keys = {PUBLIC}\ninterval = 1"
        super().__init__(lambda: write_ini(fleet=self.fleet), client)

    def load_conf(self):
        return with_kept(load_options(self.ini))

    def wait_for(self, condition):
        def looked():
            self.reload_changes()
            return condition()

        return super().wait_for(looked)

    def told(self):
        return self.client.get_attributes(self.agent.pipeline.host_state.tree.root.uuid)[0]


@pytest.fixture
def rig(write_ini, client, tmp_path):
    source = tmp_path / "source"
    source.mkdir()
    rig = FollowingAgent(write_ini, client, source)
    yield rig
    rig.close()


def test_a_host_follows_its_fleet_and_reports_the_generation(rig):
    guest = str(uuid.uuid4())
    rig.claim(guest, VCPU=1)
    rig.ask("guest.run", uuid=guest, command=["sleep", "60"])
    annotation = '{"MB": {"schemata": {"percent": 20}}}'
    settings = f"[DEFAULT]\ninitial_cpu_allocation_ratio = 3\n[guest:{guest}]\npriority = 5\n"
    settings += f"resctrl = {annotation}\n"
    (rig.source / "edge.conf").write_bytes(signed(7, settings))
    rig.wait_for(lambda: rig.ask("status")["fleet"] == "edge generation 7")
    assert rig.agent.options.initial_cpu_allocation_ratio == 3
    shown = rig.wait_for(lambda: (found := rig.ask("guest.show", guest=guest))["priority"] == 5 and found)
    assert shown["resctrl"] == annotation
    rig.wait_for(lambda: rig.told() == {"fleet.group": "edge", "fleet.generation": 7})

    rig.ask("guest.set", guest=guest, priority=9)
    rig.wait_for(lambda: "priority was set to '9' on the host" in rig.ask("status")["fleet_trouble"])
    assert rig.ask("guest.show", guest=guest)["priority"] == 9
    rig.wait_for(lambda: "priority was set to '9'" in str(rig.told().get("fleet.trouble")))

    (rig.source / "edge.conf").write_bytes(signed(8, "[policy]\nname = static-pools\n"))
    rig.wait_for(lambda: "edge generation 8 is refused" in rig.ask("status")["fleet_trouble"])
    assert rig.ask("status")["fleet"] == "edge generation 7"

    (rig.source / "edge.conf").write_bytes(signed(9, f"[guest:{guest}]\nqos_class = NOBODY\n"))
    rig.wait_for(lambda: "there is no class 'NOBODY'" in rig.ask("status")["fleet_trouble"])
    (rig.source / "edge.conf").write_bytes(signed(10, "[DEFAULT]\ninitial_cpu_allocation_ratio = 2\n"))
    rig.wait_for(lambda: rig.told() == {"fleet.group": "edge", "fleet.generation": 10})
    assert rig.ask("guest.show", guest=guest)["priority"] == 9
    assert rig.ask("status")["fleet_trouble"] == ""
