"""Tests of the lists and metrics of guests with dedicated CPUs, and of PCI devices with their holders."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
from prometheus_client import CollectorRegistry

from compute_agent.host.pci_devices import read_pci_devices
from compute_agent.inventory.device_providers import offer_devices, with_devices
from compute_agent.inventory.device_spec import parse_device_specs
from compute_agent.inventory.provider_tree import ProviderInventory, ProviderNode, ProviderTree
from compute_agent.loops import holders
from compute_agent.loops.base import ConfigurationInForce
from compute_agent.loops.holders import DeviceSource, NoiseSource
from compute_agent.model.guest_settings import IsolationLevel
from compute_agent.pipeline.guest_cache import GuestView, UnclaimedHolding
from compute_agent.promises.facts import held_devices
from tests.compute_agent.builders import build_guest
from tests.compute_agent.host.pci_trees import FakeDevice, make_pci_tree
from tests.compute_agent.inventory.machines import machine
from tests.compute_agent.loops.configurations import configuration
from tests.compute_agent.pipeline.fake_host import FakeHost

INTERRUPTS = "CPU0 CPU1 CPU2 CPU5\n 30: 1 4 2 8 IO-APIC 2-edge eth0\nLOC: 9 9 9 9 Local timer\n"


class NoisyHost(FakeHost):
    """A fake host with a source of metrics of noise."""

    def __init__(self, root):
        super().__init__()
        self.registry = CollectorRegistry()
        options = SimpleNamespace(host=SimpleNamespace(root=str(root)))
        in_force = ConfigurationInForce(configuration(options))
        self.source = NoiseSource(in_force, self.pipeline, self.driver, self.registry)


@pytest.fixture
def host(tmp_path):
    (tmp_path / "proc/100").mkdir(parents=True)
    (tmp_path / "proc/interrupts").write_text(INTERRUPTS)
    (tmp_path / "proc/softirqs").write_text("CPU0 CPU1 CPU2 CPU5\nRCU: 1 7 1 1\n")
    fields = " ".join(["0"] * 50)
    (tmp_path / "proc/100/stat").write_text(f"100 (sleep) S {fields}\n")
    (tmp_path / "proc/100/status").write_text("nonvoluntary_ctxt_switches:\t3\n")
    (tmp_path / "proc/100/schedstat").write_text("5 2500000000 7\n")
    return NoisyHost(tmp_path)


def series(host):
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in host.registry.collect()
        for sample in family.samples
    }


def test_a_host_without_dedicated_guests_has_no_series(host):
    host.run("a", (0, 0, 1))
    assert series(host) == {}
    assert host.source.list_holders() == []


def test_cpus_and_guests_have_their_counters(host):
    host.run("a", (0, 1, 0))
    [holder] = host.source.list_holders()
    assert (holder.uuid, holder.cpus, holder.level) == ("a", {1}, IsolationLevel.SHARED)
    assert series(host) == {
        ("compute_agent_cpu_interrupts_total", "1"): 4,
        ("compute_agent_cpu_softirqs_total", "1"): 7,
        ("compute_agent_cpu_ticks_total", "1"): 9,
        ("compute_agent_guest_involuntary_switches_total", "a"): 3,
        ("compute_agent_guest_run_delay_seconds_total", "a"): 2.5,
    }


def test_series_are_bounded(host, monkeypatch):
    monkeypatch.setattr(holders, "MAX_GUESTS", 1)
    host.run("a", (0, 1, 0))
    host.run("b", (1, 1, 0))
    assert {key[1] for key in series(host)} == {"1", "a"}
    monkeypatch.setattr(holders, "MAX_GUESTS", 2)
    assert {key[1] for key in series(host)} == {"1", "5", "a", "b"}
    monkeypatch.setattr(holders, "MAX_CPUS", 1)
    assert {key[1] for key in series(host)} == {"1", "a", "b"}


def test_an_ended_guest_has_no_threads(host):
    host.run("a", (0, 1, 0))
    del host.driver.affinities["a"]
    [holder] = host.source.list_holders()
    assert holder.threads == frozenset()


ROOT = "11111111-0000-4000-8000-000000000001"
GPU, CARD, FUNCTIONS = "0000:81:00.0", "0000:82:00.0", ("0000:82:02.0", "0000:82:02.1")
SPECS = parse_device_specs(
    ['{"vendor_id": "10de", "resource_class": "gpu"}', '{"product_id": "154c", "resource_class": "nic"}']
)


class FakePipeline:
    """A pipeline that only has a provider tree and views of guests."""

    def __init__(self, tree, *views):
        self.reported_tree = tree
        self.unclaimed_holdings = {}
        self._views = views

    def guest_views(self):
        return self._views


def view(name, **held):
    return GuestView(build_guest(name), held, None, "", "", (), {}, ())


def source_of(root, *views):
    make_pci_tree(
        root,
        [
            FakeDevice(("0000:80:01.0", GPU), node=0, width=8),
            FakeDevice(("0000:80:02.0", CARD), "8086", "1572", node=0, virtual=FUNCTIONS, max_virtual=4),
            *(FakeDevice(("0000:80:02.0", each), "8086", "154c", node=0) for each in FUNCTIONS),
        ],
    )
    topology = machine(cores=2)
    tree = ProviderTree((ProviderNode("h", ROOT, None),))
    tree, _ = with_devices(tree, offer_devices(SPECS, read_pci_devices(root)).providers, topology)
    names = {node.device: node.uuid for node in tree.nodes}
    held = [view(name, **{names[card]: {kind: amount}}) for name, card, kind, amount in views]
    registry = CollectorRegistry()
    pipeline = FakePipeline(tree, *held)
    return DeviceSource(root, pipeline, registry), registry, pipeline


def test_devices_are_listed_with_their_holders(tmp_path):
    source, _, _ = source_of(tmp_path, ("web", CARD, "CUSTOM_NIC", 1))
    gpu, card = source.list_uses()
    assert (gpu.address, gpu.node, gpu.path, gpu.held_amount) == (GPU, 0, "pci0000:80/0000:80:01.0", 0)
    assert gpu.in_words == f"{GPU} CUSTOM_GPU: free"
    assert str(gpu.device.link) == "32 GT/s x8 of 32 GT/s x16"
    assert card.in_words == f"{CARD} CUSTOM_NIC, 1 of 2 held: web"


def test_a_guest_that_does_not_run_keeps_its_device(tmp_path):
    source, _, pipeline = source_of(tmp_path, ("web", CARD, "CUSTOM_NIC", 1), ("web", CARD, "CUSTOM_NIC", 1))
    stopped = "0b5d0a34-6bb5-4a2f-9d6e-0000000000f1"
    gpu = next(node.uuid for node in pipeline.reported_tree.nodes if node.device == GPU)
    pipeline.unclaimed_holdings[stopped] = UnclaimedHolding({gpu: {"CUSTOM_GPU": 1}}, 0.0)
    # Guests may share a name.
    assert [use.holders for use in source.list_uses()] == [{stopped: 1}, {"web": 2}]


def test_metrics_count_held_and_free_devices_and_degraded_links(tmp_path):
    _, registry, _ = source_of(tmp_path, ("a", CARD, "CUSTOM_NIC", 1), ("b", GPU, "CUSTOM_GPU", 1))

    def units(name, state):
        labels = {"resource_class": name, "state": state}
        return registry.get_sample_value("compute_agent_pci_devices", labels)

    assert (units("CUSTOM_GPU", "held"), units("CUSTOM_GPU", "free")) == (1, 0)
    assert (units("CUSTOM_NIC", "held"), units("CUSTOM_NIC", "free")) == (1, 1)
    assert registry.get_sample_value("compute_agent_pci_link_share", {"device": GPU}) == 0.5
    assert registry.get_sample_value("compute_agent_pci_degraded_links") == 1


def test_a_class_of_a_provider_file_is_no_device(tmp_path):
    source, _, pipeline = source_of(tmp_path, ("web", CARD, "CUSTOM_EXTRA", 5))
    tree = pipeline.reported_tree
    pipeline.reported_tree = extended = replace(
        tree,
        nodes=tuple(
            replace(node, inventories={**node.inventories, "CUSTOM_EXTRA": ProviderInventory(9)})
            for node in tree.nodes
        ),
    )
    assert [(use.address, use.total, use.held_amount) for use in source.list_uses()] == [
        (GPU, 1, 0),
        (CARD, 2, 0),
    ]
    (view,) = pipeline.guest_views()
    assert held_devices(extended, view.allocation) == {}


def test_a_device_that_is_gone_is_listed_without_driver_and_link(tmp_path):
    source, registry, _ = source_of(tmp_path)
    (tmp_path / "sys/bus/pci/devices" / GPU).unlink()
    assert source.list_uses()[0].device is None
    assert registry.get_sample_value("compute_agent_pci_degraded_links") == 0
