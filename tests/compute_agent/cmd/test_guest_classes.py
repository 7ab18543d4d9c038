"""Tests of QoS classes of real domains, set by flavor, by rule and by hand, through the operations of
Nova.
"""

import pytest

from tests.compute_agent.cmd.agents import AgentProcess

pytestmark = pytest.mark.slow

NOVA = """
<nova:instance xmlns:nova="http://openstack.org/xmlns/libvirt/nova/1.1">
  <nova:package version="34.0.0"/>
  <nova:name>worker</nova:name>
  <nova:flavor name="{flavor}" id="3">
    <nova:memory>32</nova:memory><nova:disk>0</nova:disk><nova:swap>0</nova:swap>
    <nova:ephemeral>0</nova:ephemeral><nova:vcpus>1</nova:vcpus>
    <nova:extraSpecs>{specs}</nova:extraSpecs>
  </nova:flavor>
  <nova:image uuid=""><nova:properties/></nova:image>
  <nova:owner><nova:user uuid="7">me</nova:user><nova:project uuid="5">lab</nova:project></nova:owner>
</nova:instance>
"""

CONFIGURED = """
[guest_rule:lab]
match_project = lab
match_flavor = plain
qos_class = BE
priority = -1
"""


def metadata(flavor="plain", **specs):
    """Nova's metadata about a flavor, with extra specs of this project."""
    texts = (
        f'<nova:extraSpec name="compute_agent:{name}">{text}</nova:extraSpec>' for name, text in specs.items()
    )
    return NOVA.format(flavor=flavor, specs="".join(texts))


@pytest.fixture
def ini(write_ini, libvirtd):
    """The ini file of an agent with libvirt domains as guests."""
    path = write_ini(
        "libvirt.ini",
        guests="drivers = libvirt\nreconcile_interval = 0.3",
        libvirt=f"uri = {libvirtd.uri}",
    )
    with path.open("a") as file:
        file.write(CONFIGURED)
    return path


@pytest.fixture
def agent(two_cpus, ini):
    with AgentProcess(ini) as agent:
        yield agent


def hard_reboot(libvirtd, domain, **options):
    """Remove a domain and define it again, as Nova does at a hard reboot and a resize."""
    guest_uuid, name = domain.UUIDString(), domain.name()
    domain.destroy()
    domain.undefine()
    return libvirtd.run(guest_uuid, name=name, vcpus=1, persistent=True, **options)


def wait_for_class(agent, uid, qos_class, source):
    def has_class():
        if uid not in [row["uuid"] for row in agent.ask("guest", "list")]:
            return False
        found = agent.ask("guest", "show", uid)
        return found["qos_class"] == qos_class and found["setting_sources"]["qos_class"] == source

    agent.wait_for(has_class)


def test_a_domain_keeps_its_class_over_all_operations_of_nova(agent, claim, libvirtd, uid, ini):
    claim(uid, VCPU=1)
    domain = libvirtd.run(uid, vcpus=1, persistent=True, metadata=metadata(qos_class="LSR"))
    wait_for_class(agent, uid, "LSR", "flavor")
    assert agent.ask("guest", "show", uid)["priority"] == -1

    domain = hard_reboot(libvirtd, domain, metadata=metadata())
    wait_for_class(agent, uid, "BE", "rule lab")

    agent.ask("guest", "set", uid, "--qos-class", "LS")
    wait_for_class(agent, uid, "LS", "by hand")
    domain = hard_reboot(libvirtd, domain, metadata=metadata("other", qos_class="LSR"))
    wait_for_class(agent, uid, "LS", "by hand")
    agent.kill()
    agent.start()
    wait_for_class(agent, uid, "LS", "by hand")

    agent.kill()  # and the state of the agent is lost, but not the settings by hand
    (ini.parent / "state" / "state.json").unlink()
    agent.start()
    wait_for_class(agent, uid, "LS", "by hand")
    agent.kill()
    (ini.parent / "state" / "guest-settings.json").unlink()
    agent.start()
    wait_for_class(agent, uid, "LSR", "flavor")
    agent.ask("guest", "set", uid, "--priority", "4")
    agent.ask("guest", "set", uid, "--unset", "priority")
    assert agent.ask("guest", "show", uid)["setting_sources"]["priority"] == "default"


def test_a_reload_of_rules_changes_running_domains(agent, claim, libvirtd, uid, ini):
    claim(uid, VCPU=1)
    libvirtd.run(uid, vcpus=1, persistent=True, metadata=metadata())
    wait_for_class(agent, uid, "BE", "rule lab")
    ini.write_text(ini.read_text().replace("qos_class = BE", "qos_class = LSR"))
    wait_for_class(agent, uid, "LSR", "rule lab")
