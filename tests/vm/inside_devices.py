"""PCI devices of a real kernel on two NUMA nodes: offered, held by a guest near them, removed and back.

Runs in the virtual machine only: `test_devices.py` starts it there, and PLACEMENT is the service's address.
"""

import os
from pathlib import Path

import pytest

from compute_agent.agent.protocol import call_agent
from compute_agent.host.pci_devices import PCI_DEVICES, PciEvents, read_pci_devices
from compute_agent.inventory.provider_tree import device_of
from compute_agent.model import cpuset
from tests.vm.inside_machine import BASE_INI, SOCKET, SPIN, PlacementRest, make_agent, uid
from tests.waits import wait_for

INI = f"""{BASE_INI}
[compute]
cpu_dedicated_set = 1-3
cpu_shared_set = 0
provider_tree = numa
update_resources_interval = 1
[guests]
reconcile_interval = 1
[pci]
device_spec = {{"vendor_id": "1234", "product_id": "11e8", "resource_class": "accelerator"}}
device_spec = {{"vendor_id": "1b36", "product_id": "0010", "resource_class": "disk"}}
"""
DEVICES = Path("/", PCI_DEVICES)
NODE = Path("/sys/devices/system/node")
KINDS = {("1234", "11e8"), ("1b36", "0010")}
"""Vendor and product of the devices; expander buses and ports have the same vendors."""
TOGETHER = (
    "/allocation_candidates?resources_cpu=PCPU:1,MEMORY_MB:64&resources_far=CUSTOM_ACCELERATOR:1"
    "&resources_disk=CUSTOM_DISK:1&required_node=HW_NUMA_ROOT,CUSTOM_PCIE_ROOT"
    "&same_subtree=_node,_cpu,_far,_disk&group_policy=none"
)


@pytest.fixture(scope="module")
def agent():
    agent = make_agent(INI)
    agent.start()
    wait_for(lambda: len(call_agent(SOCKET, "device.list")) == 4, evidence=agent.log)
    wait_for(lambda: len(providers()) == 7, evidence=agent.log)
    yield agent
    print(agent.log())
    agent.kill()


def providers():
    """The providers of the host by uuid."""
    rest = PlacementRest()
    root = rest.provider("machine")
    found = rest.send("GET", f"/resource_providers?in_tree={root}")["resource_providers"]
    return {each["uuid"]: each for each in found}


def node_cpus(node):
    return cpuset.parse((NODE / f"node{node}/cpulist").read_text())


def reserved_amount(address):
    (uuid,) = (uuid for uuid, each in providers().items() if device_of(each["name"]) == address)
    inventories = PlacementRest().send("GET", f"/resource_providers/{uuid}/inventories")["inventories"]
    return sum(one["reserved"] for one in inventories.values())


def test_devices_are_below_the_nodes_that_the_kernel_shows(agent):
    shown = providers()
    parents = {
        device_of(each["name"]): shown[each["parent_provider_uuid"]]["name"]
        for each in shown.values()
        if device_of(each["name"])
    }
    found = {
        each.address: each
        for each in read_pci_devices(Path("/"))
        if (each.vendor_id, each.product_id) in KINDS
    }
    nodes = {address: (DEVICES / address / "numa_node").read_text().strip() for address in found}
    assert sorted(nodes.values()) == ["0", "0", "1", "1"]
    assert parents == {address: f"machine_NUMA_{node}" for address, node in nodes.items()}
    assert {each.root_complex for each in found.values()} == {"pci0000:40", "pci0000:80"}
    assert all(each.iommu_group is not None for each in found.values())
    disks = [row for row in call_agent(SOCKET, "device.list") if row["resource_class"] == "CUSTOM_DISK"]
    assert all("GT/s" in row["link"] for row in disks)


def test_a_guest_runs_on_the_node_of_its_devices_which_can_be_removed_and_come_back(agent):
    rest = PlacementRest()
    # The second node: without devices the agent would choose the first.
    candidates = rest.send("GET", TOGETHER)["allocation_requests"]
    names = {uuid: each["name"] for uuid, each in providers().items()}
    assert len(candidates) == 2
    (chosen,) = (
        each for each in candidates if any(names[one].endswith("NUMA_1") for one in each["allocations"])
    )
    held = {names[uuid]: each["resources"] for uuid, each in chosen["allocations"].items()}
    rest.claim(uid(1), **held)
    command = ["sh", "-c", SPIN]
    guest = call_agent(SOCKET, "guest.run", {"uuid": uid(1), "name": "near", "command": command})
    assert os.sched_getaffinity(guest["pid"]) <= node_cpus(1)
    assert guest["numa_nodes"] == "1"
    rows = {row["address"]: row for row in call_agent(SOCKET, "device.list")}
    mine = [address for address, row in rows.items() if row["guests"] == {"near": 1}]
    assert len(mine) == 2
    assert {rows[address]["numa_node"] for address in mine} == {1}

    events = PciEvents()
    before = events.count_events()
    gone = next(address for address in mine if rows[address]["resource_class"] == "CUSTOM_ACCELERATOR")
    (DEVICES / gone / "remove").write_text("1")
    wait_for(lambda: call_agent(SOCKET, "status")["waiting_devices"], evidence=agent.log)
    assert events.count_events() > before
    events.close()
    assert reserved_amount(gone) == 1
    assert os.sched_getaffinity(guest["pid"]) <= node_cpus(1)
    assert "which is gone, or not offered any more" in agent.log()
    (DEVICES.parent / "rescan").write_text("1")
    wait_for(lambda: reserved_amount(gone) == 0, evidence=agent.log)
    wait_for(lambda: "held is back" in agent.log(), evidence=agent.log)


def test_a_drained_host_loses_a_removed_device_with_its_last_holder(agent):
    call_agent(SOCKET, "host.disable", {"reason": "test"})
    rest = PlacementRest()
    root = "&root_required=!COMPUTE_STATUS_DISABLED"
    wait_for(lambda: not rest.send("GET", TOGETHER + root)["allocation_requests"], evidence=agent.log)
    call_agent(SOCKET, "guest.stop", {"guest": uid(1)})
    (row,) = (
        row
        for row in call_agent(SOCKET, "device.list")
        if row["numa_node"] == 1 and row["resource_class"] == "CUSTOM_ACCELERATOR"
    )
    (DEVICES / row["address"] / "remove").write_text("1")
    wait_for(lambda: call_agent(SOCKET, "status")["waiting_devices"], evidence=agent.log)
    rest.send("PUT", f"/allocations/{uid(1)}", emptied(rest))
    wait_for(
        lambda: row["address"] not in {device_of(each["name"]) for each in providers().values()},
        evidence=agent.log,
    )
    call_agent(SOCKET, "host.enable")


def emptied(rest):
    """The body that ends the allocations of the guest."""
    generation = rest.send("GET", f"/allocations/{uid(1)}").get("consumer_generation")
    return {
        "allocations": {},
        "project_id": "p",
        "user_id": "u",
        "consumer_generation": generation,
        "consumer_type": "INSTANCE",
    }
