"""Tests of metrics from outside the kernel: configuration, readings over time, and watermarks while a source
fails.
"""

import logging
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from compute_agent.loops.metric_sources import MetricSources
from compute_agent.model.messages import ConfigError
from compute_agent.throttling.settings import MetricSource, read_settings
from compute_agent.throttling.watermarks.metrics import BUILT_IN, MetricRegistry
from tests.compute_agent.builders import load_text
from tests.compute_agent.loops.configurations import configuration
from tests.compute_agent.loops.overload import Overload
from tests.waits import wait_for


def settings(folder, text):
    return read_settings(load_text(folder, text), MetricRegistry(BUILT_IN))


def test_sources_are_read_from_sections(tmp_path):
    found = settings(
        tmp_path,
        "[metric:heat]\ncommand = /bin/heat 'rack 7'\nunit = percent\ninterval = 60\nlever = cpu_quota\n"
        "[metric:queue]\npromql = max(queue)\nurl = https://prometheus:9090/\ntimeout = 3\n",
    )
    assert found.sources == (
        MetricSource("heat", ("/bin/heat", "rack 7"), "", "http://127.0.0.1:9090", 60.0, 10.0),
        MetricSource("queue", (), "max(queue)", "https://prometheus:9090", 30.0, 3.0),
    )
    heat = found.rules.registry["heat"]
    assert (heat.unit, heat.lever.name, heat.evictable, heat.external) == ("percent", "cpu_quota", True, True)
    assert found.rules.registry["queue"].lever is None


@pytest.mark.parametrize(
    ("lines", "told"),
    [
        ("[metric:x]\nunit = cores", r"\[metric:x\]: set either command or promql"),
        ("[metric:x]\ncommand = a\npromql = b", r"\[metric:x\]: set either command or promql"),
        ("[metric:x]\ncommand = 'a", r"\[metric:x\] command: .*No closing quotation"),
        ("[metric:x]\npromql = a\nurl = ftp://h", r"\[metric:x\] url: it has to be http://"),
        ("[metric:x]\npromql = a\nurl = http://u:p@h", r"\[metric:x\] url: it has to be http://"),
        ("[metric:Heat]\ncommand = a", r"\[metric:Heat\]: 'Heat' is not a name of a metric"),
        ("[metric:and]\ncommand = a", r"\[metric:and\]: 'and' is not a name of a metric"),
        (
            "[metric:x]\ncommand = a\nunit = bytes\n[watermark:w]\nmetric = x\nevict = 80%",
            r"\[watermark:w\] evict: 80%: a percentage needs a capacity",
        ),
        (
            "[watermark:w]\nmetric = cpu_usage - 2\nevict = 80%",
            r"\[watermark:w\] evict: 80%: a percentage needs a capacity",
        ),
        (
            "[watermark:w]\nmetric = swap_in\nevict = 8%",
            r"\[watermark:w\] evict: 8%: a percentage needs a capacity",
        ),
        ("[metric:cpu_usage]\ncommand = a", r"\[metric:cpu_usage\]: there are two metrics cpu_usage"),
        (
            "[metric:x]\ncommand = a\n[watermark:w]\nmetric = x\nthrottle_down = 1\nthrottle_up = 0.5",
            r"\[watermark:w\] throttle_down: guests cannot be throttled for x",
        ),
    ],
)
def test_section_that_means_nothing_is_refused(tmp_path, lines, told):
    with pytest.raises(ConfigError, match=told):
        settings(tmp_path, lines)


class SensedOverload(Overload):
    """A host with a metric that a command reads from a file."""

    def boot(self):
        self.now = 0.0
        self.metrics = CollectorRegistry()
        self.sources = MetricSources(
            configuration(settings=self.settings()), CollectorRegistry(), lambda: self.now
        )
        super().boot()

    def caches(self, controllers):
        return {"read_source": self.sources.read_value}

    def sense(self, text):
        (self.folder / "heat").write_text(text)
        for runner in self.sources.runners.values():
            runner.read_source()


@pytest.fixture
def host(tmp_path):
    overload = SensedOverload(tmp_path)
    overload.lines = (
        f"[metric:heat]\ncommand = cat {tmp_path}/heat\nlever = cpu_quota\ninterval = 30\n"
        "[watermark:hot]\nmetric = heat > 80\nthrottle_down = true\nthrottle_up = false\n"
        "disable_scheduling = true\nfor_samples = 2\ncool_down = 0\n"
    )
    with overload as running:
        yield running


def test_source_that_is_away_leaves_everything_as_it_is(host, caplog):
    host.run("a", 4.0)
    host.sense("60")
    host.rounds(3)
    assert (host.limits(), host.switches) == ({}, [False])
    host.sense("90")
    host.rounds(3)
    limited = host.limits()
    assert limited["a"] < 4.0
    assert host.switches == [False, True]
    with caplog.at_level(logging.INFO):
        host.sense("broken")
        host.rounds(20)
        host.sense("broken still")
    # While the source has no value, limits neither change nor end, and the log has one line.
    assert (host.limits(), host.switches) == (limited, [False, True])
    assert [one.getMessage() for one in caplog.records if "[metric:heat]" in one.getMessage()] == [
        "The metric of section [metric:heat] has no value, so its watermarks neither set nor lift limits:"
        " cat: 'broken' is no number"
    ]
    (text,) = host.sources.failure_texts
    assert text.endswith("neither set nor lift limits: cat: 'broken still' is no number")
    host.sense("20")
    host.rounds(until=lambda: not host.limits())
    assert host.switches == [False, True, False]
    assert host.sources.failure_texts == ()


def test_value_of_a_source_that_hangs_ends(host):
    host.sense("90")
    host.now = 41.0
    assert host.sources.read_value("heat") == 90.0
    host.now = 41.1
    assert host.sources.read_value("heat") is None
    assert host.sources.failure_texts == (
        "[metric:heat] has no value, so its watermarks neither set nor lift limits: it does not answer",
    )


def test_source_that_never_answers_is_reported_when_its_time_is_over(host):
    assert host.sources.failure_texts == ()
    host.now = 42.0
    assert len(host.sources.failure_texts) == 1


def test_sources_of_another_configuration_are_read_and_the_others_end(tmp_path):
    registry = CollectorRegistry()

    def conf(text):
        return configuration(settings=settings(tmp_path, text))

    sources = MetricSources(conf("[metric:a]\ncommand = echo 1\n[metric:b]\ncommand = echo 2\n"), registry)
    sources.start()
    try:
        wait_for(lambda: (sources.read_value("a"), sources.read_value("b")) == (1.0, 2.0))
        kept = sources.runners["a"]
        sources.reload(conf("[metric:a]\ncommand = echo 1\n[metric:c]\ncommand = false\n"))
        assert sources.runners["a"] is kept
        assert sources.read_value("b") is None
        wait_for(
            lambda: registry.get_sample_value("compute_agent_metric_source_failing", {"metric": "c"}) == 1
        )
        assert registry.get_sample_value("compute_agent_metric_source_failing", {"metric": "a"}) == 0
        assert registry.get_sample_value("compute_agent_metric_source_failing", {"metric": "b"}) is None
    finally:
        sources.stop()


def test_command_ends_with_its_source(tmp_path, caplog):
    script = tmp_path / "slow"
    script.write_text(f"#!/bin/sh\necho $$ > {tmp_path}/new; mv {tmp_path}/new {tmp_path}/pid; sleep 600\n")
    script.chmod(0o755)
    text = f"[metric:a]\ncommand = {script}\ntimeout = 300\n"
    sources = MetricSources(configuration(settings=settings(tmp_path, text)), CollectorRegistry())
    sources.start()
    try:
        wait_for((tmp_path / "pid").exists)
    finally:
        sources.stop()
    # The thread has reaped it.
    wait_for(lambda: not Path("/proc", (tmp_path / "pid").read_text().strip()).exists())
    assert not [record for record in caplog.records if record.name.startswith("compute_agent")]
