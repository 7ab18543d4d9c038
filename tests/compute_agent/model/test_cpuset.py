"""Tests of texts with CPU sets: their meaning, refused texts, and that a written set is read as the
same set.
"""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compute_agent.model import cpuset

CPUS = st.frozensets(st.integers(0, 300))
PART = st.tuples(st.booleans(), st.integers(0, 40), st.one_of(st.none(), st.integers(0, 10)))


@pytest.mark.parametrize(
    ("text", "cpus"),
    [
        ("", set()),
        ("0", {0}),
        ("0-3", {0, 1, 2, 3}),
        ("7-7", {7}),
        ("0-3,^2,8", {0, 1, 3, 8}),
        ("^2,0-3,8", {0, 1, 3, 8}),
        ("0-9,^4-5,^9", {0, 1, 2, 3, 6, 7, 8}),
        ("0-3,^0-3", set()),
        ("^5", set()),
        ("1,^9", {1}),
        (" 0 - 2 , ^ 1 ,, 5 ,", {0, 2, 5}),
        ("3,1,2,2-3", {1, 2, 3}),
        ("007", {7}),
    ],
)
def test_string_means_cpus(text: str, cpus: set[int]) -> None:
    assert cpuset.parse(text) == cpus


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("0-3,x", "x"),
        ("0-3,4-", "4-"),
        ("-3", "-3"),
        ("1,5-2,7", "5-2"),
        ("1,^5-2", "^5-2"),
        ("1-2-3", "1-2-3"),
        ("0 1", "0 1"),
        ("^^2", "^^2"),
        ("0x3", "0x3"),
        ("1.5", "1.5"),
        ("0-3;5", "0-3;5"),
        ("0-15:2/4", "0-15:2/4"),
        ("٣", "٣"),
        ("0-4000000000", "0-4000000000"),
        ("99999999999999999999", "99999999999999999999"),
    ],
)
def test_bad_string_names_the_bad_part(text: str, part: str) -> None:
    with pytest.raises(cpuset.BadCpuSet, match=re.escape(repr(part))) as refused:
        cpuset.parse(text)
    assert refused.value.part == part
    assert refused.value.text == text
    assert isinstance(refused.value, ValueError)


@pytest.mark.parametrize(
    ("cpus", "text"),
    [([], ""), ([5], "5"), ([0, 1], "0-1"), ([8, 3, 1, 2, 0, 3], "0-3,8"), ([1, 3, 5], "1,3,5")],
)
def test_cpus_are_written_as_the_kernel_does(cpus: list[int], text: str) -> None:
    assert cpuset.format(cpus) == text


@given(CPUS)
def test_written_set_reads_back_and_no_shorter_list_says_the_same(cpus: frozenset[int]) -> None:
    text = cpuset.format(cpus)
    assert cpuset.parse(text) == cpus
    runs = sum(1 for cpu in cpus if cpu - 1 not in cpus)
    assert len(text.split(",")) == max(runs, 1)


@given(st.lists(PART))
def test_parts_mean_the_union_of_ranges_without_the_union_of_exclusions(
    parts: list[tuple[bool, int, int | None]],
) -> None:
    def spelled(excluded: bool, first: int, more: int | None) -> str:
        return ("^" if excluded else "") + (str(first) if more is None else f"{first}-{first + more}")

    def members(wanted: bool) -> set[int]:
        return {
            cpu
            for excluded, first, more in parts
            if excluded == wanted
            for cpu in range(first, first + (more or 0) + 1)
        }

    text = ",".join(spelled(*part) for part in parts)
    assert cpuset.parse(text) == members(False) - members(True)


@given(st.text(alphabet="0123456789-,^ x", max_size=12))
def test_any_text_is_a_set_or_names_a_part_of_itself(text: str) -> None:
    bad = [part for part in map(str.strip, text.split(",")) if part and not _is_part(part)]
    if bad:
        with pytest.raises(cpuset.BadCpuSet) as refused:
            cpuset.parse(text)
        assert refused.value.part == bad[0]
    else:
        assert cpuset.parse(cpuset.format(cpuset.parse(text))) == cpuset.parse(text)


def _is_part(part: str) -> bool:
    first, dash, last = (number.strip() for number in part.removeprefix("^").partition("-"))
    if not first.isdecimal() or (dash and not last.isdecimal()):
        return False
    return max(int(first), int(last or 0)) <= cpuset.MAX_CPU and (not dash or int(first) <= int(last))


@given(CPUS, st.integers(0, 3))
def test_masks_read_back_in_words_of_32_bits(cpus: frozenset[int], leading: int) -> None:
    mask = sum(1 << cpu for cpu in cpus)
    words = [f"{mask >> shift & 0xFFFFFFFF:08x}" for shift in range(0, max(mask.bit_length(), 1), 32)]
    assert cpuset.parse_mask(",".join(["00000000"] * leading + words[::-1])) == cpus


@pytest.mark.parametrize(
    ("text", "word"), [("ff,zz", "zz"), ("", ""), ("1,,2", ""), ("123456789", "123456789")]
)
def test_bad_mask_names_the_bad_word(text: str, word: str) -> None:
    with pytest.raises(cpuset.BadCpuSet) as refused:
        cpuset.parse_mask(text)
    assert refused.value.part == word
