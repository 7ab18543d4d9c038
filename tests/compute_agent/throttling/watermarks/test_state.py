"""Tests of the actions of watermarks, and of their state, which outlives restarts of the agent."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compute_agent.model.resource import CPU_QUOTA, ThrottleControl
from compute_agent.throttling.watermarks.state import (
    EvictAction,
    RestoreAction,
    SwitchScheduling,
    ThrottleAction,
    ThrottledGuest,
    WatermarkState,
    state_from_json,
    state_to_json,
    takes_away,
)
from tests.compute_agent.throttling.watermarks.builders import QUOTA

BANDWIDTH = ThrottleControl("memory_bandwidth", "1")


def throttle(guest, limit, knob=QUOTA):
    return ThrottleAction(guest, knob, limit, "cpu_usage", "line")


def after(*actions):
    state = WatermarkState()
    for action in actions:
        state = state.after_action(action)
    return state


def test_throttles_are_kept_in_the_order_in_which_they_were_last_tightened():
    state = after(throttle("a", 2.0), throttle("b", 2.0), throttle("a", 1.0))
    assert state.throttles == (ThrottledGuest("b", QUOTA, 2.0), ThrottledGuest("a", QUOTA, 1.0))
    assert (state.limit_of("a", QUOTA), state.limit_of("c", QUOTA)) == (1.0, None)


def test_restored_guests_keep_their_place_until_their_limit_is_gone():
    state = after(throttle("a", 1.0), throttle("b", 1.0), RestoreAction("a", QUOTA, 2.0))
    assert state.throttles == (ThrottledGuest("a", QUOTA, 2.0), ThrottledGuest("b", QUOTA, 1.0))
    assert state.after_action(RestoreAction("a", QUOTA, None)).throttles == (ThrottledGuest("b", QUOTA, 1.0),)


def test_throttling_after_giving_back_is_a_relapse():
    once = [throttle("a", 2.0), RestoreAction("a", QUOTA, None), throttle("a", 2.0), throttle("b", 2.0)]
    assert after(throttle("a", 2.0), throttle("a", 1.0)).relapses == {}
    assert after(*once).relapses == {"cpu_quota": 1}
    assert after(*once * 9).relapses == {"cpu_quota": 4}
    assert after(*once).without_relapses({"cpu_quota"}) == after(throttle("a", 2.0), throttle("b", 2.0))
    elsewhere = throttle("a", 50.0, ThrottleControl("memory_bandwidth", "0"))
    assert after(*once[:2], elsewhere).relapses == {}


def test_evictions_begin_once_and_end():
    state = after(
        EvictAction("a", "memory_usage", "m"),
        EvictAction("a", "cpu_usage", "c"),
        EvictAction("b", "cpu_usage", "c"),
    )
    assert state.evictions == (
        EvictAction("a", "memory_usage", watermark="m"),
        EvictAction("b", "cpu_usage", watermark="c"),
    )
    assert state.without_eviction("a").evicting_guests == {"b"}


def test_guests_that_are_gone_are_forgotten_but_their_evictions_are_finished():
    state = after(throttle("a", 1.0), throttle("b", 1.0), EvictAction("a", "cpu_usage", "c"))
    assert state.with_guests({"b"}).throttles == (ThrottledGuest("b", QUOTA, 1.0),)
    assert state.with_guests({"b"}).evicting_guests == {"a"}


names = st.text(min_size=1, max_size=4)
states = st.builds(
    WatermarkState,
    st.lists(
        st.builds(ThrottledGuest, names, st.builds(ThrottleControl, names, names), st.floats(0.01, 1e6)),
        max_size=4,
    ).map(tuple),
    st.lists(
        st.builds(EvictAction, names, names, st.text(max_size=4), st.none() | st.floats(0, 1e6)),
        max_size=3,
        unique_by=lambda one: one.guest,
    ).map(tuple),
    st.sampled_from([None, True, False]),
)


@given(states)
def test_saved_state_is_loaded_unchanged(state):
    assert state_from_json(json.loads(json.dumps(state_to_json(state)))) == state


def test_file_of_a_former_release_has_evictions_of_unknown_watermarks():
    content = {"throttles": [], "evictions": [["a", "cpu_usage"]], "scheduling_off": None}
    assert state_from_json(content).evictions == (EvictAction("a", "cpu_usage"),)


GOOD = state_to_json(after(throttle("a", 1.0), SwitchScheduling(True, ("x",))))


@pytest.mark.parametrize(
    "content",
    [
        None,
        [],
        {},
        GOOD | {"throttles": [["a", "cpu_quota", ""]]},
        GOOD | {"throttles": [["a", "cpu_quota", "", "1"]]},
        GOOD | {"throttles": [["a", "cpu_quota", "", 0]]},
        GOOD | {"throttles": [["a", "cpu_quota", "", True]]},
        GOOD | {"throttles": [["a", "cpu_quota", "", 10**400]]},
        GOOD | {"throttles": [[1, "cpu_quota", "", 1]]},
        GOOD | {"evictions": [["a"]]},
        GOOD | {"evictions": [["a", "cpu_usage", 10**400]]},
        GOOD | {"evictions": [["a", "cpu_usage"]], "evicting_watermarks": {"a": 1}},
        GOOD | {"evictions": [["a", "cpu_usage"]], "evicting_watermarks": ["a"]},
        GOOD | {"scheduling_off": "no"},
    ],
)
def test_content_that_is_no_state_is_refused(content):
    with pytest.raises(ValueError, match=r"."):
        state_from_json(content)


@pytest.mark.parametrize(
    ("action", "told", "taken"),
    [
        (SwitchScheduling(True, ("cpu", "mem")), "keep new guests away for cpu, mem", True),
        (SwitchScheduling(False), "let new guests in", False),
        (EvictAction("a", "memory_usage", "mem"), "evict a for memory_usage (mem)", True),
        (
            ThrottleAction("a", QUOTA, 1.5, "cpu_usage", "cpu"),
            f"throttle a to 1.5 of {QUOTA} for cpu_usage (cpu)",
            True,
        ),
        (RestoreAction("a", BANDWIDTH, 80.0), f"restore a to 80 of {BANDWIDTH}", False),
        (RestoreAction("a", BANDWIDTH, 0.0), f"restore a to 0 of {BANDWIDTH}", False),
        (RestoreAction("a", QUOTA, None), f"restore a to everything of {QUOTA}", False),
    ],
)
def test_an_action_says_what_it_does_and_for_what(action, told, taken):
    assert str(action) == told
    assert takes_away(action) is taken


def test_a_knob_of_a_domain_names_it():
    assert "1" in str(BANDWIDTH)
    assert str(QUOTA) == CPU_QUOTA
