"""``/metrics`` for Prometheus: requests, searches, and with them the metrics of the read model.

Imported only where metrics are wanted, after :mod:`placement.api.metrics_sharing` has said where processes
put their numbers together: prometheus_client looks at that when it is imported.
"""

import logging
import os
import time
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Final

from flask import Flask, Response, g, request
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.multiprocess import MultiProcessCollector

from placement.api.allocation_candidates import INCOMPLETE
from placement.api.metrics_sharing import DIRECTORY
from placement.api.service import PlacementService
from placement.exceptions import Unavailable
from placement.read_model.metrics import ModelMetrics

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIEnvironment

LOG = logging.getLogger(__name__)

_BUCKETS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)
_NOTHING_ELSE: Final = "none of the API"
"""The operation of requests for what there is not."""


class ServiceMetrics:
    """What is counted in this worker, and what is told of all."""

    def __init__(self, service: PlacementService, max_provider_series: int) -> None:
        self._service = service
        self._registry = CollectorRegistry()
        self._requests = Counter(
            "placement_requests",
            "Requests that were answered, but for those without a valid token.",
            ["operation", "status"],
            registry=self._registry,
        )
        self._seconds = Histogram(
            "placement_request_seconds",
            "How long answers took, in seconds.",
            ["operation"],
            buckets=_BUCKETS,
            registry=self._registry,
        )
        self._incomplete = Counter(
            "placement_searches_incomplete",
            "Searches for allocation candidates that ended before all were found.",
            ["reason"],
            registry=self._registry,
        )
        self._of_model = ModelMetrics(service.model, self._registry, max_provider_series)

    def install(self, app: Flask) -> None:
        """Have all requests of the application counted."""
        app.before_request_funcs.setdefault(None, []).insert(0, _begin)  # some that come later refuse
        app.after_request(self._count)

    def _count(self, response: Response) -> Response:
        rule = request.url_rule
        operation = _NOTHING_ELSE if rule is None else f"{request.method} {rule.rule}"
        self._requests.labels(operation, str(response.status_code)).inc()
        self._seconds.labels(operation).observe(time.perf_counter() - g.began)
        if INCOMPLETE in response.headers:
            self._incomplete.labels(response.headers[INCOMPLETE]).inc()
        self._of_model.count_updates()
        return response

    def exposed(self) -> bytes:
        """All there is to tell now."""
        registry = CollectorRegistry()
        if DIRECTORY in os.environ:
            MultiProcessCollector(registry)  # type: ignore[no-untyped-call]  # of prometheus_client
            counted = generate_latest(registry)
        else:
            counted = generate_latest(self._registry)
        return counted + generate_latest(_OnceRegistry(self._told()))

    def _told(self) -> Iterator[GaugeMetricFamily]:
        up = GaugeMetricFamily("placement_database_up", "1 if the database answers the asked worker.")
        try:
            self._service.prepare()
            families = list(self._of_model.make_gauges())
        except Unavailable as error:
            LOG.debug("Metrics without the database: %s", error)
            up.add_metric([], 0)
            families = []
        else:
            up.add_metric([], 1)
        yield up
        yield from families

    def __call__(self, environ: "WSGIEnvironment", start_response: "StartResponse") -> Iterable[bytes]:
        """Answer one scrape."""
        if environ["REQUEST_METHOD"] != "GET":
            start_response("405 Method Not Allowed", [("Allow", "GET"), ("Content-Length", "0")])
            return [b""]
        body = self.exposed()
        headers = [("Content-Type", CONTENT_TYPE_LATEST), ("Content-Length", str(len(body)))]
        start_response("200 OK", headers)
        return [body]


class _OnceRegistry(CollectorRegistry):
    """What is told this once."""

    def __init__(self, families: Iterator[GaugeMetricFamily]) -> None:
        super().__init__()
        self._families = families

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Called to write it down."""
        return self._families


def _begin() -> None:
    g.began = time.perf_counter()
