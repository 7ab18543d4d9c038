"""Tests of an agent beside nova-compute, with this service and OpenStack Placement: neither undoes the
other's writes.
"""

import contextlib
import itertools
import logging
from types import SimpleNamespace

import pytest

from benchmarks.reference import ReferenceMissing
from compute_agent.inventory.cpu_sets import CpuOptions, resolve_cpu_sets
from compute_agent.inventory.derive import InventorySettings, derive_provider_tree
from compute_agent.inventory.resctrl import CacheDomain, CachePlatform
from compute_agent.report.reporter import HostReporter
from compute_agent.report.root_provider import NovaRoot, RootMissingError, RootSearch, find_root
from tests.compute_agent.inventory.machines import machine
from tests.compute_agent.nova_compute import NovaCompute, RecordingClient
from tests.compute_agent.servers import client_of, running

pytestmark = pytest.mark.slow

TOPOLOGY = machine(nodes=2, cores=4, threads=2)
CONTROL = CachePlatform(
    {
        cache: CacheDomain(cache, ways=11, reserved_ways=3, bandwidth_min=10, bandwidth_step=10)
        for cache in (0, 10)
    },
    groups=8,
    groups_taken=2,
    features=frozenset({"L3_CAT", "MBA"}),
)
UPDATES = 100


@pytest.fixture(scope="module", params=["ours", "stock"])
def client(request, tmp_path_factory):
    with contextlib.ExitStack() as stack:
        try:
            url = stack.enter_context(running(request.param, tmp_path_factory.mktemp(request.param)))
        except ReferenceMissing as error:
            pytest.skip(f"OpenStack Placement cannot be installed: {error}")
        yield client_of(url, tmp_path_factory.mktemp("agent"))


class HostBesideNova:
    """A host with a nova-compute and an agent."""

    number = itertools.count(1)

    def __init__(self, client):
        self.client = RecordingClient(client.adapter)
        self.id = next(self.number)
        self.name = f"compute{self.id}.example"
        self.own = f"11111111-1111-4000-8000-{self.id:012d}"
        self.nova = NovaCompute(client, f"99999999-0000-4000-8000-{self.id:012d}", self.name)
        self.owned = {}
        self.last = None
        self.restart()

    def restart(self):
        self.reporter = HostReporter(self.client, self.owned, lambda owned: setattr(self, "owned", owned))

    def tree(self, root, **settings):
        sets = resolve_cpu_sets(CpuOptions(), TOPOLOGY)
        found = InventorySettings(provider_tree="beside", **settings)
        return derive_provider_tree(TOPOLOGY, sets, found, root.uuid, root.name, CONTROL)

    def report(self):
        """Run one period of the agent."""
        root = find_root(self.client, RootSearch(self.name, self.own, True, self.last))
        self.last = root
        return self.reporter.report_tree(self.tree(root))

    @property
    def writes(self):
        found, self.client.writes = self.client.writes, []
        return found

    def shown(self):
        """For each provider, by the last part of its name: its parent, the amounts of inventories, its traits
        and its generation.
        """
        records = self.client.providers_in_tree(self.nova.uuid)
        names = {record.uuid: record.name.removeprefix(self.name).lstrip("_") for record in records}
        return {
            names[record.uuid]: SimpleNamespace(
                uuid=record.uuid,
                parent=names.get(record.parent_uuid),
                inventories=self.client.get_inventories(record.uuid)[0],
                traits=self.client.get_traits(record.uuid)[0],
                generation=record.generation,
            )
            for record in records
        }

    def candidates(self, query):
        """For each allocation candidate on this host: its resource classes by the last part of the provider's
        name.
        """
        names = {each.uuid: name for name, each in self.shown().items()}
        found = self.client.send_request(
            "GET", f"/allocation_candidates?{query}", shape={"allocation_requests": [{}]}
        )["allocation_requests"]
        return [
            {names[uuid]: one["resources"] for uuid, one in each["allocations"].items()}
            for each in found
            if each["allocations"].keys() <= names.keys()
        ]


@pytest.fixture
def host(client):
    return HostBesideNova(client)


def test_inventories_of_the_agent_are_below_novas_root(host):
    host.nova.update()
    root = host.shown()[""]
    assert host.report().refusals == ()
    shown = host.shown()
    assert {name: each.parent for name, each in shown.items()} == {
        "": None,
        "L3_0": "",
        "L3_10": "",
        "RESCTRL": "",
    }
    totals = {
        name: {rc: (held["total"], held["reserved"]) for rc, held in each.inventories.items()}
        for name, each in shown.items()
        if name
    }
    caches = {"CUSTOM_LLC": (11, 3), "CUSTOM_MBA": (100, 0)}
    assert totals == {"L3_0": caches, "L3_10": caches, "RESCTRL": {"CUSTOM_RESCTRL_GROUP": (8, 2)}}
    assert shown["RESCTRL"].traits == {"CUSTOM_RESCTRL_L3_CAT", "CUSTOM_RESCTRL_MBA"}
    assert (shown[""].inventories, shown[""].traits) == (root.inventories, root.traits)
    assert shown[""].generation == root.generation
    assert not [write for write in host.writes if host.nova.uuid in write[1]]


def test_a_hundred_updates_of_both_undo_nothing(host):
    """After their first writes, Nova and the agent write only their own changes, and each change only
    once.
    """
    host.nova.update()
    host.report()
    host.nova.update()
    first = host.nova.writes, host.writes
    assert all(status in (200, 409) for writes in first for _, _, status in writes)
    expected = {"nova": [], "agent": []}
    conflicts = {"nova": 0, "agent": 0}
    for number in range(UPDATES):
        if number == 30:  # an operator overcommits, and disables the service
            inventories, generation = host.client.get_inventories(host.nova.uuid)
            inventories["VCPU"]["allocation_ratio"] = 8.0
            host.client.set_inventories(host.nova.uuid, inventories, generation)
            host.writes.clear()
        if number == 40:
            host.nova.service_disabled = True
            expected["nova"].append(("PUT", f"/resource_providers/{host.nova.uuid}/traits", 200))
        if number == 50:  # the agent starts again
            host.restart()
        if number == 60:  # memory is added
            host.nova.inventory["MEMORY_MB"] = {**host.nova.inventory["MEMORY_MB"], "total": 65536}
            expected["nova"].append(("PUT", f"/resource_providers/{host.nova.uuid}/inventories", 200))
        host.nova.update()
        sent = host.report()
        assert sent.refusals == ()
        written = {"nova": host.nova.writes, "agent": host.writes}
        for who, writes in written.items():
            assert [write for write in writes if write[2] == 200] == expected[who], (number, who)
            expected[who].clear()
            conflicts[who] += sum(status == 409 for _, _, status in writes)
    assert conflicts == {"nova": 0, "agent": 0}
    shown = host.shown()
    assert shown[""].inventories["VCPU"]["allocation_ratio"] == 8.0
    assert "COMPUTE_STATUS_DISABLED" in shown[""].traits
    assert shown["L3_0"].inventories["CUSTOM_LLC"]["total"] == 11


def test_a_flavor_gets_cpus_of_the_root_and_cache_ways_of_a_child(host):
    host.nova.update()
    host.report()
    asked = "resources=VCPU:2,MEMORY_MB:512,CUSTOM_LLC:4"
    cpus = {"VCPU": 2, "MEMORY_MB": 512}
    assert sorted(host.candidates(asked), key=str) == [
        {"": cpus, "L3_0": {"CUSTOM_LLC": 4}},
        {"": cpus, "L3_10": {"CUSTOM_LLC": 4}},
    ]
    # resources1:CUSTOM_LLC=4, resources1:CUSTOM_MBA=20: ways and bandwidth of one cache.
    grouped = (
        "resources=PCPU:2,MEMORY_MB:512&resources1=CUSTOM_LLC:4,CUSTOM_MBA:20"
        "&resources2=CUSTOM_RESCTRL_GROUP:1&required2=CUSTOM_RESCTRL_L3_CAT&group_policy=none"
    )
    group = {"RESCTRL": {"CUSTOM_RESCTRL_GROUP": 1}, "": {"PCPU": 2, "MEMORY_MB": 512}}
    assert sorted(host.candidates(grouped), key=lambda one: "L3_10" in one) == [
        {**group, "L3_0": {"CUSTOM_LLC": 4, "CUSTOM_MBA": 20}},
        {**group, "L3_10": {"CUSTOM_LLC": 4, "CUSTOM_MBA": 20}},
    ]
    # The cache is in the subtree of the root, and its own subtree has no CPUs of the root.
    same = "resources_CPU=PCPU:2&resources_LLC=CUSTOM_LLC:4&same_subtree=_CPU,_LLC&group_policy=none"
    assert len(host.candidates(same)) == 2
    # Only the ways without another holder.
    assert host.candidates("resources=VCPU:1,CUSTOM_LLC:9") == []


def test_the_agent_waits_for_novas_root_and_comes_back_with_it(host):
    with pytest.raises(RootMissingError, match="waiting for nova-compute to make the provider"):
        host.report()
    assert host.writes == []
    host.nova.update()
    assert host.report().refusals == ()
    before = host.shown()

    host.nova.delete_service()
    assert host.shown() == {}
    with pytest.raises(RootMissingError):
        host.report()
    host.reporter.forget_providers()
    host.nova.uuid = host.nova.uuid.replace("99999999-0000", "99999999-0001")
    host.nova.update()
    assert host.report().refusals == ()
    after = host.shown()
    assert {name: each.inventories for name, each in after.items()} == {
        name: each.inventories for name, each in before.items()
    }
    assert host.report().sent == 0
    assert all(uuid in {each.uuid for each in after.values()} for uuid in host.owned)


def test_a_renamed_root_is_followed(host):
    host.nova.update()
    host.report()
    host.client.update_provider(host.nova.uuid, f"renamed-{host.name}", None)
    assert host.report().refusals == ()
    names = {record.name for record in host.client.providers_in_tree(host.nova.uuid)}
    assert names == {f"renamed-{host.name}{zone}" for zone in ("", "_L3_0", "_L3_10", "_RESCTRL")}
    assert host.report().sent == 0


def test_a_lost_memory_finds_all_again(host):
    host.nova.update()
    host.report()
    host.owned, host.last = {}, None
    host.restart()
    host.writes.clear()
    assert host.report().sent == 0
    assert host.owned.keys() == {each.uuid for name, each in host.shown().items() if name}


def test_the_provider_of_a_child_is_no_root(host, client):
    host.nova.update()
    child = f"55555555-0000-4000-8000-{host.id:012d}"
    client.create_provider(child, f"child{host.id}", host.nova.uuid)
    with pytest.raises(RootMissingError, match=r"is below another one.*resource_provider_name"):
        find_root(client, RootSearch(f"child{host.id}", host.own, True))
    assert find_root(client, RootSearch(f"child{host.id}", host.own)) is None


def test_the_owner_of_the_root_is_discovered(host, client):
    search = RootSearch(host.name, host.own)
    assert find_root(client, search) is None
    client.create_provider(host.nova.uuid, host.name, None)
    assert find_root(client, search) is None  # without an owner so far
    host.nova.update()
    assert find_root(client, search) == NovaRoot(host.nova.uuid, host.name)
    assert find_root(client, RootSearch(host.name, host.own, False)) is None


def test_the_agents_own_root_makes_room_for_novas_root(host, client, caplog):
    flat = derive_provider_tree(
        TOPOLOGY, resolve_cpu_sets(CpuOptions(), TOPOLOGY), InventorySettings(), host.own, host.name, CONTROL
    )
    host.reporter.report_tree(flat)
    with pytest.raises(RootMissingError, match="which the agent itself made before"):
        host.report()
    with caplog.at_level(logging.WARNING, "compute_agent"):
        assert host.reporter.remove_own(host.own).refusals == ()
    assert host.client.providers_in_tree(host.own) == []
    assert host.owned == {}
    host.nova.update()
    assert host.report().refusals == ()
