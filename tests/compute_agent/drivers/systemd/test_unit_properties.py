"""Properties as systemd sends them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compute_agent.drivers.foreign.values import CPUS, DEFAULTS, INFINITY, WEIGHT
from compute_agent.drivers.systemd.unit_properties import UNIT_DEFAULTS, decode_value, encode_value

numbers = st.integers(0, INFINITY)
sets = st.frozensets(st.integers(0, 8191), max_size=20)
values = st.sampled_from(sorted(UNIT_DEFAULTS)).flatmap(
    lambda name: st.tuples(st.just(name), numbers if isinstance(DEFAULTS[name], int) else sets)
)


@given(values)
def test_a_value_is_the_same_after_it_was_sent(pair):
    name, value = pair
    assert decode_value(name, encode_value(name, value)) == value


def test_cpus_are_bits_of_bytes_with_the_lowest_first():
    assert encode_value(CPUS, frozenset({0, 9})) == ("ay", b"\x01\x02")
    assert encode_value(CPUS, frozenset()) == ("ay", b"")
    assert decode_value(CPUS, ("ay", b"")) == frozenset()


@pytest.mark.parametrize(
    ("name", "variant"),
    [
        (CPUS, ("ay", b"\xff" * 1025)),
        (CPUS, ("t", 1)),
        (CPUS, ("s", "0-3")),
        (WEIGHT, ("ay", b"")),
        (WEIGHT, ("s", "100")),
        (WEIGHT, None),
        (WEIGHT, ("t",)),
    ],
)
def test_a_value_of_another_type_is_refused(name, variant):
    with pytest.raises(ValueError, match=name):
        decode_value(name, variant)
