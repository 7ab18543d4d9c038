"""Tests of an agent beside nova-compute, detected or configured: it waits for Nova's root provider and
follows it.
"""

import functools
import json
import os
from datetime import UTC, datetime, timedelta

import pytest

from compute_agent.agent.protocol import RequestError
from compute_agent.cmd.host import MISTAKEN
from compute_agent.pipeline.events import ReconcileGuests
from tests.compute_agent.agent.cache_agent import CacheAgent, uid
from tests.compute_agent.cmd.agents import run_here
from tests.compute_agent.nova_compute import REFRESH, NovaCompute
from tests.placement.builders import new_claim

pytestmark = pytest.mark.slow

NOVAS = "99999999-0000-4000-8000-000000000001"


class AgentBesideNova(CacheAgent):
    """An agent and a nova-compute on the same host."""

    def __init__(self, write_ini, client, files, compute, policy=""):
        self.nova = NovaCompute(client, NOVAS, "testhost", vcpus=1, pcpus=1, memory_mb=16384)
        self.compute = compute
        self.policy = policy
        super().__init__(functools.partial(self._written, write_ini), client, files)

    def _written(self, write_ini, name="agent.ini"):
        sets = "cpu_dedicated_set = 0\ncpu_shared_set = 1\nresource_provider_name = testhost"
        # The use of caches is measured again after a restart, so that its attributes change with time.
        compute = f"{sets}\nupdate_resources_interval = 600\nneighbours_interval = 0\n{self.compute}"
        return write_ini(name, compute=compute, policy=self.policy)

    def status(self):
        return self.ask("status")

    def report(self):
        """Run one period of the agent; return whether Placement accepted all changes."""
        return self.agent.reports.report_now()

    def shown(self):
        return {one.name: one.uuid for one in self.client.providers_in_tree(self.nova.uuid)}


CHILDREN = {"testhost_L3_0", "testhost_L3_1", "testhost_RESCTRL"}


@pytest.fixture
def start(write_host, client, files):
    """A function that starts an agent. The arguments are lines of [compute], and whether nova-compute started
    first.
    """
    rigs = []

    def start(compute="", nova_first=True, policy=""):
        if nova_first:
            NovaCompute(client, NOVAS, "testhost", 1, 1, 16384).update()
        rigs.append(AgentBesideNova(write_host, client, files, compute, policy))
        return rigs[-1]

    yield start
    for rig in rigs:
        rig.close()


def test_a_nova_compute_is_found_and_its_root_left_alone(start, live_placement, caplog):
    rig = start()
    rig.wait_for(lambda: rig.status()["provider_is"] == "nova-compute's")
    rig.wait_for(lambda: rig.shown().keys() == {"testhost", *CHILDREN})
    status = rig.status()
    assert (status["provider"], status["provider_uuid"], status["waiting_for"]) == ("testhost", NOVAS, "")
    rig.wait_for(rig.report)
    live_placement.writes()
    rig.nova.update()
    assert rig.report()
    rig.restart()
    assert rig.report()
    rig.nova.update()
    assert live_placement.writes() == []
    assert rig.status()["provider_is"] == "nova-compute's"

    def checked(status):
        done = run_here(rig.ini, "config", "check", "-f", "json")
        assert done.returncode == status, done.stderr
        return json.loads(done.stdout)

    found = checked(0)
    assert (found["provider_tree"], found["root_provider"]) == (
        "beside",
        f"nova-compute's, testhost ({NOVAS})",
    )
    assert {row["provider"] for row in found["inventories"]} == CHILDREN
    live_placement.stop()
    found = checked(MISTAKEN)
    assert found["provider_tree"] == "beside"
    assert found["root_provider"].startswith("nova-compute's, as far as is known: Placement cannot be asked")


def test_dedicated_cpus_that_nova_switches_count_and_nothing_is_read_again(start, caplog):
    rig = start()
    rig.wait_for(lambda: rig.status()["provider_is"] == "nova-compute's")
    rig.wait_for(lambda: rig.shown().keys() == {"testhost", *CHILDREN})
    online = rig.files.root.parents[2] / "sys/devices/system/cpu/online"
    caplog.clear()
    for cpus in ("1", "0-1", "1"):
        online.write_text(f"{cpus}\n")
        rig.reload_changes()
        assert rig.status()["config_error"] == ""
    assert "read anew" not in caplog.text
    rig.restart()
    assert rig.report()
    assert rig.shown().keys() == {"testhost", *CHILDREN}
    assert not any("offline" in each for each in rig.status()["warnings"])


def test_the_root_is_waited_for_and_followed(start):
    rig = start("provider_tree = beside", nova_first=False)
    rig.wait_for(
        lambda: "waiting for nova-compute to make the provider testhost" in rig.status()["waiting_for"]
    )
    assert rig.status()["placement"] == "up"
    with pytest.raises(RequestError, match="before it knows the root provider of this host"):
        rig.ask("guest.run", uuid=uid(1), command=["sleep", "60"])
    assert run_here(rig.ini, "config", "check").returncode == 0

    rig.nova.update()
    rig.wait_for(rig.report)
    assert rig.status()["waiting_for"] == ""
    assert rig.shown().keys() == {"testhost", *CHILDREN}

    rig.nova.delete_service()
    assert not rig.report()
    assert rig.status()["waiting_for"]
    rig.nova.uuid = NOVAS.replace("9999-0000", "9999-0001")
    rig.nova.update()
    rig.wait_for(rig.report)
    assert rig.shown().keys() == {"testhost", *CHILDREN}
    assert rig.status()["provider_uuid"] == rig.nova.uuid

    rig.client.update_provider(rig.nova.uuid, "elsewhere", None)
    rig.wait_for(rig.report)
    assert rig.status()["provider"] == "elsewhere"
    assert rig.shown().keys() == {name.replace("testhost", "elsewhere") for name in ("testhost", *CHILDREN)}


def test_a_guest_of_nova_has_the_cpus_of_the_root_and_the_ways_of_a_child(start):
    rig = start("provider_tree = beside", policy="name = topology-aware")
    rig.wait_for(rig.report)
    children = {name: uuid for name, uuid in rig.shown().items() if name in CHILDREN}
    held = {
        NOVAS: {"PCPU": 1, "MEMORY_MB": 512},
        children["testhost_L3_0"]: {"CUSTOM_LLC": 4, "CUSTOM_MBA": 30},
        children["testhost_RESCTRL"]: {"CUSTOM_RESCTRL_GROUP": 1},
    }
    rig.claim_on(uid(1), held)
    guest = rig.run(uid(1), name="db")
    assert (guest["kind"], guest["cpus"], guest["allocation"]) == ("dedicated", "0", held)
    own = rig.groups()[f"compute-agent.guest.{uid(1)}"]
    assert (own["guests"], own["ways"]["0"], own["bandwidth_percent"]["0"]) == (["db"], 4, 30)

    # After a restart the same, and no guest is moved meanwhile.
    rig.restart()
    rig.wait_for(lambda: rig.status()["guests"] == 1)
    assert rig.ask("guest.list")[0]["allocation"] == held
    assert rig.groups()[f"compute-agent.guest.{uid(1)}"]["ways"]["0"] == 4


def test_positions_are_novas_unless_the_ini_file_says_otherwise(start):
    rig = start()
    rig.wait_for(lambda: rig.status()["provider_is"] == "nova-compute's")
    rig.wait_for(rig.report)
    assert rig.status()["policy"] == "follow"
    rig.claim_on(uid(1), {NOVAS: {"PCPU": 1}})
    guest = rig.run(uid(1), name="db")
    os.sched_setaffinity(guest["pid"], {1})  # Nova's pin, elsewhere than the agent's own policy would have it
    rig.agent.pipeline.submit(ReconcileGuests()).result()
    assert os.sched_getaffinity(guest["pid"]) == {1}
    assert rig.ask("guest.show", guest="db")["cpus"] == "1"
    assert json.loads(run_here(rig.ini, "config", "check", "-f", "json").stdout)["policy"] == "follow"


def test_decisions_of_nova_are_left_to_nova(start, live_placement):
    rig = start("provider_tree = beside")
    rig.wait_for(rig.report)
    live_placement.writes()
    with pytest.raises(RequestError, match="openstack compute service set --disable"):
        rig.ask("host.disable", reason="broken fan")
    rig.claim_on(uid(7), {NOVAS: {"VCPU": 1}})
    rig.wait_for(rig.report)
    (found,) = rig.ask("audit", heal=True, delete=True, min_age=0.0)
    assert (found["finding"], found["remedy"], found["outcome"]) == (
        "allocation without guest",
        "nova-manage placement audit",
        "",
    )
    assert live_placement.writes() == [("PUT", f"/allocations/{uid(7)}")]


def test_an_own_root_of_an_earlier_agent_is_removed_for_novas(start, client):
    rig = start("provider_tree = numa", nova_first=False)
    rig.wait_for(rig.report)
    own = rig.status()["provider_uuid"]
    assert {one.name for one in client.providers_in_tree(own)} > {"testhost", "testhost_NUMA_0"}
    rig.compute = "provider_tree = beside"
    rig.ini = rig.write_ini()
    rig.agent.reload()
    rig.wait_for(lambda: client.providers_in_tree(own) == [])
    rig.nova.update()
    rig.wait_for(rig.report)
    assert rig.shown().keys() == {"testhost", *CHILDREN}


def test_an_agent_that_shared_novas_root_gives_it_up(start, tmp_path, client, live_placement, caplog):
    """The uuid of Nova's provider was in compute_id by mistake, so the agent and Nova undid each other's
    writes.
    """
    (tmp_path / "state").mkdir(mode=0o700)
    (tmp_path / "state" / "compute_id").write_text(f"{NOVAS}\n")
    rig = start("provider_tree = numa")
    rig.wait_for(rig.report)
    assert "testhost_NUMA_0" in rig.shown()
    rig.nova.update()
    rig.report()
    assert "set [compute] provider_tree = beside instead of numa" in caplog.text

    rig.compute = ""
    rig.ini = rig.write_ini()
    rig.agent.reload()
    rig.wait_for(lambda: rig.status()["provider_is"] == "nova-compute's")
    rig.wait_for(rig.report)
    for _ in range(REFRESH + 1):  # until Nova reads again what there is
        rig.nova.update()
    assert rig.shown().keys() == {"testhost", *CHILDREN}
    assert client.get_inventories(NOVAS)[0].keys() == {"VCPU", "PCPU", "MEMORY_MB", "DISK_GB"}
    live_placement.writes()
    for _ in range(3):
        assert rig.report()
        rig.nova.update()
    assert live_placement.writes() == []


def test_leaving_takes_the_agents_own_providers_and_no_other(start, client):
    rig = start()
    rig.wait_for(lambda: rig.shown().keys() == {"testhost", *CHILDREN})
    client.create_provider("55555555-0000-4000-8000-000000000001", "testhost_0000:81:00.0", NOVAS)
    rig.agent.stop()
    rig.close = lambda: None
    done = run_here(rig.ini, "release", "--provider", "-f", "json")
    assert done.returncode == 0, done.stderr + done.stdout
    assert rig.shown().keys() == {"testhost", "testhost_0000:81:00.0"}


def test_a_guest_of_nova_is_stopped_only_if_its_claim_ends_with_an_eviction(start):
    rig = start("\n[qos]\nevict_grace = 7200")
    rig.wait_for(lambda: rig.status()["provider_is"] == "nova-compute's")
    rig.claim_on(uid(1), {NOVAS: {"PCPU": 1}})
    rig.ask("guest.run", uuid=uid(1), command=["sleep", "60"])
    for _ in range(2):
        assert rig.report()
    assert rig.agent.driver.guests()
    end = (datetime.now(UTC) + timedelta(hours=1)).strftime("%Y-%m-%dT%H:%M:%SZ")
    claim = new_claim("resources=PCPU:1", consumer_uuid=uid(1), consumer_generation=1)
    body = {"claims": [claim], "ends_at": end, "on_end": "evict"}
    rig.client.send_request("POST", "/ext/v1/claims", body)
    rig.restart()
    rig.wait_for(lambda: rig.report() and not rig.agent.driver.guests())
    assert rig.client.get_allocations(uid(1)).resources == {NOVAS: {"PCPU": 1}}
