"""Tests of schemata lines as kernels print and accept them."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compute_agent.resctrl.schemata import (
    BANDWIDTH_RESOURCES,
    CACHE_RESOURCES,
    BadSchemataError,
    Schemata,
    parse_schemata,
    parse_sizes,
)


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("L3:0=fffff;1=fffff\nMB:0=100;1=100\n", {"L3": {0: 0xFFFFF, 1: 0xFFFFF}, "MB": {0: 100, 1: 100}}),
        ("    MB:0=  100;1=   10\n    L3:0=0ffff\n", {"MB": {0: 100, 1: 10}, "L3": {0: 0xFFFF}}),
        ("L2DATA:3=f;17=1\nL2CODE:3=f0;17=2\n", {"L2DATA": {3: 15, 17: 1}, "L2CODE": {3: 0xF0, 17: 2}}),
        ("SMBA:0=2048;1=  64\n", {"SMBA": {0: 2048, 1: 64}}),
        ("L3:0=ffffffffffffffff", {"L3": {0: 2**64 - 1}}),
        ("L3:1=f;\n\n", {"L3": {1: 15}}),
        ("L3:uninitialized\nMB:uninitialized\n", {}),
        ("L3:0=1\nGPU:0=zz\n", {"L3": {0: 1}}),  # of a kernel to come
        ("", {}),
    ],
)
def test_lines_are_read(text, lines):
    assert {name: dict(values) for name, values in parse_schemata(text).lines.items()} == lines


@pytest.mark.parametrize(
    ("text", "quoted"),
    [
        ("L3 0=f\n", "L3 0=f"),
        ("L3:0\n", "'0'"),
        ("L3:0=xyz\n", "0=xyz"),
        ("MB:a=1\n", "a=1"),
        ("MB:0=\n", "0="),
    ],
)
def test_bad_lines_are_quoted(text, quoted):
    with pytest.raises(BadSchemataError) as caught:
        parse_schemata(text)
    assert quoted in str(caught.value)


def test_values_are_printed_in_the_kernels_form():
    schemata = Schemata({"L3": {17: 0xF0, 1: 0xFFFFF}, "MB": {1: 30}})
    assert str(schemata) == "L3:1=fffff;17=f0\nMB:1=30\n"


@given(
    st.dictionaries(
        st.sampled_from(CACHE_RESOURCES + BANDWIDTH_RESOURCES),
        st.dictionaries(st.integers(0, 2**31), st.integers(0, 2**64 - 1), min_size=1),
    )
)
@settings(deadline=None)
def test_printed_schemata_parse_to_the_same_values(lines):
    schemata = Schemata(lines)
    assert parse_schemata(str(schemata)) == schemata
    assert hash(parse_schemata(str(schemata))) == hash(schemata)


def test_only_differences_are_written():
    now = parse_schemata("L3:0=ff;1=ff\nMB:0=100;1=100\n")
    wanted = Schemata({"L3": {0: 0xFF, 1: 0xF}, "MB": {0: 100}})
    assert str(wanted.changes_from(now)) == "L3:1=f\n"
    assert str(now.updated_with(wanted)) == "L3:0=ff;1=f\nMB:0=100;1=100\n"
    assert str(Schemata({"L3": {0: 1, 7: 1}, "L2": {0: 1}}).restricted_to(now)) == "L3:0=1\n"
    assert not now.changes_from(now)


def test_sizes_are_decimal():
    assert parse_sizes("L3:0=57671680\nMB:0=  100\n") == {"L3": {0: 57671680}, "MB": {0: 100}}


def test_lines_after_an_empty_line_count() -> None:
    assert parse_schemata("L3:0=f\n\nMB:0=100\n") == parse_schemata("L3:0=f\nMB:0=100\n")
    assert parse_sizes("L3:0=1024\n \nL2:0=64\n") == {"L3": {0: 1024}, "L2": {0: 64}}
