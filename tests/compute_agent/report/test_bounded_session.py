"""Tests of answers that would take too much memory or time of the agent, over real sockets."""

import contextlib
import gzip
import json
import resource
import socket
import threading
import time
import zlib

import pytest
from keystoneauth1.session import TCPKeepAliveAdapter

from compute_agent.bounded_http import DEADLINE_THREAD
from compute_agent.report import bounded_session
from compute_agent.report.answers import PlacementError, UnavailableError
from compute_agent.report.bounded_session import MAX_ANSWER_BYTES, round_deadline
from tests.compute_agent.builders import make_client

ROOT = json.dumps({"versions": [{"id": "v1.0", "min_version": "1.0", "max_version": "1.39"}]}).encode()


class RawServer:
    """A server that sends the same pieces of bytes to each connection, with a ``pause`` in seconds before
    each piece.
    """

    def __init__(self, *pieces, pause=0.0):
        self.pieces, self.pause, self.connections = pieces, pause, 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._over = threading.Event()
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self):
        while not self._over.is_set():
            with contextlib.suppress(OSError):
                connection, _ = self._listener.accept()
                self.connections += 1
                threading.Thread(target=self._answer, args=(connection,), daemon=True).start()

    def _answer(self, connection):
        with connection, contextlib.suppress(OSError):
            connection.recv(65536)
            for piece in self.pieces:
                if self._over.wait(self.pause):
                    return
                connection.sendall(piece)
            # The close of a connection with unread bytes resets it, and the peer may lose the answer.
            connection.shutdown(socket.SHUT_WR)
            connection.settimeout(5)
            while connection.recv(65536):
                pass

    def close(self):
        self._over.set()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()


@pytest.fixture
def serve():
    with contextlib.ExitStack() as stack:

        def start(*pieces, **options):
            server = RawServer(*pieces, **options)
            stack.callback(server.close)
            return server

        yield start


def head(**headers):
    lines = [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join(["HTTP/1.1 200 OK", "Content-Type: application/json", *lines, "", ""]).encode()


def blanks_in_gzip(size):
    """A number of blanks, compressed to a thousandth, without the checksum at the end."""
    packer, blanks = zlib.compressobj(9, zlib.DEFLATED, 31), b" " * 2**20
    # After a full flush a block refers to none before it, so it can be sent again and again.
    first, block = (packer.compress(blanks) + packer.flush(zlib.Z_FULL_FLUSH) for _ in range(2))
    return first + block * (size // 2**20 - 1)


def megabytes_at_most():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024


def test_two_gigabytes_in_nine_megabytes_of_gzip_are_refused(serve, tmp_path):
    body = blanks_in_gzip(2**31)
    server = serve(head(Content_Encoding="gzip", Content_Length=len(body)), body)
    client = make_client(tmp_path, server.url)
    before = megabytes_at_most()
    with pytest.raises(UnavailableError, match="more than 16 MiB"):
        client.chosen_microversion()
    assert megabytes_at_most() - before < 200


def test_a_plain_answer_without_end_is_refused(serve, tmp_path):
    server = serve(head(), *[b" " * 2**20] * 64)
    before = megabytes_at_most()
    with pytest.raises(UnavailableError, match="more than 16 MiB"):
        make_client(tmp_path, server.url).chosen_microversion()
    assert megabytes_at_most() - before < 200


@pytest.mark.parametrize("piece", [b"[],", b'{"":[]},', b"{},"])
def test_an_answer_that_is_much_larger_when_it_is_parsed_is_refused(serve, tmp_path, piece):
    body = b"[" + piece * ((MAX_ANSWER_BYTES - 3) // len(piece)) + b"0]"
    server = serve(head(Content_Length=len(body)), body)
    before = megabytes_at_most()
    with pytest.raises(UnavailableError, match="more than 524288 objects and lists"):
        make_client(tmp_path, server.url).chosen_microversion()
    assert megabytes_at_most() - before < 200


@pytest.mark.parametrize("encoding", ["gzip, gzip", "br", "zstd"])
def test_encodings_that_multiply_or_are_unknown_are_refused(serve, tmp_path, encoding):
    body = gzip.compress(gzip.compress(ROOT))
    server = serve(head(Content_Encoding=encoding, Content_Length=len(body)), body)
    with pytest.raises(UnavailableError, match="encoding"):
        make_client(tmp_path, server.url).chosen_microversion()


def test_malformed_gzip_is_refused(serve, tmp_path):
    server = serve(head(Content_Encoding="gzip", Content_Length=7), b"no gzip")
    with pytest.raises(UnavailableError, match="decompressed"):
        make_client(tmp_path, server.url).chosen_microversion()


@pytest.mark.parametrize("pack", [gzip.compress, zlib.compress])
def test_a_compressed_answer_is_read(serve, tmp_path, pack):
    body = pack(ROOT)
    encoding = "gzip" if pack is gzip.compress else "deflate"
    server = serve(head(Content_Encoding=encoding, Content_Length=len(body)), body)
    assert make_client(tmp_path, server.url).chosen_microversion() == "1.39"


def test_an_answer_of_nearly_the_limit_is_read(serve, tmp_path):
    padding = b" " * (MAX_ANSWER_BYTES - len(ROOT))
    server = serve(head(Content_Length=MAX_ANSWER_BYTES), ROOT, padding)
    assert make_client(tmp_path, server.url).chosen_microversion() == "1.39"


DRIPS = {
    "body with length": (head(Content_Length=1000), *[b" "] * 1000),
    "body until the connection ends": (b"HTTP/1.0 200 OK\r\n\r\n", *[b" "] * 1000),
    "chunks": (head(Transfer_Encoding="chunked"), *[b"1\r\n \r\n"] * 1000),
    "headers": (b"HTTP/1.1 200 OK\r\n", *[b"X"] * 1000),
    "continuations without end": [b"HTTP/1.1 100 Continue\r\n\r\n"] * 1000,
}


@pytest.mark.parametrize("drip", DRIPS)
def test_a_byte_now_and_then_does_not_keep_a_request_waiting(serve, tmp_path, drip, monkeypatch):
    monkeypatch.setattr(bounded_session, "REQUEST_TIMEOUTS", 0.1)  # of the 10 s that are the default
    server = serve(*DRIPS[drip], pause=0.05)
    with pytest.raises(UnavailableError, match="not complete after 1 s"):
        make_client(tmp_path, server.url).chosen_microversion()
    assert server.connections == 1  # it is not tried again at once


def test_a_handshake_that_drips_does_not_keep_a_request_waiting(serve, tmp_path, monkeypatch):
    monkeypatch.setattr(bounded_session, "REQUEST_TIMEOUTS", 0.1)
    record = b"\x16\x03\x03\x40\x00"  # the beginning of a handshake record of 16 KiB
    server = serve(record, *[b"\x02"] * 1000, pause=0.05)
    client = make_client(tmp_path, server.url.replace("http:", "https:"))
    with pytest.raises(UnavailableError, match="not complete after 1 s"):
        client.chosen_microversion()


def test_all_requests_of_a_round_have_one_deadline(serve, tmp_path):
    server = serve(head(Content_Length=1000), *[b" "] * 1000, pause=0.05)
    client = make_client(tmp_path, server.url)
    with round_deadline(0.5):
        with pytest.raises(UnavailableError, match="not complete after"):
            client.chosen_microversion()
        while True:
            with pytest.raises(UnavailableError, match="not complete after") as caught:
                client.chosen_microversion()
            if "after 0 s" in str(caught.value):
                break
            time.sleep(0.1)
    assert server.connections <= 3


def test_a_watch_ends_with_its_request(serve, tmp_path):
    server = serve(head(Content_Length=len(ROOT)) + ROOT)
    assert make_client(tmp_path, server.url).chosen_microversion() == "1.39"
    for thread in threading.enumerate():
        if thread.name == DEADLINE_THREAD.name:
            thread.join(10)
            assert not thread.is_alive()


@pytest.mark.parametrize(
    ("document", "complaint"),
    [
        (b"[" * 100_000, "not JSON"),
        (b'{"versions": [{"max_version": 1.39}]}', r"answer.versions\[0\].max_version is a number, not text"),
        (b'{"versions": {}}', "answer.versions is an object, not a list"),
        (b'{"versions": [{"max_version": "one"}]}', "'one' is not a version"),
        (b"null", "the answer is null, not an object"),
        (b"", "not JSON"),
    ],
)
def test_answers_without_sense_are_refused_with_the_reason(serve, tmp_path, document, complaint):
    server = serve(head(Content_Length=len(document)), document)
    with pytest.raises(PlacementError, match=complaint):
        make_client(tmp_path, server.url).chosen_microversion()


def test_a_peers_text_has_no_control_characters(serve, tmp_path):
    text = json.dumps({"errors": [{"detail": "gone \x1b]0;owned\x07\x1b[2J"}]}).encode()
    server = serve(b"HTTP/1.1 500 X\r\nContent-Length: %d\r\n\r\n" % len(text), text)
    with pytest.raises(PlacementError, match="gone") as caught:
        make_client(tmp_path, server.url).chosen_microversion()
    assert str(caught.value).isprintable()


def test_a_peer_without_tls_is_refused_where_tls_is_asked_for(serve, tmp_path):
    server = serve(b"plain text")
    client = make_client(tmp_path, server.url.replace("http:", "https:"))
    with pytest.raises(UnavailableError, match="SSL"):
        client.chosen_microversion()


KEYSTONE = """auth_type = v3password
auth_url = {}
username = u
user_domain_id = d
password = p
project_name = s
project_domain_id = d
connect_retries = 0
status_code_retries = 0
"""


def test_a_token_that_is_a_bomb_is_refused_as_other_answers_are(serve, tmp_path):
    bomb = blanks_in_gzip(2 * MAX_ANSWER_BYTES)
    server = serve(head(Content_Length=len(bomb), Content_Encoding="gzip"), bomb)
    with pytest.raises(UnavailableError, match="more than 16 MiB"):
        make_client(tmp_path, server.url, KEYSTONE.format(server.url)).known_traits()


@pytest.mark.parametrize("token", [b"[" * 100_000, b'{"token": {"expires_at": []}}'])
def test_a_token_without_sense_is_said_and_not_kept(serve, tmp_path, token):
    created = b"HTTP/1.1 201 Created\r\nX-Subject-Token: t\r\nConnection: close\r\nContent-Length: %d\r\n\r\n"
    keystone = serve(created % len(token), token)
    placement = serve(head(Content_Length=len(ROOT), Connection="close"), ROOT)
    client = make_client(tmp_path, placement.url, KEYSTONE.format(keystone.url))
    with contextlib.suppress(PlacementError):
        client.chosen_microversion()  # a time is read when the token is used again
    with pytest.raises(PlacementError, match="is invalid"):
        client.send_request("GET", "/traits", microversion="1.39", shape={})
    times = {"expires_at": "2999-01-01T00:00:00Z", "issued_at": "2020-01-01T00:00:00Z"}
    good = json.dumps({"token": {**times, "methods": ["password"]}}).encode()
    keystone.pieces = (created % len(good), good)
    answer = client.send_request("GET", "/traits", microversion="1.39", shape={"versions": [{}]})
    assert answer == json.loads(ROOT)


def test_a_large_answer_that_is_no_text_is_refused_without_guessing(serve, tmp_path):
    content = bytes(range(256)) * 2**12
    server = serve(head(Content_Length=len(content)), content)
    client = make_client(tmp_path, server.url)
    with pytest.raises(PlacementError, match="not JSON"):
        client.chosen_microversion()


def test_tls_options_of_placement_are_applied(tmp_path):
    if not hasattr(TCPKeepAliveAdapter(), "tls_min_version"):
        pytest.skip("this keystoneauth1 has no options for TLS")
    more = "tls_min_version = 1.3\ntls_ciphers = ECDHE+AESGCM"
    client = make_client(tmp_path, "https://127.0.0.1:1", more)
    adapter = client.adapter.session.session.get_adapter("https://127.0.0.1:1")
    assert (str(adapter.tls_min_version), adapter.tls_ciphers) == ("1.3", "ECDHE+AESGCM")
