"""Tests of clients that are slow, leave before the end, or try to send a hidden second request through the
proxy.
"""

import http.client
import multiprocessing
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field

import pytest

from placement_extras.shadow.proxy import ProxySettings, run_proxy
from tests.ports import free_port
from tests.programs import is_answering
from tests.waits import wait_for

pytestmark = pytest.mark.slow

THREADS = 2
SECONDS = 30.0


@dataclass
class TerseStock:
    """A server that records the requests of the proxy, and ends its answer too early for a certain
    ``path``.
    """

    port: int
    asked: list[tuple[str, dict[str, str], bytes]] = field(default_factory=list)

    def serve(self, listener: socket.socket) -> None:
        with suppress(OSError):
            while True:
                connection, _ = listener.accept()
                threading.Thread(target=self._talk, args=(connection,), daemon=True).start()

    def _talk(self, connection: socket.socket) -> None:
        with connection, connection.makefile("rb") as stream, suppress(OSError):
            while line := stream.readline():
                headers = http.client.parse_headers(stream)
                body = stream.read(int(headers.get("Content-Length", 0)))
                self.asked.append((line.decode().strip(), dict(headers), body))
                answer = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n"
                if b"/half" in line:
                    connection.sendall(answer + b"Content-Length: 20\r\n\r\nhalf of it")
                    return
                connection.sendall(answer + b"Content-Length: 2\r\n\r\nok")

    @property
    def lines(self) -> list[str]:
        return [line for line, _, _ in self.asked]


def no_log() -> None:
    """Let the process log to standard error."""


@pytest.fixture(scope="module")
def answering() -> Iterator[TerseStock]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        stock = TerseStock(listener.getsockname()[1])
        threading.Thread(target=stock.serve, args=(listener,), daemon=True).start()
        yield stock


@pytest.fixture
def stock(answering: TerseStock, proxy: int) -> TerseStock:
    """A server in place of OpenStack Placement that has had no requests yet."""
    answering.asked.clear()
    return answering


@pytest.fixture(scope="module")
def proxy(answering: TerseStock, tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """The port of the process that answers clients. No process compares answers."""
    context = multiprocessing.get_context("spawn")
    theirs, ours = context.Pipe(duplex=False)
    port = free_port()
    settings = ProxySettings(f"127.0.0.1:{port}", f"http://127.0.0.1:{answering.port}", THREADS, 30.0)
    process = context.Process(
        target=run_proxy,
        args=(settings, str(tmp_path_factory.mktemp("proxy") / "copies"), b"key", theirs, no_log),
    )
    process.start()
    theirs.close()
    try:
        wait_for(lambda: is_answering(f"http://127.0.0.1:{port}/"), evidence=lambda: process.exitcode)
        yield port
    finally:
        ours.close()
        process.join(SECONDS)
        process.kill()
        process.join()


def get(port: int, path: str) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=SECONDS)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def sent(port: int, data: bytes) -> bytes:
    """Return all bytes of an answer, until the connection is closed or nothing more arrives."""
    with socket.create_connection(("127.0.0.1", port), timeout=SECONDS) as connection:
        connection.sendall(data)
        received = b""
        with suppress(TimeoutError, ConnectionError):
            while piece := connection.recv(65536):
                received += piece
        return received


@pytest.mark.parametrize(
    "beginning",
    [
        b"GET / HTTP/1.1\r\nHost: slow\r\n",
        b"PUT /slow HTTP/1.1\r\nHost: slow\r\nContent-Length: 100\r\n\r\nbegin",
        b"PUT /slow HTTP/1.1\r\nHost: slow\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nbegin\r\n",
    ],
)
def test_clients_that_send_half_a_request_do_not_delay_others(
    proxy: int, stock: TerseStock, beginning: bytes
) -> None:
    with ExitStack() as stack:
        for _ in range(2 * THREADS):
            slow = stack.enter_context(socket.create_connection(("127.0.0.1", proxy), timeout=SECONDS))
            slow.sendall(beginning)
        for _ in range(3):
            assert get(proxy, "/quick") == (200, b"ok")
    assert set(stock.lines) == {"GET /quick HTTP/1.1"}


def test_the_stock_service_gets_one_of_two_lengths_of_a_body(proxy: int, stock: TerseStock) -> None:
    hidden = b"0\r\n\r\nGET /hidden HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
    chunked = b"%x\r\n%s\r\n0\r\n\r\n" % (len(hidden), hidden)
    for method in (b"GET", b"PUT"):
        head = b"%s /open HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n"
        sent(proxy, head % method + chunked)
    get(proxy, "/next")
    assert not [line for line in stock.lines if "hidden" in line]
    for _, headers, body in stock.asked:
        assert int(headers.get("Content-Length", 0)) == len(body)


def test_headers_for_the_proxy_alone_are_not_passed_on(proxy: int, stock: TerseStock) -> None:
    head = b"GET /own HTTP/1.1\r\nHost: x\r\nConnection: close, X-Hop\r\nX-Hop: 1\r\nX-End: 2\r\n\r\n"
    assert sent(proxy, head).endswith(b"ok")
    ((_, headers, _),) = stock.asked
    assert "X-Hop" not in headers
    assert headers["X-End"] == "2"


def test_half_an_answer_is_not_taken_for_a_whole_one(proxy: int) -> None:
    assert get(proxy, "/half")[0] == 500
    assert get(proxy, "/whole") == (200, b"ok")
