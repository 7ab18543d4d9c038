"""Tests of the limits of a platform, and of the number of counter files that stay open."""

import resource

import pytest

from compute_agent.resctrl.monitoring import descriptors_to_keep
from compute_agent.resctrl.platform import BandwidthControl, CpuVendor, MonitoringFeatures, ResctrlPlatform


def bandwidth(closids: int) -> BandwidthControl:
    return BandwidthControl((0,), minimum=10, granularity=10, closids=closids)


@pytest.mark.parametrize(
    ("platform", "groups"),
    [
        (ResctrlPlatform(CpuVendor.INTEL), 0),
        (ResctrlPlatform(CpuVendor.INTEL, monitoring=MonitoringFeatures(8, frozenset())), 0),
        (ResctrlPlatform(CpuVendor.AMD, mb=bandwidth(16)), 16),
        (ResctrlPlatform(CpuVendor.AMD, mb=bandwidth(16), smba=bandwidth(12)), 12),
        (
            ResctrlPlatform(CpuVendor.AMD, mb=bandwidth(16), monitoring=MonitoringFeatures(8, frozenset())),
            8,
        ),
    ],
    ids=["nothing", "counters alone", "one resource", "two resources", "fewer RMIDs than CLOSIDs"],
)
def test_the_smallest_number_of_closids_limits_the_groups(platform: ResctrlPlatform, groups: int) -> None:
    assert platform.max_groups == groups


@pytest.mark.parametrize(("limit", "kept"), [(1024, 512), (resource.RLIM_INFINITY, 65536)])
def test_counters_keep_at_most_half_of_the_file_limit_open(
    monkeypatch: pytest.MonkeyPatch, limit: int, kept: int
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (limit, limit))
    assert descriptors_to_keep() == kept
