"""Tests of a whole agent with systemd services as guests, from the section in the unit file, or the name of
the unit, to pinned processes.
"""

import os

import pytest

from compute_agent.drivers import factory
from tests.compute_agent.agent.running import RunningAgent

pytest.importorskip("jeepney", reason="needs jeepney, of the extra systemd")

from tests.compute_agent.drivers.systemd.fake_systemd import FakeSystemd

UUID = "6b0c0f5e-54e5-4f2c-8f0e-1a9d5f4f9c11"
DB, SLICE = "db.service", "app.slice"


@pytest.fixture
def systemd(tmp_path, monkeypatch):
    folder = tmp_path / "systemd"
    folder.mkdir()
    fake = FakeSystemd(folder)
    monkeypatch.setattr(factory, "HostFolders", lambda *folders: fake.folders)
    yield fake
    fake.close()


@pytest.fixture
def rig(two_cpus, write_ini, client, systemd):
    """An agent with CPU 0 dedicated and CPU 1 shared, with systemd services and processes as guests."""

    def write():
        return write_ini(
            guests="drivers = systemd, process\nreconcile_interval = 0.3\nstop_timeout = 1",
            systemd=f"bus_socket = {systemd.path}",
        )

    rig = RunningAgent(write, client)
    yield rig
    rig.close()


def cpus_of(systemd, name=DB):
    return {frozenset(os.sched_getaffinity(process.pid)) for process in systemd.units[name].processes}


def test_a_service_is_a_guest_by_its_name_with_settings_of_a_rule(two_cpus, write_ini, client, systemd):
    options = {
        "guests": "drivers = systemd\nreconcile_interval = 0.3",
        "systemd": f"bus_socket = {systemd.path}\nguest_names = d?.service, postgresql@*.service",
        "guest_rule:databases": f"match_driver = systemd\nmatch_name = {DB}\nqos_class = BE",
    }
    rig = RunningAgent(lambda: write_ini(**options), client)
    try:
        systemd.start(DB, None)
        systemd.start("other.service", None)
        rig.wait_for(lambda: cpus_of(systemd) == {frozenset({1})})
        assert [row["name"] for row in rig.ask("guest.list")] == [DB]
        shown = rig.ask("guest.show", guest=DB)
        assert (shown["qos_class"], shown["setting_sources"]["qos_class"]) == ("BE", "rule databases")
    finally:
        rig.close()


def test_a_service_with_an_allocation_is_pinned_and_given_back(rig, systemd):
    rig.claim(UUID, PCPU=1)
    systemd.start(DB, f"[X-ComputeAgent]\nUuid={UUID}\nClass=LS\n", processes=2)
    systemd.start("other.service", None)
    rig.wait_for(lambda: cpus_of(systemd) == {frozenset({0})})
    (row,) = rig.ask("guest.list")
    assert (row["uuid"], row["name"], row["driver"], row["cpus"]) == (UUID, DB, "systemd", "0")
    assert rig.ask("guest.show", guest=UUID)["setting_sources"]["qos_class"] == "unit"
    assert systemd.units["other.service"].values["AllowedCPUs"] == frozenset()
    # The values stay over a restart of the agent.
    rig.restart()
    assert cpus_of(systemd) == {frozenset({0})}
    rig.wait_for(lambda: rig.ask("guest.list"))
    systemd.stop(DB)
    rig.wait_for(lambda: rig.ask("guest.list") == [])
    rig.wait_for(lambda: not systemd.drop_ins(DB))
    assert systemd.units[DB].values["AllowedCPUs"] == frozenset()


def test_a_systemd_that_is_away_is_reported_and_does_not_stop_the_agent(rig, systemd):
    systemd.start(DB)
    rig.wait_for(lambda: rig.ask("guest.list"))
    systemd.go_away()
    # The reason names systemd first, and the bus once the agent has tried to connect again.
    rig.wait_for(lambda: "message bus" in rig.ask("status")["drivers_away"].get("systemd", ""))
    up = rig.agent.metrics.registry.get_sample_value
    assert up("compute_agent_guest_driver_up", {"driver": "systemd"}) == 0
    assert up("compute_agent_guest_driver_up", {"driver": "process"}) == 1
    assert [row["name"] for row in rig.ask("guest.list")] == [DB]
    systemd.listen()
    rig.wait_for(lambda: not rig.ask("status")["drivers_away"])


def test_a_section_that_cannot_be_used_is_a_lost_guest_of_the_status(rig, systemd):
    systemd.start(DB, "[X-ComputeAgent]\nVcpus=many\n")
    rig.wait_for(lambda: rig.ask("status")["lost_guests"])
    (lost,) = rig.ask("status")["lost_guests"]
    assert "Vcpus=many is not a whole number" in str(lost)


def test_a_service_below_a_new_guest_gives_its_claim_and_its_cpu_back(two_cpus, write_ini, client, systemd):
    options = {
        "guests": "drivers = systemd\nclaim = true\nclaim_grace = 0\nreconcile_interval = 0.3",
        "systemd": f"bus_socket = {systemd.path}",
    }
    rig = RunningAgent(lambda: write_ini(**options), client)
    try:
        section = "[X-ComputeAgent]\nClass=LSR\n"
        unit = systemd.start(SLICE, None, processes=0)
        systemd.start(DB, f"{section}Uuid={UUID}\n", slice=SLICE)
        rig.wait_for(lambda: cpus_of(systemd) == {frozenset({0})})
        unit.files[0].write_text("[X-ComputeAgent]\n")
        systemd.reload()
        rig.wait_for(lambda: rig.ask("status")["excluded_guests"])
        rig.wait_for(
            lambda: rig.agent.reports.report_now() and not rig.client.get_allocations(UUID).resources
        )
        # The only dedicated CPU of the host is free for another guest.
        systemd.start("web.service", section)
        rig.wait_for(lambda: cpus_of(systemd, "web.service") == {frozenset({0})})
        status, value = rig.ask("status"), rig.agent.metrics.registry.get_sample_value
        assert f"it belongs to slice {SLICE}" in str(status["excluded_guests"])
        assert (status["lost_guests"], value("compute_agent_lost_guests")) == ([], 0)
        assert value("compute_agent_excluded_guests") == 1
    finally:
        rig.close()
