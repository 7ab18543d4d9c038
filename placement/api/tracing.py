"""Spans of OpenTelemetry: of each request, within it of the handlers, within that of calls of the database.

Imported only where traces are wanted: it is what needs the packages of OpenTelemetry. Nothing here waits for
the collector: ended spans go into a queue of bounded length, which a thread of its own empties.

What is told of a request is its method, path, route, status and ids. Queries, bodies, headers and texts of
errors, in which SQL with its values may be, are not.
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

from placement.api.context import is_known
from placement.api.request_log import quoted
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
_MAX_TEXT: Final = 1024
"""Of each attribute: strangers say paths, many of which may wait for the collector."""
_EXPORT_TIMEOUT: Final = 5.0
"""Seconds for a batch of spans, repetitions included."""
_FLUSH_TIMEOUT: Final = 2.0
"""Seconds that the end of the process waits for the last of them."""


class ServiceTracing:
    """What the spans of one worker are made by."""

    def __init__(self, processor: SpanProcessor, sample_ratio: float) -> None:
        resource = Resource.create({"service.name": "placement"})
        sampler = ParentBased(TraceIdRatioBased(sample_ratio))
        # Its own way to end at exit waits for the collector, however long that hangs.
        limits = SpanLimits(max_span_attribute_length=_MAX_TEXT)
        self._provider = TracerProvider(sampler, resource, shutdown_on_exit=False, span_limits=limits)
        self._provider.add_span_processor(processor)
        self._tracer = self._provider.get_tracer("placement")
        self._propagator = TraceContextTextMapPropagator()

    @classmethod
    def of(cls, conf: cfg.ConfigOpts) -> "ServiceTracing":
        """As ``[tracing]`` describes it; what is left when the process ends is sent, if that is soon done."""
        exporter = OTLPSpanExporter(conf.tracing.endpoint, timeout=_EXPORT_TIMEOUT)
        tracing = cls(BatchSpanProcessor(exporter, max_queue_size=_MAX_QUEUE), conf.tracing.sample_ratio)
        atexit.register(tracing.end)
        return tracing

    def end(self) -> None:
        """Send what is left; for a collector that hangs nobody waits long."""
        last = Thread(target=self._provider.shutdown, name="last spans", daemon=True)
        last.start()
        last.join(_FLUSH_TIMEOUT)

    def database(self, url: str, options: PoolOptions) -> ServiceDatabase:
        """A database whose calls are told, where they are part of a request."""
        return _TracedDatabase(self._tracer, url, options)

    def install(self, app: Flask) -> None:
        """Have spans named by the routes of this application."""
        app.after_request(_name)

    def requests(self, app: "WSGIApplication") -> "WSGIApplication":
        """``app``, whose requests have spans."""

        def serve(environ: "WSGIEnvironment", start_response: "StartResponse") -> Iterable[bytes]:
            environ[_REQUEST] = request = _RequestSpan(self._tracer, environ)

            def start(status: str, headers: list[tuple[str, str]], exc_info: Any = None) -> Any:
                _answered(request.span, int(status[:3]))
                return start_response(status, headers, exc_info)

            try:
                return app(environ, start)
            except BaseException as error:
                _failed(request.span, error)
                raise
            finally:
                request.span.end()

        return serve

    def handlers(self, app: "WSGIApplication", name: str, route: str | None = None) -> "WSGIApplication":
        """``app``, whose part of a request is a span: what is before it, authentication took.

        :param route: of all requests that it gets; None where :meth:`install` names them.
        """

        def serve(environ: "WSGIEnvironment", start_response: "StartResponse") -> Iterable[bytes]:
            request: _RequestSpan = environ[_REQUEST]
            if is_known(environ):
                carrier = {name: environ[variable] for name, variable in _PROPAGATED if variable in environ}
                request.parent = self._propagator.extract(carrier, request.parent)
            if route is not None:
                _route(request.span, environ["REQUEST_METHOD"], route)
            with _within(self._tracer.start_span(name, trace.set_span_in_context(request.span))):
                return app(environ, start_response)

        return serve


class _RequestSpan:
    """A request, whose span begins when it came, and is made when it is known whose trace it is part of.

    That is nobody's until the caller is known: a stranger, who could ask for a trace of each of his
    requests, has no say, and leaves as many traces of their own as others who ask for none.
    """

    def __init__(self, tracer: Tracer, environ: "WSGIEnvironment") -> None:
        self._tracer = tracer
        self._environ = environ
        self._began = time.time_ns()
        self.parent = Context()

    @cached_property
    def span(self) -> Span:
        """Its span, which keeps the parent that it is made with."""
        method = self._environ["REQUEST_METHOD"]
        known = method if method in _METHODS else _OTHER_METHOD
        return self._tracer.start_span(
            known if known == method else "HTTP",
            self.parent,
            SpanKind.SERVER,
            _described(self._environ, known),
            start_time=self._began,
        )


@contextmanager
def _within(span: Span) -> Iterator[None]:
    """What begins here is part of ``span``, which ends with it; of what goes wrong only the kind is told."""
    token = context.attach(trace.set_span_in_context(span))
    try:
        yield
    except BaseException as error:
        _failed(span, error)
        raise
    finally:
        context.detach(token)
        span.end()


def _failed(span: Span, error: BaseException) -> None:
    span.set_attribute("error.type", type(error).__qualname__)
    span.set_status(StatusCode.ERROR)


def _described(environ: "WSGIEnvironment", method: str) -> Mapping[str, str]:
    told = {
        "http.request.method": method,
        "url.scheme": environ["wsgi.url_scheme"],
        "url.path": quoted(environ.get("SCRIPT_NAME", "") + environ.get("PATH_INFO", "")),
        "openstack.request_id": environ[ENV_REQUEST_ID],
    }
    if GLOBAL_REQ_ID in environ:
        told["openstack.global_request_id"] = environ[GLOBAL_REQ_ID]
    return told


def _answered(span: Span, status: int) -> None:
    span.set_attribute("http.response.status_code", status)
    if status >= 500:
        span.set_attribute("error.type", str(status))
        span.set_status(StatusCode.ERROR)


def _name(response: Response) -> Response:
    """Called by Flask: what the console asks in the process has no span of its own, and names none."""
    told, rule = request.environ.get(_REQUEST), request.url_rule
    if told is not None and rule is not None:
        _route(told.span, request.method, rule.rule)
    return response


def _route(span: Span, method: str, route: str) -> None:
    span.update_name(f"{method} {route}")
    span.set_attribute("http.route", route)


class _TracedDatabase(ServiceDatabase):
    def __init__(self, tracer: Tracer, url: str, options: PoolOptions) -> None:
        super().__init__(url, options)
        self._tracer = tracer

    @contextmanager
    def _call(self, name: str) -> Iterator[None]:
        if trace.get_current_span().is_recording():
            with _within(self._tracer.start_span(name)):
                yield
        else:
            yield  # nobody's request, such as looking for changes

    def position(self) -> DatabaseVersion:
        with self._call("database position"):
            return super().position()

    @contextmanager
    def read(self) -> Iterator[Any]:
        with self._call("database read"), super().read() as conn:
            yield conn

    def write(self, work: Callable[[WriteTransaction], T]) -> T:
        with self._call("database write"):
            return super().write(work)
