"""Tests that offline CPUs keep the place in the topology that they had while they were online."""

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compute_agent.host.topology import HostTopology
from compute_agent.inventory.offline_cpus import (
    FILE_NAME,
    learn_topology,
    recall_topology,
    remember_topology,
    with_parked,
)
from tests.compute_agent.inventory.machines import machine

SHAPES = st.fixed_dictionaries(
    {
        "packages": st.integers(1, 2),
        "nodes": st.integers(1, 2),
        "l3": st.integers(1, 2),
        "cores": st.integers(1, 3),
        "threads": st.integers(1, 2),
    }
)


def without(shape: dict[str, int], offline: frozenset[int]) -> HostTopology:
    """The kernel's view of a machine with these CPUs offline. Packages without an online CPU are missing."""
    shown = machine(**shape, offline=offline, cpu_capacities={})
    return replace(shown, packages=tuple(each for each in shown.packages if each.cpus))


def places(topology: HostTopology) -> list[object]:
    groups = (topology.packages, topology.cores, topology.caches, topology.numa_nodes)
    return [[(each.id, each.cpus) for each in group] for group in groups]


@given(shape=SHAPES, data=st.data())
def test_parked_cpus_have_their_cores_caches_and_nodes_back(
    shape: dict[str, int], data: st.DataObject
) -> None:
    whole = without(shape, frozenset())
    offline = data.draw(st.sets(st.sampled_from(sorted(whole.online)), max_size=len(whole.online) - 1))
    parkable = data.draw(st.sets(st.sampled_from(sorted(whole.online))))
    shown = without(shape, frozenset(offline))
    found = with_parked(shown, learn_topology(whole, None), frozenset(parkable))
    left_out = frozenset(offline - parkable)
    assert (found.online, found.parked) == (shown.online, offline & parkable)
    assert places(replace(found, numa_nodes=())) == places(replace(without(shape, left_out), numa_nodes=()))
    assert {node.id: node.cpus for node in found.numa_nodes} == {
        node.id: node.cpus for node in without(shape, left_out).numa_nodes
    }
    assert found.usable == whole.online - left_out


@given(shape=SHAPES, data=st.data())
def test_a_machine_seen_in_parts_is_known_as_a_whole(shape: dict[str, int], data: st.DataObject) -> None:
    """The topology is learnt from readings with some CPUs offline, and at last from a reading with all CPUs
    online.
    """
    whole = without(shape, frozenset())
    memory = None
    for _ in range(data.draw(st.integers(0, 3))):
        some = data.draw(st.sets(st.sampled_from(sorted(whole.online)), max_size=len(whole.online) - 1))
        memory = learn_topology(without(shape, frozenset(some)), memory)
    memory = learn_topology(whole, memory)
    last = without(shape, frozenset(sorted(whole.online)[1:]))
    assert places(with_parked(last, memory, whole.online)) == places(whole)


SHAPE = {"cores": 4, "threads": 2}
WHOLE = without(SHAPE, frozenset())


@pytest.mark.parametrize(
    "other",
    [
        replace(WHOLE, model_name="another processor"),
        replace(without({"cores": 8, "threads": 1}, frozenset({7})), offline=frozenset({7})),
        replace(without({"cores": 3, "threads": 2}, frozenset({5})), present=frozenset(range(6))),
    ],
    ids=["model", "threads", "fewer CPUs"],
)
def test_a_memory_of_another_machine_is_not_used(other: HostTopology) -> None:
    memory = learn_topology(WHOLE, None)
    assert with_parked(other, memory, frozenset(range(8))) is other
    assert learn_topology(other, memory).online == other.online


def test_the_memory_is_kept_and_found_again(tmp_path) -> None:
    hybrid = replace(WHOLE, cpu_capacities={0: 512, 7: 1024}, model_name="A Model")
    hybrid = replace(hybrid, cores=tuple(replace(core, kind="performance") for core in hybrid.cores))
    assert remember_topology(tmp_path, hybrid) == learn_topology(hybrid, None)
    shown = replace(without(SHAPE, frozenset({6, 7})), model_name="A Model", cpu_capacities={0: 512})
    shown = replace(shown, cores=tuple(replace(core, kind="performance") for core in shown.cores))
    found = with_parked(shown, recall_topology(tmp_path), frozenset({6, 7}))
    assert found.cores == hybrid.cores
    assert found.cpu_capacities == {0: 512, 7: 1024}
    kept = (tmp_path / FILE_NAME).read_bytes()
    remember_topology(tmp_path, shown)
    assert (tmp_path / FILE_NAME).read_bytes() == kept


@pytest.mark.parametrize("content", ["", "{", '{"version": 2}', '{"version": 1, "sha256": "", "data": {}}'])
def test_a_damaged_memory_is_put_aside_and_started_again(tmp_path, caplog, content: str) -> None:
    (tmp_path / FILE_NAME).write_text(content)
    (tmp_path / FILE_NAME).chmod(0o600)
    assert recall_topology(tmp_path) is None
    assert "cannot be used" in caplog.text
    remember_topology(tmp_path, WHOLE)
    known = recall_topology(tmp_path)
    assert known is not None
    assert known.online == WHOLE.online
    assert len(list(tmp_path.iterdir())) == 2


def test_odd_values_in_the_memory_are_damage(tmp_path) -> None:
    remember_topology(tmp_path, WHOLE)
    path = tmp_path / FILE_NAME
    document = json.loads(path.read_text())
    document["data"]["cores"] = [["x"]]
    path.write_text(json.dumps(document))
    assert recall_topology(tmp_path) is None


def test_a_full_disk_costs_the_memory_and_nothing_else(tmp_path, caplog, monkeypatch) -> None:
    def full(path: object, content: bytes) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("compute_agent.inventory.offline_cpus.write_durably", full)
    assert remember_topology(tmp_path, WHOLE).online == WHOLE.online
    assert "No space left" in caplog.text


def test_cpus_that_a_power_manager_switches_move_between_online_and_parked() -> None:
    half = WHOLE.with_online(frozenset(range(6)), frozenset({4, 5, 6, 7}))
    assert (half.online, half.parked, half.offline) == (frozenset(range(6)), {6, 7}, {6, 7})
    assert half.cores == WHOLE.cores
    assert half.with_online(WHOLE.online, frozenset({6, 7})).online == WHOLE.online
    assert WHOLE.with_online(frozenset(), frozenset()) is WHOLE
