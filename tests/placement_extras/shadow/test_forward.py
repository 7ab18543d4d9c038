"""Tests that clients get the answers of OpenStack Placement byte by byte."""

import gzip
import io
import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from wsgiref.types import StartResponse, WSGIEnvironment

import pytest

from placement_extras.shadow.exchange import MAX_KEPT, MirroredRequest, ReceivedAnswer
from placement_extras.shadow.proxy import CLIENT_LEFT, NO_ANSWER, TOO_LONG, InFlight, RequestForwarder
from tests.ports import free_port


@dataclass
class AnsweringStock:
    """A server with prepared answers that records its requests."""

    answers: dict[str, tuple[int, list[tuple[str, str]], bytes]] = field(default_factory=dict)
    asked: list[tuple[str, str, dict[str, str], bytes]] = field(default_factory=list)
    break_off: int = 0
    connections: int = 0
    port: int = 0


@pytest.fixture
def stock() -> Iterator[AnsweringStock]:
    stock = AnsweringStock()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def setup(self) -> None:
            super().setup()
            stock.connections += 1

        def _any(self) -> None:
            length = int(self.headers.get("Content-Length", 0))
            if self.headers.get("Transfer-Encoding") == "chunked":
                body = b""
                while size := int(self.rfile.readline(), 16):
                    body += self.rfile.read(size)
                    self.rfile.readline()
                self.rfile.readline()
            else:
                body = self.rfile.read(length)
            stock.asked.append((self.command, self.path, dict(self.headers), body))
            if stock.break_off:
                stock.break_off -= 1
                self.close_connection = True
                return
            status, headers, content = stock.answers.get(self.path, (200, [], b"{}"))
            self.send_response_only(status)
            for name, value in headers:
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(content)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    for method in ("GET", "PUT", "POST", "DELETE", "HEAD"):
        setattr(Handler, f"do_{method}", Handler._any)
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    stock.port = server.server_port
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield stock
    server.shutdown()
    server.server_close()
    thread.join()


@dataclass
class ForwardClient:
    """Calls the WSGI application as a web server does."""

    application: RequestForwarder
    copies: list[MirroredRequest]

    def __call__(
        self, method: str, target: str, body: bytes = b"", read: bool = True, **environ: str
    ) -> tuple[str, dict[str, str], bytes]:
        begun: list[tuple[str, list[tuple[str, str]]]] = []

        def start_response(status: str, headers: list[tuple[str, str]], exc_info: Any = None) -> Any:
            begun.append((status, headers))

        whole: WSGIEnvironment = {
            "REQUEST_METHOD": method,
            "RAW_URI": target,
            "wsgi.input": io.BytesIO(body),
            **({"CONTENT_LENGTH": str(len(body))} if body else {}),
            **environ,
        }
        start: StartResponse = start_response  # type: ignore[assignment]  # it has no write()
        answer = self.application(whole, start)
        content = b"".join(answer) if read else b""
        if hasattr(answer, "close"):
            answer.close()
        ((status, headers),) = begun
        return status, {name.lower(): value for name, value in headers}, content


@pytest.fixture
def client(stock: AnsweringStock) -> ForwardClient:
    copies: list[MirroredRequest] = []
    return ForwardClient(
        RequestForwarder(f"http://127.0.0.1:{stock.port}/placement", InFlight(copies.append), 4, 10.0), copies
    )


def test_an_answer_is_passed_on_unchanged(client: ForwardClient, stock: AnsweringStock) -> None:
    content = json.dumps({"name": "ä"}).encode() + b"  \n"
    headers = [
        ("Content-Type", "application/json"),
        ("OpenStack-API-Version", "placement 1.39"),
        ("Connection", "keep-alive"),
    ]
    stock.answers["/placement/traits?name=in:A%2CB&x=%C3%A4"] = (404, headers, content)
    status, answered, body = client("GET", "/traits?name=in:A%2CB&x=%C3%A4")
    assert (status, body) == ("404 Not Found", content)
    assert answered == {
        "content-type": "application/json",
        "openstack-api-version": "placement 1.39",
        "content-length": str(len(content)),
    }
    (copy,) = client.copies
    assert copy.request.path == "/traits?name=in:A%2CB&x=%C3%A4"
    assert copy.received is not None
    assert (copy.received.status, copy.received.content) == (404, content)


def test_a_request_is_passed_on_unchanged(client: ForwardClient, stock: AnsweringStock) -> None:
    client(
        "PUT",
        "/allocations/x",
        b'{"a": 1}',
        CONTENT_TYPE="application/json",
        HTTP_X_AUTH_TOKEN="secret",
        HTTP_OPENSTACK_API_VERSION="placement 1.39",
        HTTP_HOST="placement.example.org",
        HTTP_TE="trailers",
    )
    ((method, path, headers, body),) = stock.asked
    assert (method, path, body) == ("PUT", "/placement/allocations/x", b'{"a": 1}')
    sent = {name.lower(): value for name, value in headers.items()}
    assert sent["x-auth-token"] == "secret"
    assert sent["openstack-api-version"] == "placement 1.39"
    assert sent["host"] == "placement.example.org"
    assert sent["content-type"] == "application/json"
    assert not {"te", "user-agent", "accept-encoding"} & sent.keys()


def test_a_compressed_answer_is_passed_on_compressed_and_compared(
    client: ForwardClient, stock: AnsweringStock
) -> None:
    content = gzip.compress(b'{"traits": []}')
    stock.answers["/placement/traits"] = (
        200,
        [("Content-Encoding", "gzip"), ("Content-Type", "application/json")],
        content,
    )
    _, headers, body = client("GET", "/traits", HTTP_ACCEPT_ENCODING="gzip")
    assert (headers["content-encoding"], body) == ("gzip", content)
    (copy,) = client.copies
    assert copy.received is not None
    assert copy.received.parse_answer().body == {"traits": []}


def test_a_stock_service_that_is_away_is_named_in_a_502(client: ForwardClient) -> None:
    port = free_port()
    copies: list[MirroredRequest] = []
    away = ForwardClient(
        RequestForwarder(f"http://127.0.0.1:{port}", InFlight(copies.append), 4, 10.0), copies
    )
    status, _, body = away("GET", "/")
    assert status == "502 Bad Gateway"
    assert str(port) in json.loads(body)["errors"][0]["detail"]
    assert [(each.received, each.missed) for each in copies] == [(None, NO_ANSWER)]


def test_a_read_is_sent_again_when_the_connection_breaks_and_a_write_is_not(
    client: ForwardClient, stock: AnsweringStock
) -> None:
    stock.break_off = 1
    assert client("GET", "/traits")[0] == "200 OK"
    stock.break_off = 1
    assert client("PUT", "/traits/CUSTOM_A")[0] == "502 Bad Gateway"
    assert [method for method, *_ in stock.asked] == ["GET", "GET", "PUT"]
    assert [each.missed for each in client.copies] == ["", NO_ANSWER]


def test_reads_share_a_connection_and_writes_have_their_own(
    client: ForwardClient, stock: AnsweringStock
) -> None:
    for _ in range(3):
        client("GET", "/traits")
    assert stock.connections == 1
    for _ in range(2):
        client("PUT", "/traits/CUSTOM_A")
    assert stock.connections == 3


def test_a_write_of_a_client_that_left_is_replayed(client: ForwardClient, stock: AnsweringStock) -> None:
    client("PUT", "/traits/CUSTOM_A", read=False)
    client("GET", "/traits", read=False)
    written, left = client.copies
    assert (written.missed, written.received) == ("", ReceivedAnswer(200, written.received.headers, b"{}"))  # type: ignore[union-attr]  # a kept answer is not None
    assert (left.missed, left.received) == (CLIENT_LEFT, None)


def test_a_body_that_is_too_long_is_passed_on_and_not_kept(
    client: ForwardClient, stock: AnsweringStock
) -> None:
    long = b"x" * (MAX_KEPT + 1)
    stock.answers["/placement/long"] = (200, [], long)
    assert client("GET", "/long")[2] == long
    assert client("PUT", "/short", long)[0] == "200 OK"
    assert stock.asked[-1][3] == long
    assert [each.missed for each in client.copies] == [TOO_LONG, TOO_LONG]
    assert [each.received for each in client.copies] == [None, None]


def test_an_answer_without_a_body_stays_empty(client: ForwardClient, stock: AnsweringStock) -> None:
    stock.answers["/placement/allocations/x"] = (204, [], b"")
    status, _, body = client("DELETE", "/allocations/x")
    assert (status, body) == ("204 No Content", b"")
    assert client("HEAD", "/")[2] == b""


def test_a_request_in_chunks_arrives_whole(client: ForwardClient, stock: AnsweringStock) -> None:
    status, _, _ = client("PUT", "/x", b"abc", HTTP_TRANSFER_ENCODING="chunked", CONTENT_LENGTH="")
    assert status == "200 OK"
    assert stock.asked[0][3] == b"abc"


def test_the_absolute_form_of_a_target_is_understood(client: ForwardClient, stock: AnsweringStock) -> None:
    client("GET", "http://placement.example.org/traits?name=x")
    assert stock.asked[0][1] == "/placement/traits?name=x"
