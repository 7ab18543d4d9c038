"""Tests of metrics of watermarks, of installed packages with metrics, and of the order of guests."""

import subprocess
import sys
from dataclasses import replace
from importlib.metadata import entry_points
from pathlib import Path

import pytest

from compute_agent.model.resource import CPU_QUOTA
from compute_agent.throttling.levers import ThrottleLever
from compute_agent.throttling.watermarks.metrics import (
    BUILT_IN,
    CPU_ORDER,
    GENERAL_ORDER,
    MEMORY_ORDER,
    MetricRegistry,
    MetricUnit,
    MetricUsage,
    WatermarkMetric,
    by_cpu_use,
    by_usage,
    combined_order,
    sort_guests,
)
from compute_agent.usage.rounds import MeasuringRound
from compute_agent.usage.snapshot import GuestUsage, MetricSeries
from tests.compute_agent.throttling.watermarks.builders import CPU, MEMORY, guest

OWN = WatermarkMetric("own", MetricUnit.OTHER, 8, lambda now, before: MetricUsage())


def test_built_in_metrics_are_those_of_the_specification():
    told = {
        metric.name: (
            metric.lever.name if metric.lever else None,
            metric.throttle_quantified,
            metric.evictable,
            metric.evict_quantified,
        )
        for metric in MetricRegistry().values()
    }
    assert told == {
        "cpu_usage": ("cpu_quota", True, True, True),
        "memory_usage": ("memory_high", True, True, True),
        "swap_in": ("cpu_quota", False, True, False),
        "memory_bandwidth": ("memory_bandwidth", True, True, True),
        "llc_occupancy": ("cache_ways", True, False, False),
        "cpu_pressure": ("cpu_quota", False, False, False),
        "memory_pressure": ("cpu_quota", False, True, False),
        "io_pressure": ("blockio", False, False, False),
        "best_effort_cpu": ("cpu_quota", True, False, False),
        "cpu_steal": ("cpu_quota", False, True, False),
        "reclaimed_cpu_oversold": (None, False, True, True),
        "reclaimed_memory_oversold": (None, False, True, True),
    }
    # Metrics of other packages need priorities between these.
    assert {metric.name: metric.action_priority for metric in BUILT_IN} == {
        "memory_usage": 9,
        "reclaimed_memory_oversold": 9,
        "swap_in": 8,
        "cpu_usage": 7,
        "best_effort_cpu": 6,
        "reclaimed_cpu_oversold": 6,
        "memory_bandwidth": 5,
        "llc_occupancy": 4,
        "cpu_pressure": 3,
        "memory_pressure": 2,
        "io_pressure": 1,
        "cpu_steal": 0,
    }
    assert all(metric.sorter is not None for metric in BUILT_IN if metric.throttle_quantified)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"name": "Own Metric"}, "'Own Metric' is not a name"),
        ({"action_priority": 11}, "own: action_priority 11 is not within 0..10"),
        ({"throttle_quantified": True}, "own: throttle_quantified needs"),
        ({"evict_quantified": True}, "own: evict and evict_quantified need"),
        ({"evict": print}, "own: evict and evict_quantified need"),
        ({"evict_quantified": True, "evict": print}, "own: evict and evict_quantified need"),
    ],
)
def test_metric_that_contradicts_itself_is_refused(change, told):
    with pytest.raises(ValueError, match=told):
        replace(OWN, **change)


def test_priorities_go_from_0_to_10():
    assert [replace(OWN, action_priority=each).action_priority for each in (0, 10)] == [0, 10]
    for each in (-1, 11):
        with pytest.raises(ValueError, match=f"own: action_priority {each} is not within 0..10"):
            replace(OWN, action_priority=each)


def test_names_are_given_once():
    with pytest.raises(ValueError, match="there are two metrics own"):
        MetricRegistry([OWN, OWN])
    other = replace(OWN, lever=ThrottleLever(CPU_QUOTA, "own", "shares"))
    with pytest.raises(ValueError, match="own: there is another lever cpu_quota"):
        MetricRegistry([*BUILT_IN, other])


PACKAGE = """
from compute_agent.qos.metrics import MetricUnit, MetricUsage, WatermarkMetric
good = WatermarkMetric("disk_latency", MetricUnit.OTHER, 8, lambda now, before: MetricUsage({"": 5.0}))
again = WatermarkMetric("cpu_usage", MetricUnit.CORES, 8, lambda now, before: MetricUsage())
number = 5
"""


@pytest.mark.slow
def test_metrics_of_installed_packages_are_found_and_bad_ones_left_out(tmp_path: Path):
    (tmp_path / "disk_metrics.py").write_text(PACKAGE)
    info = tmp_path / "disk_metrics-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: disk-metrics\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[compute_agent.qos.metrics]\ndisk_latency = disk_metrics:good\nagain = disk_metrics:again\n"
        "number = disk_metrics:number\nabsent = disk_metrics:absent\n"
    )
    script = (
        "import logging; logging.basicConfig(level='ERROR')\n"
        "from compute_agent.qos.metrics import BUILT_IN, load_registry\n"
        "print(sorted(set(load_registry()) - {metric.name for metric in BUILT_IN}))\n"
    )
    root = str(Path(__file__).parents[4])
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={"PYTHONPATH": f"{tmp_path}:{root}", "XDG_CACHE_HOME": str(tmp_path / "cache")},
        capture_output=True, text=True, check=True, cwd=tmp_path,
    )  # fmt: skip
    assert done.stdout == "['disk_latency']\n"
    assert "there are two metrics cpu_usage" in done.stderr
    assert "it is a int, not a WatermarkMetric" in done.stderr
    assert "The metric absent of disk_metrics:absent cannot be loaded" in done.stderr


def test_every_builtin_metric_that_is_quantified_sorts_by_what_it_measures():
    for metric in BUILT_IN:
        if metric.throttle_quantified or metric.evict_quantified:
            assert metric.sorter is not None
            assert {by_usage, by_cpu_use} & set(metric.sorter)


EXAMPLE = Path(__file__).parents[2] / "example_metric"
ROOT = Path(__file__).parents[4]


def test_example_on_the_page_is_the_package():
    assert (EXAMPLE / "disk_latency.py").read_text() in (ROOT / "doc/host/metric-packages.md").read_text()


def test_example_package_is_found_by_its_metadata_and_measures(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(EXAMPLE))
    (point,) = [one for one in entry_points(group="compute_agent.qos.metrics") if one.name == "disk_latency"]
    metric = point.load()
    registry = MetricRegistry([*BUILT_IN, metric])
    assert (metric.can_throttle, metric.lever) == (True, registry["io_pressure"].lever)
    disks = tmp_path / "proc/diskstats"
    disks.parent.mkdir()
    before = MeasuringRound(1.0, str(tmp_path), ())
    disks.write_text("7 0 loop0 9 0 9 9 9 0 9 9 0 0 0\n253 0 vda 100 0 0 500 20 0 0 100 0 0 0\n")
    assert metric.measure(before, None) == MetricUsage()
    before.close()
    disks.write_text("7 0 loop0 9 0 9 9 9 0 9 9 0 0 0\n253 0 vda 110 0 0 800 30 0 0 200 0 0 0\n")
    assert metric.measure(MeasuringRound(2.0, str(tmp_path), ()), before).host == {"": 20.0}
    disks.write_text("damaged\n")
    assert metric.measure(MeasuringRound(2.0, str(tmp_path), ()), before) == MetricUsage()


def names(sorter, series, *guests):
    return [one.uuid for one in sort_guests(guests, sorter, series)]


FIRST_BY = [
    # The first guest of each pair comes first, even if all later criteria favour the other guest.
    (GENERAL_ORDER, CPU, guest("z", qos_class="BE", priority=9), guest("a", qos_class="LS", started=9)),
    (GENERAL_ORDER, CPU, guest("z", priority=1), guest("a", priority=2, started=9)),
    (GENERAL_ORDER, CPU, guest("z", started=2), guest("a", started=1)),
    (GENERAL_ORDER, CPU, guest("a"), guest("z")),
    (CPU_ORDER, CPU, guest("z", 1.0), guest("a", 9.0, qos_class="LS")),
    (CPU_ORDER, CPU, guest("z", 2.0, priority=0), guest("a", 9.0, priority=1)),
    (CPU_ORDER, CPU, guest("z", 2.0, vcpus=8.0), guest("a", 1.0, vcpus=1.0, started=9)),
    (CPU_ORDER, CPU, guest("z", 2.0, vcpus=2.0), guest("a", 2.0, vcpus=4.0, started=9)),
    (CPU_ORDER, CPU, guest("z", 2.0, started=9), guest("a", 2.0)),
    (CPU_ORDER, CPU, guest("z", 0.1), guest("a")),
    (CPU_ORDER, CPU, guest("z", 0.0, started=9), guest("a")),  # unknown use counts as 0
    (MEMORY_ORDER, MEMORY, guest("z", memory=0.0, started=9), guest("a")),
    (MEMORY_ORDER, MEMORY, guest("z", memory=2.0), guest("a", memory=1.0, started=9)),
    (MEMORY_ORDER, MEMORY, guest("z", memory=1.0, started=9), guest("a", memory=1.0)),
]


@pytest.mark.parametrize(("sorter", "series", "first", "second"), FIRST_BY)
def test_first_difference_decides(sorter, series, first, second):
    assert names(sorter, series, second, first) == [first.uuid, second.uuid]
    assert names(sorter, series, first, second) == [first.uuid, second.uuid]


def test_a_guest_with_unknown_start_counts_as_the_oldest():
    unknown, young = GuestUsage("a", "BE", 0), GuestUsage("z", "BE", 0, started=0.5)
    assert names(GENERAL_ORDER, CPU, unknown, young) == ["z", "a"]


def test_new_metric_gives_one_comparison_between_the_general_ones():
    series = MetricSeries("disk_latency", "sda")
    own = combined_order(lambda one, series: -one.usage.get(series, 0.0))
    slow, slower = guest("a", usage={series: 5.0}), guest("z", usage={series: 9.0})
    dear = guest("m", usage={series: 99.0}, priority=1)
    assert names(own, series, slow, dear, slower) == ["z", "a", "m"]
