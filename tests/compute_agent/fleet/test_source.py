"""Tests of HTTPS servers as sources of settings: good servers, and servers that send without end."""

import socket
import ssl
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from compute_agent.fleet.revision import MAX_BYTES, FleetError, SourceError
from compute_agent.fleet.source import TlsIdentity, fetch

OK = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n"
Answer = Callable[[ssl.SSLSocket, threading.Event], None]


@pytest.fixture(scope="module")
def certificate(tmp_path_factory) -> Path:
    """A file with a certificate for localhost and its key."""
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
def serving(certificate: Path, answer: Answer, *, secured: bool = True, asks: bool = False) -> Iterator[str]:
    """A server that answers one request. ``answer`` ends at the latest when the event is set."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate)
    if asks:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(certificate)
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
    """An answer that sends single bytes without end, so that no timeout of a single read applies."""

    def answer(connection: ssl.SSLSocket, over: threading.Event) -> None:
        connection.sendall(head)
        while not over.wait(0.02):
            connection.sendall(drop)

    return answer


def test_a_file_over_https(certificate):
    with serving(certificate, sending(OK % 5 + b"hello")) as address:
        assert fetch(address, "edge", TlsIdentity(str(certificate))) == b"hello"


def test_a_server_without_a_trusted_certificate_is_refused(certificate):
    with (
        serving(certificate, sending(OK % 5 + b"hello")) as address,
        pytest.raises(FleetError, match="certificate verify failed"),
    ):
        fetch(address, "edge", TlsIdentity())


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
        fetch(address, "edge", TlsIdentity(str(certificate)))


@pytest.mark.parametrize(
    "answer",
    [dripping(OK % 100000, b"x"), dripping(b"", b"H"), dripping(b"", b"")],
    ids=["body", "head", "nothing"],
)
def test_an_answer_that_never_ends_is_ended(certificate, answer):
    with serving(certificate, answer) as address, pytest.raises(FleetError) as refused:
        fetch(address, "edge", TlsIdentity(str(certificate)), deadline=0.3)
    assert "not complete after 0.3 seconds" in str(refused.value)


def test_a_server_that_does_not_say_hello_is_left(certificate):
    with serving(certificate, sending(b""), secured=False) as address, pytest.raises(FleetError) as refused:
        fetch(address, "edge", TlsIdentity(str(certificate)), deadline=0.3)
    assert "not complete" in str(refused.value) or "timed out" in str(refused.value)


def test_a_port_without_a_server_is_an_error():
    with pytest.raises(FleetError, match="refused"):
        fetch("https://localhost:1/fleet", "edge", TlsIdentity())


def test_a_server_that_asks_for_a_certificate_gets_the_agents(certificate):
    own = str(certificate)
    certificate.chmod(0o600)
    with serving(certificate, sending(OK % 5 + b"hello"), asks=True) as address:
        assert fetch(address, "edge", TlsIdentity(own, own, own)) == b"hello"
    with serving(certificate, sending(OK % 5 + b"hello"), asks=True) as address, pytest.raises(SourceError):
        fetch(address, "edge", TlsIdentity(own))


@pytest.mark.parametrize(("mode", "words"), [(0o644, "mode 0644"), (0o620, "mode 0620"), (None, "No such")])
def test_a_key_that_other_users_can_read_is_refused_before_any_connection(certificate, tmp_path, mode, words):
    key = tmp_path / "key.pem"
    if mode is not None:
        key.write_bytes(certificate.read_bytes())
        key.chmod(mode)
    with pytest.raises(FleetError, match=words) as refused:
        fetch("https://localhost:1/fleet", "edge", TlsIdentity(None, str(certificate), str(key)))
    assert not isinstance(refused.value, SourceError)


def test_a_key_with_a_password_is_refused_and_not_asked_for_on_the_terminal(certificate, tmp_path):
    key = tmp_path / "key.pem"
    made = ["openssl", "ec", "-in", certificate, "-aes256", "-passout", "pass:x", "-out", key]
    subprocess.run(made, check=True, capture_output=True)
    key.chmod(0o600)
    with pytest.raises(FleetError, match="certfile, keyfile cannot be used"):
        fetch("https://localhost:1/fleet", "edge", TlsIdentity(None, str(certificate), str(key)))


@pytest.mark.parametrize("hanging", ["socket.getaddrinfo", "socket.socket.connect"])
def test_names_and_connections_that_hang_are_left_at_the_deadline_and_one_of_them_waits_at_most(
    monkeypatch, hanging
):
    over, reached, begun = threading.Event(), threading.Event(), []

    def hang(*arguments, **options):
        begun.append(threading.current_thread())
        reached.set()
        over.wait(10)
        raise OSError("late")

    monkeypatch.setattr(hanging, hang)
    address = f"https://127.0.0.1:1/{hanging}"
    try:
        with pytest.raises(SourceError, match=r"not complete after 0.05 seconds"):
            fetch(address, "edge", TlsIdentity(), deadline=0.05)
        with pytest.raises(SourceError, match="still hangs"):
            fetch(address, "edge", TlsIdentity(), deadline=0.05)
        assert reached.wait(10)  # it may be later than the deadline
        assert len(begun) == 1
        with pytest.raises(SourceError):
            fetch("/another/source", "edge", TlsIdentity())
        with pytest.raises(SourceError, match="still hangs"):  # whatever was asked meanwhile
            fetch(address, "edge", TlsIdentity(), deadline=0.05)
    finally:
        over.set()
    begun[0].join()
    monkeypatch.undo()
    with pytest.raises(SourceError, match="refused"):
        fetch(address, "edge", TlsIdentity())


def test_a_folder_that_hangs_is_left_at_the_deadline(monkeypatch, tmp_path):
    over = threading.Event()
    monkeypatch.setattr("compute_agent.fleet.source.read_bounded", lambda path, size: over.wait(10))
    with pytest.raises(SourceError, match=r"not complete after 0.05 seconds"):
        fetch(str(tmp_path), "edge", TlsIdentity(), deadline=0.05)
    over.set()
