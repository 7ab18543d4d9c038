"""Tests of cache bit masks."""

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compute_agent.resctrl.schemata import BadMaskError, MaskRules, WayMask

BITS = st.integers(0, 2**64 - 1)


@pytest.mark.parametrize(
    ("text", "bits"),
    [("fffff", 0xFFFFF), ("00fff", 0xFFF), ("0x3c", 0x3C), (" 1\n", 1), ("0", 0), ("f" * 16, 2**64 - 1)],
)
def test_hexadecimal_masks_are_read(text, bits):
    assert WayMask.parse_hex(text) == WayMask(bits)


@pytest.mark.parametrize("text", ["", "g", "-1", "1 2", "f" * 17, "0x", "uninitialized"])
def test_a_text_that_is_no_mask_is_refused_and_quoted(text):
    with pytest.raises(BadMaskError, match=repr(text)):
        WayMask.parse_hex(text)


@given(BITS)
@settings(deadline=None)
def test_a_mask_is_printed_as_it_is_read(bits):
    assert WayMask.parse_hex(str(WayMask(bits))) == WayMask(bits)


@given(BITS)
@settings(deadline=None)
def test_runs_are_the_maximal_pieces_of_a_mask(bits):
    runs = WayMask(bits).split_runs()
    assert sum(run.bits for run in runs) == bits
    for low, high in pairwise(runs):
        assert low.bits.bit_length() + 1 <= min(high)  # a gap between them
    for run in runs:
        assert list(run) == list(range(min(run), max(run) + 1))


@pytest.mark.parametrize(
    ("mask", "percents", "at_least", "part"),
    [
        ("fffff", (0, 30), 1, "3f"),
        ("fffff", (20, 80), 1, "fff0"),
        ("fffff", (0, 100), 1, "fffff"),
        ("fffff", (1, 2), 1, "1"),  # the first way down, the last up
        ("fffff", (99, 100), 1, "80000"),
        ("7ff", (0, 30), 1, "f"),  # 3.3 ways
        ("7ff", (50, 60), 1, "60"),
        ("ff0", (0, 50), 1, "f0"),  # of the ways that there are
        ("fffff", (50, 51), 2, "c00"),
        ("fffff", (99, 100), 2, "c0000"),  # grows downwards at the upper end
        ("fffff", (96, 98), 3, "e0000"),
        ("1", (0, 30), 2, "1"),
        ("f0f", (25, 75), 1, "30c"),
    ],
)
def test_a_range_in_percent_selects_ways(mask, percents, at_least, part):
    first, last = percents
    assert str(WayMask.parse_hex(mask).percent_range(first, last, at_least)) == part


@given(st.integers(1, 2**20 - 1), st.integers(0, 99), st.integers(1, 100), st.integers(1, 4))
@settings(deadline=None)
def test_a_selection_covers_its_range_and_has_enough_ways(bits, first, width, at_least):
    last = min(100, first + width)
    mask = WayMask(bits)
    part = mask.percent_range(first, last, at_least)
    assert mask.contains_mask(part)
    assert len(part) >= min(at_least, len(mask))
    assert len(part) * 100 >= (last - first) * len(mask)
    assert len(part) <= max(at_least, len(mask) * (last - first) / 100 + 2)


@pytest.mark.parametrize(
    ("mask", "min_bits", "sparse", "fault"),
    [
        ("ff", 1, False, None),
        ("0", 1, True, "no ways"),
        ("1ff", 1, False, "does not have"),
        ("5", 1, False, "holes"),
        ("5", 1, True, None),
        ("1", 2, False, "fewer than 2"),
        ("d", 2, True, "fewer than 2"),  # the kernel counts the lowest piece only
        ("b", 2, True, None),
    ],
)
def test_faults_of_masks_are_found_before_the_kernel_refuses_them(mask, min_bits, sparse, fault):
    found = MaskRules(WayMask.parse_hex("ff"), min_bits, sparse).find_fault(WayMask.parse_hex(mask))
    assert found is None if fault is None else fault in found


@given(st.integers(0, 255), st.integers(0, 255), st.integers(1, 3), st.booleans())
@settings(deadline=None)
def test_the_widest_mask_follows_the_rules(bits, around, min_bits, sparse):
    rules = MaskRules(WayMask(255), min_bits, sparse)
    widest = rules.widest_mask(WayMask(bits), WayMask(around))
    assert WayMask(bits).contains_mask(widest)
    assert not widest or rules.find_fault(widest) is None
    if not widest:
        assert all(len(run) < min_bits for run in WayMask(bits).split_runs())
