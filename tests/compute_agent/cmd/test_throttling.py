"""Tests with real QEMU guests that use all CPU time: the daemon throttles them, and later removes the
limits.
"""

import uuid

import pytest

from compute_agent.drivers.libvirt.domain_metadata import NAMESPACE
from compute_agent.throttling.state_file import look_up_state
from tests.compute_agent.cmd.agents import AgentProcess

GUESTS = 2
BATCH = f'<g:settings xmlns:g="{NAMESPACE}"><g:qos_class>BATCH</g:qos_class></g:settings>'

# A share of the promised CPUs, so that other load on the machine matters little.
LINES = """metric = best_effort_cpu
throttle_down = 3%
throttle_up = 2%
for_samples = 1
cool_down = 0"""


@pytest.fixture
def agent(two_cpus, write_ini, libvirtd):
    if not libvirtd.has_cgroups:
        pytest.skip("libvirt has no CPU controller of cgroups here, and so no quotas")
    with AgentProcess(write_ini("libvirt.ini", **sections(libvirtd, **{"watermark:cpu": LINES}))) as agent:
        yield agent


def sections(libvirtd, **more):
    return {
        "compute": "cpu_shared_set = 0-1\nresource_provider_name = testhost",
        "guests": "drivers = libvirt\nreconcile_interval = 0.3",
        "libvirt": f"uri = {libvirtd.uri}",
        "qos": "interval = 0.3\nmin_share = 1",
        # Guests of class BE would hardly get to run beside others on the machine.
        "qos_class:BATCH": "rank = 0",
    } | more


@pytest.fixture
def domains(agent, libvirtd):
    """Domains that use all CPU time, by uuid, on a host with a running agent."""
    agent.start()
    return {guest: libvirtd.run(guest, vcpus=1, metadata=BATCH, busy=True) for guest in uuids()}


def uuids():
    return [str(uuid.uuid4()) for _ in range(GUESTS)]


def quotas(domains):
    """The number of cores that libvirt allows to each limited guest."""
    found = {}
    for guest, domain in domains.items():
        has = domain.schedulerParameters()
        quota, period = has["global_quota"], has["global_period"]
        if 0 < quota < period:  # 17592186044415 or negative: none
            found[guest] = quota / period
    return found


def line(agent, action="throttle_down"):
    return next(row for row in agent.ask("watermark", "list") if row["action"] == action)


def is_below(agent):
    row = line(agent)
    return row["usage"] is not None and row["usage"] <= row["amount"]


@pytest.fixture
def throttled(agent, domains):
    """The limits in effect after the host's usage has fallen below the watermark."""
    agent.wait_for(lambda: quotas(domains))
    agent.wait_for(lambda: is_below(agent))
    return quotas(domains)


def test_the_host_comes_below_its_line_and_everything_is_given_back(agent, domains, throttled):
    def shows_the_quotas():
        # A further step of the watermark between the two readings makes them differ once.
        before, shown = (
            quotas(domains),
            {each: agent.ask("guest", "show", each)["limits"] for each in domains},
        )
        return {guest: limits for guest, limits in shown.items() if limits} == {
            guest: {"cpu_quota": pytest.approx(quota)} for guest, quota in before.items()
        }

    agent.wait_for(shows_the_quotas)
    told = " ".join(line(agent)["in_force"])
    assert all(guest in told for guest in throttled)
    for domain in domains.values():
        domain.suspend()
    agent.wait_for(lambda: not quotas(domains))
    agent.wait_for(lambda: line(agent)["in_force"] == [])


def test_limits_are_there_while_the_agent_is_dead_and_given_back_by_the_next(agent, domains, throttled):
    agent.kill()
    left = quotas(domains)
    assert left.keys() >= throttled.keys()
    agent.start()
    agent.wait_for(lambda: is_below(agent))
    assert quotas(domains).keys() >= left.keys()
    agent.kill()
    for domain in domains.values():
        domain.suspend()
    agent.start()
    agent.wait_for(lambda: not quotas(domains))
    agent.wait_for(lambda: look_up_state(agent.folder).watermarks.throttles == ())


def test_an_agent_without_watermarks_gives_limits_back(agent, domains, throttled, write_ini, libvirtd):
    agent.kill()
    write_ini("libvirt.ini", **sections(libvirtd))
    agent.start()
    agent.wait_for(lambda: not quotas(domains))


def test_a_domain_is_evicted_and_gives_back_what_it_held(
    agent, numa_node, claim, client, libvirtd, uid, write_ini
):
    claim(uid, VCPU=1)
    name = libvirtd.run(uid, vcpus=1, metadata=BATCH).name()
    agent.wait_for(lambda: [guest["uuid"] for guest in agent.ask("guest", "list")] == [uid])
    # The host uses more than a thousandth of its memory. No program in the guest listens to ACPI.
    lines = {"watermark:memory": "metric = memory_usage\nevict = 0.1%\nfor_samples = 1"}
    write_ini("libvirt.ini", **sections(libvirtd, **lines, qos="interval = 0.3\nevict_grace = 0.5"))
    agent.wait_for(lambda: not client.get_allocations(uid).resources)
    assert libvirtd.connection.listAllDomains() == []
    agent.wait_for(lambda: f"Guest {name} ({uid}) was evicted" in agent.log())
