"""Properties as systemd sends them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compute_agent.drivers.foreign.values import CPUS, DEFAULTS, INFINITY, RATES, WEIGHT, DeviceLimits
from compute_agent.drivers.systemd.unit_properties import decode_value, encode_value

numbers = st.integers(0, INFINITY)
sets = st.frozensets(st.integers(0, 8191), max_size=20)
limits = st.dictionaries(st.sampled_from(["8:0", "259:4", "/dev/is-not-there"]), numbers)
kinds = {int: numbers, frozenset: sets, DeviceLimits: limits.map(DeviceLimits.from_limits)}
values = st.sampled_from(sorted(DEFAULTS)).flatmap(
    lambda name: st.tuples(st.just(name), kinds[type(DEFAULTS[name])])
)


@given(values)
def test_a_value_is_the_same_after_it_was_sent(pair):
    name, value = pair
    pairs = encode_value(name, value)
    assert {each for each, _ in pairs} == {name}
    assert decode_value(name, pairs[-1][1]) == value


def test_cpus_are_bits_of_bytes_with_the_lowest_first():
    assert encode_value(CPUS, frozenset({0, 9})) == [(CPUS, ("ay", b"\x01\x02"))]
    assert encode_value(CPUS, frozenset()) == [(CPUS, ("ay", b""))]
    assert decode_value(CPUS, ("ay", b"")) == frozenset()


def test_a_list_of_devices_is_emptied_before_devices_are_added():
    value = DeviceLimits.from_limits({"0:9999": 7})
    assert encode_value(RATES[0], value) == [
        (RATES[0], ("a(st)", [])),
        (RATES[0], ("a(st)", [("/dev/block/0:9999", 7)])),
    ]
    assert encode_value(RATES[0], DeviceLimits()) == [(RATES[0], ("a(st)", []))]


def test_the_lower_one_of_two_limits_of_a_device_counts():
    pairs = [("/dev/block/0:9999", 9), ("/dev/block/0:9999", 7), ("/dev/block/0:9998", INFINITY)]
    assert decode_value(RATES[0], ("a(st)", pairs)) == DeviceLimits.from_limits({"0:9999": 7})


@pytest.mark.parametrize(
    ("name", "variant"),
    [
        (RATES[0], ("t", 1)),
        (RATES[0], ("a(st)", b"")),
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
