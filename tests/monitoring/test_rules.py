"""Alerts use existing metrics, and fire on the right values."""

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.doc.extensions import sources
from tests.monitoring.kit import DASHBOARDS, PACKAGES, RULES, alerts, metrics_in, queries, records

USED = 'openstack_placement_resource_%s{hostname="a", resourcetype="VCPU", instance="i"}'
FIRES: dict[str, list[tuple[str, str]]] = {
    "PlacementAway": [('up{job="placement"}', "0x200")],
    "PlacementDatabaseAway": [("placement_database_up", "0x200")],
    "PlacementRefusesForNow": [('placement_requests_total{operation="GET /", status="503"}', "0+1x200")],
    "PlacementFails": [('placement_requests_total{operation="GET /", status="500"}', "0+1x200")],
    "PlacementSlow": [
        ('placement_request_seconds_bucket{operation="GET /", le="1.0"}', "0+1x200"),
        ('placement_request_seconds_bucket{operation="GET /", le="2.5"}', "0+2x200"),
        ('placement_request_seconds_bucket{operation="GET /", le="+Inf"}', "0+2x200"),
    ],
    "PlacementSearchesIncomplete": [('placement_searches_incomplete_total{reason="deadline"}', "0+1x200")],
    "PlacementReadAnew": [("placement_model_rereads_total", "0+1x200")],
    "PlacementModelFileOld": [("placement_model_file_timestamp_seconds", "0x200")],
    "PlacementSeriesLeftOut": [("placement_provider_series_left_out", "1x200")],
    "PlacementWindowsLeftOut": [("placement_windows_left_out", "1x200")],
    "CloudNearlyFull": [
        (USED % "total", "100x200"),
        (USED % "reserved", "0x200"),
        (USED % "allocation_ratio", "4x200"),
        (USED % "usage", "390x200"),
    ],
    "ComputeAgentAway": [('up{job="compute-agent"}', "0x200")],
    "ComputeAgentWithoutPlacement": [("compute_agent_placement_up", "0x200")],
    "ComputeAgentReportsLate": [("compute_agent_last_report_timestamp_seconds", "0x200")],
    "ComputeAgentWithoutDriver": [("compute_agent_driver_up", "0x200")],
    "ComputeAgentChangesRefused": [("compute_agent_refused_changes", "1x200")],
    "ComputeAgentConfigurationRefused": [("compute_agent_configuration_refused", "1x200")],
    "ComputeAgentOutsideFleet": [('compute_agent_fleet_trouble{reason="revision"}', "1x200")],
    "FleetSettingsDiffer": [
        ('compute_agent_fleet_generation{group="edge", instance="a"}', "7x200"),
        ('compute_agent_fleet_generation{group="edge", instance="b"}', "6x200"),
    ],
    "GuestsWithoutPlace": [("compute_agent_refused_guests", "1x200")],
    "GuestsNotLookedAfter": [("compute_agent_lost_guests", "1x200")],
    "GuestsOverdue": [("compute_agent_overdue_guests", "1x200")],
    "GuestsUnallocated": [("compute_agent_unallocated_guests", "1x200")],
    "GuestsStray": [("compute_agent_stray_guests", "1x200")],
    "GuestsWithBrokenPromises": [('compute_agent_broken_promises{promise="cpus"}', "1x200")],
    "DevicesWithDegradedLinks": [("compute_agent_pci_degraded_links", "1x200")],
    "GuestsMovedByOthers": [('compute_agent_drift_repairs_total{controller="cpuset"}', "0+1x200")],
    "GuestsSettingsRefused": [('compute_agent_refused_settings{controller="cpuset"}', "1x200")],
    "GuestsKilledForMemory": [('compute_agent_oom_kills_total{limit="guest"}', "0+1x200")],
    "ComputeAgentFailsToApply": [('compute_agent_controller_failures_total{controller="cpuset"}', "0+1x200")],
    "ComputeAgentCannotKeepState": [("compute_agent_state_write_failures_total", "0+1x200")],
    "WatermarksFail": [("compute_agent_watermark_round_failures_total", "0+1x200")],
    "HostOversold": [("compute_agent_throttled_guests", "2x1500")],
    "HostClosed": [
        ("compute_agent_host_disabled", "1x1500"),
        ("compute_agent_scheduling_disabled", "0x1500"),
    ],
    "MetricSourceAway": [('compute_agent_metric_source_failing{metric="heat"}', "1x200")],
    "ReclaimedOversold": [('compute_agent_watermark_usage{metric="reclaimed_cpu_oversold"}', "2x200")],
    "GuestsDisturbed": [('compute_agent_interference_disturbed_guests{section="cpu"}', "1x200")],
    "ShadowDiffers": [('placement_shadow_requests_total{operation="GET /", verdict="different"}', "0+1x200")],
    "ShadowOutOfStep": [("placement_shadow_in_step", "0x200")],
    "ShadowLeftOut": [("placement_shadow_left_out", "0+1x200")],
}
"""Series that make each alert fire, a value for each minute."""
WELL = [
    ('up{job="placement"}', "1x1500"),
    ('up{job="compute-agent"}', "1x1500"),
    ("placement_database_up", "1x1500"),
    ('placement_requests_total{operation="GET /", status="200"}', "0+100x1500"),
    ('placement_request_seconds_bucket{operation="GET /", le="1.0"}', "0+100x1500"),
    ('placement_request_seconds_bucket{operation="GET /", le="+Inf"}', "0+100x1500"),
    ("placement_model_rereads_total", "0x1500"),
    ("placement_provider_series_left_out", "0x1500"),
    ("placement_windows_left_out", "0x1500"),
    (USED % "total", "100x1500"),
    (USED % "reserved", "10x1500"),
    (USED % "allocation_ratio", "2x1500"),
    (USED % "usage", "90x1500"),
    *((f"compute_agent_{name}_up", "1x1500") for name in ("placement", "driver")),
    *((f"compute_agent_{name}_guests", "0x1500") for name in ("refused", "lost", "stray", "unallocated")),
    ("compute_agent_throttled_guests", "0x700 1x700"),
    *(
        (f'compute_agent_fleet_generation{{group="{group}", instance="{name}"}}', values)
        for name, group, values in (
            ("a", "edge", "6x100 7x1400"),
            ("b", "edge", "6x120 7x1380"),
            ("c", "core", "3x1500"),
            ("d", "", "0x1500"),
            ("e", "", "1x1500"),
        )
    ),
    ('compute_agent_fleet_trouble{reason="source"}', "0x1500"),
    ('compute_agent_drift_repairs_total{controller="cpuset"}', "0+0.1x1500"),
    ("compute_agent_scheduling_disabled", "0x600 1x500 0x400"),
    ('placement_shadow_requests_total{operation="GET /", verdict="doubtful"}', "0+1x1500"),
    ("placement_shadow_in_step", "1x1500"),
    ('compute_agent_metric_source_failing{metric="heat"}', "0x600 1x5 0x895"),
    ('compute_agent_watermark_usage{metric="reclaimed_cpu_oversold"}', "0x600 3x20 0x880"),
    ('compute_agent_watermark_usage{metric="cpu_usage"}', "60x1500"),
    ('compute_agent_interference_disturbed_guests{section="cpu"}', "0x600 2x20 0x880"),
]


def promtool(*arguments: str | Path) -> None:
    program = shutil.which("promtool")
    if program is None:
        pytest.skip("needs promtool, of Debian's package prometheus")
    done = subprocess.run([program, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def world(series: list[tuple[str, str]], minutes: int, **expected: int) -> dict[str, Any]:
    """Return a test for promtool: series, and the number of each alert that fires in the end."""
    return {
        "interval": "1m",
        "input_series": [{"series": name, "values": values} for name, values in series],
        "promql_expr_test": [
            {
                "expr": f'count(ALERTS{{alertstate="firing", alertname="{alert}"}}) or vector(0)',
                "eval_time": f"{minutes}m",
                "exp_samples": [{"labels": "{}", "value": number}],
            }
            for alert, number in expected.items()
        ],
    }


def test_each_alert_fires_on_its_series_and_none_on_a_healthy_system(tmp_path: Path) -> None:
    assert set(FIRES) == set(alerts())
    lasting = {"HostOversold": 1450, "HostClosed": 1450, "PlacementModelFileOld": 150}
    worlds = [world(series, lasting.get(name, 90), **{name: 1}) for name, series in FIRES.items()]
    worlds.append(world(WELL, 1490, **dict.fromkeys(FIRES, 0)))
    tests = {"rule_files": [str(RULES)], "evaluation_interval": "1m", "tests": worlds}
    (tmp_path / "tests.yaml").write_text(yaml.safe_dump(tests))
    promtool("test", "rules", tmp_path / "tests.yaml")


# Processes of the first host use as much as a guest of size 1.
CACHES = (('cache_id="0", instance="h1"', 16), ('cache_id="1", instance="h2"', 9))
LARGEST = (
    *((f'class="BE", guest="g{size}", instance="h1"', size) for size in (3, 4, 5)),
    ('class="BE", guest="g9", instance="h2"', 9),
)
RECORDED = {
    "instance_cache:compute_agent_memory_bandwidth_bytes:rate5m": CACHES,
    "instance_cache:compute_agent_llc_occupancy_bytes:sum": CACHES,
    "instance_guest:compute_agent_memory_bandwidth_bytes:top3": LARGEST,
    "instance_guest:compute_agent_llc_occupancy_bytes:top3": LARGEST,
    "instance:compute_agent_guest_limit:count": (
        ('instance="h1", lever="cpu_quota", trigger="watermarks"', 2),
    ),
}
"""By name of a recorded series its labels and values, for guests that use as much as their number says."""


def test_recorded_series_sum_caches_and_have_the_largest_guests_of_each_host(tmp_path: Path) -> None:
    series = []
    for host, cache, size in [*(("h1", 0, size) for size in range(1, 6)), ("h2", 1, 9)]:
        labels = f'instance="{host}", guest="g{size}", class="BE", cache_id="{cache}"'
        bandwidth = f"compute_agent_memory_bandwidth_bytes_total{{{labels}"
        series += [
            (f"compute_agent_llc_occupancy_bytes{{{labels}}}", f"{size}x30"),
            (f'{bandwidth}, kind="total"}}', f"0+{60 * size}x30"),
            # Local bytes are a part of the total bytes.
            (f'{bandwidth}, kind="local"}}', f"0+{60 * size}x30"),
        ]
    for host, cache, size in [("h1", 0, 16), ("h2", 1, 9)]:
        for metric, labels in (("host_", ""), ("", ', guest="", class="BE"')):
            # The series of a class has what its guests have.
            labels = f'instance="{host}", cache_id="{cache}"{labels}'
            bandwidth = f"compute_agent_{metric}memory_bandwidth_bytes_total{{{labels}"
            series += [
                (f"compute_agent_{metric}llc_occupancy_bytes{{{labels}}}", f"{size}x30"),
                (f'{bandwidth}, kind="total"}}', f"0+{60 * size}x30"),
                (f'{bandwidth}, kind="local"}}', f"0+{60 * size}x30"),
            ]
    limit = 'compute_agent_guest_limit{instance="h1", lever="cpu_quota", trigger="watermarks", guest="%s"}'
    series += [(limit % guest, "2x30") for guest in ("g1", "g2")]
    assert RECORDED.keys() == records().keys()
    checks = [
        {
            "expr": name,
            "eval_time": "20m",
            "exp_samples": [{"labels": f"{name}{{{labels}}}", "value": value} for labels, value in samples],
        }
        for name, samples in RECORDED.items()
    ]
    tests = [world(series, 20) | {"promql_expr_test": checks}]
    content = {"rule_files": [str(RULES)], "evaluation_interval": "1m", "tests": tests}
    (tmp_path / "tests.yaml").write_text(yaml.safe_dump(content))
    promtool("test", "rules", tmp_path / "tests.yaml")


def test_rules_are_valid_and_have_instructions() -> None:
    promtool("check", "rules", RULES)
    for name, rule in alerts().items():
        assert rule["labels"]["severity"] in ("critical", "warning", "info"), name
        assert rule["annotations"].keys() - {"page"} == {"summary", "description"}, name


def test_all_metrics_of_rules_exist() -> None:
    told = {each.name.removesuffix("_total") for package in PACKAGES for each in sources.metrics(package)}
    expressions = [rule["expr"] for rule in alerts().values()]
    expressions += [expression for file in DASHBOARDS for _, expression in queries(file)]
    asked = {name for expression in expressions for name in metrics_in(expression)}
    of_the_process = {name for name in asked if name.startswith("process_")}
    assert asked - told - of_the_process == set()
