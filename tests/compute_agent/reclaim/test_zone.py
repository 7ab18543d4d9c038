"""Tests of the use of zones, of memory files of the kernel, and of cold memory."""

import json
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compute_agent.reclaim.estimate import SYSTEM, EstimateLimits, ZoneHistory, ZoneReading, estimate_use
from compute_agent.reclaim.offers import ZONES_FORMAT, CapacityOffer, ZoneState
from compute_agent.reclaim.zone import (
    CALM_SECONDS,
    MAX_PROBE,
    ColdReading,
    GuestUse,
    HostUse,
    cold_memory,
    guest_entitlements,
    memory_entitlements,
    parse_inactive_file,
    parse_node_use,
    parse_parts,
    parse_swap_use,
    parse_swapped,
    probe_size,
    read_zone,
    track_calm,
)

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


NODE = """\
Node 0 MemTotal:       16738508 kB
Node 0 MemFree:        12417336 kB
Node 0 MemUsed:         4321172 kB
Node 0 Active(file):     427688 kB
Node 0 Inactive(file):   406700 kB
Node 0 HugePages_Total:     0
"""
ZERO, BOTH = frozenset({0}), frozenset({0, 1})


def test_memory_files_of_the_kernel_are_parsed():
    used = (16738508 - 12417336 - 406700) / 1024
    assert parse_node_use(NODE) == used
    assert parse_node_use(NODE.replace("Node 0 ", "")) == used
    assert parse_inactive_file("anon 5\ninactive_file 4096\n") == 4096


@pytest.mark.parametrize(
    "text", ["", "\n\n:\n", NODE.replace("MemFree", "Mem"), NODE.replace("12417336", "99999999999"), "x: y"]
)
def test_a_text_that_is_no_memory_file_is_refused(text):
    with pytest.raises((ValueError, LookupError)):
        parse_node_use(text)
    with pytest.raises((ValueError, LookupError)):
        parse_inactive_file(text)


def test_a_guest_on_two_nodes_counts_half_on_each():
    far = GuestUse("far", 4096.0, BOTH, 1000.0)
    near = GuestUse("near", 2048.0, ZERO, 500.0)
    rest = GuestUse("rest", 1024.0, ZERO, 300.0, reclaimed=True)
    guests = (far, near, rest)
    assert memory_entitlements(guests, ZERO) == {"far": 2048.0, "near": 2048.0}
    found = read_zone(HostUse(7.0, {0: 2000.0, 1: 900.0}, guests), ZERO)
    assert (found.total, found.guests) == (1700.0, {"far": 500.0, "near": 500.0, "": 700.0})
    assert read_zone(HostUse(7.0, {1: 900.0}, guests), ZERO) is None


def test_memory_outside_of_a_guests_nodes_counts_on_its_actual_node():
    moved = GuestUse("moved", 2048.0, frozenset({1}), 1000.0, parts={0: 0.75, 1: 0.25})
    rest = GuestUse("rest", 1024.0, BOTH, 400.0, reclaimed=True, parts={0: 1.0})
    use = HostUse(7.0, {0: 2000.0, 1: 900.0}, (moved, rest))
    on = read_zone(use, ZERO)
    assert (on.total, on.guests) == (1600.0, {"moved": 750.0, "": 850.0})
    off = read_zone(use, frozenset({1}))
    assert (off.total, off.guests) == (900.0, {"moved": 250.0, "": 650.0})
    assert memory_entitlements(use.guests, ZERO) == {"moved": 750.0}
    assert memory_entitlements(use.guests, frozenset({1})) == {"moved": 2048.0}


def test_the_cgroup_shows_the_nodes_of_a_working_set():
    text = "anon N0=3000 N1=0\nfile N0=1000 N1=2000\nkernel_stack N0=9 N1=9\ninactive_file N0=1000 N1=1000\n"
    assert parse_parts(text) == {0: 0.75, 1: 0.25}
    assert parse_parts("anon N0=0\nfile N0=4\ninactive_file N0=5\n") == parse_parts("") == {}
    with pytest.raises(ValueError, match="values to unpack"):
        parse_parts("anon N0 N1=5\n")


def test_swapped_memory_is_read_from_the_kernel():
    assert parse_swap_use("MemTotal: 9 kB\nSwapCached: 1024 kB\nSwapTotal: 8192 kB\nSwapFree: 5120 kB\n") == 2
    with pytest.raises(LookupError):
        parse_swap_use("MemTotal: 9 kB\n")
    assert parse_swapped("Name:\tx\nVmSwap:\t     12 kB\n") == 12 * 1024
    assert parse_swapped("Name:\tkthreadd\n") == 0


@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.floats(0, 30_000), min_size=1, max_size=12),
    st.floats(0, 8_000),
    st.integers(0, 12_000),
    st.sampled_from([0, 1]),
)
def test_offers_of_memory_stay_within_the_rest_and_unknown_guests_count_in_full(used, rest, entitled, new):
    """Readings cover a day and some hours. Each offer is compared with the free memory."""
    capacity, history, offer, time = 32_768.0, ZoneHistory(), CapacityOffer(), 3.6e9
    for number in range(26 * 12):
        time += 300
        of_others = used[number % len(used)]
        guests = (
            GuestUse("a", 32_768.0, ZERO, of_others / 2),
            GuestUse("rest", 9_000.0, ZERO, rest, reclaimed=True),
        )
        reading = read_zone(HostUse(time, {0: of_others + rest}, guests), ZERO)
        history = history.with_reading(reading, 85.0)
        unknown = {"new": float(entitled)} if new and number % 7 == 0 else {}
        whole = memory_entitlements(guests, ZERO) | unknown
        found = estimate_use(history, whole, capacity, EstimateLimits(), time)
        offer = offer.next_offer(found.free_amount, capacity, time)
        least = capacity - of_others - sum(unknown.values())
        assert offer.published <= max(0.0, least) + 1e-6
        assert number >= 24 * 12 - 1 or offer.published == 0


GIB = 2**30


@pytest.mark.parametrize(
    ("used", "pressure", "size"),
    [
        (8 * GIB, 0.0, 8 * GIB // 2000),
        (8 * GIB, 0.05, 4 * GIB // 2000),
        (8 * GIB, 0.1, 0),
        (8 * GIB, 7.0, 0),
        (8 * GIB, None, 0),
        (1024 * GIB, 0.0, MAX_PROBE),
        (2**20, 0.0, 0),
    ],
)
def test_a_probe_becomes_smaller_with_pressure(used, pressure, size):
    assert probe_size(ColdReading(used, 0, pressure), 0.1) == pytest.approx(size, abs=1)


def test_swap_is_cold_after_ten_minutes_without_pressure():
    calm, waits = ColdReading(GIB, 7, 0.0), ColdReading(GIB, 7, 0.2)
    since = track_calm({}, {"a": calm, "b": waits, "c": calm}, 0.1, 1000.0)
    assert since == {"a": 1000.0, "c": 1000.0}
    assert cold_memory(since, {"a": calm, "c": calm}, 1000.0 + CALM_SECONDS - 1) == {}
    later = 1000.0 + CALM_SECONDS
    since = track_calm(since, {"a": calm, "b": calm, "c": waits}, 0.1, later)
    assert cold_memory(since, {"a": calm, "b": calm, "c": waits}, later) == {"a": 7}
    assert cold_memory(since, {"a": ColdReading(GIB, 0, 0.0)}, later) == {}
