"""Tests of spans of reports: an OpenTelemetry collector receives them, and Placement continues them."""

import logging
import sys

import pytest

from compute_agent.model.messages import ConfigError
from compute_agent.report.answers import NotFoundError, UnavailableError
from compute_agent.report.client import PlacementClient
from tests.compute_agent.builders import load_options
from tests.compute_agent.conftest import LivePlacement
from tests.placement.running import application

SECRET = "hunter2"


class Kept:
    """An exporter that keeps finished spans in memory."""

    def __init__(self):
        from opentelemetry.sdk.trace.export import SimpleSpanProcessor
        from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

        self._exporter = InMemorySpanExporter()
        self.processor = SimpleSpanProcessor(self._exporter)

    @property
    def spans(self):
        return list(self._exporter.get_finished_spans())


@pytest.fixture
def kept():
    pytest.importorskip("opentelemetry.sdk")
    return Kept()


@pytest.fixture
def traced(client, kept):
    """A client with spans that stay in memory."""
    from compute_agent.report.tracing import RequestTracing

    client.spans = RequestTracing(kept.processor, 1.0)
    return client


def test_requests_of_one_work_are_within_it_and_told_without_queries_and_bodies(traced, kept):
    with traced.spans.trace_work("report"):
        traced.provider_named(SECRET)
        traced.create_provider("11111111-0000-4000-8000-000000000001", SECRET, None)
    *requests, report = kept.spans
    assert report.name == "report"
    assert {span.parent.span_id for span in requests} == {report.context.span_id}
    last = dict(requests[-1].attributes)
    assert last.pop("openstack.request_id").startswith("req-")
    assert (requests[-1].name, last) == (
        "POST",
        {
            "http.request.method": "POST",
            "url.path": "/resource_providers",
            "http.response.status_code": 200,
        },
    )
    assert not [span for span in kept.spans if SECRET in span.to_json() or "?" in span.to_json()]


def test_a_refusal_and_a_server_that_is_away_are_told_by_their_kind(traced, kept, live_placement):
    with pytest.raises(NotFoundError):
        traced.get_inventories("11111111-0000-4000-8000-000000000009")
    live_placement.stop()
    with pytest.raises(UnavailableError):
        traced.known_traits()
    *_, refused, away = kept.spans
    assert refused.attributes["error.type"] == "404"
    assert away.attributes["error.type"] == "ConnectFailure"
    assert {span.status.status_code.name for span in (refused, away)} == {"ERROR"}


def test_placement_goes_on_with_the_trace_and_the_id_of_a_request(traced, kept, sqlite_url, monkeypatch):
    from placement.api.tracing import ServiceTracing

    served = Kept()
    tracing = ServiceTracing(served.processor, 0.0)
    monkeypatch.setattr(ServiceTracing, "from_options", lambda conf: tracing)
    server = LivePlacement(application(sqlite_url, tracing={"enabled": True}))
    try:
        traced.adapter.endpoint_override = server.url
        traced.known_traits()
    finally:
        server.stop()
    asked, answered = kept.spans[-1], served.spans[-1]
    assert answered.name == "GET /traits"
    assert answered.context.trace_id == asked.context.trace_id
    assert answered.parent.span_id == asked.context.span_id
    assert answered.attributes["openstack.global_request_id"] == asked.attributes["openstack.request_id"]


def test_without_traces_a_refusal_is_in_the_log_with_the_id_that_placement_has_in_its_own(
    client, live_placement, caplog
):
    ids = []
    monitored = live_placement.application

    def application(environ, start_response):
        ids.append(environ.get("HTTP_X_OPENSTACK_REQUEST_ID"))
        assert "HTTP_TRACEPARENT" not in environ
        return monitored(environ, start_response)

    live_placement.application = application
    caplog.set_level(logging.INFO, logger="compute_agent.report.transport")
    with pytest.raises(Exception, match="HTTP 400"):
        client.create_trait("NOT_CUSTOM")
    assert len(set(ids)) == len(ids)
    (line,) = [line for line in caplog.messages if "HTTP 400" in line]
    assert line.endswith(f" s, {ids[-1]}")


def test_without_the_packages_an_agent_that_is_to_trace_is_refused_and_others_start(write_ini, monkeypatch):
    monkeypatch.delitem(sys.modules, "compute_agent.report.tracing", raising=False)
    for name in ("opentelemetry", *[name for name in sys.modules if name.startswith("opentelemetry.")]):
        monkeypatch.setitem(sys.modules, name, None)
    wanted = write_ini(tracing="enabled = true")
    with pytest.raises(ConfigError, match=r"\[tracing\] enabled needs .*opentelemetry.*extra tracing"):
        PlacementClient.from_conf(load_options(wanted))
    PlacementClient.from_conf(load_options(write_ini()))


def test_the_options_say_where_spans_go_and_one_thread_sends_those_of_all_clients(write_ini):
    pytest.importorskip("opentelemetry.sdk")
    from compute_agent.report.tracing import tracing_to

    wanted = write_ini(tracing="enabled = true\nendpoint = http://127.0.0.1:9/v1/traces\nsample_ratio = 0")
    clients = [PlacementClient.from_conf(load_options(wanted)) for _ in range(2)]
    assert clients[0].spans is clients[1].spans is tracing_to("http://127.0.0.1:9/v1/traces", 0.0)
