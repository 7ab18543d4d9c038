"""Tests of one agent against this service and OpenStack Placement: report, reshape and allocations."""

import contextlib
import itertools
import logging
from dataclasses import replace

import pytest

from benchmarks.reference import ReferenceMissing
from compute_agent.inventory.cpu_sets import CpuOptions, resolve_cpu_sets
from compute_agent.inventory.derive import SHAPES, InventorySettings, derive_provider_tree
from compute_agent.inventory.resctrl import CacheDomain, CachePlatform
from compute_agent.report.answers import ConflictError
from compute_agent.report.capacity import CpuLocation
from compute_agent.report.reporter import MAX_ATTEMPTS, HostReporter
from compute_agent.report.reshape import InfeasibleReshape
from tests.compute_agent.builders import hold_resources
from tests.compute_agent.inventory.machines import machine
from tests.compute_agent.servers import client_of, running
from tests.placement.builders import claim_body

pytestmark = pytest.mark.slow

TOPOLOGY = machine(nodes=2, cores=4, threads=2)  # CPUs 0-7 on node 0, 8-15 on node 1
CONTROL = CachePlatform({0: CacheDomain(0, ways=11), 10: CacheDomain(10, ways=11)}, groups=8)
SETS = {"cpu_dedicated_set": "0-5,8-13", "cpu_shared_set": "6-7,14-15"}


@pytest.fixture(scope="module", params=["ours", "stock"])
def server(request, tmp_path_factory):
    """A running service, as a pair of its kind and its URL."""
    with contextlib.ExitStack() as stack:
        try:
            url = stack.enter_context(running(request.param, tmp_path_factory.mktemp(request.param)))
        except ReferenceMissing as error:
            pytest.skip(f"OpenStack Placement cannot be installed: {error}")
        yield request.param, url


@pytest.fixture(scope="module")
def kind(server):
    return server[0]


@pytest.fixture(scope="module")
def client(server, tmp_path_factory):
    return client_of(server[1], tmp_path_factory.mktemp("agent"))


class ServedHost:
    """A host of its own: the uuid and name of its root, the stored values of its agent, and its guests."""

    number = itertools.count(1)

    def __init__(self, client):
        self.client = client
        self.id = next(self.number)
        self.root = f"11111111-0000-4000-8000-{self.id:012d}"
        self.owned = {}
        self.reporter = self.restarted()

    def keep(self, owned):
        self.owned = owned

    def restarted(self):
        self.reporter = HostReporter(self.client, self.owned, self.keep)
        return self.reporter

    def tree(self, shape, platform=None, settings=None, **options):
        sets = resolve_cpu_sets(CpuOptions(**options), TOPOLOGY)
        found = InventorySettings(provider_tree=shape, disk_gb=50, **settings or {})
        return derive_provider_tree(TOPOLOGY, sets, found, self.root, f"h{self.id}", platform)

    def guest(self, number):
        return f"22222222-0000-4000-8000-{self.id:06d}{number:06d}"

    def claim(self, number, holding, **fields):
        hold_resources(self.client, self.guest(number), holding, **fields)

    def reshape(self, tree, locations):
        zones = {node.uuid: node.cpus for node in tree.nodes}
        locations = {self.guest(number): location for number, location in locations.items()}
        return self.reporter.reshape_tree(tree, locations, zones)

    def holds(self, number, tree):
        """The allocations of a guest, by the last part of the provider's name."""
        names = {node.uuid: node.name.removeprefix(f"h{self.id}").lstrip("_") for node in tree.nodes}
        held = self.client.get_allocations(self.guest(number)).resources
        return {names.get(uuid, uuid): amounts for uuid, amounts in held.items()}

    def shown(self):
        """All data that Placement has about the host, without generations."""
        self.reporter.reader.reported.clear()
        return {
            uuid: (provider.name, provider.parent, provider.inventories, provider.traits)
            for uuid, provider in self.reporter.read_reported(self.root).items()
        }


@pytest.fixture
def host(client):
    return ServedHost(client)


def expected(tree):
    return {node.uuid: (node.name, node.parent, dict(node.inventories), node.traits) for node in tree.nodes}


@pytest.mark.parametrize("shape", SHAPES)
def test_a_host_is_reported_once(host, shape):
    tree = host.tree(shape, **SETS)
    assert host.reporter.report_tree(tree).refusals == ()
    assert host.shown() == expected(tree)
    assert host.restarted().report_tree(tree).sent == 0


def test_the_class_names_are_those_the_server_knows(host, kind):
    tree = host.tree("numa", CONTROL, **SETS)
    assert host.reporter.report_tree(tree).refusals == ()
    classes = {name for _, _, inventories, _ in host.shown().values() for name in inventories}
    names = {"ours": {"LLC"}, "stock": {"CUSTOM_LLC"}}[kind]
    assert {name for name in classes if "LLC" in name} == names
    assert host.restarted().report_tree(tree).sent == 0


def test_a_trait_that_the_server_does_not_know_is_left_out_and_told_once(host, caplog):
    tree = host.tree("flat")
    root = replace(tree.root, traits=tree.root.traits | {"HW_CPU_X86_OF_TOMORROW", "CUSTOM_OURS"})
    tree = replace(tree, nodes=(root,))
    with caplog.at_level(logging.WARNING, "compute_agent"):
        assert host.reporter.report_tree(tree).refusals == ()
        assert host.reporter.report_tree(tree).sent == 0
    assert host.shown()[host.root][3] == root.traits - {"HW_CPU_X86_OF_TOMORROW"}
    assert caplog.text.count("HW_CPU_X86_OF_TOMORROW") == 1


def test_from_flat_vcpu_to_pcpu_of_each_node(host, client):
    flat = host.tree("flat")
    host.reporter.report_tree(flat)
    storage = f"33333333-0000-4000-8000-{host.id:012d}"
    client.create_provider(storage, f"storage{host.id}", None)
    client.set_inventories(storage, {"DISK_GB": {"total": 100}}, 0)
    host.claim(1, {host.root: {"VCPU": 2, "MEMORY_MB": 512}, storage: {"DISK_GB": 5}})
    host.claim(2, {host.root: {"VCPU": 3, "MEMORY_MB": 256, "DISK_GB": 1}})
    host.claim(3, {host.root: {"VCPU": 1}})
    host.claim(4, {host.root: {"DISK_GB": 2}})

    numa = host.tree("numa", **SETS)
    locations = {
        1: CpuLocation(own=frozenset({8, 9}), pinned_vcpus=2),
        2: CpuLocation(own=frozenset({0, 1, 2, 3, 4, 5}), pinned_vcpus=3),  # keeps siblings empty
        3: CpuLocation(floating=frozenset(range(16))),
    }
    host.restarted()
    assert host.reshape(numa, locations).moves
    assert host.holds(1, numa) == {"NUMA_1": {"PCPU": 2, "MEMORY_MB": 512}, storage: {"DISK_GB": 5}}
    assert host.holds(2, numa) == {"NUMA_0": {"PCPU": 6, "MEMORY_MB": 256}, "": {"DISK_GB": 1}}
    assert host.holds(3, numa) == {"NUMA_0": {"VCPU": 1}}
    assert host.holds(4, numa) == {"": {"DISK_GB": 2}}
    record = client.get_allocations(host.guest(1))
    assert (record.project_id, record.user_id, record.consumer_type) == ("project", "user", "INSTANCE")

    report = host.reporter.report_tree(numa)
    assert report.refusals == ()
    assert host.shown() == expected(numa)
    assert host.reshape(numa, locations).moves == ()
    assert host.reporter.report_tree(numa).sent == 0


def test_through_every_shape_and_back(host):
    locations = {1: CpuLocation(own=frozenset({8, 9})), 2: CpuLocation(floating=frozenset({6, 7}))}
    flat = host.tree("flat", CONTROL, **SETS)
    host.reporter.report_tree(flat)
    l3_1 = next(node.uuid for node in flat.nodes if node.name.endswith("L3_10"))
    llc = next(name for name in host.shown()[l3_1][2] if "LLC" in name)
    host.claim(1, {host.root: {"PCPU": 2, "MEMORY_MB": 512}, l3_1: {llc: 3}})
    host.claim(2, {host.root: {"VCPU": 2, "MEMORY_MB": 64}})
    before = {number: host.holds(number, flat) for number in locations}
    zones = {
        "flat": ({"": {"PCPU": 2, "MEMORY_MB": 512}}, {"": {"VCPU": 2, "MEMORY_MB": 64}}),
        "numa": ({"NUMA_1": {"PCPU": 2, "MEMORY_MB": 512}}, {"NUMA_0": {"VCPU": 2, "MEMORY_MB": 64}}),
        "l3": (
            {"NUMA_1": {"MEMORY_MB": 512}, "L3_10": {"PCPU": 2}},
            {"NUMA_0": {"MEMORY_MB": 64}, "L3_0": {"VCPU": 2}},
        ),
    }
    for shape in ("numa", "l3", "flat", "l3", "numa", "flat"):
        tree = host.tree(shape, CONTROL, **SETS)
        assert host.reshape(tree, locations).moves
        assert host.reporter.report_tree(tree).refusals == ()
        first, second = zones[shape]
        first = {**first, "L3_10": {**first.get("L3_10", {}), llc: 3}}
        assert host.holds(1, tree) == first
        assert host.holds(2, tree) == second
        assert host.shown().keys() == {node.uuid for node in tree.nodes}
    assert {number: host.holds(number, flat) for number in locations} == before


def test_consumers_keep_their_types_and_those_without_have_none(host, client):
    host.reporter.report_tree(host.tree("flat"))
    body = claim_body({host.root: {"VCPU": 1}})
    del body["consumer_type"]
    client.send_request("PUT", f"/allocations/{host.guest(1)}", body, "1.28")
    host.claim(2, {host.root: {"VCPU": 1}}, consumer_type="MIGRATION")
    numa = host.tree("numa")
    assert host.reshape(numa, {}).moves
    for number, consumer_type in ((1, "unknown"), (2, "MIGRATION")):
        assert host.holds(number, numa) == {"NUMA_0": {"VCPU": 1}}
        assert client.get_allocations(host.guest(number)).consumer_type == consumer_type


def test_a_claim_between_planning_and_reshape_is_not_lost(host, client, monkeypatch):
    host.reporter.report_tree(host.tree("flat"))
    host.claim(1, {host.root: {"VCPU": 2}})
    send, late = client.send_reshape, [2]

    def interfering(body):
        if late:
            host.claim(late.pop(), {host.root: {"VCPU": 5}})
        send(body)

    monkeypatch.setattr(client, "send_reshape", interfering)
    numa = host.tree("numa")
    assert host.reshape(numa, {}).moves
    assert host.holds(1, numa) == {"NUMA_0": {"VCPU": 2}}
    assert host.holds(2, numa) == {"NUMA_0": {"VCPU": 5}}


def test_after_four_conflicts_the_old_state_stays(host, client, monkeypatch):
    flat = host.tree("flat")
    host.reporter.report_tree(flat)
    send, amounts = client.send_reshape, []

    def interfering(body):
        amounts.append(1)
        host.claim(1, {host.root: {"VCPU": 1 + len(amounts)}})
        send(body)

    host.claim(1, {host.root: {"VCPU": 1}})
    monkeypatch.setattr(client, "send_reshape", interfering)
    with pytest.raises(ConflictError):
        host.reshape(host.tree("numa"), {})
    assert len(amounts) == MAX_ATTEMPTS
    assert host.holds(1, flat) == {"": {"VCPU": 1 + MAX_ATTEMPTS}}
    assert host.shown()[host.root][2] == flat.root.inventories


def test_an_infeasible_reshape_changes_nothing(host):
    flat = host.tree("flat")
    host.reporter.report_tree(flat)
    host.claim(1, {host.root: {"VCPU": 16}})
    before = host.shown()
    found = host.reshape(host.tree("numa", cpu_shared_set="0"), {})
    assert isinstance(found, InfeasibleReshape)
    assert "16 VCPU" in found.reason
    assert host.shown() == before


def test_allocations_are_read_by_consumer_and_by_provider(host, client):
    numa = host.tree("numa", **SETS)
    host.reporter.report_tree(numa)
    node = numa.nodes[1].uuid
    host.claim(1, {node: {"PCPU": 2, "MEMORY_MB": 64}})
    assert client.get_allocations(host.guest(1)).resources == {node: {"PCPU": 2, "MEMORY_MB": 64}}
    assert client.provider_allocations(node) == {host.guest(1): {"PCPU": 2, "MEMORY_MB": 64}}
    assert client.get_allocations(host.guest(2)).resources == {}


def set_through_api(client, provider, **classes):
    """Set some fields of some inventories, as an operator does. All other fields stay."""
    inventories, generation = client.get_inventories(provider)
    changed = {name: {**record, **classes.get(name, {})} for name, record in inventories.items()}
    client.set_inventories(provider, changed, generation)


def test_values_set_through_the_api_survive_restarts(host, client, caplog):
    tree = host.tree("flat", **SETS)
    host.reporter.report_tree(tree)
    set_through_api(
        client, host.root, VCPU={"allocation_ratio": 9.5, "reserved": 1}, PCPU={"reserved": 2}, DISK_GB={}
    )
    set_through_api(client, host.root, MEMORY_MB={"reserved": 4096}, DISK_GB={"allocation_ratio": 2.5})
    wanted = {
        **expected(tree)[host.root][2],
        "VCPU": replace(tree.root.inventories["VCPU"], allocation_ratio=9.5, reserved=1),
        "PCPU": replace(tree.root.inventories["PCPU"], reserved=2),
        "MEMORY_MB": replace(tree.root.inventories["MEMORY_MB"], reserved=4096),
        "DISK_GB": replace(tree.root.inventories["DISK_GB"], allocation_ratio=2.5),
    }
    for _ in range(2):
        with caplog.at_level(logging.WARNING, "compute_agent"):
            assert host.reporter.report_tree(tree).sent == 0
        assert host.shown()[host.root][2] == wanted
        host.restarted()
    assert (
        "reserved of MEMORY_MB was set to 4096 through the API and stays; the agent's is 512" in caplog.text
    )
    # The host changes, but the values of the operator stay.
    smaller = host.tree("flat", cpu_dedicated_set="0-5", cpu_shared_set="6-7")
    assert host.reporter.report_tree(smaller).refusals == ()
    shown = host.shown()[host.root][2]
    assert {
        name: (shown[name].total, shown[name].reserved, shown[name].allocation_ratio) for name in shown
    } == {
        "VCPU": (2, 1, 9.5),
        "PCPU": (6, 2, 1.0),
        "MEMORY_MB": (wanted["MEMORY_MB"].total, 4096, 1.0),
        "DISK_GB": (50, 0, 2.5),
    }
    # Given back: the agent decides again.
    set_through_api(client, host.root, PCPU={"reserved": 0}, MEMORY_MB={"reserved": 512})
    assert host.reporter.report_tree(host.tree("flat", **SETS)).refusals == ()
    assert host.reporter.adjustments == tuple(
        one for one in host.reporter.adjustments if "VCPU" in one or "DISK_GB" in one
    )


def test_values_set_through_the_api_survive_the_loss_of_state(host, client):
    tree = host.tree("numa", **SETS)
    host.reporter.report_tree(tree)
    node = tree.nodes[1].uuid
    set_through_api(client, node, VCPU={"allocation_ratio": 16.0}, MEMORY_MB={"reserved": 1000})
    host.owned = {}
    assert host.restarted().report_tree(tree).sent == 0
    shown = host.shown()[node][2]
    assert (shown["VCPU"].allocation_ratio, shown["MEMORY_MB"].reserved) == (16.0, 1000)
    host.restarted().report_tree(tree)
    assert host.shown()[node][2] == shown


def test_options_of_the_ini_file_win_over_what_was_set(host, client, caplog):
    configured = {"cpu_allocation_ratio", "reserved_host_memory_mb"}
    tree = host.tree("flat", settings={"cpu_allocation_ratio": 3.0, "configured": configured}, **SETS)
    host.reporter.report_tree(tree)
    set_through_api(client, host.root, VCPU={"allocation_ratio": 9.0}, MEMORY_MB={"reserved": 7})
    with caplog.at_level(logging.WARNING, "compute_agent"):
        assert host.restarted().report_tree(tree).sent == 1
    assert host.shown() == expected(tree)
    assert "[DEFAULT] cpu_allocation_ratio says 3: unset that to keep what is set here" in caplog.text
    # After the option is unset, the ratio stays unchanged, as in Nova, and the reserve becomes the default.
    unset = host.tree("flat", **SETS)
    host.reporter.report_tree(unset)
    shown = host.shown()[host.root][2]
    assert (shown["VCPU"].allocation_ratio, shown["MEMORY_MB"].reserved) == (3.0, 512)


def test_a_reshape_takes_the_ratio_along(host, client):
    flat = host.tree("flat", cpu_shared_set="0-15")
    host.reporter.report_tree(flat)
    set_through_api(client, host.root, VCPU={"allocation_ratio": 16.0})
    host.claim(1, {host.root: {"VCPU": 8}})
    numa = host.tree("numa", cpu_shared_set="0-15")
    host.restarted()
    assert host.reshape(numa, {1: CpuLocation(floating=frozenset(range(16)))}).moves
    host.reporter.report_tree(numa)
    ratios = {
        inventories["VCPU"].allocation_ratio
        for _, _, inventories, _ in host.shown().values()
        if "VCPU" in inventories
    }
    assert ratios == {16.0}
