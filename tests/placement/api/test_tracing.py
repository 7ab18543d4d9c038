"""Tests of spans of requests: a collector of OpenTelemetry receives them, and no request waits for it."""

import logging
import socket
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from werkzeug.test import Client

from placement.api import middleware
from placement.cmd import api
from tests.placement.running import Admin, service_conf

UUID = "11111111-0000-4000-8000-000000000001"
TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
PARENT = f"00-{TRACE}-00f067aa0ba902b7-01"
REQUEST = "req-00000000-1111-2222-3333-444444444444"
SECRET = "hunter2"


@pytest.fixture
def conf(sqlite_url):
    return service_conf(sqlite_url, tracing={"enabled": True})


class TracedService:
    """A service that keeps its spans in memory."""

    def __init__(self, conf, monkeypatch):
        from opentelemetry.sdk.trace.export import SimpleSpanProcessor
        from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

        from placement.api.tracing import ServiceTracing

        self._exporter = InMemorySpanExporter()
        self.tracing = ServiceTracing(SimpleSpanProcessor(self._exporter), conf.tracing.sample_ratio)
        monkeypatch.setattr(ServiceTracing, "from_options", lambda conf: self.tracing)
        self.app = middleware.build_application(conf)
        self.admin = Admin(self.app)
        self.admin("POST", "/resource_providers", json={"uuid": UUID, "name": "host"})
        self.admin("GET", f"/resource_providers/{UUID}")  # the model has been read
        self.spans()

    def spans(self):
        """The spans since the last call, ordered by their end."""
        spans = self._exporter.get_finished_spans()
        self._exporter.clear()
        return list(spans)


@pytest.fixture
def told(conf, monkeypatch):
    pytest.importorskip("opentelemetry.sdk")
    return TracedService(conf, monkeypatch)


def test_a_request_is_a_span_around_its_handlers_and_their_database_calls(told):
    answer = told.admin("GET", f"/resource_providers/{UUID}", headers={"X-Openstack-Request-Id": REQUEST})
    *calls, handlers, request = told.spans()
    assert (request.name, handlers.name) == ("GET /resource_providers/<uuid>", "handlers")
    assert {call.name for call in calls} == {"database position"}
    assert dict(request.attributes) == {
        "http.request.method": "GET",
        "http.response.status_code": 200,
        "http.route": "/resource_providers/<uuid>",
        "openstack.global_request_id": REQUEST,
        "openstack.request_id": answer.headers["x-openstack-request-id"],
        "url.path": f"/resource_providers/{UUID}",
        "url.scheme": "http",
    }
    assert request.parent is None
    assert handlers.parent.span_id == request.context.span_id
    assert {call.parent.span_id for call in calls} == {handlers.context.span_id}


def test_a_write_to_the_database_is_a_span(told):
    told.admin("PUT", f"/resource_providers/{UUID}", json={"name": "other"})
    assert "database write" in [span.name for span in told.spans()]


def test_the_trace_of_a_client_continues(told):
    told.admin("GET", "/traits", headers={"traceparent": PARENT})
    for span in told.spans():
        assert format(span.context.trace_id, "032x") == TRACE


@pytest.mark.parametrize("given", ["", "x" * 5000, "00-" + "0" * 32 + "-" + "0" * 16 + "-01", "ff-1-2-3"])
def test_an_invalid_trace_parent_is_ignored(told, given):
    told.admin("GET", "/traits", headers={"traceparent": given, "tracestate": "=,=,\x01"})
    assert told.spans()[-1].parent is None


def test_spans_have_no_queries_bodies_tokens_or_texts_of_errors(told):
    told.admin("GET", f"/resource_providers?name={SECRET}", headers={"X-Auth-Token": f"admin:{SECRET}"})
    told.admin("PUT", f"/resource_providers/{UUID}", json={"name": SECRET})
    told.admin("PUT", f"/resource_providers/{UUID}", json={"name": SECRET, "parent_provider_uuid": SECRET})

    def fails(environ, start_response):
        raise RuntimeError(SECRET)

    failing = told.tracing.trace_requests(told.tracing.trace_handlers(fails, "handlers"))
    environ = {"REQUEST_METHOD": SECRET, "wsgi.url_scheme": "http", "openstack.request_id": REQUEST}
    with pytest.raises(RuntimeError):
        failing(environ, lambda *answer: None)
    spans = told.spans()
    assert len(spans) >= 8
    assert spans[-1].name == "HTTP"
    assert spans[-1].attributes["error.type"] == "RuntimeError"
    assert not [span for span in spans if SECRET in span.to_json()]


def test_the_span_of_an_unknown_path_is_named_by_its_method(told):
    told.admin("GET", "/nothing")
    request = told.spans()[-1]
    assert (request.name, request.attributes["http.response.status_code"]) == ("GET", 404)


def test_a_long_path_is_truncated(told):
    told.admin("GET", "/" + "x" * 4000)
    assert told.spans()[-1].attributes["url.path"] == "/" + "x" * 1023


def test_pages_of_the_console_keep_their_name_with_requests_in_the_process(conf, monkeypatch):
    pytest.importorskip("opentelemetry.sdk")
    conf.set_override("enabled", True, "console")
    told = TracedService(conf, monkeypatch)
    assert told.admin("GET", "/console/").status_code == 200
    *_, page, request = told.spans()
    assert (request.name, page.name) == ("GET /console", "console")


@pytest.mark.parametrize(("ratio", "flags", "are_told"), [(0.0, "01", True), (1.0, "00", False)])
def test_the_flag_of_a_client_decides_whether_its_trace_is_sampled(conf, monkeypatch, ratio, flags, are_told):
    pytest.importorskip("opentelemetry.sdk")
    conf.set_override("sample_ratio", ratio, "tracing")
    told = TracedService(conf, monkeypatch)
    told.admin("GET", "/traits", headers={"traceparent": PARENT[:-2] + flags})
    assert bool(told.spans()) == are_told


@pytest.mark.parametrize("path", ["/", "/traits", "/console/"])
@pytest.mark.parametrize(("ratio", "traces"), [(0.0, 0), (1.0, 1)])
def test_an_unauthenticated_client_does_not_decide_about_traces(conf, monkeypatch, path, ratio, traces):
    pytest.importorskip("opentelemetry.sdk")
    conf.set_override("enabled", True, "console")
    conf.set_override("sample_ratio", ratio, "tracing")
    told = TracedService(conf, monkeypatch)
    Client(told.app).get(path, headers={"traceparent": PARENT})
    spans = told.spans()
    assert len({span.context.trace_id for span in spans}) == traces
    assert TRACE not in {format(span.context.trace_id, "032x") for span in spans}


def test_requests_without_a_trace_are_sampled_by_the_ratio(conf, monkeypatch):
    pytest.importorskip("opentelemetry.sdk")
    conf.set_override("sample_ratio", 0.0, "tracing")
    told = TracedService(conf, monkeypatch)
    told.admin("GET", "/traits")
    assert told.spans() == []


def test_tracing_without_its_packages_is_refused_and_other_services_start(conf, monkeypatch):
    monkeypatch.delitem(sys.modules, "placement.api.tracing", raising=False)
    for name in ("opentelemetry", *[name for name in sys.modules if name.startswith("opentelemetry.")]):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ValueError, match=r"\[tracing\] enabled needs opentelemetry.*its extra tracing"):
        middleware.build_application(conf)
    conf.set_override("enabled", False, "tracing")
    middleware.build_application(conf)


class Collector:
    """A collector that accepts spans by OTLP over HTTP as long as the test allows it."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        self.asked, self.may_answer = threading.Event(), threading.Event()
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                collector.asked.set()
                collector.may_answer.wait()
                collector.bodies.append(body)
                self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *arguments: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/v1/traces"
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def close(self) -> None:
        self.may_answer.set()
        self._server.shutdown()
        self._server.server_close()

    def spans(self) -> list[Any]:
        from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

        requests = [ExportTraceServiceRequest.FromString(body) for body in self.bodies]
        return [
            span for each in requests for part in each.resource_spans for span in part.scope_spans[0].spans
        ]


@pytest.fixture
def collector(conf) -> Iterator[Collector]:
    pytest.importorskip("opentelemetry.sdk")
    collector = Collector()
    conf.set_override("endpoint", collector.url, "tracing")
    yield collector
    collector.close()


def traced(conf):
    from placement.api.tracing import ServiceTracing

    tracing = ServiceTracing.from_options(conf)

    def answers(environ, start_response):
        start_response("200 OK", [])
        return [b"ok"]

    app = tracing.trace_requests(answers)

    def ask(times=1):
        environ = {"REQUEST_METHOD": "GET", "wsgi.url_scheme": "http", "openstack.request_id": REQUEST}
        return [app(dict(environ), lambda *answer: None) for _ in range(times)]

    return tracing, ask


def test_a_collector_gets_the_remaining_spans_when_the_service_ends(conf, collector):
    collector.may_answer.set()
    tracing, ask = traced(conf)
    ask(3)
    tracing.send_rest()
    assert [span.name for span in collector.spans()] == ["GET"] * 3


def test_requests_are_answered_and_waiting_spans_bounded_while_a_collector_hangs(
    conf, collector, monkeypatch
):
    monkeypatch.setattr("placement.api.tracing._FLUSH_TIMEOUT", 0.01)
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "1")
    tracing, ask = traced(conf)
    ask()
    assert collector.asked.wait(10)  # and is kept waiting from now on
    assert ask(3000) == [[b"ok"]] * 3000
    (processor,) = tracing._provider._active_span_processor._span_processors
    # opentelemetry-sdk before 1.33 has the queue in the processor
    batch = getattr(processor, "_batch_processor", None)
    assert len(batch._queue if batch is not None else processor.queue) == 2048
    tracing.send_rest()  # which does not wait for it either


def test_a_collector_that_is_away_causes_only_a_log_line(conf, monkeypatch):
    pytest.importorskip("opentelemetry.sdk")
    monkeypatch.setattr("placement.api.tracing._FLUSH_TIMEOUT", 0.01)
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "1")
    logged = threading.Event()
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: logged.set() if "exporting span" in record.getMessage().lower() else None
    monkeypatch.setattr(logging.getLogger(), "handlers", [handler])
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        conf.set_override("endpoint", f"http://127.0.0.1:{nobody.getsockname()[1]}/v1/traces", "tracing")
        tracing, ask = traced(conf)
        assert ask() == [[b"ok"]]
        assert logged.wait(10)
        tracing.send_rest()


def test_tracing_that_cannot_work_is_refused_before_workers_start(tmp_path, monkeypatch, capsys):
    ini = tmp_path / "placement.conf"
    ini.write_text("[api]\nauth_strategy = noauth2\n[tracing]\nenabled = true\n")
    monkeypatch.delitem(sys.modules, "placement.api.tracing", raising=False)
    for name in ("opentelemetry", *[name for name in sys.modules if name.startswith("opentelemetry.")]):
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setattr("placement.cmd.api.set_up_logging", lambda *arguments: None)
    assert api.main(["--config-file", str(ini)]) == 1
    assert capsys.readouterr().err.startswith("placement-api: [tracing] enabled needs opentelemetry")


def test_the_newest_traced_request_of_each_bucket_is_an_exemplar(sqlite_url, monkeypatch):
    pytest.importorskip("opentelemetry.sdk")
    from prometheus_client.openmetrics.parser import text_string_to_metric_families

    options = {"tracing": {"enabled": True}, "metrics": {"enabled": True}}
    told = TracedService(service_conf(sqlite_url, **options), monkeypatch)
    told.admin("GET", "/traits", headers={"traceparent": PARENT})
    # a request that its client does not trace leaves the exemplar as it is
    told.admin("GET", "/traits", headers={"traceparent": PARENT.replace(TRACE, "f" * 32)[:-1] + "0"})
    answer = told.admin("GET", "/metrics", headers={"Accept": "application/openmetrics-text;version=1.0.0"})
    assert answer.headers["Content-Type"].startswith("application/openmetrics-text")
    families = {each.name: each for each in text_string_to_metric_families(answer.text)}
    found = [
        each.exemplar
        for each in families["placement_request_seconds"].samples
        if each.labels["operation"] == "GET /traits" and each.exemplar is not None
    ]
    assert [each.labels for each in found] == [{"trace_id": TRACE}]
    assert families["placement_database_up"].samples[0].value == 1
    assert "_created" not in answer.text
    plain = told.admin("GET", "/metrics")
    assert plain.headers["Content-Type"].startswith("text/plain")
    assert TRACE not in plain.text


def test_without_tracing_scrapes_have_the_usual_format(sqlite_url):
    admin = Admin(middleware.build_application(service_conf(sqlite_url, metrics={"enabled": True})))
    answer = admin("GET", "/metrics", headers={"Accept": "application/openmetrics-text;version=1.0.0"})
    assert answer.headers["Content-Type"].startswith("text/plain")
