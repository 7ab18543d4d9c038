"""Tests of reading a guest's settings from the XML of its domain."""

import re

import pytest

from compute_agent.drivers.libvirt import domain_metadata
from compute_agent.drivers.libvirt.domain_metadata import describe_domain, read_owner, usual_owner
from compute_agent.model.guest import GuestIdentity
from compute_agent.model.guest_settings import EmulatorPolicy, GuestSettings, ThreadPolicy

UUID = "e87f30c5-911b-46a7-8aaa-01c43325c5b2"

OURS = """<guest:settings xmlns:guest="urn:placement-compute:guest:1">{}</guest:settings>"""

NOVAS = """
<nova:instance xmlns:nova="http://openstack.org/xmlns/libvirt/nova/1.{minor}">
  <nova:package version="33.1.0"/>
  <nova:name>vm</nova:name>
  <nova:flavor name="pinned" id="3">
    <nova:memory>4096</nova:memory>
    <nova:vcpus>4</nova:vcpus>
    <nova:extraSpecs>
      <nova:extraSpec name="hw:cpu_policy">dedicated</nova:extraSpec>
      <nova:extraSpec name="hw:cpu_thread_policy">{thread}</nova:extraSpec>
      <nova:extraSpec name="hw:emulator_threads_policy">isolate</nova:extraSpec>
      <nova:extraSpec name="hw_rng:allowed">True</nova:extraSpec>
    </nova:extraSpecs>
  </nova:flavor>
  <nova:image uuid="3d1f">
    <nova:containerFormat>bare</nova:containerFormat>
    <nova:properties>
      <nova:property name="hw_cpu_thread_policy">isolate</nova:property>
      <nova:property name="os_type">linux</nova:property>
    </nova:properties>
  </nova:image>
  <nova:owner><nova:user uuid="7">me</nova:user><nova:project uuid="5">lab</nova:project></nova:owner>
  <nova:root type="image" uuid="3d1f"/>
</nova:instance>
"""


def domain(metadata="", vcpu="<vcpu placement='static'>4</vcpu>", rest=""):
    return (
        f"<domain type='kvm' id='9'><name>instance-0000000e</name><uuid>{UUID}</uuid>"
        f"<metadata>{metadata}</metadata>{vcpu}{rest}</domain>"
    )


def test_a_domain_without_metadata_has_default_settings():
    found = describe_domain(domain())
    assert (found.uuid, found.name, found.settings) == (UUID, "instance-0000000e", GuestSettings(vcpus=4))
    assert (read_owner(domain()), found.declared_problems) == ("", ())


def test_all_of_our_settings_are_read():
    ours = OURS.format(
        "<guest:qos_class> BE </guest:qos_class><guest:thread_policy>isolate</guest:thread_policy>"
        "<guest:emulator_policy>isolate</guest:emulator_policy><guest:eviction_priority>-3</guest:eviction_priority>"
        '<guest:resctrl>{"llc": {}}</guest:resctrl><guest:cpu_class>fast</guest:cpu_class>'
        "<guest:spread>yes</guest:spread><guest:preserve>true</guest:preserve>"
    )
    assert describe_domain(domain(ours)).settings == GuestSettings(
        vcpus=4,
        thread_policy=ThreadPolicy.ISOLATE,
        emulator_policy=EmulatorPolicy.ISOLATE,
        qos_class="BE",
        priority=-3,
        resctrl='{"llc": {}}',
        cpu_class="fast",
        spread=True,
        preserve=True,
    )


@pytest.mark.parametrize("minor", [0, 1])
def test_the_flavor_that_nova_wrote_is_read_and_declares_no_settings(minor):
    found = describe_domain(domain(NOVAS.format(minor=minor, thread="require")))
    assert (found.settings, found.declared, found.declared_problems) == (GuestSettings(vcpus=4), {}, ())
    assert found.identity == GuestIdentity(
        display_name="vm",
        flavor="pinned",
        extra_specs={
            "hw:cpu_policy": "dedicated",
            "hw:cpu_thread_policy": "require",
            "hw:emulator_threads_policy": "isolate",
            "hw_rng:allowed": "True",
        },
        project_id="5",
        project_name="lab",
        user_id="7",
        user_name="me",
        image_id="3d1f",
        image_properties={"hw_cpu_thread_policy": "isolate", "os_type": "linux"},
    )


def test_metadata_of_older_nova_has_only_the_boot_source():
    root = '<nova:instance xmlns:nova="{}"><nova:root type="{}" uuid="3d1f"/></nova:instance>'
    namespace = "http://openstack.org/xmlns/libvirt/nova/1.1"
    assert describe_domain(domain(root.format(namespace, "image"))).identity == GuestIdentity(image_id="3d1f")
    assert describe_domain(domain(root.format(namespace, "volume"))).identity == GuestIdentity()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("thread_policy", "sideways"),
        ("emulator_policy", ""),
        ("qos_class", "a/b"),
        ("blockio_class", "a/b"),
        ("blockio_class", "x" * 65),
        ("memory_type", "ddr"),
        ("eviction_priority", "high"),
        ("eviction_priority", "٣"),
        ("eviction_priority", "1_0"),
        ("eviction_priority", "2147483648"),
        ("resctrl", "x" * 4097),
    ],
)
def test_a_setting_that_cannot_be_used_is_named_and_has_its_default(name, value):
    found = describe_domain(domain(OURS.format(f"<guest:{name}>{value}</guest:{name}>")))
    assert found.settings == GuestSettings(vcpus=4)
    (problem,) = found.declared_problems
    assert problem.startswith(f"{name} = '{value[:80]}' cannot be used")
    assert len(problem) < 200


def test_settings_are_read_among_foreign_metadata():
    deep = "<x>" * 100_000 + "</x>" * 100_000
    many = "".join(f'<nova:extraSpec name="x:{n}">1</nova:extraSpec>' for n in range(10_000))
    nova = NOVAS.format(minor=1, thread="require").replace("</nova:extraSpecs>", f"{many}</nova:extraSpecs>")
    settings = OURS.format(f"{deep}<guest:qos_class>BE</guest:qos_class>")
    found = describe_domain(domain(nova + settings))
    assert found.settings == GuestSettings(vcpus=4, qos_class="BE")
    assert found.identity.extra_specs["hw:cpu_thread_policy"] == "require"


@pytest.mark.parametrize(
    "xml",
    [
        '<!DOCTYPE x [<!ENTITY a "aaaaaaaaaa"><!ENTITY b "&a;&a;&a;">]>' + domain("&b;"),
        '<?xml version="1.0"?>\n<!DOCTYPE x SYSTEM "file:///etc/passwd">' + domain(),
    ],
)
def test_a_document_type_is_refused(xml):
    with pytest.raises(ValueError, match="document type"):
        describe_domain(xml)


def test_a_document_type_in_text_is_no_document_type():
    assert describe_domain(domain("<a><![CDATA[<!DOCTYPE x>]]></a>")).settings == GuestSettings(vcpus=4)


def test_xml_that_libvirt_could_not_send_is_not_parsed():
    with pytest.raises(ValueError, match="characters"):
        describe_domain(domain(" " * (8 << 20)))


def test_a_number_of_guest_cpus_above_the_limit_is_the_limit():
    assert describe_domain(domain(vcpu="<vcpu>1000000000</vcpu>")).settings.vcpus == 4096


def test_guest_cpus_are_those_that_are_plugged_in():
    assert describe_domain(domain(vcpu="<vcpu current='2'>8</vcpu>")).settings.vcpus == 2


def test_the_user_of_the_process_is_read_from_the_label():
    label = "<seclabel type='dynamic' model='dac' relabel='yes'><label>+64055:+108</label></seclabel>"
    other = "<seclabel type='dynamic' model='apparmor'><label>libvirt-x</label></seclabel>"
    assert read_owner(domain(rest=other + label)) == "+64055"


def test_the_user_of_processes_without_a_label_is_that_of_the_base_label():
    apparmor = "<secmodel><model>apparmor</model><doi>0</doi></secmodel>"
    dac = "<secmodel><model>dac</model><doi>0</doi><baselabel type='kvm'>+64055:+109</baselabel></secmodel>"
    assert usual_owner(f"<capabilities><host>{apparmor}{dac}</host></capabilities>") == "+64055"
    assert usual_owner(f"<capabilities><host>{apparmor}</host></capabilities>") == ""


@pytest.mark.parametrize(
    "text", ["", "<domain", "<domain/>", "<domain><name>a</name><uuid/><vcpu>1</vcpu></domain>"]
)
def test_xml_that_is_no_domain_is_refused(text):
    with pytest.raises(ValueError, match="not"):
        describe_domain(text)


HOSTDEV = "<hostdev mode='subsystem' type='{}'><source><address {}/></source></hostdev>"
NVME_DISK = "<disk type='nvme'><source type='pci' namespace='1'><address {}/></source></disk>"
FUNCTION = "<interface type='hostdev'><source><address type='pci' {}/></source></interface>"


@pytest.mark.parametrize(
    ("devices", "addresses"),
    [
        ("", set()),
        (HOSTDEV.format("pci", "domain='0x0000' bus='0x81' slot='0x00' function='0x0'"), {"0000:81:00.0"}),
        (HOSTDEV.format("pci", "domain='65536' bus='129' slot='31' function='7'"), {"10000:81:1f.7"}),
        (FUNCTION.format("bus='0x5e' slot='0x02' function='0x3'"), {"0000:5e:02.3"}),
        (NVME_DISK.format("domain='0x0000' bus='0x01' slot='0x00' function='0x0'"), {"0000:01:00.0"}),
        (HOSTDEV.format("usb", "bus='1' device='2'"), set()),
        (HOSTDEV.format("pci", "bus='0x100'"), set()),
        (HOSTDEV.format("pci", "bus='-1'"), set()),
        (HOSTDEV.format("pci", "bus='x' slot='" + "9" * 5000 + "'"), set()),
        ("<hostdev type='pci'/><hostdev type='pci'><source/></hostdev>", set()),
    ],
)
def test_pci_devices_of_a_domain_are_read(devices, addresses):
    xml = domain().replace("</domain>", f"<devices>{devices}</devices></domain>")
    assert describe_domain(xml).devices == addresses


def test_the_examples_of_the_documentation_are_literal_blocks():
    blocks = re.findall(r"(.*)\n\n    <([a-z:]+)[ >]", domain_metadata.__doc__)
    assert [element for _, element in blocks] == ["metadata", "nova:instance"]
    assert all(before.endswith("::") for before, _ in blocks)
