"""Tests of fixed sets of devices as providers: the providers nest as the sets do, and devices keep their own
providers.
"""

import json
import uuid
from collections.abc import Sequence

import pytest
import requests
from hypothesis import given, settings
from hypothesis import strategies as st

from compute_agent import conf as agent_conf
from compute_agent.agent.configured_host import build_host_state
from compute_agent.inventory.device_sets import DeviceSet, parse_device_sets, with_device_sets
from compute_agent.inventory.provider_tree import ProviderInventory, ProviderNode, ProviderTree
from compute_agent.model.messages import ConfigError
from compute_agent.report.reporter import HostReporter
from tests.compute_agent.host.pci_trees import FakeDevice, make_pci_tree
from tests.examples import examples

ADDRESSES = [f"0000:{number:02x}:00.0" for number in range(1, 9)]


def tree_of(*places: int, beside: bool = False) -> ProviderTree:
    """The provider tree of a host with two NUMA nodes and a switch below each. Each device is below a node, a
    switch or the root.
    """
    uuids = ["root", "node0", "node1", "switch0", "switch1"]
    parents = [None, "root", "root", "node0", "node1"]
    nodes = [
        ProviderNode(name=each, uuid=each, parent=parent, device=each if each.startswith("switch") else "")
        for each, parent in zip(uuids, parents, strict=True)
    ]
    nodes += [
        ProviderNode(
            name=f"root_{address}",
            uuid=address,
            parent=uuids[place],
            inventories={"CUSTOM_GPU": ProviderInventory(total=1)},
            device=address,
        )
        for address, place in zip(ADDRESSES, places, strict=False)
    ]
    root = ProviderNode(name="root", uuid="6a1a1e0a-0000-4000-8000-000000000000", parent=None)
    moved = {"root": root.uuid}
    return ProviderTree(
        (root, *(with_parent(node, moved.get(node.parent or "", node.parent)) for node in nodes[1:])),
        beside=beside,
    )


def with_parent(node: ProviderNode, parent: str | None) -> ProviderNode:
    return ProviderNode(
        name=node.name, uuid=node.uuid, parent=parent, inventories=node.inventories, device=node.device
    )


def members_by_trait(tree: ProviderTree) -> set[tuple[str, frozenset[str]]]:
    """The devices below each provider with a trait of a set, by the trait."""
    parents = {node.uuid: node.parent for node in tree.nodes}
    found = set()
    for node in tree.nodes:
        below = set()
        for device in tree.nodes:
            at: str | None = device.uuid
            while at is not None and at != node.uuid:
                at = parents[at]
            if at is not None and device.inventories:
                below.add(device.device)
        found |= {(trait, frozenset(below)) for trait in node.traits}
    return found


def gpus(*numbers: int, name: str = "SET") -> DeviceSet:
    return DeviceSet(name, frozenset(ADDRESSES[number] for number in numbers))


@st.composite
def nested_sets(draw: st.DrawFn) -> list[DeviceSet]:
    order = draw(st.permutations(range(8)))
    found: list[DeviceSet] = []

    def split(members: Sequence[int]) -> None:
        if len(members) > 1:
            if draw(st.booleans()):
                found.append(gpus(*members, name=draw(st.sampled_from(("A", "B")))))
            middle = draw(st.integers(1, len(members) - 1))
            split(members[:middle])
            split(members[middle:])

    split(order)
    return found


@settings(max_examples=examples(200), deadline=None)
@given(nested_sets(), st.randoms(use_true_random=False))
def test_nested_sets_are_all_offered_in_any_order(sets: list[DeviceSet], rng: object) -> None:
    before = tree_of(*[0] * 8)
    rng.shuffle(sets)  # type: ignore[attr-defined]  # a Random
    after, warnings = with_device_sets(before, sets)
    assert warnings == ()
    assert members_by_trait(after) == {(each.provider_trait, each.addresses) for each in sets}
    seen: set[str | None] = {None}
    for node in after.nodes:
        assert node.parent in seen
        assert node.uuid not in seen
        seen.add(node.uuid)
    assert {node.uuid for node in before.nodes} <= seen


@settings(max_examples=examples(200), deadline=None)
@given(
    st.lists(st.integers(0, 4), min_size=8, max_size=8),
    st.lists(st.frozensets(st.integers(0, 7), min_size=2), max_size=4, unique=True),
)
def test_a_trait_is_above_the_members_of_its_set_alone(places: list[int], sets: list[frozenset[int]]) -> None:
    wanted = [gpus(*members) for members in sets]
    after, warnings = with_device_sets(tree_of(*places), wanted)
    offered = members_by_trait(after)
    assert offered <= {(each.provider_trait, each.addresses) for each in wanted}
    # one sentence each: those of large sets may be equal, as they name a few members
    assert len(offered) + len(warnings) == len(wanted)


def test_a_set_of_all_devices_of_a_node_is_the_node() -> None:
    after, warnings = with_device_sets(tree_of(3, 3, 4, 4), [gpus(0, 1, 2, 3, name="ALL"), gpus(0, 1)])
    assert warnings == ()
    traits = {node.name: node.traits for node in after.nodes if node.traits}
    assert traits == {"root": {"CUSTOM_ALL"}, "switch0": {"CUSTOM_SET"}}


@pytest.mark.parametrize(
    ("sets", "reason"),
    [
        ([gpus(0, 7)], "the host does not offer 0000:08:00.0"),
        ([gpus(0, 1), gpus(1, 2)], "another set, switch or NUMA node has some of its devices"),
        ([gpus(0, 3)], "another set, switch or NUMA node has some of its devices"),
    ],
)
def test_a_set_without_a_place_is_named_with_the_reason(sets: list[DeviceSet], reason: str) -> None:
    after, warnings = with_device_sets(tree_of(1, 1, 1, 2), sets)
    (warning,) = warnings
    assert warning.startswith("[pci] device_set: the set SET of 0000:")
    assert reason in warning
    assert len(members_by_trait(after)) == len(sets) - 1


def test_the_root_of_nova_gets_no_trait() -> None:
    after, warnings = with_device_sets(tree_of(1, 2, beside=True), [gpus(0, 1)])
    assert members_by_trait(after) == set()
    assert "which nova-compute writes" in warnings[0]


def test_the_option_is_parsed() -> None:
    text = json.dumps({"name": "GPU_PAIR", "addresses": ["0000:0A:00.0", "0000:0b:00.0"]})
    assert parse_device_sets([text]) == (DeviceSet("GPU_PAIR", frozenset({"0000:0a:00.0", "0000:0b:00.0"})),)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("pair", "not JSON"),
        ("[" * 5000, "not JSON"),
        ("[]", "an object with name and addresses is needed"),
        ('{"name": "pair", "addresses": []}', "capital letters"),
        ('{"name": "PAIR", "addresses": "all"}', "no list of texts"),
        ('{"name": "PAIR", "addresses": ["0000:0a:00.0", "gpu"]}', "'gpu' is no address"),
        ('{"name": "PAIR", "addresses": ["0000:0a:00.0", "0000:0A:00.0"]}', "two different addresses"),
    ],
)
def test_a_wrong_set_is_refused_with_the_reason(text: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        parse_device_sets([text])


def query_of(size: int) -> str:
    """The query for a set of this size."""
    groups = "&".join(f"resources_{number}=CUSTOM_GPU:1" for number in range(size))
    together = ",".join(f"_{number}" for number in range(size))
    return f"{groups}&required_set=CUSTOM_SET_{size}&same_subtree=_set,{together}&group_policy=none&limit=9"


def test_a_set_is_taken_in_one_write_of_plain_placement(tmp_path, write_ini, client, live_placement):
    root = tmp_path / "host"
    folder = root / "sys/devices/system/node/node0"
    folder.mkdir(parents=True)
    (folder / "cpulist").write_text("0-3\n")
    (folder / "meminfo").write_text("Node 0 MemTotal: 8388608 kB\n")
    (root / "sys/devices/system/node/online").write_text("0\n")
    (root / "sys/devices/system/cpu").mkdir()
    (root / "sys/devices/system/cpu/online").write_text("0-3\n")
    addresses = [f"0000:8{number}:00.0" for number in range(4)]
    make_pci_tree(root, [FakeDevice((f"0000:00:0{slot + 1}.0", each)) for slot, each in enumerate(addresses)])
    sets = [("SET_4", addresses), ("SET_2", addresses[:2]), ("SET_2", addresses[2:])]
    ini = write_ini(
        name="host.ini",
        compute="resource_provider_name = host\nprovider_tree = numa",
        host=f"root = {root}",
        pci='device_spec = {"vendor_id": "10de", "resource_class": "gpu"}\n'
        + "\n".join(
            f"device_set = {json.dumps({'name': name, 'addresses': members})}" for name, members in sets
        ),
    )
    state = build_host_state(agent_conf.load(config_files=[str(ini)]), root_uuid=str(uuid.uuid4()))
    HostReporter(client, {}, lambda owned: None).report_tree(state.tree)
    names = {node.uuid: node.device for node in state.tree.nodes}

    def send(method, path, **body):
        headers = {"X-Auth-Token": "admin", "OpenStack-API-Version": "placement 1.39"}
        url = f"{live_placement.url}/{path}"
        return requests.request(method, url, headers=headers, timeout=30, json=body or None)

    def offered(size):
        answer = send("GET", f"allocation_candidates?{query_of(size)}")
        assert answer.status_code == 200, answer.text
        return {
            frozenset(map(names.__getitem__, each["allocations"])): each["allocations"]
            for each in answer.json()["allocation_requests"]
        }

    def claim(allocations):
        owner = {"project_id": "p", "user_id": "u", "consumer_generation": None, "consumer_type": "INSTANCE"}
        return send("PUT", f"allocations/{uuid.uuid4()}", allocations=allocations, **owner).status_code

    four, pairs = offered(4), offered(2)
    assert four.keys() == {frozenset(addresses)}
    assert pairs.keys() == {frozenset(addresses[:2]), frozenset(addresses[2:])}
    assert claim(pairs[frozenset(addresses[:2])]) == 204
    assert claim(four[frozenset(addresses)]) == 409
    assert offered(4) == {}
    assert offered(2).keys() == {frozenset(addresses[2:])}
