"""The registry, with metrics of other packages."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from compute_agent.model.resource import CPU_QUOTA
from compute_agent.throttling.levers import ThrottleLever
from compute_agent.throttling.watermarks.metrics import (
    BUILT_IN,
    MetricRegistry,
    MetricUnit,
    MetricUsage,
    WatermarkMetric,
    by_cpu_use,
    by_usage,
)

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
        "memory_usage": (None, False, True, True),
        "swap_in": ("cpu_quota", False, True, False),
        "memory_bandwidth": ("memory_bandwidth", True, True, True),
        "llc_occupancy": ("cache_ways", True, False, False),
        "cpu_pressure": ("cpu_quota", False, False, False),
        "memory_pressure": ("cpu_quota", False, True, False),
        "io_pressure": ("blockio", False, False, False),
        "best_effort_cpu": ("cpu_quota", True, False, False),
        "cpu_steal": ("cpu_quota", False, True, False),
    }
    # What metrics of other packages have to go between.
    assert {metric.action_priority: metric.name for metric in BUILT_IN} == {
        9: "memory_usage",
        8: "swap_in",
        7: "cpu_usage",
        6: "best_effort_cpu",
        5: "memory_bandwidth",
        4: "llc_occupancy",
        3: "cpu_pressure",
        2: "memory_pressure",
        1: "io_pressure",
        0: "cpu_steal",
    }
    assert all(metric.sorter is not None for metric in BUILT_IN if metric.throttle_quantified)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"name": "Own Metric"}, "'Own Metric' is not a name"),
        ({"action_priority": 11}, "own: action_priority 11 is not within 0..10"),
        ({"throttle_quantified": True}, "own: what a throttle frees is known"),
        ({"evict_quantified": True}, "own: what an eviction does is known"),
        ({"evict": print}, "own: what an eviction does is known"),
        ({"evict_quantified": True, "evict": print}, "own: what an eviction does is known"),
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
