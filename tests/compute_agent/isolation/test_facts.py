"""Texts of masks, and the trait of hosts that can have quiet CPUs."""

import pytest

from compute_agent.inventory.provider_tree import ProviderInventory, ProviderNode, ProviderTree
from compute_agent.inventory.traits import with_isolation
from compute_agent.isolation.facts import MASK_PATH
from compute_agent.isolation.partitions import PartitionFiles
from compute_agent.model import cpuset
from compute_agent.model.guest_settings import IsolationLevel


@pytest.mark.parametrize(
    ("cpus", "text"),
    [
        ((), "0"),
        ((0, 1), "3"),
        (range(32), "ffffffff"),
        ((32,), "1,00000000"),
        ((0, 95), "80000000,00000000,00000001"),
    ],
)
def test_a_mask_has_words_of_32_bits(cpus, text):
    assert cpuset.format_mask(cpus) == text
    assert cpuset.parse_mask(text) == frozenset(cpus)


@pytest.mark.parametrize(
    ("capabilities", "may"), [("000001ffffffffff", True), ("0000000000800000", False), ("", False)]
)
def test_partitions_take_a_capability(tmp_path, capabilities, may):
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/status").write_text(f"CapEff:\t{capabilities}\nThreads:\t1\n")
    assert PartitionFiles(tmp_path).may_make == may


@pytest.mark.parametrize(
    ("path", "is_mask"),
    [
        ("proc/irq/45/smp_affinity_list", True),
        ("sys/devices/virtual/workqueue/writeback/cpumask", True),
        ("proc/60/status", True),
        ("proc/irq/45/smp_affinity", False),
        ("proc/irq/../../etc/passwd", False),
        ("proc/self/status", False),
        ("sys/fs/cgroup/system.slice/cpuset.cpus", True),
        ("sys/fs/cgroup/system.slice/cpuset.cpus.partition", False),
        ("sys/class/net/eth0/queues/tx-1/xps_cpus", True),
    ],
)
def test_only_masks_are_written(path, is_mask):
    assert bool(MASK_PATH.fullmatch(path)) == is_mask


def test_providers_of_dedicated_cpus_have_the_trait():
    nodes = [
        ProviderNode(name, name, None if name == "host" else "host", {kind: ProviderInventory(total=4)})
        for name, kind in (("host", "DISK_GB"), ("host_NUMA_0", "PCPU"), ("host_NUMA_1", "VCPU"))
    ]
    tree = with_isolation(ProviderTree(tuple(nodes)), (IsolationLevel.QUIET,))
    assert [sorted(node.traits) for node in tree.nodes] == [[], ["CUSTOM_CPU_QUIET"], []]
    both = with_isolation(ProviderTree(tuple(nodes)), (IsolationLevel.QUIET, IsolationLevel.ALONE))
    assert sorted(both.nodes[1].traits) == ["CUSTOM_CPU_ALONE", "CUSTOM_CPU_QUIET"]
    assert with_isolation(ProviderTree(tuple(nodes)), ()) == ProviderTree(tuple(nodes))
