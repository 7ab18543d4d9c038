"""A source over HTTPS, as servers are: good ones, and those that never end."""

import socket
import ssl
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from compute_agent.fleet.errors import FleetError
from compute_agent.fleet.revision import MAX_BYTES
from compute_agent.fleet.source import fetch

OK = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n"
Answer = Callable[[ssl.SSLSocket, threading.Event], None]


@pytest.fixture(scope="module")
def certificate(tmp_path_factory) -> Path:
    """A certificate of localhost, with its key, in one file."""
    folder = tmp_path_factory.mktemp("tls")
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"),
            *("-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost", "-days", "2"),
            *("-keyout", "key.pem", "-out", "cert.pem"),
        ],
        cwd=folder,
        check=True,
        capture_output=True,
    )
    both = folder / "both.pem"
    both.write_text((folder / "key.pem").read_text() + (folder / "cert.pem").read_text())
    return both


@contextmanager
def serving(certificate: Path, answer: Answer, *, secured: bool = True) -> Iterator[str]:
    """A server that answers once; ``answer`` ends when the event is set, at the latest."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate)
    over = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            plain, _ = listener.accept()
            with plain:
                if not secured:
                    over.wait(10)
                    return
                try:
                    with context.wrap_socket(plain, server_side=True) as connection:
                        connection.recv(65536)
                        answer(connection, over)
                except OSError:
                    pass  # the client had enough

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield f"https://localhost:{listener.getsockname()[1]}/fleet"
        finally:
            over.set()
            thread.join()


def sending(content: bytes) -> Answer:
    return lambda connection, over: connection.sendall(content)


def dripping(head: bytes, drop: bytes) -> Answer:
    """Something new comes all the time, so that no timeout of a single read ends it."""

    def answer(connection: ssl.SSLSocket, over: threading.Event) -> None:
        connection.sendall(head)
        while not over.wait(0.02):
            connection.sendall(drop)

    return answer


def test_a_file_over_https(certificate):
    with serving(certificate, sending(OK % 5 + b"hello")) as address:
        assert fetch(address, "edge", str(certificate)) == b"hello"


def test_a_server_that_nobody_vouches_for_is_not_believed(certificate):
    with (
        serving(certificate, sending(OK % 5 + b"hello")) as address,
        pytest.raises(FleetError, match="certificate verify failed"),
    ):
        fetch(address, "edge", None)


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (
            sending(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n"),
            "it answers 404 for /fleet/edge.conf",
        ),
        (sending(b"HTTP/1.1 302 Found\r\nLocation: https://elsewhere/\r\n\r\n"), "it answers 302"),
        (sending(OK % (MAX_BYTES + 2) + b"x" * (MAX_BYTES + 2)), "larger than"),
        (dripping(b"HTTP/1.1 200 OK\r\n\r\n", b"x" * 16384), "larger than"),
        (sending(b"HTTP/1.1 200 OK\r\n" + b"A: b\r\n" * 101), "more than 100 headers"),
        (sending(b"nonsense\r\n\r\n"), "cannot be read"),
        (sending(b""), "cannot be read"),
    ],
)
def test_an_answer_that_is_none_is_not_used(certificate, answer, words):
    with serving(certificate, answer) as address, pytest.raises(FleetError, match=words):
        fetch(address, "edge", str(certificate))


@pytest.mark.parametrize(
    "answer",
    [dripping(OK % 100000, b"x"), dripping(b"", b"H"), dripping(b"", b"")],
    ids=["body", "head", "nothing"],
)
def test_an_answer_that_never_ends_is_ended(certificate, answer):
    with serving(certificate, answer) as address, pytest.raises(FleetError) as refused:
        fetch(address, "edge", str(certificate), deadline=0.3)
    assert "no whole answer in 0.3 seconds" in str(refused.value)


def test_a_server_that_does_not_say_hello_is_left(certificate):
    with serving(certificate, sending(b""), secured=False) as address, pytest.raises(FleetError) as refused:
        fetch(address, "edge", str(certificate), deadline=0.3)
    assert "no whole answer" in str(refused.value) or "timed out" in str(refused.value)


def test_nobody_listens():
    with pytest.raises(FleetError, match="refused"):
        fetch("https://localhost:1/fleet", "edge", None)
