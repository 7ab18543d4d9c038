"""Tests of the CPU use that others have of a zone, from one reading of host and guests."""

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compute_agent.reclaim.estimate import SYSTEM, ZoneHistory, ZoneReading
from compute_agent.reclaim.offers import ZONES_FORMAT, CapacityOffer, ZoneState
from compute_agent.reclaim.zone import GuestUse, HostUse, guest_entitlements, read_zone

SHARED = frozenset({0, 1, 2, 3})
BUSY = {0: 0.5, 1: 0.5, 2: 1.0, 3: 0.0, 4: 1.0, 5: 1.0}
A = GuestUse("a", 2.0, SHARED, 1.0)
REST = GuestUse("rest", 4.0, SHARED, 0.6, reclaimed=True)


def test_the_rest_belongs_to_the_system_and_reclaimed_use_is_excluded():
    found = read_zone(HostUse(7.0, BUSY, (A, REST)), SHARED)
    assert (found.time, found.total) == (7.0, pytest.approx(1.4))
    assert found.guests == {"a": 1.0, SYSTEM: pytest.approx(0.4)}


def test_the_use_of_an_ended_guest_is_not_attributed_to_the_system():
    found = read_zone(HostUse(7.0, BUSY, (A,), left=True), SHARED)
    assert found == ZoneReading(7.0, 2.0, {"a": 1.0})
    assert read_zone(HostUse(7.0, BUSY, (A,), left=True, reclaimed_left=True), SHARED) is None


def test_a_new_guest_has_no_use_and_is_not_attributed_to_the_system():
    new = replace(A, uuid="new", cores=None)
    assert read_zone(HostUse(7.0, BUSY, (A, new)), SHARED).guests == {"a": 1.0}
    assert read_zone(HostUse(7.0, BUSY, (A, replace(REST, cores=None))), SHARED) is None
    assert guest_entitlements((A, new, REST), SHARED) == {"a": 2.0, "new": 2.0}


def test_guests_count_where_their_cpus_are():
    wide = GuestUse("wide", 6.0, frozenset(BUSY), 3.0)
    dedicated = GuestUse("own", 2.0, frozenset({4, 5}), 2.0)
    assert read_zone(HostUse(7.0, BUSY, (wide, dedicated)), SHARED).guests["wide"] == 2.0
    assert guest_entitlements((wide, dedicated), SHARED) == {"wide": 4.0}


def test_a_zone_with_an_unknown_cpu_has_no_reading():
    assert read_zone(HostUse(7.0, BUSY, ()), SHARED | {9}) is None


@given(st.lists(st.tuples(st.floats(0, 6), st.booleans(), st.frozensets(st.sampled_from(range(6))))))
def test_the_others_use_is_between_0_and_the_capacity(uses):
    guests = tuple(GuestUse(str(n), 2.0, cpus, cores, rest) for n, (cores, rest, cpus) in enumerate(uses))
    found = read_zone(HostUse(7.0, BUSY, guests), SHARED)
    assert 0 <= found.total <= 2.0
    assert all(used >= 0 for used in found.guests.values())


def state():
    history = ZoneHistory()
    for n in range(200):
        history = history.with_reading(
            ZoneReading(3.6e9 + 60 * n, 1.0 + n % 7, {"a": 1.0, SYSTEM: n % 7}), 80
        )
    return {"zone": ZoneState(history, CapacityOffer(3, 3.5, 3.6e9, 3.6e9, 2)), "new": ZoneState()}


def test_state_is_equal_after_a_restart():
    assert ZONES_FORMAT.parse(ZONES_FORMAT.dump(state())) == state()


@pytest.mark.parametrize("content", [b"", b"[]", b"{}", b'{"version": 2, "zones": {}}', b"[" * 100_000])
def test_a_damaged_state_file_is_refused(content):
    with pytest.raises(ValueError, match=r"Expecting|unexpected|version|decode"):
        ZONES_FORMAT.parse(content)


@given(
    st.sampled_from(["time", "period", "hour", "periods", "peaks"]), st.sampled_from([-1, "x", None, True])
)
def test_implausible_numbers_in_the_state_file_are_refused(field, value):
    document = json.loads(ZONES_FORMAT.dump(state()))
    kept = document["zones"]["zone"]["history"]
    match field:
        case "periods":
            kept[field][0] = value
        case "hour":
            kept[field]["a"] = value
        case "peaks":
            kept[field]["a"]["hours"] = [value]
        case _:
            kept[field] = value
    with pytest.raises(ValueError, match=r"is not a number|unexpected content"):
        ZONES_FORMAT.parse(json.dumps(document).encode())
