"""Properties as systemd sends them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compute_agent.drivers.foreign.values import (
    CPUS,
    DEFAULTS,
    INFINITY,
    LATENCY,
    RATES,
    WEIGHT,
    DeviceLimits,
)
from compute_agent.drivers.systemd.unit_state import (
    UNIT_DEFAULTS,
    decode_value,
    device_paths,
    encode_value,
)

numbers = st.integers(0, INFINITY)
sets = st.frozensets(st.integers(0, 8191), max_size=20)
limits = st.dictionaries(st.sampled_from(["8:0", "259:1"]), numbers).map(DeviceLimits.from_limits)
kinds = {int: numbers, frozenset: sets, DeviceLimits: limits}
values = st.sampled_from(sorted(UNIT_DEFAULTS)).flatmap(
    lambda name: st.tuples(st.just(name), kinds[type(DEFAULTS[name])])
)


@given(values)
def test_a_value_is_the_same_after_it_was_sent(pair):
    name, value = pair
    assert decode_value(name, encode_value(name, value)) == value


def test_cpus_are_bits_of_bytes_with_the_lowest_first():
    assert encode_value(CPUS, frozenset({0, 9})) == ("ay", b"\x01\x02")
    assert encode_value(CPUS, frozenset()) == ("ay", b"")
    assert decode_value(CPUS, ("ay", b"")) == frozenset()


DEVICES = {"/dev/sda": "8:0", "/dev/disk/by-id/a": "8:0", "/dev/sdb": "8:16"}
"""The device of each path."""


def find_device(path):
    return DEVICES.get(path, "")


def test_limits_of_devices_are_by_path():
    assert decode_value(RATES[0], ("a(st)", [("/dev/block/8:0", 7)])) == DeviceLimits((("8:0", 7),))
    variant = ("a(st)", [("/dev/sdb", 7), ("/dev/gone", 8)])
    assert decode_value(RATES[0], variant, find_device) == DeviceLimits((("8:16", 7),))
    assert encode_value(LATENCY, DeviceLimits((("8:0", 7),))) == ("a(st)", [("/dev/block/8:0", 7)])


def test_all_paths_of_a_device_get_its_limit_and_other_paths_lose_theirs():
    read, write = RATES[:2]
    properties = {
        read: ("a(st)", [("/dev/sda", 7), ("/dev/gone", 8)]),
        write: ("a(st)", [("/dev/disk/by-id/a", 9), ("/dev/sda", 9), ("/dev/sdb", 9)]),
    }
    paths = device_paths(properties, find_device)
    assert paths == {"8:0": ["/dev/sda", "/dev/disk/by-id/a"], "8:16": ["/dev/sdb"]}
    value = DeviceLimits.from_limits({"8:0": 5, "8:32": 6})
    assert encode_value(read, value, paths) == (
        "a(st)",
        [("/dev/sda", 5), ("/dev/disk/by-id/a", 5), ("/dev/sdb", INFINITY), ("/dev/block/8:32", 6)],
    )


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
        (RATES[0], ("t", 1)),
        (RATES[0], ("a(st)", 1)),
    ],
)
def test_a_value_of_another_type_is_refused(name, variant):
    with pytest.raises(ValueError, match=name):
        decode_value(name, variant)
