"""Tests of reading metrics from commands and from Prometheus, whatever these answer."""

import json
import socket
import sys
import threading

import pytest

from compute_agent.loops.metric_sources import SourceAwayError, parse_answer, read_value
from compute_agent.throttling.settings import MetricSource


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
