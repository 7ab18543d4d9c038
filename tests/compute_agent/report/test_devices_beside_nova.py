"""Tests of PCI devices beside a nova-compute that reports devices itself: each device has one provider."""

import contextlib
import itertools
import logging
from dataclasses import replace

import pytest

from benchmarks.reference import ReferenceMissing
from compute_agent.host.pci_devices import PciDevice
from compute_agent.inventory.derive import InventorySettings, derive_provider_tree
from compute_agent.inventory.device_providers import foreign_attributes, offer_devices, with_devices
from compute_agent.inventory.device_spec import parse_device_specs
from compute_agent.inventory.provider_tree import device_of
from compute_agent.model.cpuset import CpuSets
from compute_agent.report.reporter import HostReporter
from tests.compute_agent.inventory.machines import machine
from tests.compute_agent.nova_compute import MANAGED, NovaCompute
from tests.compute_agent.servers import client_of, running

TOPOLOGY = machine(nodes=2, cores=4)
SETS = CpuSets(dedicated=TOPOLOGY.online, shared=frozenset(), emulator=frozenset())
FIRST, SECOND, THIRD = "0000:0a:00.0", "0000:8a:00.0", "0000:8b:00.0"
GPUS = [
    PciDevice(FIRST, "10de", "2331", numa_node=0, root_complex="pci0000:00", bridges=("0000:00:01.0",)),
    PciDevice(SECOND, "10de", "2331", numa_node=1, root_complex="pci0000:80", bridges=("0000:80:01.0",)),
    PciDevice(THIRD, "10de", "2331", numa_node=1, root_complex="pci0000:80", bridges=("0000:80:01.0",)),
]
SPECS = parse_device_specs(['{"vendor_id": "10de", "resource_class": "gpu"}'])


@pytest.fixture(scope="module", params=["ours", pytest.param("stock", marks=pytest.mark.slow)])
def client(request, tmp_path_factory):
    with contextlib.ExitStack() as stack:
        try:
            url = stack.enter_context(running(request.param, tmp_path_factory.mktemp(request.param)))
        except ReferenceMissing as error:
            pytest.skip(f"OpenStack Placement cannot be installed: {error}")
        found = client_of(url, tmp_path_factory.mktemp("agent"))
        found.create_resource_class("CUSTOM_GPU")
        yield found


class HostWithDevices:
    """A host with GPUs, a nova-compute and an agent."""

    number = itertools.count(1)

    def __init__(self, client):
        self.client = client
        self.id = next(self.number)
        self.name = f"gpu{self.id}.example"
        self.nova = NovaCompute(client, f"99999999-0000-4000-8000-{self.id:012d}", self.name)
        self.owned = {}
        self.reporter = HostReporter(client, {}, lambda owned: setattr(self, "owned", owned))

    def report(self, devices=GPUS, attributes=False):
        """Run one period of Nova and of the agent. The agent reports twice, and the second report changes
        nothing.
        """
        self.nova.update()
        tree = derive_provider_tree(TOPOLOGY, SETS, InventorySettings("beside"), self.nova.uuid, self.name)
        tree, _ = with_devices(tree, offer_devices(SPECS, devices).providers, TOPOLOGY)
        if attributes:
            tree = replace(tree, device_attributes=foreign_attributes(GPUS, TOPOLOGY))
        assert self.reporter.report_tree(tree).refusals == ()
        assert self.reporter.report_tree(tree).sent == 0
        return self.reporter.waiting.devices

    def owners(self):
        """The program that reports each device, by address of the device."""
        records = self.client.providers_in_tree(self.nova.uuid)
        return {
            address: "nova" if MANAGED in self.client.get_traits(record.uuid)[0] else "agent"
            for record in records
            if (address := device_of(record.name))
        }

    def attributes(self, address):
        reported = self.reporter.read_reported(self.nova.uuid).values()
        return next(each.attributes for each in reported if each.name.lower().endswith(address))


@pytest.fixture
def host(client):
    return HostWithDevices(client)


def test_devices_that_nova_does_not_report_are_offered(host):
    host.nova.devices = {FIRST: "CUSTOM_GPU"}
    (sentence,) = host.report()
    assert sentence.startswith(f"{FIRST}: nova-compute reports them to Placement, so the agent does not.")
    assert host.owners() == {FIRST: "nova", SECOND: "agent", THIRD: "agent"}
    assert host.reporter.waiting.foreign_devices == {FIRST}
    assert len(host.owned) == 3  # with the switch of the second node


def test_a_device_that_nova_begins_to_report_is_left_to_it(host, caplog):
    assert host.report() == ()
    assert set(host.owners().values()) == {"agent"}
    host.nova.devices = {SECOND: "CUSTOM_GPU"}
    with caplog.at_level(logging.WARNING):
        assert len(host.report()) == 1
    assert "nova-compute has taken over providers of PCI devices" in caplog.text
    assert host.owners() == {FIRST: "agent", SECOND: "nova", THIRD: "agent"}
    # Without the device the agent must not delete Nova's provider.
    assert host.report(GPUS[:1]) == ()
    assert host.owners() == {FIRST: "agent", SECOND: "nova"}
    # Nova ends its report, and the agent offers the device.
    host.nova.devices = {}
    assert host.report() == ()
    assert set(host.owners().values()) == {"agent"}


def test_a_device_of_another_program_is_left_to_it(host):
    host.nova.update()
    name = f"{host.name}_{FIRST.upper()}"
    host.client.create_provider(f"33333333-0000-4000-8000-{host.id:012d}", name, host.nova.uuid)
    (sentence,) = host.report()
    assert sentence.startswith(f"{FIRST}: another program reports them to Placement")
    assert len(host.owned) == 3  # with the switch of the second node


def test_novas_devices_have_their_node_and_path(host):
    if not host.client.keeps_attributes():
        pytest.skip("a stock server keeps no attributes")
    host.nova.devices = {FIRST: "CUSTOM_GPU", SECOND: "CUSTOM_GPU"}
    host.report(attributes=True)
    near, far = {"numa_node": 0.0, "pci_path": "pci0000:00/0000:00:01.0"}, "pci0000:80/0000:80:01.0"
    assert host.attributes(FIRST) == near
    assert host.attributes(SECOND) == host.attributes(THIRD) == {"numa_node": 1.0, "pci_path": far}
    # Nova keeps them, and they go with the option.
    for _ in range(7):
        host.report(attributes=True)
    assert host.attributes(FIRST) == near
    host.report()
    assert host.attributes(FIRST) == {}
    assert host.attributes(THIRD) == {"numa_node": 1.0, "pci_path": far}
    host.report(attributes=True)
    host.reporter.remove_own(host.nova.uuid)
    assert host.attributes(FIRST) == {}
    assert host.owners() == {FIRST: "nova", SECOND: "nova"}
