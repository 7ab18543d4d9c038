"""/healthz and /metrics."""

import pytest
import requests
from prometheus_client import CollectorRegistry, Counter
from prometheus_client.parser import text_string_to_metric_families

from compute_agent.daemon.http import HttpServer
from compute_agent.pipeline.metrics import Metrics


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
    return requests.get(f"http://127.0.0.1:{server.port}{path}", timeout=10)


def test_health(server, health):
    assert (get(server, "/healthz").status_code, get(server, "/healthz").json()) == (200, {"status": "ok"})
    health[:] = [False, {"status": "the worker is dead"}]
    assert get(server, "/healthz").status_code == 503


def test_metrics(server):
    assert "things_total 3.0" in get(server, "/metrics").text


def test_other_paths(server):
    assert get(server, "/").status_code == 404


def test_a_port_that_is_taken_is_named(server):
    with pytest.raises(OSError, match=f"cannot listen on 127.0.0.1 port {server.port}"):
        HttpServer("127.0.0.1", server.port, CollectorRegistry(), lambda: (True, {}))


def test_every_metric_has_help_and_the_agents_prefix():
    from prometheus_client import generate_latest

    families = list(text_string_to_metric_families(generate_latest(Metrics().registry).decode()))
    assert families
    for family in families:
        assert family.name.startswith("compute_agent_")
        assert family.documentation
