"""A domain of libvirt with a PCI device of a real kernel: on its node, pinned, compared, and taken away.

Runs in the virtual machine only: `test_devices.py` starts it there, and PLACEMENT is the service's address.
The machine has libvirtd, an IOMMU and VFIO. Its domains are emulated, because it has no KVM.
"""

import collections
import contextlib
import os
import re
import subprocess
import threading
import time
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import libvirt
import pytest

from compute_agent.agent.protocol import call_agent
from compute_agent.model import cpuset
from tests.vm.inside_devices import DEVICES, INI, TOGETHER, emptied, node_cpus, providers
from tests.vm.inside_machine import SOCKET, PlacementRest, make_agent, uid
from tests.vm.modules import VFIO
from tests.waits import wait_for

URI = "qemu:///system"
MIB = 64
PAGE = os.sysconf("SC_PAGE_SIZE")
MODULES = Path("/mnt/share/modules")
FOLDER = Path("/tmp/libvirtd")
QEMU_CONF = """
security_driver = "none"
stdio_handler = "file"
user = "root"
group = "root"
namespaces = []
"""
DAEMON_CONF = """
auth_unix_rw = "none"
auth_unix_ro = "none"
log_outputs = "3:stderr"
"""
# Debian's package libvirt-daemon-system makes it, and libvirtd looks it up before it reads the user of QEMU.
USER = "libvirt-qemu"
# The slots of this machine type are hot-plugged by PCI Express itself: a device in a slot that was empty at
# the start can be unplugged although no operating system runs in the domain.
DOMAIN = """
<domain type='qemu'>
  <name>near</name>
  <uuid>{uuid}</uuid>
  <memory unit='MiB'>{mib}</memory>
  <vcpu cpuset='{cpus}'>1</vcpu>
  <os><type arch='x86_64' machine='pc-q35-6.0'>hvm</type></os>
  <devices>
    <emulator>/usr/bin/qemu-system-x86_64</emulator>
    <controller type='usb' model='none'/>
    <controller type='pci' index='0' model='pcie-root'/>
    <controller type='pci' index='1' model='pcie-root-port'/>
    <controller type='pci' index='2' model='pcie-root-port'/>
    <controller type='pci' index='3' model='pcie-root-port'/>
    <memballoon model='none'/>{devices}
  </devices>
</domain>
"""
HOSTDEV = """
    <hostdev mode='subsystem' type='pci' managed='yes'>
      <source><address domain='{domain}' bus='{bus}' slot='{slot}' function='{function}'/></source>
    </hostdev>"""


def hostdev(address):
    domain, bus, slot, function = (f"0x{part}" for part in re.split("[:.]", address))
    return HOSTDEV.format(domain=domain, bus=bus, slot=slot, function=function)


@pytest.fixture(scope="module")
def connection():
    """A connection to the machine's libvirtd, which can pass devices to domains."""
    for name in VFIO:
        if (MODULES / f"{name}.ko").exists():
            subprocess.run(["insmod", MODULES / f"{name}.ko"], check=True)
    FOLDER.mkdir()
    for name, fields in (("passwd", "x:64055:64055::/nonexistent:/bin/false"), ("group", "x:64055:")):
        with Path("/etc", name).open("a") as file:
            file.write(f"{USER}:{fields}\n")
    Path("/etc/libvirt").mkdir(exist_ok=True)
    Path("/etc/libvirt/qemu.conf").write_text(QEMU_CONF)
    (FOLDER / "daemon.conf").write_text(DAEMON_CONF)
    with (FOLDER / "log").open("wb") as log:
        process = subprocess.Popen(["libvirtd", "-f", FOLDER / "daemon.conf"], stderr=log)
    libvirt.registerErrorHandler(lambda context, error: None, None)
    opened = []

    def connects():
        assert process.poll() is None, (FOLDER / "log").read_text()
        with contextlib.suppress(libvirt.libvirtError):
            opened.append(libvirt.open(URI))
        return opened

    wait_for(connects, evidence=lambda: (FOLDER / "log").read_text())
    yield opened[0]
    opened[0].close()
    process.terminate()
    process.wait()
    print((FOLDER / "log").read_text())


@pytest.fixture(scope="module")
def agent(connection):
    agent = make_agent(INI.replace("drivers = process", "drivers = libvirt"))
    agent.start()
    wait_for(lambda: len(call_agent(SOCKET, "device.list")) == 4, evidence=agent.log)
    wait_for(lambda: len(providers()) == 7, evidence=agent.log)
    yield agent
    print(agent.log())
    agent.kill()


@pytest.fixture(scope="module")
def held(agent):
    """The addresses of the devices that the guest of the second node holds, by resource class."""
    rest = PlacementRest()
    names = {uuid: each["name"] for uuid, each in providers().items()}
    (chosen,) = (
        each
        for each in rest.send("GET", TOGETHER)["allocation_requests"]
        if any(names[one].endswith("NUMA_1") for one in each["allocations"])
    )
    rest.claim(uid(1), **{names[uuid]: each["resources"] for uuid, each in chosen["allocations"].items()})
    return {
        row["resource_class"]: row["address"]
        for row in call_agent(SOCKET, "device.list")
        if row["numa_node"] == 1
    }


def definition(held):
    """The guest, on the CPUs of the first node."""
    cpus = cpuset.format(node_cpus(0))
    return DOMAIN.format(uuid=uid(1), mib=MIB, cpus=cpus, devices=hostdev(held["CUSTOM_ACCELERATOR"]))


@pytest.fixture(scope="module")
def domain(connection, agent, held):
    """The guest, which has the accelerator that it holds; its disk is not in the definition yet.

    It starts on the first node and without the agent, so that its memory comes from there.
    """
    agent.kill()
    domain = connection.defineXML(definition(held))
    domain.create()
    agent.start()
    yield domain
    with contextlib.suppress(libvirt.libvirtError):
        domain.destroy()
    domain.undefine()


def places():
    """The CPUs and NUMA nodes of each guest that has CPUs."""
    return [(each["cpus"], each["numa_nodes"]) for each in call_agent(SOCKET, "guest.list") if each["cpus"]]


def process_id():
    return int(Path("/run/libvirt/qemu/near.pid").read_text())


def thread_cpus():
    """The CPUs of each thread of QEMU, by its name."""
    found = {}
    for folder in Path(f"/proc/{process_id()}/task").iterdir():
        with contextlib.suppress(OSError):
            found[(folder / "comm").read_text().strip()] = os.sched_getaffinity(int(folder.name))
    return found


def memory_nodes():
    """The NUMA nodes from which each thread of QEMU may get memory."""
    folders = Path(f"/proc/{process_id()}/task").iterdir()
    texts = [(folder / "status").read_text() for folder in folders]
    return {text.partition("Mems_allowed_list:")[2].split()[0] for text in texts}


def guest_pages():
    """The anonymous pages of QEMU by NUMA node; most of them are the memory of the guest."""
    found = collections.Counter()
    for line in Path(f"/proc/{process_id()}/numa_maps").read_text().splitlines():
        if " anon=" in line:
            found.update({int(node): int(pages) for node, pages in re.findall(r" N(\d+)=(\d+)", line)})
    return found


def promise(kind):
    """The verdict of the guest; it has an empty state as long as the agent does not know the guest."""
    found = {each["kind"]: each for each in call_agent(SOCKET, "guest.verify")}
    return found.get(kind, {"state": "", "found": ""})


def test_a_domain_runs_on_the_node_of_its_device_with_its_cpu_and_memory(agent, held, domain):
    ((_, nodes),) = wait_for(places, evidence=agent.log)
    assert nodes == "1"
    wait_for(lambda: thread_cpus()["CPU 0/TCG"] <= node_cpus(1), evidence=agent.log)
    driver = (DEVICES / held["CUSTOM_ACCELERATOR"] / "driver").resolve()
    assert driver.name == "vfio-pci"
    assert any(os.readlink(each).startswith("/dev/vfio/") for each in open_files())
    wait_for(lambda: memory_nodes() == {"1"}, evidence=lambda: str(memory_nodes()))


def test_memory_that_vfio_has_pinned_stays_and_is_reported(agent, held, domain):
    pages = guest_pages()
    assert pages[0] * PAGE >= MIB << 20
    assert promise("memory")["state"] == "broken"
    assert "MiB on node 0" in promise("memory")["found"]


def test_the_next_start_has_its_memory_on_the_node_of_its_device(agent, held, domain):
    def defined():
        xml = domain.XMLDesc(libvirt.VIR_DOMAIN_XML_INACTIVE)
        return [dict(each.attrib) for each in ElementTree.fromstring(xml).iterfind("numatune/memory")]

    assert wait_for(defined) == [{"mode": "restrictive", "nodeset": "1"}]
    domain.destroy()
    domain.create()
    # libvirt has bound the process before QEMU began, and the agent has not seen it yet
    assert memory_nodes() == {"1"}
    assert_near(guest_pages())
    wait_for(lambda: promise("memory")["state"] == "kept", evidence=lambda: str(promise("memory")))
    wait_for(lambda: thread_cpus()["CPU 0/TCG"] <= node_cpus(1), evidence=agent.log)


def assert_near(pages):
    assert pages[1] * PAGE >= MIB << 20, pages
    assert pages[1] > 0.9 * sum(pages.values()), pages


def open_files():
    for each in Path(f"/proc/{process_id()}/fd").iterdir():
        with contextlib.suppress(OSError):
            os.readlink(each)
            yield each


def test_a_device_that_is_missing_in_the_domain_is_told_until_it_is_plugged(agent, held, domain):
    disk = held["CUSTOM_DISK"]
    wait_for(lambda: disk in promise("devices")["found"], evidence=lambda: str(promise("devices")))
    domain.attachDevice(hostdev(disk))
    wait_for(lambda: promise("devices")["state"] == "kept", evidence=lambda: str(promise("devices")))
    assert (DEVICES / disk / "driver").resolve().name == "vfio-pci"
    domain.detachDevice(hostdev(disk))
    wait_for(lambda: disk in promise("devices")["found"], evidence=lambda: str(promise("devices")))
    # libvirt gives a managed device back to its own driver
    wait_for(lambda: (DEVICES / disk / "driver").resolve().name != "vfio-pci")


def test_a_drained_host_loses_its_device_when_the_domain_ends(agent, held, domain):
    gone = held["CUSTOM_ACCELERATOR"]
    call_agent(SOCKET, "host.disable", {"reason": "test"})
    rest = PlacementRest()
    root = "&root_required=!COMPUTE_STATUS_DISABLED"
    wait_for(lambda: not rest.send("GET", TOGETHER + root)["allocation_requests"], evidence=agent.log)
    # the kernel waits until no program has the device open
    removal = threading.Thread(target=(DEVICES / gone / "remove").write_text, args=("1",), daemon=True)
    removal.start()
    time.sleep(3)
    print("removed while held:", not removal.is_alive())
    domain.destroy()
    removal.join(60)
    assert not (DEVICES / gone).exists()
    wait_for(lambda: call_agent(SOCKET, "status")["waiting_devices"], evidence=agent.log)
    rest.send("PUT", f"/allocations/{uid(1)}", emptied(rest))
    wait_for(lambda: not any(gone in each["name"] for each in providers().values()), evidence=agent.log)
    call_agent(SOCKET, "host.enable")
