"""Tests of metrics from sources outside the kernel: their values, and their threads."""

import json
import logging
import socket
import sys
import threading
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from compute_agent.loops.metric_sources import MetricSources, SourceAwayError, parse_answer, read_value
from compute_agent.model.messages import ConfigError
from compute_agent.throttling.settings import MetricSource, read_settings
from compute_agent.throttling.watermarks.metrics import BUILT_IN, MetricRegistry
from tests.compute_agent.builders import load_text
from tests.compute_agent.loops.configurations import configuration
from tests.compute_agent.loops.overload import Overload
from tests.waits import wait_for


def command(script, timeout=10.0):
    return MetricSource("x", (sys.executable, "-c", script), timeout=timeout)


def test_number_of_a_command_is_the_value():
    assert read_value(command("print(12.5)")) == 12.5
    assert read_value(command("print('  7e3  ')")) == 7000.0


def test_warning_beside_a_number_does_not_hide_it():
    assert read_value(command("import sys; print('sensor 2 is slow', file=sys.stderr); print(4)")) == 4.0


@pytest.mark.parametrize(
    ("script", "told"),
    [
        ("print('many')", "'many' is no number"),
        ("", "'' is no number"),
        ("print('nan')", "the value is nan"),
        ("print('1 2')", "'1 2' is no number"),
        ("raise SystemExit('no sensor')", "ended with 1: no sensor"),
        ("while True: print('9' * 1000)", "did not end within 0.5 seconds"),
        ("import time; time.sleep(60)", "did not end within 0.5 seconds"),
    ],
)
def test_command_without_a_number_has_no_value(script, told):
    with pytest.raises(SourceAwayError, match=told):
        read_value(command(script, timeout=0.5 if "did not" in told else 10.0))


def test_missing_command_has_no_value():
    with pytest.raises(SourceAwayError, match="cannot be run"):
        read_value(MetricSource("x", ("/nowhere/gpu",)))


def answer(kind, result):
    return json.dumps({"status": "success", "data": {"resultType": kind, "result": result}}).encode()


def test_answers_of_one_number_are_values():
    assert parse_answer(answer("vector", [{"metric": {"host": "a"}, "value": [17, "3.5"]}])) == 3.5
    assert parse_answer(answer("scalar", [17, "4"])) == 4.0


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (answer("vector", []), "the query gives 0 series"),
        (answer("vector", [{"value": [1, "1"]}] * 2), r"2 series: make one of them, as by sum\(\)"),
        (answer("matrix", []), "the query gives a matrix"),
        (answer("scalar", [17, "+Inf"]), "the value is inf"),
        (answer("scalar", [17, None]), "'None' is no number"),
        (answer("scalar", [17, 10**400]), "the value is too large"),
        (b'{"status": "error"}', "not one of Prometheus"),
        (b"[]", "not one of Prometheus"),
        (b"[" * 100_000, "not one of Prometheus"),
        (b"<html>", "Expecting value"),
    ],
)
def test_other_answers_are_refused(content, told):
    with pytest.raises(ValueError, match=told):
        parse_answer(content)


class AnsweringServer:
    """A server on the loopback interface that sends fixed bytes to each connection, and may keep the
    connection open.
    """

    def __init__(self, sent, stays=False):
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._sent, self._stays = sent, stays
        self._kept = []
        self.asked = b""
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self):
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self.asked += connection.recv(65536)
            connection.sendall(self._sent)
            if self._stays:
                self._kept.append(connection)
            else:
                connection.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        # Closing alone would leave the port open until the thread has accepted once more.
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for each in self._kept:
            each.close()


def http(content, status=b"200 OK"):
    return b"HTTP/1.1 %s\r\nContent-Length: %d\r\n\r\n%s" % (status, len(content), content)


def query(server, timeout=10.0):
    return MetricSource("x", promql='max(heat{rack="7"})', url=server.url, timeout=timeout)


def test_query_is_sent_to_prometheus_and_its_answer_is_the_value():
    with AnsweringServer(http(answer("scalar", [17, "41.5"]))) as server:
        assert read_value(query(server)) == 41.5
        line = server.asked.splitlines()[0]
        assert line.startswith(
            b"GET /api/v1/query?query=max%28heat%7Brack%3D%227%22%7D%29&timeout=10s HTTP/1.1"
        )


@pytest.mark.parametrize(
    ("sent", "stays", "told"),
    [
        (http(b"busy", b"503 Service Unavailable"), False, "it answers 503 for /api/v1/query$"),
        (http(b'{"error": null}', b"422 Unprocessable Entity"), False, "it answers 422 for .*: None$"),
        (
            http(json.dumps({"error": "parse error\x1b" + "x" * 999}).encode(), b"400 Bad Request"),
            False,
            "it answers 400 for /api/v1/query: parse error[^\x1b]{180,200}$",
        ),
        (http(b"x" * (1 << 21)), False, "larger than 1048576 bytes"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\n{", True, "not complete after 0.5 seconds"),
        (b"", True, "not complete after 0.5 seconds"),
        (b"\x00\x01\x02\r\n\r\n", False, "127.0.0.1"),
        (b"", False, "127.0.0.1"),
    ],
)
def test_server_that_does_not_answer_as_prometheus_has_no_value(sent, stays, told):
    with AnsweringServer(sent, stays) as server, pytest.raises(SourceAwayError, match=told):
        read_value(query(server, timeout=0.5 if stays else 10.0))


def test_absent_server_has_no_value():
    with AnsweringServer(b"") as server:
        pass
    with pytest.raises(SourceAwayError, match=r"127\.0\.0\.1.*refused"):
        read_value(query(server))


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
