"""Tests of the topology as text: each CPU is listed once, with its role and its guests."""

import re
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compute_agent.drawing.host import draw_host, tree_lines
from compute_agent.host.topology import HostTopology
from compute_agent.model import cpuset
from compute_agent.model.cpuset import CpuSets
from tests.compute_agent.inventory.machines import machine

NONE: frozenset[int] = frozenset()
MACHINES = (
    machine(packages=2, nodes=4, l3=2, cores=8, threads=2, offline=frozenset({255})),
    machine(cores=1),
    machine(packages=2, nodes=2, cores=6, threads=4, l3_spans_nodes=True, more_nodes={8: 1 << 20}),
)
LINE = re.compile(r"[│ ]*(dedicated or shared|dedicated|shared|host) +([\d,-]+)  \(.+\)")


def test_a_small_host() -> None:
    topology = machine(packages=2, cores=4, threads=2, offline=frozenset({15}))
    sets = CpuSets(frozenset({2, 3, 4, 5, 6, 7, 8, 9, 10}), frozenset({11, 12, 13}), NONE)
    guests = {"web": frozenset({2, 3}), "db\x1b[1m": frozenset({8, 9}), "vm": frozenset({11, 12, 13})}
    assert list(tree_lines(topology, sets, guests)) == [
        "unknown · 15 CPUs · 16 GiB · threads of a core: n, n+1",
        "├─ Package 0 · NUMA node 0, 8 GiB · L3 0, 16 MiB",
        "│     dedicated  2-7  (3 cores; free: 4-7)",
        "│                web: 2-3",
        "│     host       0-1  (1 core)",
        "└─ Package 1 · NUMA node 1, 8 GiB · L3 10, 16 MiB",
        "      dedicated  8-10  (2 cores; 1 of them shared with others; free: 10)",
        "                 db\ufffd[1m: 8-9",
        "      shared     11-13  (2 cores; 1 of them shared with others)",
        "                 vm",
        "      host       14  (1 core)",
        "Offline CPUs: 15",
    ]


def test_devices_are_on_their_nodes_and_others_on_the_host() -> None:
    topology = machine(packages=2, cores=1)
    devices = {
        1: ["0000:81:00.0 CUSTOM_GPU: free"],
        None: ["0000:03:00.0 CUSTOM_NIC: web"],
        7: ["0000:04:00.0 X: free"],
    }
    tree = list(tree_lines(topology, CpuSets(NONE, NONE, NONE), {}, devices=devices))
    assert tree == [
        "unknown · 2 CPUs · 16 GiB",
        "│  PCI device  0000:03:00.0 CUSTOM_NIC: web",
        "│  PCI device  0000:04:00.0 X: free",
        "├─ Package 0 · NUMA node 0, 8 GiB · L3 0, 16 MiB",
        "│     host       0  (1 core)",
        "└─ Package 1 · NUMA node 1, 8 GiB · L3 10, 16 MiB",
        "      PCI device  0000:81:00.0 CUSTOM_GPU: free",
        "      host       1  (1 core)",
    ]
    picture = draw_host(topology, CpuSets(NONE, NONE, NONE), devices=devices)
    assert all(line in picture for lines in devices.values() for line in lines)


def test_many_guests_on_shared_cpus_are_shortened_to_names_and_a_number() -> None:
    sets = CpuSets(NONE, frozenset({0, 1}), NONE)
    guests = {f"guest-{number:02d}": frozenset({0, 1}) for number in range(15)}
    tree = list(tree_lines(machine(cores=2), sets, guests))
    named = " ".join(line.strip() for line in tree if "guest-" in line)
    assert named == ", ".join([*(f"guest-{number:02d}" for number in range(12)), "3 more"])
    assert max(map(len, tree)) <= 100


def test_no_cpu_counts_as_free_while_the_guests_are_unknown() -> None:
    sets = CpuSets(frozenset({0, 1}), NONE, NONE)
    assert list(tree_lines(machine(cores=2), sets, None))[-1].endswith("dedicated  0-1  (2 cores)")


@given(
    topology=st.sampled_from(MACHINES),
    cuts=st.tuples(st.integers(0, 256), st.integers(0, 256)).map(sorted),
    legacy=st.booleans(),
)
def test_every_online_cpu_appears_once_with_its_role(
    topology: HostTopology, cuts: list[int], legacy: bool
) -> None:
    dedicated = frozenset(cpu for cpu in topology.online if cpu < cuts[0])
    shared = dedicated if legacy else frozenset(cpu for cpu in topology.online if cuts[0] <= cpu < cuts[1])
    told: Counter[int] = Counter()
    for line in tree_lines(topology, CpuSets(dedicated, shared, shared), {}):
        if found := LINE.fullmatch(line):
            cpus = cpuset.parse(found[2])
            told.update(cpus)
            assert (cpus <= dedicated, cpus <= shared) == {
                "dedicated or shared": (True, True),
                "dedicated": (True, False),
                "shared": (False, True),
                "host": (False, False),
            }[found[1]]
    assert told == Counter(topology.online)


@pytest.mark.parametrize("topology", MACHINES)
def test_the_tree_fits_a_terminal(topology: HostTopology) -> None:
    assert max(map(len, tree_lines(topology, CpuSets(topology.online, NONE, NONE), {}))) <= 100
