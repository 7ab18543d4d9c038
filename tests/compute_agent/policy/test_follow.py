"""Tests of policy ``follow``, by which a guest's assignment is read from the place that another program gave
it.
"""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compute_agent.model.cpuset import CpuSets
from compute_agent.policy.policies import KernelPlacement, found_assignment
from tests.compute_agent.builders import cpu_set

SETS = CpuSets(frozenset(range(4)), frozenset(range(4, 8)), frozenset(range(4, 8)))
SHARED, ALL = frozenset(range(4, 8)), frozenset(range(8))


def test_guest_cpus_pinned_within_the_dedicated_set_hold_their_cpus():
    found = found_assignment(
        SETS, 2, KernelPlacement(cpu_set(1, 3) | SHARED, {0: cpu_set(3), 1: cpu_set(1)}, SHARED, cpu_set(0))
    )
    assert found.vcpu_cpus == (cpu_set(3), cpu_set(1))
    assert (found.dedicated, found.emulator_cpus, found.mems) == ((3, 1), SHARED, {0})
    assert found.given


def test_a_guest_also_holds_the_separate_cpu_of_its_emulator():
    assert found_assignment(
        SETS, 1, KernelPlacement(cpu_set(1, 2), {0: cpu_set(1)}, cpu_set(2))
    ).dedicated == (1, 2)
    assert found_assignment(SETS, 1, KernelPlacement(cpu_set(1), {0: cpu_set(1)}, cpu_set(1))).dedicated == (
        1,
    )


def test_the_unpinned_guest_cpus_of_a_mixed_guest_float():
    found = found_assignment(
        SETS, 2, KernelPlacement(cpu_set(1) | SHARED, {0: cpu_set(1), 1: SHARED}, SHARED)
    )
    assert (found.dedicated, found.vcpu_cpus) == ((1,), (cpu_set(1), SHARED))


@pytest.mark.parametrize("where", [SHARED, ALL, SETS.dedicated, cpu_set(3, 4)])
def test_a_guest_without_pins_floats_where_it_is(where):
    found = found_assignment(SETS, 2, KernelPlacement(where, {0: where, 1: where}, where))
    assert (found.dedicated, found.cpus, found.emulator_cpus) == ((), where, where)


def test_a_process_with_equal_threads_is_on_their_cpus():
    found = found_assignment(SETS, 2, KernelPlacement(cpu_set(1, 2)))
    assert (found.vcpu_cpus, found.dedicated, found.emulator_cpus) == (
        (cpu_set(1, 2),) * 2,
        (1, 2),
        cpu_set(1, 2),
    )


def test_a_pin_to_a_single_cpu_is_dedicated_where_both_sets_are_one():
    sets = CpuSets(ALL, ALL, ALL)
    found = found_assignment(sets, 2, KernelPlacement(ALL, {0: cpu_set(1), 1: cpu_set(2, 3)}, ALL))
    assert found.dedicated == (1,)


SOME = st.frozensets(st.integers(0, 9), min_size=1)


@given(st.lists(SOME, min_size=1, max_size=4), SOME, st.frozensets(st.integers(0, 9)), st.booleans())
def test_found_assignments_equal_the_kernel_and_dedicated_cpus_are_pinned(vcpus, emulator, dedicated, told):
    sets = CpuSets(dedicated, frozenset(range(10)) - dedicated, frozenset())
    everything = frozenset().union(*vcpus, emulator)
    found = found_assignment(
        sets, len(vcpus), KernelPlacement(everything, dict(enumerate(vcpus)) if told else {}, emulator)
    )
    assert found.vcpu_cpus == (tuple(vcpus) if told else (everything,) * len(vcpus))
    assert found.emulator_cpus == emulator
    assert found.held_cpus <= dedicated & everything
    assert len(found.dedicated) == len(found.held_cpus)
