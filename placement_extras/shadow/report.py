"""Counts the outcomes of all comparisons, and serves the counts over HTTP.

The path ``/`` has a text for people, ``/report.json`` is for programs, and ``/metrics`` is for Prometheus.

Only :mod:`placement_extras.shadow.follower` uses this module. The module is separate, because a thread of its
own serves the report.
"""

from __future__ import annotations

import json
import re
import threading
import time
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final
from urllib.parse import urlsplit

import prometheus_client
from prettytable import PrettyTable
from prometheus_client import CollectorRegistry, Gauge, Histogram, generate_latest

from placement_extras.shadow.ambiguous_writes import AmbiguousWrites
from placement_extras.shadow.copy_queue import ByteBacklog
from placement_extras.shadow.exchange import ShadowAnswer
from placement_extras.shadow.replay import ReplayClient, ReplayOutcome, ReplayVerdict

_MAX_KEPT: Final = 50  # maximum number of differences in the report, which has the latest ones
_MAX_SHOWN: Final = 10  # maximum number of differences in the text for people, which has the latest ones
_MAX_SAMPLES: Final = 1000  # percentiles are computed from this number of latest times of each operation
_MAX_TEXT: Final = 2000  # maximum number of characters of a body in the report
# requests with other methods are counted together, because clients could otherwise create any number of
# series of metrics
_METHODS: Final = frozenset({"GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS"})
_COLLECTIONS: Final = "|".join(
    (
        *("aggregates", "allocation_candidates", "allocations", "inventories", "reshaper"),
        *("resource_classes", "resource_providers", "traits", "usages"),
    )
)
# operations are counted by the path without names and uuids, so that requests for all providers share a line
_PATH: Final = re.compile(rf"/({_COLLECTIONS})(/[^/]+)?(/(?:{_COLLECTIONS}))?(/[^/]+)?")
_BUCKETS: Final = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60)


def operation_name(method: str, path: str) -> str:
    """Return the method and the path without names and uuids, such as ``PUT /allocations/{}``."""
    if method not in _METHODS:
        return "other"
    bare = urlsplit(path).path
    if bare in ("", "/"):
        return f"{method} /"
    match = _PATH.fullmatch(bare.rstrip("/"))
    if match is None:
        return "other"
    collection, item, below, last = match.groups()
    return f"{method} /{collection}{'/{}' if item else ''}{below or ''}{'/{}' if last else ''}"


@dataclass
class TallyLine:
    """The verdicts and the times of answers for one operation of the API.

    :param verdicts: number of requests by verdict.
    :param theirs: the latest times of OpenStack Placement in seconds.
    :param ours: the latest times of our service in seconds.
    """

    verdicts: Counter[ReplayVerdict] = field(default_factory=Counter)
    theirs: deque[float] = field(default_factory=lambda: deque(maxlen=_MAX_SAMPLES))
    ours: deque[float] = field(default_factory=lambda: deque(maxlen=_MAX_SAMPLES))


@dataclass
class OutcomeTally:
    """Counts the outcomes of comparisons. Other threads can read the counts at the same time.

    :param lines: counts by the name of the operation, see :func:`operation_name`.
    :param whys: number of requests by verdict and reason.
    :param differences: descriptions of the latest outcomes that are ``DIFFERENT``.
    :param doubtful: descriptions of the latest outcomes that are ``DOUBTFUL``.
    """

    lines: dict[str, TallyLine] = field(default_factory=dict)
    whys: Counter[tuple[ReplayVerdict, str]] = field(default_factory=Counter)
    differences: deque[dict[str, Any]] = field(default_factory=lambda: deque(maxlen=_MAX_KEPT))
    doubtful: deque[dict[str, Any]] = field(default_factory=lambda: deque(maxlen=_MAX_KEPT))
    parted: dict[str, Any] | None = None
    """The first request after which the databases differ; None while the databases are equal."""
    registry: CollectorRegistry = field(default_factory=CollectorRegistry)

    def __post_init__(self) -> None:
        self._lock = threading.Lock()
        self._requests = prometheus_client.Counter(
            "placement_shadow_requests",
            "Requests that were passed on, by the result of the comparison of both answers.",
            ["operation", "verdict"],
            registry=self.registry,
        )
        self._seconds = Histogram(
            "placement_shadow_seconds",
            "Time of each service's answers, in seconds.",
            ["operation", "service"],
            buckets=_BUCKETS,
            registry=self.registry,
        )
        self._in_step = Gauge(
            "placement_shadow_in_step",
            "1 if no write is known to have had different outcomes in the two services, otherwise 0.",
            registry=self.registry,
        )
        self._in_step.set(1)

    def add(self, outcome: ReplayOutcome) -> None:
        """Count an outcome, and keep its description if the answers differ."""
        copy = outcome.copy
        name = operation_name(copy.request.method, copy.request.path)
        with self._lock:
            line = self.lines.setdefault(name, TallyLine())
            line.verdicts[outcome.verdict] += 1
            # with these two verdicts, each request has another reason, so their descriptions are kept below
            if outcome.why and outcome.verdict not in (ReplayVerdict.DIFFERENT, ReplayVerdict.DOUBTFUL):
                self.whys[outcome.verdict, _reason_class(outcome)] += 1
            if copy.received is not None:
                line.theirs.append(copy.seconds)
            if outcome.answer is not None:
                line.ours.append(outcome.seconds)
            if outcome.verdict is ReplayVerdict.DIFFERENT:
                self.differences.append(_describe_outcome(outcome))
            elif outcome.verdict is ReplayVerdict.DOUBTFUL:
                self.doubtful.append(_describe_outcome(outcome))
            if outcome.parts:
                self._set_parted(_describe_outcome(outcome))
        # the metrics need no lock here, because they have their own locks
        self._requests.labels(name, outcome.verdict.value).inc()
        if copy.received is not None:
            self._seconds.labels(name, "stock").observe(copy.seconds)
        if outcome.answer is not None:
            self._seconds.labels(name, "ours").observe(outcome.seconds)

    def mark_parted(self, why: str) -> None:
        """Record that the databases differ from now on, for a reason other than a request."""
        with self._lock:
            self._set_parted({"time": _utc_now(), "request": "", "difference": why})

    def _set_parted(self, story: dict[str, Any]) -> None:
        # only the first reason is kept, because it can cause all later differences
        if self.parted is None:
            self.parted = story
            self._in_step.set(0)

    def to_document(self) -> dict[str, Any]:
        """Return all counts as a JSON document. Times are in milliseconds."""
        with self._lock:
            return {
                "requests": dict(sum((line.verdicts for line in self.lines.values()), Counter())),
                "in_step": self.parted is None,
                "out_of_step_since": self.parted,
                "operations": {name: _line_numbers(self.lines[name]) for name in sorted(self.lines)},
                "reasons": [
                    {"verdict": verdict, "reason": why, "requests": number}
                    for (verdict, why), number in self.whys.most_common()
                ],
                "differences": list(self.differences),
                "doubtful": list(self.doubtful),
            }


def _reason_class(outcome: ReplayOutcome) -> str:
    """Return the reason of an outcome, without details of the request, so that equal reasons are counted."""
    return (
        outcome.why
        if outcome.verdict in (ReplayVerdict.KNOWN, ReplayVerdict.MISSED)
        else "overlapped with a write"
    )


def _line_numbers(line: TallyLine) -> dict[str, Any]:
    return {
        **{verdict.value: line.verdicts[verdict] for verdict in ReplayVerdict},
        "stock_ms": _time_percentiles(line.theirs),
        "ours_ms": _time_percentiles(line.ours),
    }


def _time_percentiles(seconds: Sequence[float]) -> dict[str, float] | None:
    """Return the 50th and the 95th percentile in milliseconds; None if ``seconds`` is empty."""
    if not seconds:
        return None
    ordered = sorted(seconds)
    return {
        f"p{each}": round(1000 * ordered[min(len(ordered) - 1, len(ordered) * each // 100)], 2)
        for each in (50, 95)
    }


def _describe_outcome(outcome: ReplayOutcome) -> dict[str, Any]:
    request, received = outcome.copy.request, outcome.copy.received
    theirs = received.parse_answer() if received else None
    return {
        "time": _utc_now(),
        "request": f"{request.method} {request.path}"[:_MAX_TEXT],
        "version": next((v for n, v in request.headers if n.lower() == "openstack-api-version"), None),
        "body": request.body[:_MAX_TEXT].decode("utf-8", "replace"),
        "difference": outcome.why[:_MAX_TEXT],
        "stock": _short_answer(theirs),
        "ours": _short_answer(outcome.answer),
    }


def _utc_now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def _short_answer(answer: ShadowAnswer | None) -> dict[str, Any] | None:
    return None if answer is None else {"status": answer.status, "body": str(answer.body)[:_MAX_TEXT]}


def report_table(document: dict[str, Any]) -> str:
    """Return the document of :meth:`OutcomeTally.to_document` as a table and lines for people."""
    return "\n".join(_table_lines(document)) + "\n"


def _table_lines(document: dict[str, Any]) -> Iterator[str]:
    verdicts = [each.value for each in ReplayVerdict]
    shown = PrettyTable(["Request", *verdicts, "stock p50/p95 ms", "ours p50/p95 ms"])
    shown.align = "r"
    shown.align["Request"] = "l"
    for name, line in document["operations"].items():
        times = [_times_text(line["stock_ms"]), _times_text(line["ours_ms"])]
        shown.add_row([name, *(line[each] for each in verdicts), *times])
    shown.add_row(["all", *(document["requests"].get(each, 0) for each in verdicts), "", ""])
    yield str(shown)
    for each in document["reasons"]:
        yield f"{each['requests']} {each['verdict']}: {each['reason']}"
    for each in (*document["doubtful"][-_MAX_SHOWN:], *document["differences"][-_MAX_SHOWN:]):
        yield f"{each['time']} {each['request']}: {each['difference']}"
    since = document["out_of_step_since"]
    yield (
        "Both databases have the same content, as far as the outcomes of writes show."
        if since is None
        else f"Our database is out of step since {since['time']}, {since['request']}: {since['difference']}"
    )


def _times_text(percentiles: dict[str, float] | None) -> str:
    return "" if percentiles is None else f"{percentiles['p50']:.1f} / {percentiles['p95']:.1f}"


_CLIENT_SECONDS: Final = 10  # time after which a silent client is disconnected
_TEXT: Final = "text/plain; charset=utf-8"


@dataclass
class ComparerStatus:
    """The state of the comparing process, with the counts of its outcomes.

    :param asking: the client of our service.
    :param doubt: items with unknown content, because several clients have written them at the same time.
    :param phase: a text for people that describes the current work of the process.
    :param left_out: number of copies that the answering process left out, because its queue was full.
    :param unread: number of copies that were dropped after the comparison had failed.
    :param processes: number of processes that have answered clients so far, one after the other.
    """

    tally: OutcomeTally
    backlog: ByteBacklog
    asking: ReplayClient
    doubt: AmbiguousWrites
    phase: str = "starting"
    left_out: int = 0
    unread: int = 0
    processes: int = 0

    def __post_init__(self) -> None:
        registry = self.tally.registry
        Gauge(
            "placement_shadow_up",
            "1 if this service answered the last request, otherwise 0.",
            registry=registry,
        ).set_function(lambda: self.asking.answers)
        Gauge(
            "placement_shadow_backlog_requests", "Requests that wait to be compared.", registry=registry
        ).set_function(lambda: len(self.backlog))
        Gauge(
            "placement_shadow_backlog_bytes", "Memory of the waiting requests, in bytes.", registry=registry
        ).set_function(lambda: self.backlog.bytes)
        Gauge(
            "placement_shadow_left_out",
            "Requests that were not compared, because a queue was full or the comparison had failed.",
            registry=registry,
        ).set_function(self._left_out)
        Gauge(
            "placement_shadow_in_doubt",
            "Consumers and parts of providers that several clients wrote at the same time, without a later"
            " write.",
            registry=registry,
        ).set_function(lambda: len(self.doubt))

    def _left_out(self) -> int:
        return self.left_out + self.unread + self.backlog.left_out

    def to_document(self) -> dict[str, Any]:
        """Return the state and all counts as a JSON document."""
        return {
            "phase": self.phase,
            "ours_answers": self.asking.answers,
            "waiting": len(self.backlog),
            "left_out": self._left_out(),
            "in_doubt": len(self.doubt),
            "doubts": self.doubt.to_document(),
            "processes": self.processes,
            **self.tally.to_document(),
        }


@contextmanager
def serve_report(address: tuple[str, int], status: ComparerStatus) -> Iterator[None]:
    """Serve the report over HTTP from a separate thread within this context."""
    server = ThreadingHTTPServer(address, _handler_class(status))
    # threads are daemons, so that the process can end although a client still reads its answer
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, name="shadow-report", daemon=True).start()
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()


def _handler_class(status: ComparerStatus) -> type[BaseHTTPRequestHandler]:
    class ReportHandler(BaseHTTPRequestHandler):
        timeout = _CLIENT_SECONDS

        def do_GET(self) -> None:  # the library calls this method by this name
            match self.path:
                case "/":
                    self._send_answer(200, _TEXT, _status_page(status).encode())
                case "/report.json":
                    self._send_answer(200, "application/json", json.dumps(status.to_document()).encode())
                case "/metrics":
                    self._send_answer(200, _TEXT, generate_latest(status.tally.registry))
                case _:
                    self._send_answer(404, _TEXT, b"There are /, /report.json and /metrics.\n")

        def _send_answer(self, code: int, media_type: str, content: bytes) -> None:
            self.send_response(code)
            self.send_header("Content-Type", media_type)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *args: Any) -> None:
            """Log nothing, because a monitoring system asks for the report every few seconds."""

    return ReportHandler


def _status_page(status: ComparerStatus) -> str:
    document = status.to_document()
    waiting = f"{document['waiting']} requests wait to be compared, {document['left_out']} were left out."
    waiting += f" In doubt: {document['in_doubt']}."
    away = "" if document["ours_answers"] else " Our service does not answer."
    return f"Now: {document['phase']}. {waiting}{away}\n{report_table(document)}"
