"""Tests of a watermark of memory bandwidth, with the real worker and a resctrl tree that refuses what the
kernel refuses.
"""

import pytest

from compute_agent.classes.guest_classes import DEFAULT_CLASSES
from compute_agent.controllers.resctrl import ResctrlController
from compute_agent.monitoring.readings import CacheReading
from compute_agent.resctrl.bandwidth import choose_codec
from compute_agent.resctrl.groups import read_groups
from compute_agent.resctrl.mount import ResctrlHandle, ResctrlOptions, read_platform
from compute_agent.throttling.watermarks.metrics import BUILT_IN, MetricRegistry
from compute_agent.usage.subjects import open_allotments
from tests.compute_agent.builders import find_view
from tests.compute_agent.loops.overload import TREE, Overload
from tests.compute_agent.resctrl import fake

LINES = """
[qos]
margin = 0

[watermark:bandwidth]
metric = memory_bandwidth
throttle_down = 10G
throttle_up = 5G
for_samples = 1
cool_down = 0
"""
GIB = 2.0**30


class Cached(Overload):
    """A host on which guests use bandwidth of L3 cache 0. `demand` is the use in GiB a second, and not in
    cores.
    """

    def __init__(self, folder):
        super().__init__(folder)
        self.lines, self.registry = LINES, MetricRegistry(BUILT_IN)
        self.files = fake.FakeResctrl.of(fake.INTEL, folder / "resctrl")
        self.driver.thread_ids = lambda guest: frozenset()

    def controllers(self):
        platform = read_platform(self.files, fake.INTEL.cpuinfo)
        control = ResctrlHandle(self.files, platform, choose_codec(platform), ResctrlOptions())
        return (ResctrlController(self.driver, control, DEFAULT_CLASSES),)

    def caches(self, controllers):
        return {"cache": self, "cache_allotments": open_allotments(controllers, lambda: TREE.nodes)}

    def percent(self, uuid):
        """The bandwidth limit of a guest at L3 cache 0, in percent; 100 if the guest has no group of
        its own.
        """
        view = find_view(self.pipeline, uuid)
        wanted = [int(limit) for knob, limit in view.limits.items() if knob == ("memory_bandwidth", "0")]
        shown = {group.schemata.get_value("MB", 0) for group in read_groups(self.files).groups.values()}
        assert set(wanted) <= shown, "a limit is in no group"
        return wanted[0] if wanted else 100

    def read(self):
        """Return the use of caches, as MonitoredCaches does."""
        used = {uuid: GIB * self.demand[uuid] * self.percent(uuid) / 100 for uuid in self.driver.running}
        return CacheReading(
            bandwidth={"0": sum(used.values()), "1": GIB},
            guest_bandwidth={uuid: {"0": amount, "1": 0.0} for uuid, amount in used.items()},
        )

    def usage(self):
        return self.read().bandwidth["0"] / GIB


@pytest.fixture
def host(tmp_path):
    with Cached(tmp_path) as host:
        host.run("big", 8.0)
        host.run("small", 4.0)
        yield host


def test_the_largest_user_gets_less_bandwidth_of_that_cache_and_all_of_it_back(host):
    host.rounds(until=lambda: host.usage() <= 10)
    assert host.percent("big") < 100
    assert host.percent("small") == 100
    assert {knob.domain for view in host.pipeline.guest_views() for knob in view.limits} == {"0"}
    host.demand = {"big": 1.0, "small": 1.0}
    host.rounds(until=lambda: host.percent("big") == 100)
    assert host.saved().throttles == ()
    assert {group.schemata.get_value("MB", 0) for group in read_groups(host.files).groups.values()} == {100}


def test_bandwidth_limits_outlive_the_agent(host):
    host.rounds(until=lambda: host.usage() <= 10)
    before = host.percent("big")
    host.crash()
    host.boot()
    host.rounds(2)
    assert host.percent("big") == before
