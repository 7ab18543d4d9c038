"""Tests of memory that becomes huge pages: it is not taken from guests that hold it, and is never offered
twice.
"""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from compute_agent.inventory.provider_tree import ProviderInventory, ProviderNode, ProviderTree
from compute_agent.report.held_amounts import keep_held_memory
from compute_agent.report.plan import ReportedProvider

MEMORY, SMALL, LARGE = "MEMORY_MB", "CUSTOM_HUGE_PAGES_2MB", "CUSTOM_HUGE_PAGES_1GB"


def tree(memory, small=0, large=0, reserved=0):
    """A provider tree with a NUMA node that has part of its memory in huge pages."""
    found = {
        MEMORY: ProviderInventory(memory - 2 * small - 1024 * large, reserved, max_unit=memory),
        SMALL: ProviderInventory(small, max_unit=small),
        LARGE: ProviderInventory(large, max_unit=large),
    }
    node = ProviderNode("h_NUMA_0", "n0", "root", {name: one for name, one in found.items() if one.total})
    return ProviderTree((ProviderNode("h", "root", None), node))


def there(total, reserved=0, ratio=1.0):
    inventory = ProviderInventory(total, reserved, max_unit=total, allocation_ratio=ratio)
    return {"n0": ReportedProvider("n0", "h_NUMA_0", "root", 1, {MEMORY: inventory})}


def settled(derived, reported, held):
    found, waiting = keep_held_memory(derived, reported, lambda uuid, name: held)
    return found.nodes[1].inventories, waiting


def test_memory_without_holder_goes_at_once():
    derived = tree(8192, small=1024)
    assert settled(derived, there(8192), 6144) == (derived.nodes[1].inventories, ())


def test_held_memory_stays_and_the_pages_in_it_wait():
    found, waiting = settled(tree(8192, small=1024), there(8192), 7000)
    assert found[MEMORY].total == 7000
    assert (found[SMALL].total, found[SMALL].reserved) == (1024, 428)
    assert waiting == (
        "h_NUMA_0 (n0): 7000 MEMORY_MB are held, but only 6144 are not in huge pages: 428 huge pages are not"
        " offered until less memory is held",
    )


def test_held_amounts_are_not_read_after_the_memory_was_taken():
    derived = tree(8192, small=1024)
    asked = []

    def asked_for(uuid, name):
        asked.append(name)
        return 0

    keep_held_memory(derived, there(6144), asked_for)
    keep_held_memory(tree(4096), there(8192), asked_for)  # without pages memory that went is gone
    assert asked == []


def test_a_host_that_is_new_has_all_as_derived():
    derived = tree(8192, small=1024)
    assert keep_held_memory(derived, {}, lambda uuid, name: 1 / 0) == (derived, ())


def test_a_node_that_is_all_pages_keeps_memory_as_long_as_it_is_held():
    found, waiting = settled(tree(4096, small=2048), there(4096), 100)
    assert (found[MEMORY].total, found[SMALL].reserved) == (100, 50)
    assert waiting


@given(
    st.integers(0, 1500),
    st.integers(0, 3),
    st.integers(0, 512),
    st.sampled_from([1.0, 1.5, 3.0]),
    st.integers(0, 8192),
)
def test_no_memory_is_sold_twice_and_none_is_taken(small, large, reserved, ratio, held):
    before = there(8192, reserved, ratio)
    held = min(held, int((8192 - reserved) * ratio))
    derived = tree(8192, small, large, reserved)
    found, waiting = settled(derived, before, held)
    memory = found.get(MEMORY, ProviderInventory(0))
    assert (memory.total - memory.reserved) * ratio >= held
    pages = {name: found.get(name, ProviderInventory(0)) for name in (SMALL, LARGE)}
    free = {name: one.total - one.reserved for name, one in pages.items()}
    assert memory.total + 2 * free[SMALL] + 1024 * free[LARGE] <= 8192
    assert all(0 <= one.reserved <= one.total for one in pages.values())
    assert bool(waiting) == (found != derived.nodes[1].inventories)
    # All pages are offered as soon as guests give the memory back.
    again, _ = settled(derived, {"n0": replace(before["n0"], inventories=found)}, 0)
    assert {name: one.reserved for name, one in again.items() if name != MEMORY} == {
        name: 0 for name in (SMALL, LARGE) if name in again
    }
