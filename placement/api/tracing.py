"""Spans of OpenTelemetry for each request, for its handler, and for its calls of the database.

:mod:`placement.api.middleware` imports this module only if traces are enabled, because the module needs the
packages of OpenTelemetry. No request waits for the collector, because a separate thread sends ended spans
from a bounded queue.

A span contains the method, path, route, status and ids of a request. A span does not contain the query, the
body, headers, or the text of an error, because these can contain names or SQL values.
"""

import atexit
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from threading import Thread
from typing import TYPE_CHECKING, Any, Final, TypeVar

from flask import Flask, Response, request
from opentelemetry import context, trace
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import SpanLimits, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased
from opentelemetry.trace import Span, SpanKind, StatusCode, Tracer
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from oslo_config import cfg
from oslo_middleware.request_id import ENV_REQUEST_ID, GLOBAL_REQ_ID

from placement.api.context import TRACE_ID, is_known, shown_path
from placement.api.request_log import quote_path
from placement.db.database import ServiceDatabase, WriteTransaction
from placement.db.engine import PoolOptions
from placement.db.position import DatabaseVersion

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment

T = TypeVar("T")

_REQUEST: Final = "placement.traced_request"
_PROPAGATED: Final = (("traceparent", "HTTP_TRACEPARENT"), ("tracestate", "HTTP_TRACESTATE"))
_METHODS: Final = frozenset({"GET", "HEAD", "POST", "PUT", "DELETE", "CONNECT", "OPTIONS", "TRACE", "PATCH"})
_OTHER_METHOD: Final = "_OTHER"

_MAX_QUEUE: Final = 2048
# the length of attributes is limited, because clients choose paths, and the queue can contain many spans
_MAX_TEXT: Final = 1024
"""Maximum number of characters in an attribute of a span."""
_EXPORT_TIMEOUT: Final = 5.0
"""Maximum seconds in which a batch of spans is sent, including repeated attempts."""
_FLUSH_TIMEOUT: Final = 2.0
"""Maximum seconds for which an ending process waits until its last spans are sent."""


class ServiceTracing:
    """Creates the spans of one worker."""

    def __init__(self, processor: SpanProcessor, sample_ratio: float) -> None:
        resource = Resource.create({"service.name": "placement"})
        # with ParentBased, the client decides whether a request that continues its trace is sampled
        sampler = ParentBased(TraceIdRatioBased(sample_ratio))
        # the library's own exit handler is turned off, because it would wait for a collector that hangs
        limits = SpanLimits(max_span_attribute_length=_MAX_TEXT)
        self._provider = TracerProvider(sampler, resource, shutdown_on_exit=False, span_limits=limits)
        self._provider.add_span_processor(processor)
        self._tracer = self._provider.get_tracer("placement")
        self._propagator = TraceContextTextMapPropagator()

    @classmethod
    def from_options(cls, conf: cfg.ConfigOpts) -> "ServiceTracing":
        """Return the object for the options. It sends the remaining spans when the process ends."""
        exporter = OTLPSpanExporter(conf.tracing.endpoint, timeout=_EXPORT_TIMEOUT)
        tracing = cls(BatchSpanProcessor(exporter, max_queue_size=_MAX_QUEUE), conf.tracing.sample_ratio)
        atexit.register(tracing.send_rest)
        return tracing

    def send_rest(self) -> None:
        """Send the remaining spans, but wait only a limited time for the collector."""
        last = Thread(target=self._provider.shutdown, name="last spans", daemon=True)
        last.start()
        last.join(_FLUSH_TIMEOUT)

    def open_database(self, url: str, options: PoolOptions) -> ServiceDatabase:
        """Return a database that makes a span for each of its calls within a request."""
        return _TracedDatabase(self._tracer, url, options)

    def install_routes(self, app: Flask) -> None:
        """Name the spans of requests after the routes of this application."""
        app.after_request(_name)

    def trace_requests(self, app: "WSGIApplication") -> "WSGIApplication":
        """Return an application that calls ``app`` and makes a span for each request."""

        def serve_request(environ: "WSGIEnvironment", start_response: "StartResponse") -> Iterable[bytes]:
            environ[_REQUEST] = request = _RequestSpan(self._tracer, environ)

            def start(status: str, headers: list[tuple[str, str]], exc_info: Any = None) -> Any:
                _note_answer(request.own_span, int(status[:3]))
                return start_response(status, headers, exc_info)

            try:
                return app(environ, start)
            except BaseException as error:
                _note_failure(request.own_span, error)
                raise
            finally:
                request.own_span.end()

        return serve_request

    def trace_handlers(
        self, app: "WSGIApplication", name: str, route: str | None = None
    ) -> "WSGIApplication":
        """Return an application that calls ``app`` and makes a span for the time that ``app`` takes.

        Requests are authenticated before this span begins.

        :param route: the route of all requests to ``app``. If it is None, :meth:`install_routes` names the
            spans.
        """

        def serve_request(environ: "WSGIEnvironment", start_response: "StartResponse") -> Iterable[bytes]:
            request: _RequestSpan = environ[_REQUEST]
            if is_known(environ):
                carrier = {name: environ[variable] for name, variable in _PROPAGATED if variable in environ}
                request.parent = self._propagator.extract(carrier, request.parent)
            if route is not None:
                _name_route(request.own_span, environ["REQUEST_METHOD"], route)
            if (known := request.own_span.get_span_context()).trace_flags.sampled:
                environ[TRACE_ID] = trace.format_trace_id(known.trace_id)
            with _within_span(self._tracer.start_span(name, trace.set_span_in_context(request.own_span))):
                return app(environ, start_response)

        return serve_request


class _RequestSpan:
    """A request with its span.

    The span is created when the trace of the request is known. The start time of the span is the
    arrival of the request.

    Only an authenticated request continues the trace in its headers. Otherwise a client without a token could
    make the service record traces of all its requests. Unauthenticated requests are sampled like requests
    without a trace in their headers.
    """

    def __init__(self, tracer: Tracer, environ: "WSGIEnvironment") -> None:
        self._tracer = tracer
        self._environ = environ
        self._began = time.time_ns()
        self.parent = Context()

    @cached_property
    def own_span(self) -> Span:
        """The span of the request. The first access creates it, as a child of ``parent``."""
        method = self._environ["REQUEST_METHOD"]
        known = method if method in _METHODS else _OTHER_METHOD
        return self._tracer.start_span(
            known if known == method else "HTTP",
            self.parent,
            SpanKind.SERVER,
            _span_attributes(self._environ, known),
            start_time=self._began,
        )


@contextmanager
def _within_span(span: Span) -> Iterator[None]:
    """Make ``span`` the parent of spans in this context, and end it with the context.

    If an error occurs, only the type of the error is recorded.
    """
    token = context.attach(trace.set_span_in_context(span))
    try:
        yield
    except BaseException as error:
        _note_failure(span, error)
        raise
    finally:
        context.detach(token)
        span.end()


def _note_failure(span: Span, error: BaseException) -> None:
    span.set_attribute("error.type", type(error).__qualname__)
    span.set_status(StatusCode.ERROR)


def _span_attributes(environ: "WSGIEnvironment", method: str) -> Mapping[str, str]:
    told = {
        "http.request.method": method,
        "url.scheme": environ["wsgi.url_scheme"],
        "url.path": quote_path(shown_path(environ.get("SCRIPT_NAME", "") + environ.get("PATH_INFO", ""))),
        "openstack.request_id": environ[ENV_REQUEST_ID],
    }
    if GLOBAL_REQ_ID in environ:
        told["openstack.global_request_id"] = environ[GLOBAL_REQ_ID]
    return told


def _note_answer(span: Span, status: int) -> None:
    span.set_attribute("http.response.status_code", status)
    if status >= 500:
        span.set_attribute("error.type", str(status))
        span.set_status(StatusCode.ERROR)


def _name(response: Response) -> Response:
    """Name the span of a request after its route. Requests of the console within the process have no span."""
    told, rule = request.environ.get(_REQUEST), request.url_rule
    if told is not None and rule is not None:
        _name_route(told.own_span, request.method, rule.rule)
    return response


def _name_route(span: Span, method: str, route: str) -> None:
    span.update_name(f"{method} {route}")
    span.set_attribute("http.route", route)


class _TracedDatabase(ServiceDatabase):
    def __init__(self, tracer: Tracer, url: str, options: PoolOptions) -> None:
        super().__init__(url, options)
        self._tracer = tracer

    @contextmanager
    def _span_of_call(self, name: str) -> Iterator[None]:
        if trace.get_current_span().is_recording():
            with _within_span(self._tracer.start_span(name)):
                yield
        else:
            yield  # background work is not part of a request, so it has no span

    def position(self) -> DatabaseVersion:
        with self._span_of_call("database position"):
            return super().position()

    @contextmanager
    def read(self) -> Iterator[Any]:
        with self._span_of_call("database read"), super().read() as conn:
            yield conn

    def write(self, work: Callable[[WriteTransaction], T]) -> T:
        with self._span_of_call("database write"):
            return super().write(work)
