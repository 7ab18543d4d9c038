"""Tests of assigning hardware counters to groups."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compute_agent.resctrl import monitoring
from compute_agent.resctrl.monitoring import LOCAL_BYTES, TOTAL_BYTES, CounterAssignment
from compute_agent.resctrl.platform import CpuVendor, MonitoringFeatures, ResctrlPlatform
from tests.compute_agent.resctrl import fake

CACHES = (0, 3)
SLOTS = [(cache, event) for cache in CACHES for event in (TOTAL_BYTES, LOCAL_BYTES)]


@pytest.fixture
def files(tmp_path):
    return fake.FakeResctrl.of(fake.INTEL, tmp_path / "tree")


def test_assigned_counters_are_parsed_from_the_kernels_text(files):
    (files.root / "mbm_L3_assignments").write_text("mbm_total_bytes:0=e;1=_\nmbm_local_bytes:0=_;1=e\n")
    (files.root / "info/L3_MON/available_mbm_cntrs").write_text("0=30;1=28\n")
    assert monitoring.read_assigned_counters(files, "") == {(0, TOTAL_BYTES), (1, LOCAL_BYTES)}
    assert monitoring.read_assigned_counters(files, "gone") == frozenset()
    assert monitoring.read_available_counters(files) == {0: 30, 1: 28}


@pytest.mark.parametrize(("mode", "needed"), [("mbm_event", True), ("default", False), ("", False)])
def test_counters_are_assigned_only_in_event_mode(mode, needed):
    assert (
        monitoring.needs_assignment(
            ResctrlPlatform(CpuVendor.AMD, monitoring=MonitoringFeatures(8, frozenset(), mode))
        )
        is needed
    )
    assert monitoring.needs_assignment(ResctrlPlatform(CpuVendor.AMD)) is False


def test_total_bandwidth_of_all_comes_before_local_bandwidth_of_any():
    held = {"a": frozenset({(0, LOCAL_BYTES)}), "b": frozenset()}
    assert monitoring.plan_assignments({0: 1}, held, ["a", "b"]) == (
        CounterAssignment("a", (0, LOCAL_BYTES), assign=False),
        CounterAssignment("a", (0, TOTAL_BYTES), assign=True),
        CounterAssignment("b", (0, TOTAL_BYTES), assign=True),
    )


@st.composite
def situations(draw):
    order = draw(st.lists(st.sampled_from("abcdef"), unique=True))
    held = {group: frozenset(draw(st.sets(st.sampled_from(SLOTS)))) for group in order}
    return {cache: draw(st.integers(0, 8)) for cache in CACHES}, held, order


@given(situations())
def test_a_plan_fits_the_free_counters_and_a_second_plan_is_empty(situation):
    available, held, order = situation
    left, now = dict(available), {group: set(slots) for group, slots in held.items()}
    for step in monitoring.plan_assignments(available, held, order):
        if step.assign:
            assert left[step.slot[0]] > 0
            assert step.slot not in now[step.group]
            now[step.group].add(step.slot)
            left[step.slot[0]] -= 1
        else:
            now[step.group].remove(step.slot)
            left[step.slot[0]] += 1
    for cache in CACHES:
        most = available[cache] + sum(1 for slots in held.values() for one, _ in slots if one == cache)
        wanted = [(group, (cache, event)) for event in (TOTAL_BYTES, LOCAL_BYTES) for group in order]
        has = [slot in now[group] for group, slot in wanted]
        assert has == [number < most for number in range(len(wanted))]
    again = {group: frozenset(slots) for group, slots in now.items()}
    assert monitoring.plan_assignments(left, again, order) == ()
