"""Tests of the HTTP paths /healthz and /metrics of the agent."""

import contextlib
import socket
import struct
import time

import pytest
import requests
from prometheus_client import CollectorRegistry, Counter
from prometheus_client.parser import text_string_to_metric_families

from compute_agent.agent.service import HttpServer
from compute_agent.pipeline.metrics import AgentMetrics


@pytest.fixture
def health():
    return [True, {"status": "ok"}]


@pytest.fixture
def server(health):
    registry = CollectorRegistry()
    Counter("things", "Things.", registry=registry).inc(3)
    server = HttpServer("127.0.0.1", 0, registry, lambda: tuple(health))
    yield server
    server.close()


def get(server, path):
    return requests.get(f"http://127.0.0.1:{server.server_port}{path}", timeout=10)


def test_health_is_answered_and_fails_without_a_worker(server, health):
    assert (get(server, "/healthz").status_code, get(server, "/healthz").json()) == (200, {"status": "ok"})
    health[:] = [False, {"status": "the worker is dead"}]
    assert get(server, "/healthz").status_code == 503


def test_metrics_are_served_as_text_of_prometheus(server):
    assert "things_total 3.0" in get(server, "/metrics").text


def test_other_paths_are_not_found(server):
    assert get(server, "/").status_code == 404


def _say_nothing(connection):
    assert connection.recv(1) == b""  # the server hangs up


def _say_half_a_request(connection):
    connection.sendall(b"GET /metrics HTTP/1.1\r\nHost: ")
    assert connection.recv(1) == b""


def _go_away_in_the_middle(connection):
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # with a reset
    connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: ")
    connection.close()


def _read_no_further(connection):
    connection.sendall(b"GET /healthz HTTP/1.1\r\n\r\n")
    assert connection.recv(4) == b"HTTP"


@pytest.mark.parametrize(
    "behave", [_say_nothing, _say_half_a_request, _go_away_in_the_middle, _read_no_further]
)
def test_clients_that_idle_leave_no_traceback(monkeypatch, capfd, caplog, behave):
    monkeypatch.setattr(HttpServer, "answer_timeout", 0.1)
    more_than_buffers_take = {"status": "ok" * 10_000_000}
    server = HttpServer("127.0.0.1", 0, CollectorRegistry(), lambda: (True, more_than_buffers_take))
    server.daemon_threads = False  # close() waits for such threads
    with socket.create_connection(("127.0.0.1", server.server_port), timeout=30) as connection:
        try:
            behave(connection)
            assert get(server, "/").status_code == 404  # the connection before this one was taken, too
        finally:
            server.close()
    assert capfd.readouterr() == ("", "")
    assert [record for record in caplog.records if record.exc_info] == []


@pytest.mark.parametrize(
    "said", [b"", b"GET /metrics HTTP/1.1\r\n", b"GET /healthz HTTP/1.1\r\nHost: a\r\nX: "]
)
def test_any_number_of_silent_clients_leaves_room_for_others(monkeypatch, server, said):
    monkeypatch.setattr(HttpServer, "max_connections", 3)
    silent = [socket.create_connection(("127.0.0.1", server.server_port), timeout=20) for _ in range(7)]
    try:
        for connection in silent:
            connection.sendall(said)
        assert get(server, "/healthz").status_code == 200
        assert silent[0].recv(1) == b"", "the oldest is let go"
    finally:
        for connection in silent:
            connection.close()


def test_a_client_that_sends_byte_by_byte_is_disconnected(monkeypatch, health):
    monkeypatch.setattr(HttpServer, "receive_timeout", 0.3)
    server = HttpServer("127.0.0.1", 0, CollectorRegistry(), lambda: tuple(health))
    try:
        with socket.create_connection(("127.0.0.1", server.server_port), timeout=20) as connection:
            connection.sendall(b"GET /healthz HTTP/1.1\r\nX: ")
            with contextlib.suppress(OSError):
                for _ in range(400):
                    connection.sendall(b"x")
                    time.sleep(0.05)
                pytest.fail("it may go on for ever")
        assert get(server, "/healthz").status_code == 200
    finally:
        server.close()


def test_an_internal_error_is_answered_and_logged(caplog):
    def health():
        raise RuntimeError("no health")

    server = HttpServer("127.0.0.1", 0, CollectorRegistry(), health)
    try:
        assert get(server, "/healthz").status_code == 500
    finally:
        server.close()
    assert "A request for /healthz could not be answered" in caplog.text


def test_a_port_that_is_taken_is_named(server):
    with pytest.raises(OSError, match=f"cannot listen on 127.0.0.1 port {server.server_port}"):
        HttpServer("127.0.0.1", server.server_port, CollectorRegistry(), lambda: (True, {}))


def test_every_metric_has_help_and_the_agents_prefix():
    from prometheus_client import generate_latest

    families = list(text_string_to_metric_families(generate_latest(AgentMetrics().registry).decode()))
    assert families
    for family in families:
        assert family.name.startswith("compute_agent_")
        assert family.documentation
