"""Makes OpenTelemetry spans of each report and each request. Placement continues the trace.

The module is separate because it imports the optional packages of OpenTelemetry: ``transport`` imports it
only for ``[tracing] enabled``. No report waits for the collector: ended spans go into a queue of limited
length, which another thread sends.

A span contains the method, path, status and id of a request. A span contains no query, body, header or text
of an error.
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
"""Maximum number of ended spans that wait for the collector. Further spans are dropped, and the log says so.
"""
_EXPORT_TIMEOUT: Final = 5.0
"""Maximum number of seconds for sending a batch of spans, with retries."""
_FLUSH_TIMEOUT: Final = 2.0
"""Maximum number of seconds for which a process that ends waits until the last spans are sent."""


class RequestTracing:
    """Makes the spans of this process and sends them to the collector."""

    def __init__(self, processor: SpanProcessor, sample_ratio: float) -> None:
        resource = Resource.create({"service.name": "compute-agent", "host.name": socket.gethostname()})
        sampler = ParentBased(TraceIdRatioBased(sample_ratio))
        # The provider's own exit handler would wait for the collector without limit.
        self._provider = TracerProvider(sampler, resource, shutdown_on_exit=False)
        self._provider.add_span_processor(processor)
        self._tracer = self._provider.get_tracer("compute-agent")
        self._propagator = TraceContextTextMapPropagator()

    def end_tracing(self) -> None:
        """Send the remaining spans, for at most two seconds, because the collector can hang."""
        start_thread(LAST_SPANS_THREAD, self._provider.shutdown).join(_FLUSH_TIMEOUT)

    @contextmanager
    def trace_work(self, name: str) -> Iterator[None]:
        """Make all requests within this context parts of one trace."""
        # The text of an exception can contain secrets, so no span records it.
        with self._tracer.start_as_current_span(name, record_exception=False, set_status_on_exception=False):
            yield

    @contextmanager
    def trace_request(
        self, method: str, url: str, headers: dict[str, str]
    ) -> Iterator[Callable[[int], None]]:
        """Trace a request, and add the header ``traceparent``, by which Placement continues the trace.

        The context yields a function that takes the HTTP status of the answer. The span of a failed request
        has the type of the error and not its text, which can contain secrets.
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

            def note_status(status: int) -> None:
                span.set_attribute("http.response.status_code", status)
                if status >= 400:
                    span.set_attribute("error.type", str(status))
                    span.set_status(StatusCode.ERROR)

            try:
                yield note_status
            except BaseException as error:
                span.set_attribute("error.type", type(error).__qualname__)
                span.set_status(StatusCode.ERROR)
                raise


@cache
def tracing_to(endpoint: str, sample_ratio: float) -> RequestTracing:
    """The only sender of traces to this collector; at the end of the process it sends the remaining spans."""
    exporter = OTLPSpanExporter(endpoint, timeout=_EXPORT_TIMEOUT)
    tracing = RequestTracing(BatchSpanProcessor(exporter, max_queue_size=_MAX_QUEUE), sample_ratio)
    atexit.register(tracing.end_tracing)
    return tracing
