"""Tests of the service, an agent and real QEMU guests together, from the claim to the release."""

import json
import os

import pytest

from compute_agent.drivers import procfs
from tests.compute_agent.builders import hold_resources, release_resources
from tests.compute_agent.cmd.agents import SECONDS, AgentProcess, allowed_cpus, give_to_migration, places

DEDICATED, SHARED = {"0"}, {"1"}


@pytest.fixture
def agent(two_cpus, write_ini, libvirtd, metrics_port):
    """An agent with libvirt domains as guests. CPU 0 is dedicated, CPU 1 shared."""
    with AgentProcess(
        write_ini(
            "libvirt.ini",
            guests="drivers = libvirt\nreconcile_interval = 0.3\nstop_timeout = 0.2",
            libvirt=f"uri = {libvirtd.uri}",
            daemon=f"http_port = {metrics_port}",
        )
    ) as agent:
        yield agent


def vcpu_threads(pid):
    return [tid for tid in procfs.thread_ids(pid) if procfs.thread_name(pid, tid).startswith("CPU ")]


@pytest.fixture
def domain(agent, claim, libvirtd, uid):
    """A running guest with one dedicated CPU."""
    claim(uid, PCPU=1)
    domain = libvirtd.run(uid, vcpus=1, persistent=True)
    agent.wait_for(lambda: places(libvirtd.process(domain)) == (DEDICATED, SHARED))
    return domain


def test_a_guest_is_claimed_for_started_pinned_kept_stopped_and_released(
    agent, domain, claim, client, libvirtd, uid, live_placement
):
    shown = agent.ask("guest", "show", uid)
    pid = libvirtd.process(domain)
    assert (shown["kind"], shown["cpus"], shown["emulator_cpus"], shown["pid"]) == (
        "dedicated",
        "0",
        "1",
        pid,
    )
    assert (shown["name"], shown["vcpus"], shown["pending"]) == (domain.name(), 1, [])
    assert agent.status()["driver"] == "libvirt"
    assert agent.audit() == (0, [])

    for _ in range(2):
        agent.kill()
        live_placement.writes()
        agent.start_reporting()
        assert agent.ask("guest", "show", uid) == shown
        assert places(pid) == (DEDICATED, SHARED)
        assert live_placement.writes() == []

    agent.ask("guest", "stop", uid)
    assert not domain.isActive()
    assert agent.ask("guest", "list") == []
    assert agent.audit() == (0, [])  # it may be started again
    domain.undefine()
    status, rows = agent.audit()
    assert (status, [row["finding"] for row in rows]) == (3, ["allocation without guest"])
    release_resources(client, uid)
    assert agent.audit() == (0, [])


def test_without_a_state_file_the_guest_stays_where_it_was(agent, domain, libvirtd, uid):
    shown = agent.ask("guest", "show", uid)
    agent.kill()
    (agent.folder / "state.json").unlink()
    agent.start()
    agent.wait_for(lambda: agent.ask("guest", "show", uid) == shown)
    assert places(libvirtd.process(domain)) == (DEDICATED, SHARED)


def test_libvirtd_may_go_and_come_back_and_drift_is_repaired_then(agent, domain, libvirtd, uid):
    pid = libvirtd.process(domain)
    libvirtd.kill()
    try:
        agent.kill()
        agent.start()  # without libvirtd, and without forgetting the guest
        agent.wait_for(lambda: "cannot take over the running guests" in agent.log())
        for command in (("guest", "list"), ("guest", "run", "--uuid", uid, "--", "sleep", "9")):
            assert agent.cli(*command).returncode == 1
        assert places(pid) == (DEDICATED, SHARED)
    finally:
        libvirtd.start()
    (domain,) = libvirtd.connection.listAllDomains()
    agent.wait_for(lambda: agent.status()["guests"] == 1)
    assert [guest["pid"] for guest in agent.ask("guest", "list")] == [pid]
    domain.pinEmulator((True, True))
    agent.wait_for(lambda: places(pid) == (DEDICATED, SHARED))


def test_a_guest_without_allocation_runs_on_the_shared_cpus(agent, numa_node, libvirtd, uid):
    domain = libvirtd.run(uid, vcpus=1)
    agent.wait_for(lambda: places(libvirtd.process(domain)) == (SHARED, SHARED))
    agent.wait_for(lambda: [guest["kind"] for guest in agent.ask("guest", "list")] == ["unallocated"])
    domain.destroy()
    agent.wait_for(lambda: agent.ask("guest", "list") == [])


@pytest.fixture
def configured(agent, write_ini, libvirtd):
    """A function that gives the running agent other CPU sets and other options of guests."""

    def configured(compute, guests=""):
        agent.ini = write_ini(
            "libvirt.ini",
            compute=f"resource_provider_name = testhost\n{compute}",
            guests=f"drivers = libvirt\nreconcile_interval = 0.3\nstop_timeout = 0.2\n{guests}",
            libvirt=f"uri = {libvirtd.uri}",
        )
        if agent.process is None:
            agent.start()
        return agent

    return configured


def test_an_over_allocated_guest_runs_on_the_shared_cpus_and_says_why(agent, domain, client, libvirtd, uid):
    """An operator enlarged the inventory by hand, and a guest has an allocation of the larger inventory."""
    node = next(iter(client.get_allocations(uid).resources))
    inventories, generation = client.get_inventories(node)
    pcpu = {**inventories["PCPU"], "total": 2, "max_unit": 2}
    body = {**pcpu, "resource_provider_generation": generation}
    client.send_request("PUT", f"/resource_providers/{node}/inventories/PCPU", body)
    more = f"{uid[:-4]}0000"
    hold_resources(client, more, {node: {"PCPU": 1}})
    second = libvirtd.run(more, vcpus=1)
    agent.wait_for(lambda: places(libvirtd.process(second)) == (SHARED, SHARED))
    shown = agent.ask("guest", "show", more)
    reason = "testhost_NUMA_0 has 0 free dedicated CPUs (none), but 1 are needed"
    assert (shown["kind"], shown["reason"]) == ("unplaced", reason)
    assert agent.status()["reasons"] == {more: reason}
    domain.destroy()
    agent.wait_for(lambda: places(libvirtd.process(second)) == (DEDICATED, SHARED))


def test_without_shared_cpus_a_guest_without_allocation_keeps_off_those_that_are_held(
    configured, claim, libvirtd, uid
):
    agent = configured("cpu_dedicated_set = 0")
    free = libvirtd.run(f"{uid[:-4]}0000", vcpus=1)
    agent.wait_for(lambda: [guest["kind"] for guest in agent.ask("guest", "list")] == ["unplaced"])
    claim(uid, PCPU=1)
    paid = libvirtd.run(uid, vcpus=1)
    agent.wait_for(lambda: places(libvirtd.process(paid)) == ({"0"}, {"0"}))
    assert places(libvirtd.process(free)) == ({"1"}, {"1"})


def test_a_guest_without_a_place_is_stopped_at_its_start_if_so_configured(configured, libvirtd, uid):
    agent = configured("cpu_dedicated_set = 0", "unplaced = refuse")
    domain = libvirtd.run(uid, vcpus=1, persistent=True)
    agent.wait_for(lambda: not domain.isActive())
    agent.wait_for(lambda: agent.ask("guest", "list") == [])
    assert "it does not get the CPUs that it needs: the host has no shared CPUs" in agent.log()


def test_a_guest_that_starts_without_placement_is_kept_off_dedicated_cpus_until_it_answers(
    agent, claim, libvirtd, live_placement, uid
):
    claim(uid, PCPU=1)
    live_placement.stop()
    domain = libvirtd.run(uid, vcpus=1)
    agent.wait_for(lambda: places(libvirtd.process(domain)) == (SHARED, SHARED))
    live_placement.start()
    agent.wait_for(lambda: places(libvirtd.process(domain)) == (DEDICATED, SHARED))


def test_a_domain_restarted_without_placement_keeps_its_dedicated_cpu(
    agent, domain, libvirtd, live_placement, uid
):
    live_placement.stop()
    domain.destroy()
    agent.wait_for(lambda: agent.ask("guest", "list") == [])
    domain.create()
    # The domain is pinned before it is in the list of guests.
    agent.wait_for(lambda: [guest["kind"] for guest in agent.ask("guest", "list")] == ["dedicated"])
    assert places(libvirtd.process(domain)) == (DEDICATED, SHARED)


def test_domains_are_not_started_by_the_agent(agent, claim, uid):
    claim(uid, PCPU=1)
    done = agent.cli("guest", "run", "--uuid", uid, "--", "sleep", "9")
    assert done.returncode == 1
    assert "guests of driver libvirt are not started by the agent" in done.stderr


def test_a_guest_has_the_weight_of_what_it_holds_and_memory_of_its_node(agent, domain, libvirtd, uid):
    if not libvirtd.has_cgroups:
        pytest.skip("needs cgroups for guests")
    agent.wait_for(lambda: domain.numaParameters()["numa_nodeset"] == "0")
    live, config = libvirtd.libvirt.VIR_DOMAIN_AFFECT_LIVE, libvirtd.libvirt.VIR_DOMAIN_AFFECT_CONFIG
    assert [domain.schedulerParametersFlags(flag)["cpu_shares"] for flag in (live, config)] == [1024, 1024]
    domain.setSchedulerParametersFlags({"cpu_shares": 2}, live)
    agent.wait_for(lambda: domain.schedulerParametersFlags(live)["cpu_shares"] == 1024)
    assert agent.ask("guest", "show", uid)["pending"] == []


def test_the_definition_is_looked_at_while_the_agent_runs(agent, domain, libvirtd, uid, metric):
    """Pins in the definition come from the agent. Shares and quota belong to the author of the definition."""
    live, config = libvirtd.libvirt.VIR_DOMAIN_AFFECT_LIVE, libvirtd.libvirt.VIR_DOMAIN_AFFECT_CONFIG

    def drifts():
        return metric('compute_agent_drift_repairs_total{controller="cpuset"}') or 0.0

    agent.wait_for(lambda: domain.vcpuPinInfo(config) == [(True, False)])
    before = drifts()
    domain.pinVcpuFlags(0, (True, True), config)
    agent.wait_for(lambda: domain.vcpuPinInfo(config) == [(True, False)])
    agent.wait_for(lambda: drifts() > before)
    assert "its settings: the definition has 1 other pins, such as for guest CPU 0" in agent.log()
    if not libvirtd.has_cgroups:
        return

    agent.wait_for(lambda: domain.schedulerParametersFlags(config)["cpu_shares"] == 1024)
    limits = {"global_quota": 40_000, "global_period": 100_000, "cpu_shares": 300}
    domain.setSchedulerParametersFlags(limits, config)
    agent.wait_for(lambda: domain.schedulerParametersFlags(live)["global_quota"] == 40_000)
    domain.setSchedulerParametersFlags({"cpu_shares": 300}, live)
    domain.setSchedulerParametersFlags({"global_quota": -1}, config)
    agent.wait_for(lambda: domain.schedulerParametersFlags(live)["global_quota"] == -1)
    assert [domain.schedulerParametersFlags(flag)["cpu_shares"] for flag in (live, config)] == [300, 300]


def test_a_dry_run_shows_the_changes_to_a_domain_and_makes_none(agent, claim, libvirtd, uid, live_placement):
    """The domain runs on all CPUs before the first agent starts."""
    claim(uid, PCPU=1)
    agent.kill()
    domain = libvirtd.run(uid, vcpus=1, persistent=True)
    pid = libvirtd.process(domain)
    before = (domain.XMLDesc(0), domain.XMLDesc(libvirtd.libvirt.VIR_DOMAIN_XML_INACTIVE), places(pid))
    live_placement.writes()

    told = agent.ask("run", "--dry-run")
    changes = {row["where"]: row["change"] for row in told if uid in row["subject"]}
    assert changes["cpuset"] == "CPUs 0-1 -> dedicated CPUs 0, emulator CPUs 1"
    assert [row for row in told if row["where"] == "placement"] == []

    after = (domain.XMLDesc(0), domain.XMLDesc(libvirtd.libvirt.VIR_DOMAIN_XML_INACTIVE), places(pid))
    assert after == before
    assert live_placement.writes() == []
    agent.start()
    agent.wait_for(lambda: places(pid) == (DEDICATED, SHARED))
    # The guest's memory stays on its nodes if libvirt cannot bind it; only the running agent knows this.
    # The CPUs come first, so other controllers may still be at work.
    agent.wait_for(lambda: {row["where"] for row in agent.ask("run", "--dry-run")} <= {"memory"})


def test_domains_may_run_on_all_cpus_after_a_release_of_the_host(agent, domain, libvirtd):
    pid, everywhere = libvirtd.process(domain), (True,) * os.cpu_count()
    done = agent.cli("release", "--pins", "-f", "json")
    assert done.returncode == 0, done.stderr
    assert agent.process.wait(SECONDS) == 0
    online = {allowed_cpus(os.getpid())}
    assert places(pid) == (online, online)
    config = libvirtd.libvirt.VIR_DOMAIN_AFFECT_CONFIG
    assert domain.vcpuPinInfo(config) == [everywhere]
    assert domain.emulatorPinInfo(config) == everywhere
    again = agent.cli("release", "--pins", "-f", "json")
    assert [row["kind"] for row in json.loads(again.stdout)] == ["provider", "provider"]


def test_a_domain_keeps_its_cpu_while_nova_moves_it(agent, domain, client, libvirtd, uid):
    """The allocations belong to the migration then. The agent finds them, and remembers them after a
    crash.
    """
    pid, migration = libvirtd.process(domain), f"{uid[:-4]}aaaa"
    give_to_migration(client, uid, migration)
    for _ in range(2):
        status, rows = agent.audit()
        found = [(row["finding"], row["consumer"]) for row in rows]
        assert (status, found) == (0, [("guest that migrates", uid)])
        shown = agent.ask("guest", "show", uid)
        assert (shown["migration"], shown["dedicated_cpus"]) == (migration, "0")
        assert agent.status()["migrating_guests"] == [uid]
        assert places(pid) == (DEDICATED, SHARED)
        agent.kill()
        agent.start_reporting()
    assert places(pid) == (DEDICATED, SHARED)


@pytest.fixture
def following(two_cpus, write_ini, libvirtd):
    """An agent with policy ``follow``, which leaves guests where other programs pin them."""
    with AgentProcess(
        write_ini(
            "follow.ini",
            guests="drivers = libvirt\nreconcile_interval = 0.3",
            libvirt=f"uri = {libvirtd.uri}",
            policy="name = follow",
        )
    ) as agent:
        agent.start()
        yield agent


def test_a_domain_stays_where_others_pin_it_and_the_agent_knows_where(following, libvirtd, uid):
    agent, domain = following, libvirtd.run(uid, vcpus=1, persistent=True)
    pid = libvirtd.process(domain)

    def shown():
        found = {guest["uuid"]: guest for guest in agent.ask("guest", "list")}.get(uid)
        return found and agent.ask("guest", "show", uid)

    agent.wait_for(lambda: (shown() or {}).get("cpus") == "0-1")
    assert (shown()["dedicated_cpus"], shown()["refusal"]) == ("", "")
    domain.pinVcpu(0, (True, False))
    agent.wait_for(lambda: shown()["dedicated_cpus"] == "0")
    assert places(pid)[0] == {"0"}
    for tid in procfs.thread_ids(pid) - set(vcpu_threads(pid)):
        os.sched_setaffinity(tid, {1})
    agent.wait_for(lambda: shown()["emulator_cpus"] == "1")
    assert places(pid) == ({"0"}, {"1"})
    domain.pinVcpu(0, (False, True))
    agent.wait_for(lambda: (shown()["dedicated_cpus"], shown()["cpus"]) == ("", "1"))
    assert places(pid) == ({"1"}, {"1"})
    config = libvirtd.libvirt.VIR_DOMAIN_AFFECT_CONFIG
    assert domain.vcpuPinInfo(config) == [(True,) * os.cpu_count()]

    other = libvirtd.run(f"{uid[:-4]}0000", vcpus=1)
    for one in (domain, other):
        one.pinVcpu(0, (True, False))
    agent.wait_for(lambda: {guest["cpus"] for guest in agent.ask("guest", "list")} == {"0"})
    found = {
        row["consumer"]: row["detail"]
        for row in agent.audit()[1]
        if row["finding"] == "guests on the same CPUs"
    }
    assert found[uid] == f"CPU 0 also of guest {other.name()} ({other.UUIDString()})"
    assert len(found) == 2
    assert places(pid)[0] == places(libvirtd.process(other))[0] == {"0"}

    done = agent.cli("release", "--pins", "-f", "json")
    assert done.returncode == 0, done.stderr
    assert places(pid)[0] == {"0"}


NOVAS_DEDICATED = (
    '<nova:instance xmlns:nova="http://openstack.org/xmlns/libvirt/nova/1.1"><nova:flavor name="f">'
    "<nova:memory>64</nova:memory><nova:disk>0</nova:disk><nova:swap>0</nova:swap>"
    "<nova:ephemeral>0</nova:ephemeral><nova:vcpus>1</nova:vcpus>"
    '<nova:extraSpecs><nova:extraSpec name="hw:cpu_policy">dedicated</nova:extraSpec></nova:extraSpecs>'
    "</nova:flavor></nova:instance>"
)


def test_a_dedicated_flavor_that_was_allocated_vcpu_has_no_place_until_it_holds_pcpu(
    agent, claim, libvirtd, uid
):
    claim(uid, VCPU=1, MEMORY_MB=64)
    domain = libvirtd.run(uid, vcpus=1, metadata=NOVAS_DEDICATED)
    agent.wait_for(lambda: [guest["kind"] for guest in agent.ask("guest", "list")] == ["unplaced"])
    assert places(libvirtd.process(domain)) == (SHARED, SHARED)
    (reason,) = agent.status()["reasons"].values()
    assert "the allocation has VCPU and no PCPU, as after nova-scheduler's fall-back query" in reason
    findings = {row["finding"]: row["detail"] for row in agent.audit()[1]}
    assert findings["other amounts than the guest uses"] == "holds 0 PCPU, uses 1, holds 1 VCPU, uses 0"
    assert findings["guest without a place"] == reason
    claim(uid, PCPU=1, MEMORY_MB=64)
    agent.reload()
    agent.wait_for(lambda: places(libvirtd.process(domain)) == (DEDICATED, SHARED))
    assert agent.audit() == (0, [])


def test_pins_of_a_definition_are_met_or_the_guest_is_left(agent, claim, libvirtd, uid):
    claim(uid, PCPU=1)
    pins = "<cputune><vcpupin vcpu='0' cpuset='1'/></cputune>"
    xml = libvirtd.xml(uid, vcpus=1).replace("</vcpu>", f"</vcpu>{pins}")
    domain, config = libvirtd.connection.defineXML(xml), libvirtd.libvirt.VIR_DOMAIN_AFFECT_CONFIG
    domain.create()
    pid = libvirtd.process(domain)
    agent.wait_for(lambda: uid in agent.status()["refused_guests"])
    assert agent.ask("guest", "show", uid)["refusal"] == (
        "its definition cannot be met: its zones have no 1 free dedicated CPUs among the CPUs 1"
        " that its guest CPUs may use; it is left where it is"
    )
    assert places(pid)[0] == SHARED

    domain.pinVcpuFlags(0, (True, False), config)
    agent.wait_for(lambda: places(pid) == (DEDICATED, SHARED))
    assert agent.status()["refused_guests"] == []
    assert domain.vcpuPinInfo(config) == [(True, False)]
    assert 'pins="e=1' in domain.XMLDesc(libvirtd.libvirt.VIR_DOMAIN_XML_INACTIVE)


def test_pins_that_the_agent_wrote_are_no_demands(agent, domain, claim, libvirtd, uid):
    config, inactive = libvirtd.libvirt.VIR_DOMAIN_AFFECT_CONFIG, libvirtd.libvirt.VIR_DOMAIN_XML_INACTIVE
    agent.wait_for(lambda: domain.vcpuPinInfo(config) == [(True, False)])
    assert 'pins="0=0 e=1 i1=1"' in domain.XMLDesc(inactive)
    agent.kill()
    agent.start()
    claim(uid, VCPU=1)
    agent.reload()
    agent.wait_for(lambda: places(libvirtd.process(domain)) == (SHARED, SHARED))
    agent.wait_for(lambda: domain.vcpuPinInfo(config) == [(False, True)])
    assert agent.status()["refused_guests"] == []
