"""Tests that the monitoring of caches follows the configuration and the resctrl mount."""

import sqlite3
import time
from dataclasses import replace

import pytest
from oslo_config import cfg
from prometheus_client import CollectorRegistry

from compute_agent.conf import host as host_options
from compute_agent.conf import monitoring as monitoring_options
from compute_agent.conf import register_module
from compute_agent.loops.monitoring import CacheMonitoring
from compute_agent.monitoring.loop import MonitoringSettings
from compute_agent.monitoring.readings import CacheReading, MonitorTarget
from compute_agent.resctrl.mount import ResctrlHandle, ResctrlOptions
from tests.compute_agent.loops.configurations import configuration
from tests.compute_agent.monitoring.counting import mount
from tests.waits import wait_for

LS = MonitorTarget("", "LS", "a.class.LS")
ONE = MonitorTarget("one", "LS", "a.class.LS", name="web", cpu=0.5)
GROUP = "a.class.LS/mon_groups/a.mon.one"


@pytest.fixture
def conf(tmp_path):
    def conf(**options):
        conf = cfg.ConfigOpts()
        for module in (host_options, monitoring_options):
            register_module(conf, module)
        conf([], default_config_files=[])
        conf.set_override("state_path", str(tmp_path))
        for name, value in options.items():
            conf.set_override(name, value, "monitoring")
        return conf

    return conf


@pytest.fixture
def control(tmp_path):
    """A resctrl mount as the daemon has it. Each call makes another object, as a reload does."""
    made = mount(tmp_path / "tree")
    made.files.make_folder("a.class.LS")

    def control(**changes):
        values = {
            "files": made.files,
            "platform": made.platform,
            "codec": None,
            "options": ResctrlOptions("a."),
        }
        return ResctrlHandle(**values | changes)

    return control


FAST = {"interval": "0.02", "store_interval": "0.02"}


def test_monitoring_measures_from_start_to_stop_and_follows_the_configuration(conf, control, tmp_path):
    files = control().files
    files.make_folder("mon_groups/a.mon.orphan")
    monitoring = CacheMonitoring(
        configuration(conf(**FAST), control()), lambda: [LS, ONE], CollectorRegistry()
    )
    assert monitoring.reader.read() == CacheReading()
    monitoring.start()
    wait_for(lambda: "one" in monitoring.reader.read().guest_bandwidth)
    assert files.monitoring_groups() == [GROUP]
    assert monitoring.reader.read().bandwidth_capacity == {}
    assert monitoring.reason_off == ""
    monitoring.reload(configuration(conf(interval="0"), control()))
    assert monitoring.reason_off == "[monitoring] interval is 0"
    assert monitoring.reader.read() == CacheReading()
    wait_for(lambda: files.monitoring_groups() == [] and monitoring.loop.monitor.newest is None)
    monitoring.reload(
        configuration(conf(**FAST), control(options=ResctrlOptions("a.", memory_bandwidth_gbps=5.0)))
    )
    wait_for(lambda: "one" in monitoring.reader.read().guest_bandwidth)
    assert monitoring.reader.read().bandwidth_capacity == {"0": 5e9, "1": 5e9}
    monitoring.stop()
    assert files.monitoring_groups() == [GROUP]  # for the next agent
    with sqlite3.connect(tmp_path / "samples.db") as connection:
        assert connection.execute("SELECT count(*) FROM samples").fetchone()[0] > 4


def test_totals_go_on_over_a_change_of_the_configuration(conf, control):
    monitoring = CacheMonitoring(configuration(conf(**FAST), control()), lambda: [LS], CollectorRegistry())
    monitoring.loop.run_round(time.monotonic(), 0.0)
    monitor = monitoring.loop.monitor
    monitoring.reload(configuration(conf(), control()))
    monitoring.loop.run_round(time.monotonic(), 0.0)
    assert monitoring.loop.monitor is monitor
    monitoring.stop()


def test_a_mount_may_come_and_go(conf, control):
    monitoring = CacheMonitoring(configuration(conf(**FAST), None), lambda: [LS, ONE], CollectorRegistry())
    monitoring.start()
    assert monitoring.reason_off == "there is no resctrl with counters"
    assert monitoring.reader.read() == CacheReading()
    monitoring.reload(configuration(conf(**FAST), control()))
    wait_for(lambda: "one" in monitoring.reader.read().guest_bandwidth)
    monitoring.reload(configuration(conf(**FAST), None))
    wait_for(lambda: monitoring.reader.read() == CacheReading())
    monitoring.stop()


@pytest.mark.parametrize("what", ["captured", "without counters"])
def test_a_mount_that_cannot_be_measured_is_left_alone(conf, control, what):
    platform = replace(control().platform, monitoring=None)
    unfit = control(writable=False) if what == "captured" else control(platform=platform)
    monitoring = CacheMonitoring(configuration(conf(**FAST), unfit), lambda: [LS, ONE], CollectorRegistry())
    assert monitoring.reason_off
    monitoring.loop.run_round(time.monotonic(), 0.0)
    assert unfit.files.monitoring_groups() == []
    monitoring.stop()


def test_monitoring_that_is_off_removes_groups_of_an_earlier_agent(conf, control):
    files = control().files
    files.make_folder("mon_groups/a.mon.orphan")
    monitoring = CacheMonitoring(
        configuration(conf(interval="0"), control()), lambda: [LS, ONE], CollectorRegistry()
    )
    monitoring.start()
    wait_for(lambda: files.monitoring_groups() == [])
    monitoring.stop()


def test_settings_are_in_seconds_and_bytes(conf):
    options = conf(interval="1m", retention="2d", store_max_mb=3, store_interval="5")
    assert MonitoringSettings.from_options(options) == MonitoringSettings(60.0, 5.0, 172800.0, 3_000_000)
    assert MonitoringSettings.from_options(conf()) == MonitoringSettings()
