"""Tests of the webhook: what it sends, which answers accept an event, and that no server holds it."""

import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest

from placement.exceptions import InvalidRequest
from placement.notifications.webhook import DeliveryFailed, EventWebhook

Behaviour = Callable[[socket.socket], None]
OK = b"HTTP/1.1 204 No Content\r\n\r\n"


class HostileServer:
    """A server on loopback that does what a test says with each connection."""

    def __init__(self, behaviour: Behaviour) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.behaviour = behaviour
        self.connections: list[socket.socket] = []
        self.thread = threading.Thread(target=self._serve, daemon=True)
        self.thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.listener.getsockname()[1]}/hook?key=1"

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self.listener.accept()
            except OSError:
                return
            self.connections.append(connection)
            with suppress(OSError):
                self.behaviour(connection)

    def close(self) -> None:
        # only this wakes the thread that waits for a connection
        with suppress(OSError):
            self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        for each in self.connections:
            each.close()
        self.thread.join(10)


@pytest.fixture
def serve() -> Iterator[Callable[[Behaviour], HostileServer]]:
    servers: list[HostileServer] = []

    def start(behaviour: Behaviour) -> HostileServer:
        servers.append(HostileServer(behaviour))
        return servers[-1]

    yield start
    for each in servers:
        each.close()


def read_request(connection: socket.socket) -> bytes:
    data = b""
    while b"\r\n\r\n" not in data:
        data += connection.recv(65536)
    head, _, body = data.partition(b"\r\n\r\n")
    length = next(
        int(line.split(b":")[1]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length")
    )
    while len(body) < length:
        body += connection.recv(65536)
    return head + b"\r\n\r\n" + body


def test_an_event_is_posted_as_json(serve: Callable[[Behaviour], HostileServer]) -> None:
    seen: list[bytes] = []

    def accept(connection: socket.socket) -> None:
        seen.append(read_request(connection))
        connection.sendall(OK)

    webhook = EventWebhook(serve(accept).url)
    for number in range(2):
        webhook.post_document({"id": number})
    head, *_ = seen[0].partition(b"\r\n\r\n")
    assert head.startswith(b"POST /hook?key=1 HTTP/1.1\r\n")
    assert b"Content-Type: application/json" in head
    assert [json.loads(each.partition(b"\r\n\r\n")[2]) for each in seen] == [{"id": 0}, {"id": 1}]


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/\r\n\r\n", "status 302"),
        (b"HTTP/1.1 404 Not Found\r\n\r\n", "status 404"),
        (b"HTTP/1.1 503 No\r\n\r\n", "status 503"),
        (b"nonsense\r\n\r\n", "BadStatusLine"),
        (b"", "RemoteDisconnected"),
        (b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 200 + b"\r\n", "HTTPException"),
        (b"HTTP/1.1 200 OK\r\nX: " + b"y" * 70_000 + b"\r\n\r\n", "LineTooLong"),
    ],
)
def test_other_answers_refuse_an_event(
    serve: Callable[[Behaviour], HostileServer], answer: bytes, reason: str
) -> None:
    def refuse(connection: socket.socket) -> None:
        read_request(connection)
        connection.sendall(answer)
        connection.close()

    with pytest.raises(DeliveryFailed, match=reason):
        EventWebhook(serve(refuse).url).post_document({})


def test_texts_of_servers_do_not_go_to_the_log(
    serve: Callable[[Behaviour], HostileServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    def answer(connection: socket.socket) -> None:
        read_request(connection)
        connection.sendall(b"\x1b[2Jsecret\x07" + b"x" * 9000 + b"\r\n\r\n")
        connection.close()

    with pytest.raises(DeliveryFailed, match=r"^BadStatusLine$"):
        EventWebhook(serve(answer).url).post_document({})

    def refuse(*args: object, **options: object) -> None:
        raise OSError("no\n\x1b" + "y" * 9000)

    monkeypatch.setattr(socket, "create_connection", refuse)
    with pytest.raises(DeliveryFailed, match=r"^OSError: 'no\\n\\x1by{191}$"):
        EventWebhook("http://hooks.example/").post_document({})


def test_the_body_of_an_answer_is_not_read(serve: Callable[[Behaviour], HostileServer]) -> None:
    def endless(connection: socket.socket) -> None:
        read_request(connection)
        connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
        while True:
            connection.sendall(b"x" * 65536)

    EventWebhook(serve(endless).url).post_document({})


def hang(connection: socket.socket) -> None:
    read_request(connection)
    connection.recv(1)


def drip(connection: socket.socket) -> None:
    """Send a byte now and then, so that no single read waits long."""
    read_request(connection)
    stopped = threading.Event()
    connection.sendall(b"HTTP/1.1 200 OK\r\nX: ")
    while not stopped.wait(0.02):
        connection.sendall(b"y")


def go_on(connection: socket.socket) -> None:
    """Send interim answers without an end."""
    read_request(connection)
    while True:
        connection.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")


@pytest.mark.parametrize("behaviour", [hang, drip, go_on])
def test_a_server_cannot_hold_the_notifier(
    serve: Callable[[Behaviour], HostileServer], behaviour: Behaviour
) -> None:
    webhook = EventWebhook(serve(behaviour).url, timeout=0.1)
    with pytest.raises(DeliveryFailed):
        webhook.post_document({})
    assert webhook.wait_ended(30)


def test_an_attempt_waits_for_the_end_of_the_one_before(
    serve: Callable[[Behaviour], HostileServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    resolved = threading.Event()

    def resolve_never(*args: object, **options: object) -> None:
        resolved.wait(30)
        raise OSError("no such name")

    monkeypatch.setattr(socket, "create_connection", resolve_never)
    webhook = EventWebhook("http://slow.example/", timeout=0.05)
    with pytest.raises(DeliveryFailed, match=r"within 0\.05 seconds"):
        webhook.post_document({})
    with pytest.raises(DeliveryFailed, match="the attempt before has not ended yet"):
        webhook.post_document({})
    resolved.set()
    assert webhook.wait_ended(30)


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("ftp://example.org/", "http or https"),
        ("file:///etc/passwd", "http or https"),
        ("example.org", "http or https"),
        ("http://", "http or https"),
        ("http://ann:secret@example.org/", "no user and no password"),
        ("http://example.org:99999/", "no URL"),
        ("http://[::1/", "no URL"),
        ("http://example.org/a b", "characters"),
        ("http://example.org/\r\nX: y", "characters"),
        ("http://exämple.org/", "characters"),
    ],
)
def test_a_wrong_url_is_refused(url: str, reason: str) -> None:
    with pytest.raises(InvalidRequest, match=reason):
        EventWebhook(url)
