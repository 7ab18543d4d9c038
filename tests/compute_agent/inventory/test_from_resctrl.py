"""Tests of reading the capabilities of a resctrl mount for inventories."""

import pytest

from compute_agent.classes.guest_classes import DEFAULT_CLASSES
from compute_agent.inventory.resctrl import CacheDomain, cache_platform
from compute_agent.resctrl.bandwidth import choose_codec
from compute_agent.resctrl.groups import read_groups
from compute_agent.resctrl.layout import build_layout
from compute_agent.resctrl.mount import read_platform
from tests.compute_agent.resctrl import fake

CLASSES = DEFAULT_CLASSES


def platform_of(files, cpuinfo="", gbps=None, shared_ways=2):
    platform, present = read_platform(files, cpuinfo), read_groups(files)
    host = build_layout(platform, choose_codec(platform, gbps), present, "ours.", shared_ways)
    return cache_platform(host, present, CLASSES)


@pytest.fixture
def of(tmp_path):
    def tell(machine, *groups, gbps=None, shared_ways=2):
        files = fake.FakeResctrl.of(machine, tmp_path / "tree")
        for group in groups:
            files.make_folder(group)
        return platform_of(files, machine.cpuinfo, gbps, shared_ways)

    return tell


def test_an_intel_host(of):
    found = of(fake.INTEL, "somebody", "ours.guest.a", "ours.class.BE", shared_ways=4)
    assert found.domains == {
        cache: CacheDomain(
            l3_id=cache,
            ways=16,
            reserved_ways=4,
            min_ways=1,
            way_kib=1024,
            bandwidth_min=10,
            bandwidth_step=10,
        )
        for cache in (0, 1)
    }
    assert (found.groups, found.groups_taken) == (8, 3)  # default with LS and LSR, BE, a foreign group
    assert found.features == {"L3_CAT", "MBA", "CMT", "MBM"}


def test_amd_and_arm_hosts_have_units_of_their_own(of):
    amd = of(fake.AMD).domains[1]
    assert (amd.bandwidth_min, amd.bandwidth_step, amd.min_ways, amd.reserved_ways) == (1, 1, 1, 2)


def test_domains_have_the_ids_of_the_caches(of):
    assert set(of(fake.ARM).domains) == {1, 17}


def test_an_unknown_bandwidth_is_not_offered(of):
    unknown = of(fake.INTEL_MBPS)
    assert unknown.domains[0].bandwidth_min is None
    assert {"MBA", "MBA_MBPS"} <= unknown.features


def test_bandwidth_that_the_operator_tells_is_offered(of):
    assert of(fake.INTEL_MBPS, gbps=20).domains[0].bandwidth_min == 1


def test_code_and_data_prioritization_is_a_feature(of):
    assert "L3_CDP" in of(fake.INTEL_CDP).features


def test_no_more_groups_are_taken_than_there_are(of):
    found = of(fake.FakeMachine(closids=1, mb=0))
    assert (found.groups, found.groups_taken) == (1, 1)
    assert found.domains[0].bandwidth_min is None


def test_a_host_with_bandwidth_only(of, tmp_path):
    files = fake.FakeResctrl.of(fake.INTEL, tmp_path / "tree")
    lines = [line for line in (files.root / "schemata").read_text().splitlines() if "L3" not in line]
    (files.root / "schemata").write_text("\n".join(lines) + "\n")
    found = platform_of(files)
    assert found.domains[1] == CacheDomain(1, bandwidth_min=10, bandwidth_step=10)
    assert "L3_CAT" not in found.features
