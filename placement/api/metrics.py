"""The metrics for Prometheus at ``/metrics``, about requests, searches and the read model.

:mod:`placement.api.middleware` sets the folder that processes share. If metrics are enabled, it imports this
module afterwards, because prometheus_client reads the folder from the environment when it is imported.
"""

import logging
import os
import time
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import TYPE_CHECKING, Final

from flask import Flask, Response, g, request
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import Exemplar, GaugeMetricFamily, Metric
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.utils import floatToGoString

from placement.api.allocation_candidates import INCOMPLETE
from placement.api.context import TRACE_ID
from placement.api.middleware import METRICS_DIRECTORY
from placement.api.service import PlacementService
from placement.exceptions import Unavailable
from placement.read_model.metrics import ModelMetrics
from placement.store import usages

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIEnvironment

LOG = logging.getLogger(__name__)

_BUCKETS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)
"""Upper bounds, in seconds, of the buckets in the histogram of answer times."""
_BOUNDS: Final = (*map(floatToGoString, _BUCKETS), "+Inf")
"""The same bounds as texts, as in the label ``le``."""
_OPEN_METRICS: Final = "application/openmetrics-text"
# the database adds up all amounts of windows, and answers requests meanwhile
_SUMS_SECONDS: Final = 60.0
"""Age in seconds up to which a scrape repeats sums of windows that have no lent amounts."""
_NOTHING_ELSE: Final = "none of the API"
"""The value of the label ``operation`` for requests with unknown paths."""


class RequestExemplars:
    """The newest traced request of this worker, for each operation and each bucket of answer times.

    Only the format OpenMetrics can contain exemplars,
    https://prometheus.io/docs/specs/om/open_metrics_spec/#exemplars.
    """

    # prometheus_client itself keeps no exemplars if several processes share counters

    def __init__(self) -> None:
        self._newest: dict[tuple[str, str], Exemplar] = {}

    def note_request(self, operation: str, seconds: float, trace_id: str) -> None:
        """Remember a traced request as the newest request of its bucket."""
        found = Exemplar({"trace_id": trace_id}, seconds, time.time())
        self._newest[operation, _BOUNDS[bisect_left(_BUCKETS, seconds)]] = found

    def add_to(self, families: Iterable[Metric]) -> Iterator[Metric]:
        """Yield metric families with these exemplars, and without series of creation times (``_created``)."""
        for family in families:
            # a creation time would be one more series for each counter, which the other format does not have
            samples = [each for each in family.samples if not each.name.endswith("_created")]
            if family.name == "placement_request_seconds":
                samples = [
                    each._replace(exemplar=self._newest.get((each.labels["operation"], each.labels["le"])))
                    if "le" in each.labels
                    else each
                    for each in samples
                ]
            changed = Metric(family.name, family.documentation, family.type)
            changed.samples = samples
            yield changed


class ServiceMetrics:
    """The counters of this worker. The worker that gets a scrape of Prometheus answers it for all workers."""

    def __init__(
        self, service: PlacementService, max_provider_series: int, *, exemplars: bool = False
    ) -> None:
        """Create the counters.

        :param exemplars: whether scrapes in the format OpenMetrics get exemplars with the ids of traces.
        """
        self._service = service
        self._exemplars = RequestExemplars() if exemplars else None
        self._registry = CollectorRegistry()
        self._requests = Counter(
            "placement_requests",
            "Answered requests to the API, except those that the authentication has refused.",
            ["operation", "status"],
            registry=self._registry,
        )
        self._seconds = Histogram(
            # the name is a literal, because the reference of metrics is made from this source
            "placement_request_seconds",
            "Time from a request until its answer, in seconds.",
            ["operation"],
            buckets=_BUCKETS,
            registry=self._registry,
        )
        self._incomplete = Counter(
            "placement_searches_incomplete",
            "Searches for allocation candidates that ended before all candidates were found.",
            ["reason"],
            registry=self._registry,
        )
        self._refused = Counter(
            "placement_window_refusals",
            "Writes and bookings that were refused because windows, or claims that end, need the resources.",
            registry=self._registry,
        )
        self._taken = Counter(
            "placement_reservation_claimed_amount",
            "Amounts that claims have taken from reservations.",
            ["resourcetype"],
            registry=self._registry,
        )
        self._of_model = ModelMetrics(service.model, self._registry, max_provider_series)
        #: the last sums of windows without lent amounts, and the monotonic time of their read
        self._window_sums: tuple[usages.WindowUsage, float] | None = None

    def install_counters(self, app: Flask) -> None:
        """Count all requests of the application."""
        # the function is inserted first, because functions after it can refuse the request
        app.before_request_funcs.setdefault(None, []).insert(0, _note_begin)
        app.after_request(self._count_request)

    def _count_request(self, response: Response) -> Response:
        rule = request.url_rule
        operation = _NOTHING_ELSE if rule is None else f"{request.method} {rule.rule}"
        self._requests.labels(operation, str(response.status_code)).inc()
        seconds = time.perf_counter() - g.began
        self._seconds.labels(operation).observe(seconds)
        if self._exemplars is not None and (trace_id := request.environ.get(TRACE_ID)):
            self._exemplars.note_request(operation, seconds, trace_id)
        if INCOMPLETE in response.headers:
            self._incomplete.labels(response.headers[INCOMPLETE]).inc()
        if g.get("has_overlaps"):
            self._refused.inc()
        for amounts in g.get("taken_amounts", ()):
            for name, amount in amounts.items():
                self._taken.labels(name).inc(amount)
        self._of_model.count_updates()
        return response

    def exposition_text(self) -> bytes:
        """Return all current series, as text for Prometheus."""
        # gauges are only from this process, because they describe the database, which all workers share
        return generate_latest(self._counter_registry()) + generate_latest(
            _OnceRegistry(self._current_gauges())
        )

    def exemplar_text(self, exemplars: RequestExemplars) -> bytes:
        """Return all current series with exemplars, in the format OpenMetrics."""
        families = exemplars.add_to(chain(self._counter_registry().collect(), self._current_gauges()))
        # all families are in one registry, because a text in this format ends with a mark and cannot be
        # continued
        registry = _OnceRegistry(families)
        text: bytes = openmetrics.generate_latest(registry)  # type: ignore[no-untyped-call]  # no types there
        return text

    def _counter_registry(self) -> CollectorRegistry:
        if METRICS_DIRECTORY not in os.environ:
            return self._registry
        registry = CollectorRegistry()
        # this collector reads the counters of all processes from their files in the folder
        MultiProcessCollector(registry)  # type: ignore[no-untyped-call]  # of prometheus_client
        return registry

    def _current_gauges(self) -> Iterator[GaugeMetricFamily]:
        up = GaugeMetricFamily(
            "placement_database_up",
            "1 if the database answers the worker that serves this scrape, otherwise 0.",
        )
        try:
            self._service.prepare_database()
            families = list(self._of_model.make_gauges())
            families += _window_gauges(self._window_usage())
        # without the database, only its gauges are missing, and the answer has all other metrics
        except Unavailable as error:
            # the message is not a warning, because scrapes every few seconds would fill the log
            LOG.debug("An answer to Prometheus lacks the metrics from the database: %s", error)
            up.add_metric([], 0)
            families = []
        else:
            up.add_metric([], 1)
        yield up
        yield from families

    def _window_usage(self) -> usages.WindowUsage | None:
        """Return sums over the windows of all reservations; None if the query takes too long."""
        kept = self._window_sums
        if kept is not None and time.monotonic() < kept[1] + _SUMS_SECONDS:
            return kept[0]
        try:
            with self._service.database.read() as conn:
                usage = usages.read_window_usage(conn)
        except Unavailable as error:
            LOG.debug("An answer to Prometheus lacks the metrics of windows: %s", error)
            return None
        if usage.lent is None and kept is None:
            LOG.info(
                "The metrics lack placement_window_lent_amount, because windows and claims that end have more"
                " than %d amounts.",
                usages.MAX_AMOUNTS,
            )
        self._window_sums = (usage, time.monotonic()) if usage.lent is None else None
        return usage

    def __call__(self, environ: "WSGIEnvironment", start_response: "StartResponse") -> Iterable[bytes]:
        """Answer one scrape by Prometheus."""
        if environ["REQUEST_METHOD"] != "GET":
            start_response("405 Method Not Allowed", [("Allow", "GET"), ("Content-Length", "0")])
            return [b""]
        if self._exemplars is not None and _OPEN_METRICS in environ.get("HTTP_ACCEPT", ""):
            body, kind = self.exemplar_text(self._exemplars), openmetrics.CONTENT_TYPE_LATEST
        else:
            body, kind = self.exposition_text(), CONTENT_TYPE_LATEST
        headers = [("Content-Type", kind), ("Content-Length", str(len(body)))]
        start_response("200 OK", headers)
        return [body]


def _window_gauges(usage: usages.WindowUsage | None) -> Iterator[GaugeMetricFamily]:
    """Yield the gauges of windows, and whether some are left out; all of them if ``usage`` is None."""
    # this gauge is always present, so that an alert can detect that the other gauges are left out
    left_out = GaugeMetricFamily(
        "placement_windows_left_out",
        "1 if gauges of windows are left out, otherwise 0. If there are more than 10,000 amounts, the gauge"
        " placement_window_lent_amount is left out, and the others are up to a minute old. If the database"
        " did not answer in time, all of them are left out.",
    )
    left_out.add_metric([], usage is None or usage.lent is None)
    yield left_out
    if usage is None:
        return
    number = GaugeMetricFamily("placement_windows", "Number of windows.", labels=["state"])
    for state, count in (("pending", usage.pending), ("active", usage.active)):
        number.add_metric([state], count)
    booked = GaugeMetricFamily(
        "placement_window_booked_amount",
        "Amount that pending windows, and the unused part of active windows, hold.",
        labels=["resourcetype"],
    )
    used = GaugeMetricFamily(
        "placement_window_used_amount",
        "Amount of active windows that claims use.",
        labels=["resourcetype"],
    )
    lent = GaugeMetricFamily(
        "placement_window_lent_amount",
        "Amount of pending windows that active windows, and claims that end, use until these windows begin.",
        labels=["resourcetype"],
    )
    yield number
    for family, amounts in ((booked, usage.booked), (used, usage.used), (lent, usage.lent)):
        if amounts is not None:
            # windows of which claims use all amounts hold nothing
            for name in sorted({*usage.booked, *usage.used}):
                family.add_metric([name], amounts.get(name, 0))
            yield family


class _OnceRegistry(CollectorRegistry):
    """A registry that contains the metric families of one scrape."""

    def __init__(self, families: Iterator[Metric]) -> None:
        super().__init__()
        self._families = families

    def collect(self) -> Iterator[Metric]:
        """Return the families. prometheus_client calls this method."""
        return self._families


def _note_begin() -> None:
    g.began = time.perf_counter()
