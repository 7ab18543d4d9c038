"""Tests of HTTP connections to host names with several addresses, and of deadlines for threads."""

import socket
import threading

import pytest

from compute_agent import bounded_http
from compute_agent.bounded_http import read_address


@pytest.fixture
def full():
    """The address of a server that accepts no further connection, so that a connection attempt hangs."""
    with socket.socket() as listener, socket.socket() as first:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        first.connect(listener.getsockname())
        yield listener.getsockname()


@pytest.fixture
def answering():
    """The address of a server that answers one request."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve():
            try:
                connection, _ = listener.accept()
            except OSError:
                return  # a test that has not connected
            with connection:
                connection.recv(65536)
                connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")

        thread = threading.Thread(target=serve)
        thread.start()
        yield listener.getsockname()
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()


def resolve_to(monkeypatch, *addresses):
    found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", address) for address in addresses]
    monkeypatch.setattr(bounded_http.socket, "getaddrinfo", lambda *_, **__: found)


def test_dead_address_leaves_time_to_the_next(monkeypatch, full, answering):
    resolve_to(monkeypatch, full, answering)
    assert read_address("http://metrics.example/x", 2.0, 100) == b"ok"


def test_all_addresses_share_one_deadline(monkeypatch, full):
    given = []

    class Socket(socket.socket):
        def settimeout(self, seconds):
            given.append(seconds)
            super().settimeout(seconds)

    resolve_to(monkeypatch, *[full] * 10)
    monkeypatch.setattr(bounded_http.socket, "socket", Socket)
    with pytest.raises(TimeoutError):
        read_address("http://metrics.example/x", 0.5, 100)
    assert sum(given) <= 0.5 + 10 * 0.05


def test_name_without_an_address_is_an_error(monkeypatch):
    resolve_to(monkeypatch)
    with pytest.raises(OSError, match=r"metrics\.example has no address"):
        read_address("http://metrics.example/x", 1.0, 100)


def test_connection_is_closed_when_its_deadline_cannot_be_watched(monkeypatch, answering):
    resolve_to(monkeypatch, answering)
    kept = []

    class Socket(socket.socket):
        def connect(self, address):
            kept.append(self)
            super().connect(address)

    def no_timer(*_):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(bounded_http.socket, "socket", Socket)
    monkeypatch.setattr(bounded_http, "start_timer", no_timer)
    with pytest.raises(OSError, match="cannot be watched: can't start new thread"):
        read_address("http://metrics.example/x", 10.0, 100)
    assert [each.fileno() for each in kept] == [-1]
