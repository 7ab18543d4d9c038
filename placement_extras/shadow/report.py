"""The report over HTTP: ``/`` for people, ``/report.json`` for programs, ``/metrics`` for Prometheus."""

import json
import threading
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final

from prometheus_client import Gauge, generate_latest

from placement_extras.shadow.asking import ReplayClient
from placement_extras.shadow.backlog import ByteBacklog
from placement_extras.shadow.doubt import AmbiguousWrites
from placement_extras.shadow.tally import OutcomeTally, table

_SECONDS: Final = 10
_TEXT: Final = "text/plain; charset=utf-8"


@dataclass
class ComparerStatus:
    """What there is to say about the comparing process, beside what it counted.

    :param left_out: reads of which the answering process could not hand on a copy.
    :param doubt: what several wrote at once.
    :param unread: copies that were thrown away, as nothing is compared any more.
    :param processes: how many have answered clients, one after the other.
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
            "placement_shadow_up", "1 if our service answered when it was asked last.", registry=registry
        ).set_function(lambda: self.asking.answers)
        Gauge(
            "placement_shadow_backlog_requests", "Requests that wait to be compared.", registry=registry
        ).set_function(lambda: len(self.backlog))
        Gauge(
            "placement_shadow_backlog_bytes", "Memory that they take, in bytes.", registry=registry
        ).set_function(lambda: self.backlog.bytes)
        Gauge(
            "placement_shadow_left_out", "Requests of which nothing could be kept.", registry=registry
        ).set_function(self._left_out)
        Gauge(
            "placement_shadow_in_doubt",
            "Consumers and parts of providers that several wrote at once, and nobody since.",
            registry=registry,
        ).set_function(lambda: len(self.doubt))

    def _left_out(self) -> int:
        return self.left_out + self.unread + self.backlog.left_out

    def document(self) -> dict[str, Any]:
        """Everything, for programs."""
        return {
            "phase": self.phase,
            "ours_answers": self.asking.answers,
            "waiting": len(self.backlog),
            "left_out": self._left_out(),
            "in_doubt": len(self.doubt),
            "doubts": self.doubt.document(),
            "processes": self.processes,
            **self.tally.document(),
        }


class ReportServer:
    """Answers from a thread of its own until it is closed."""

    def __init__(self, address: tuple[str, int], status: ComparerStatus) -> None:
        self._server = ThreadingHTTPServer(address, _handler(status))
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, name="shadow-report", daemon=True).start()

    def close(self) -> None:
        """Answer nobody any more."""
        self._server.shutdown()
        self._server.server_close()


def _handler(status: ComparerStatus) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        timeout = _SECONDS  # of a client that says nothing

        def do_GET(self) -> None:  # the library's name
            match self.path:
                case "/":
                    self._answer(200, _TEXT, _page(status).encode())
                case "/report.json":
                    self._answer(200, "application/json", json.dumps(status.document()).encode())
                case "/metrics":
                    self._answer(200, _TEXT, generate_latest(status.tally.registry))
                case _:
                    self._answer(404, _TEXT, b"There are /, /report.json and /metrics.\n")

        def _answer(self, code: int, media_type: str, content: bytes) -> None:
            self.send_response(code)
            self.send_header("Content-Type", media_type)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *args: Any) -> None:
            """Nothing: who asks is no news."""

    return Handler


def _page(status: ComparerStatus) -> str:
    document = status.document()
    waiting = f"{document['waiting']} requests wait to be compared, {document['left_out']} were left out."
    waiting += f" In doubt: {document['in_doubt']}."
    away = "" if document["ours_answers"] else " Our service does not answer."
    return f"Now: {document['phase']}. {waiting}{away}\n{table(document)}"
