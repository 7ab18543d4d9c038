"""Tests of the texts of masks, and of the trait of hosts that can have quiet CPUs."""

import pytest

from compute_agent import conf as agent_conf
from compute_agent.agent.configured_host import isolation_levels
from compute_agent.inventory.provider_tree import ProviderInventory, ProviderNode, ProviderTree
from compute_agent.inventory.traits import with_isolation
from compute_agent.isolation.facts import DEFAULT_MASK, MASK_PATH
from compute_agent.isolation.partitions import PartitionFiles
from compute_agent.model import cpuset
from compute_agent.model.guest_settings import IsolationLevel
from tests.compute_agent.isolation.fake_kernel import FakeKernel


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


QUIET, ALONE = IsolationLevel.QUIET, IsolationLevel.ALONE
ROOT_CAPABILITIES = "000001ffffffffff"


@pytest.mark.parametrize(
    ("version", "capabilities", "sinks", "levels"),
    [
        ((6, 12), ROOT_CAPABILITIES, {0}, (QUIET, ALONE)),
        ((6, 8), ROOT_CAPABILITIES, {0}, (QUIET, ALONE)),
        ((6, 1), ROOT_CAPABILITIES, {0}, (QUIET,)),
        ((6, 12), "0000000000800000", {0}, (QUIET,)),
        # The work has no other CPU.
        ((6, 12), ROOT_CAPABILITIES, set(), ()),
    ],
)
def test_a_host_offers_the_levels_that_it_can_have(tmp_path, version, capabilities, sinks, levels):
    kernel = FakeKernel(tmp_path, version=version)
    kernel.put("proc/self/status", f"CapEff:\t{capabilities}\nThreads:\t1")
    options = agent_conf.load([], [])
    options.set_override("root", str(tmp_path), group="host")
    assert isolation_levels(options, frozenset(sinks)) == levels
    # A container may hide the masks of interrupts.
    (tmp_path / DEFAULT_MASK).unlink()
    assert isolation_levels(options, frozenset(sinks)) == ()


def test_threads_of_interrupts_follow_these_again(tmp_path):
    kernel = FakeKernel(tmp_path)
    kernel.add_interrupt(30, "eth0", {3})
    kernel.add_thread(60, "irq/30-eth0")
    kernel.add_thread(61, "irq/99-gone")
    kernel.add_thread(62, "kswapd0")
    file = tmp_path / kernel.irq(30)
    before = file.stat().st_mtime_ns, file.read_text()
    kernel.renew_threads()
    # The kernel moves the thread when the mask is written, even if the mask is the same.
    assert file.read_text() == before[1]
    assert file.stat().st_mtime_ns > before[0]
    file.chmod(0o444)
    kernel.remove_interrupt(30)
    kernel.renew_threads()
