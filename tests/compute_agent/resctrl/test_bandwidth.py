"""Tests of converting percents and rates of bandwidth to the units of each processor."""

import pytest

from compute_agent.resctrl.bandwidth import (
    BandwidthRate,
    BandwidthUnknownError,
    choose_codec,
    encode_cap,
    is_below_full,
    percent_of_cap,
)
from compute_agent.resctrl.platform import UNLIMITED_MBPS, BandwidthControl, CpuVendor, ResctrlPlatform


def engine(vendor, gbps=None, **control):
    values = {"minimum": 10, "granularity": 10, "closids": 8, "maximum": {0: 100}} | control
    return choose_codec(ResctrlPlatform(vendor, mb=BandwidthControl((0,), **values)), gbps)


AMD = {"minimum": 0, "granularity": 1, "maximum": {0: 2048}}
MBPS = {"in_mbps": True, "maximum": {0: UNLIMITED_MBPS}}


@pytest.mark.parametrize(
    ("found", "percents"),
    [
        (engine(CpuVendor.INTEL), {0: 10, 1: 10, 10: 10, 11: 20, 30: 30, 95: 100, 100: 100}),
        (engine(CpuVendor.INTEL, minimum=20, granularity=15), {10: 20, 21: 35, 36: 50, 99: 100}),
        # an eighth of a GB/s each
        (engine(CpuVendor.AMD, **AMD), {100: 2048, 50: 1024, 33: 676, 1: 21, 0: 1}),
        (engine(CpuVendor.AMD, 200, **AMD), {100: 1600, 50: 800, 10: 160, 0: 1}),
        (engine(CpuVendor.AMD, 1000, **AMD), {100: 2048, 50: 1024}),  # more than the hardware can tell
        (engine(CpuVendor.INTEL, 10, **MBPS), {100: 9540, 50: 4770, 1: 100, 0: 10}),
        (engine(CpuVendor.INTEL, None, **MBPS), {100: UNLIMITED_MBPS}),
        (engine(CpuVendor.ARM, minimum=1, granularity=1), {0: 1, 33: 33, 100: 100}),
        (engine(CpuVendor.ARM, minimum=6, granularity=6), {0: 6, 30: 30, 31: 36, 98: 100}),
    ],
)
def test_percents_become_values(found, percents):
    assert {percent: found.encode_percent(0, percent) for percent in percents} == percents
    for percent, value in percents.items():
        assert found.decode_value(0, value) >= percent
    assert found.decode_value(0, found.encode_percent(0, 100)) == 100


@pytest.mark.parametrize(
    ("found", "least", "step", "shares"),
    [
        (engine(CpuVendor.INTEL), 10, 10, False),
        (engine(CpuVendor.INTEL, minimum=0), 1, 10, False),  # 0 would stop a guest
        (engine(CpuVendor.ARM, minimum=0, granularity=1), 1, 1, True),
        (engine(CpuVendor.AMD, **AMD), 1, 1, True),
        (engine(CpuVendor.INTEL, 10, **MBPS), 1, 1, True),
        (engine(CpuVendor.ARM, minimum=6, granularity=6), 6, 6, True),
    ],
)
def test_inventories_have_the_units_of_the_hardware(found, least, step, shares):
    assert (found.min_percent, found.percent_step, found.shares_cap) == (least, step, shares)


def test_a_part_of_an_unknown_bandwidth_is_refused_and_names_the_option():
    with pytest.raises(BandwidthUnknownError, match="memory_bandwidth_gbps"):
        engine(CpuVendor.INTEL, None, **MBPS).encode_percent(0, 50)


@pytest.mark.parametrize(
    ("found", "values", "percents"),
    [
        # 125 MB/s each
        (engine(CpuVendor.AMD, **AMD), {1: 1, 125: 1, 126: 2, 4000: 32, 10**6: 2048}, {4000: 1, 10**6: 100}),
        (engine(CpuVendor.AMD, 20, **AMD), {4000: 32}, {4000: 20, 30_000: 100, 1: 1}),
        # 1,048,576 bytes each, in steps of 10
        (engine(CpuVendor.INTEL, None, **MBPS), {1: 10, 4000: 3820}, {4000: 100}),
        (engine(CpuVendor.INTEL, 10, **MBPS), {4000: 3820}, {4000: 40}),
    ],
)
def test_rates_become_values_where_the_hardware_has_absolute_ones(found, values, percents):
    assert {mbps: encode_cap(found, 0, BandwidthRate(mbps)) for mbps in values} == values
    assert {mbps: percent_of_cap(found, 0, BandwidthRate(mbps)) for mbps in percents} == percents
    assert encode_cap(found, 0, 100) == found.encode_percent(0, 100)
    assert percent_of_cap(found, 0, 30) == 30


@pytest.mark.parametrize("vendor", [CpuVendor.INTEL, CpuVendor.ARM])
def test_a_rate_is_refused_where_the_hardware_takes_percents(vendor):
    with pytest.raises(BandwidthUnknownError, match="4000 MB/s needs AMD, or the mount option mba_MBps"):
        encode_cap(engine(vendor), 0, BandwidthRate(4000))


def test_only_no_cap_and_all_of_the_bandwidth_are_full():
    caps = (None, 100, 99, 0, BandwidthRate(10**7))
    assert [is_below_full(cap) for cap in caps] == [False, False, True, True, True]


def test_other_values_are_accepted_only_from_kernels_that_round():
    assert engine(CpuVendor.ARM, minimum=1, granularity=1).is_same_value(33, 34)
    assert not engine(CpuVendor.ARM, minimum=1, granularity=1).is_same_value(33, 35)
    assert not engine(CpuVendor.INTEL).is_same_value(30, 40)
    assert not engine(CpuVendor.AMD, **AMD).is_same_value(30, 31)


def test_only_the_unlimited_value_may_be_rounded_to_a_step():
    found = engine(CpuVendor.INTEL, 10, granularity=10, **MBPS)
    limited = found.encode_percent(0, 50)
    assert [found.is_same_value(UNLIMITED_MBPS, UNLIMITED_MBPS - less) for less in (0, 9, 10)] == [
        True,
        True,
        False,
    ]
    assert [found.is_same_value(UNLIMITED_MBPS, UNLIMITED_MBPS + more) for more in (9, 10)] == [True, False]
    assert [found.is_same_value(limited, limited - less) for less in (0, 1)] == [True, False]
    assert [found.decode_value(0, value) for value in (UNLIMITED_MBPS, limited)] == [100, 50]


def test_without_bandwidth_control_there_is_no_codec():
    assert choose_codec(ResctrlPlatform(CpuVendor.INTEL)) is None
