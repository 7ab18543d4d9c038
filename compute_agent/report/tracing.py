"""Spans of OpenTelemetry: of each report, within it of each request to Placement, which goes on with them.

Imported only where traces are wanted: it is what needs the packages of OpenTelemetry. Nothing here waits for
the collector: ended spans go into a queue of bounded length, which a thread of its own empties.

What is told of a request is its method, path, status and id. Queries, bodies, headers and texts of errors
are not.
"""

from __future__ import annotations

import atexit
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Final

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased
from opentelemetry.trace import SpanKind, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from compute_agent.report.answers import REQUEST_ID
from compute_agent.threads import NO_LOCK, ONCE, ThreadSpec, start_thread

LAST_SPANS_THREAD: Final = ThreadSpec(
    "last spans",
    ONCE,
    "sends the spans that are left when the process ends",
    NO_LOCK,
    "the collector of spans",
)

_MAX_QUEUE: Final = 2048
_EXPORT_TIMEOUT: Final = 5.0
"""Seconds for a batch of spans, repetitions included."""
_FLUSH_TIMEOUT: Final = 2.0
"""Seconds that the end of the process waits for the last of them."""


class RequestTracing:
    """What the spans of one process are made by."""

    def __init__(self, processor: SpanProcessor, sample_ratio: float) -> None:
        resource = Resource.create({"service.name": "compute-agent", "host.name": socket.gethostname()})
        sampler = ParentBased(TraceIdRatioBased(sample_ratio))
        # Its own way to end at exit waits for the collector, however long that hangs.
        self._provider = TracerProvider(sampler, resource, shutdown_on_exit=False)
        self._provider.add_span_processor(processor)
        self._tracer = self._provider.get_tracer("compute-agent")
        self._propagator = TraceContextTextMapPropagator()

    def end(self) -> None:
        """Send what is left; for a collector that hangs nobody waits long."""
        start_thread(LAST_SPANS_THREAD, self._provider.shutdown).join(_FLUSH_TIMEOUT)

    @contextmanager
    def work(self, name: str) -> Iterator[None]:
        """Requests in this context are part of one trace."""
        with self._tracer.start_as_current_span(name, record_exception=False, set_status_on_exception=False):
            yield

    @contextmanager
    def request(self, method: str, url: str, headers: dict[str, str]) -> Iterator[Callable[[int], None]]:
        """A request with these headers, to which that one is added by which Placement goes on.

        What it gives takes the status of the answer. Of what goes wrong only the kind is told.
        """
        told = {
            "http.request.method": method,
            "url.path": url.partition("?")[0],
            "openstack.request_id": headers[REQUEST_ID],
        }
        with self._tracer.start_as_current_span(
            method, None, SpanKind.CLIENT, told, record_exception=False, set_status_on_exception=False
        ) as span:
            self._propagator.inject(headers)

            def answered(status: int) -> None:
                span.set_attribute("http.response.status_code", status)
                if status >= 400:
                    span.set_attribute("error.type", str(status))
                    span.set_status(StatusCode.ERROR)

            try:
                yield answered
            except BaseException as error:
                span.set_attribute("error.type", type(error).__qualname__)
                span.set_status(StatusCode.ERROR)
                raise


@cache
def tracing_to(endpoint: str, sample_ratio: float) -> RequestTracing:
    """The one for this collector; when the process ends, what is left is sent, if that is soon done."""
    exporter = OTLPSpanExporter(endpoint, timeout=_EXPORT_TIMEOUT)
    tracing = RequestTracing(BatchSpanProcessor(exporter, max_queue_size=_MAX_QUEUE), sample_ratio)
    atexit.register(tracing.end)
    return tracing
