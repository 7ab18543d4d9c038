"""Tests of shares of cache and bandwidth in annotations of guests and in settings of QoS classes."""

import pytest

from compute_agent.resctrl.platform import BandwidthControl, CacheControl, CpuVendor, ResctrlPlatform
from compute_agent.resctrl.schemata import MaskRules, WayMask
from compute_agent.resctrl.share_spec import (
    BadShareError,
    ShareSpec,
    WayRange,
    parse_per_cache,
    parse_percent,
    parse_range,
)


def test_options_are_read():
    assert parse_range(" 0-30 ") == WayRange(0, 30)
    assert [parse_percent(text) for text in ("40", "0", " 100 ")] == [40, 0, 100]
    assert parse_range("0-100") == WayRange(0, 100)
    assert parse_per_cache("0:0-50, 17:20-80,", parse_range) == {0: WayRange(0, 50), 17: WayRange(20, 80)}
    assert parse_per_cache("", parse_percent) == {}


@pytest.mark.parametrize("text", ["30", "30-", "-30", "a-b", "50-40", "0-101", "1-2-3", ""])
def test_bad_ranges_of_options_are_refused(text):
    with pytest.raises(BadShareError):
        parse_range(text)


@pytest.mark.parametrize("text", ["", "x", "-1", "101", "1.5", "99999999"])
def test_bad_percents_of_options_are_refused(text):
    with pytest.raises(BadShareError):
        parse_percent(text)


@pytest.mark.parametrize(
    ("text", "reason"), [("0", "CACHE:VALUE"), ("a:1", "CACHE:VALUE"), ("0:1,0:2", "twice")]
)
def test_bad_overrides_of_options_are_refused(text, reason):
    with pytest.raises(BadShareError, match=reason):
        parse_per_cache(text, parse_percent)


FULL = ResctrlPlatform(
    CpuVendor.INTEL,
    CacheControl(("L3",), (1, 17), MaskRules(WayMask(0xFF)), WayMask(), 8),
    mb=BandwidthControl((1, 2), 10, 10, 8, {1: 100, 2: 100}),
)


@pytest.mark.parametrize(
    ("wish", "platform", "reason"),
    [
        (ShareSpec(llc_per_cache={0: WayRange(0, 50)}), FULL, "LLC has no cache id 0: the ids are 1, 17"),
        (ShareSpec(mb_per_cache={17: 50}), FULL, "MB has no cache id 17: the ids are 1, 2"),
        (
            ShareSpec(WayRange(0, 50)),
            ResctrlPlatform(CpuVendor.INTEL, mb=FULL.mb),
            "this host cannot control LLC",
        ),
        (ShareSpec(mb=50), ResctrlPlatform(CpuVendor.INTEL, FULL.l3), "this host cannot control MB"),
        (ShareSpec(mb=0), ResctrlPlatform(CpuVendor.INTEL, FULL.l3), "this host cannot control MB"),
        (
            ShareSpec(llc_per_cache={1: WayRange(0, 9)}),
            ResctrlPlatform(CpuVendor.INTEL, mb=FULL.mb),
            "this host cannot control LLC",
        ),
        (
            ShareSpec(mb_per_cache={1: 9}),
            ResctrlPlatform(CpuVendor.INTEL, FULL.l3),
            "this host cannot control MB",
        ),
        (ShareSpec(WayRange(0, 50)), ResctrlPlatform(CpuVendor.INTEL, FULL.l3), None),
        (ShareSpec(mb=50), ResctrlPlatform(CpuVendor.INTEL, mb=FULL.mb), None),
        (ShareSpec(WayRange(0, 1), {17: WayRange(0, 2)}, 1, {2: 2}), FULL, None),
        (ShareSpec(), ResctrlPlatform(CpuVendor.INTEL), None),
    ],
)
def test_controls_and_domains_that_the_platform_lacks_are_refused(wish, platform, reason):
    if reason is None:
        wish.check_supported(platform)
        return
    with pytest.raises(BadShareError) as caught:
        wish.check_supported(platform)
    assert str(caught.value) == reason


def test_a_share_takes_precedence_over_its_base_in_each_part():
    base = ShareSpec(WayRange(0, 30), {0: WayRange(0, 10)}, 50, {1: 60})
    assert ShareSpec().overlaid_on(base) == base
    assert ShareSpec(mb=0).overlaid_on(base) == ShareSpec(WayRange(0, 30), {0: WayRange(0, 10)}, 0)
    assert ShareSpec(mb_per_cache={1: 0, 2: 7}).overlaid_on(base) == ShareSpec(
        WayRange(0, 30), {0: WayRange(0, 10)}, 50, {1: 0, 2: 7}
    )
    assert ShareSpec(mb=20).overlaid_on(base) == ShareSpec(WayRange(0, 30), {0: WayRange(0, 10)}, 20)
    assert ShareSpec(llc_per_cache={0: WayRange(5, 6)}).overlaid_on(base).range_on(0) == WayRange(5, 6)
    assert ShareSpec(WayRange(40, 90)).overlaid_on(base) == ShareSpec(WayRange(40, 90), {}, 50, {1: 60})
