"""Tests of settings of guests by the fleet, together with settings by hand."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compute_agent.fleet.guests import parse, plan_settings
from compute_agent.fleet.revision import FleetError

GUEST = "11111111-1111-4111-8111-111111111111"


def one(value: str | None) -> dict[str, dict[str, str]]:
    return {} if value is None else {GUEST: {"qos_class": value}}


@pytest.mark.parametrize(
    ("wanted", "applied", "present", "changes", "after", "conflict"),
    [
        ("BE", None, "LS", "BE", "BE", False),
        ("BE", None, "BE", None, "BE", False),
        ("BE", "BE", "BE", None, "BE", False),
        ("BE", "BE", "LS", None, "BE", True),
        ("HP", "BE", "BE", "HP", "HP", False),
        ("HP", "BE", "HP", None, "HP", False),
        ("HP", "BE", "LS", None, "BE", True),
        (None, "BE", "BE", None, None, False),
        ("BE", "BE", None, None, None, False),
    ],
)
def test_each_case(wanted, applied, present, changes, after, conflict):
    found = plan_settings(one(wanted), one(applied), one(present))
    assert (found.changes, found.applied) == (one(changes), one(after))
    assert bool(found.conflicts) == conflict


VALUE = st.sampled_from("abc")
MOVE = st.tuples(st.sampled_from(["fleet", "host", "restart"]), VALUE)


@given(VALUE, st.lists(MOVE, max_size=12))
def test_settings_by_hand_stay_and_all_others_reach_the_wanted_value(present, moves):
    applied, wanted = one(None), None
    for who, value in moves:
        own = False
        if who == "fleet":
            wanted = value
        elif who == "host":
            own = bool(applied) and wanted is not None and one(value) != applied
            present = value
        else:
            applied, present = plan_settings(one(wanted), applied, one(None)).applied, value
        found = plan_settings(one(wanted), applied, one(present))
        if own:
            assert found.changes == {}
            assert bool(found.conflicts) == (value != wanted)
        present = found.changes.get(GUEST, {}).get("qos_class", present)
        applied = found.applied
        assert wanted is None or present == wanted or found.conflicts
        assert plan_settings(one(wanted), applied, one(present)).changes == {}  # no further change follows


def test_sections_are_read():
    text = {f"guest:{GUEST.upper()}": {"qos_class": "BE", "priority": "-7"}, "qos": {"margin": "1"}}
    assert parse(text) == {GUEST: {"qos_class": "BE", "priority": -7}}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ({"guest:web": {"priority": "1"}}, "has to be the uuid of a guest"),
        ({f"guest:{GUEST}": {"cpus": "1"}}, "cpus: there is no such setting"),
        ({f"guest:{GUEST}": {"priority": "high"}}, "priority = 'high': a whole number"),
        ({f"guest:{GUEST}": {}, f"guest:{GUEST.replace('-', '')}": {}}, "of the same guest"),
    ],
)
def test_sections_that_cannot_be_meant_are_refused(text, words):
    with pytest.raises(FleetError, match=words):
        parse(text)
