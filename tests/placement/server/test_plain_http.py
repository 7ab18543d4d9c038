"""Requests and answers that the bundled server handles itself mean the same as to gunicorn."""

import socket
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from gunicorn.config import Config
from gunicorn.http import wsgi
from gunicorn.http.parser import RequestParser
from hypothesis import given
from hypothesis import strategies as st

from placement.server.connection import ClientConnection
from placement.server.plain_http import PlainRequest, PlainResponse, make_base, make_environ, read_plain

NAMES = (
    "Host",
    "X-Auth-Token",
    "content-length",
    "Transfer-Encoding",
    "Expect",
    "Connection",
    "Content-Type",
)
OTHER_NAMES = ("X_Under", "X-Forwarded-Proto", "Bad Name", "", "Na\xefve", " Folded", "Script-Name")
NAME = st.sampled_from((*NAMES, *OTHER_NAMES)) | st.text("aA-9_: \t\xdf", max_size=4)
VALUE = st.sampled_from(
    ("1", "a b", "100-continue", "chunked", "https", "Close", "keep-alive", "")
) | st.text("a: \t\x00\x7f\xe9\r\n", max_size=5)
SEPARATOR = st.sampled_from((": ", ":", ":  ", ":\t", " : "))
LINE = st.tuples(NAME, SEPARATOR, VALUE).map("".join)
METHOD = st.sampled_from(("GET", "PUT", "DELETE", "CONNECT", "get", "G", ""))
TARGET = st.text("/a?=#%2f:*[]&\x7f\xe9 ", max_size=8).map("/".__add__) | st.sampled_from(
    ("*", "http://a/b", "")
)
VERSION = st.sampled_from(("HTTP/1.1", "HTTP/1.0", "HTTP/2.0", "http/1.1"))
FIRST_LINE = st.tuples(METHOD, TARGET, VERSION).map(" ".join) | st.just("GET / HTTP/1.1")
SERVER = ("127.0.0.1", 8778)
# gunicorn passes values that are different objects for each request
OWN_OBJECTS = {"wsgi.input", "wsgi.errors", "wsgi.early_hints", "gunicorn.socket"}


def seen_by_gunicorn(head: bytes, peer: Any) -> object:
    """Return what gunicorn makes of a request: its environment, whether to close, and its body's length."""
    try:
        request = next(RequestParser(Config(), iter([head]), peer))
    except Exception as error:
        return type(error)
    _, environ = wsgi.create(request, None, peer, SERVER, Config())
    return _comparable(environ), request.should_close(), getattr(request.body.reader, "length", None)


def _comparable(environ: Mapping[str, Any]) -> Mapping[str, Any]:
    return {name: value for name, value in environ.items() if name not in OWN_OBJECTS}


def seen_by_us(request: PlainRequest, peer: Any) -> object:
    base = make_base(Config(), None, peer, SERVER)
    assert base is not None
    return _comparable(make_environ(request, base)), request.should_close(), request.length


@given(FIRST_LINE, st.lists(LINE, max_size=5), st.sampled_from(("127.0.0.1", "192.0.2.1")))
def test_a_request_means_the_same_as_to_gunicorn(first: str, lines: list[str], address: str) -> None:
    head = "".join(f"{line}\r\n" for line in (first, *lines, "")).encode("latin-1")
    request = read_plain(head)
    if request is not None:
        assert seen_by_us(request, (address, 1)) == seen_by_gunicorn(head, (address, 1))


@pytest.mark.parametrize(
    "lines",
    [
        b"GET /allocation_candidates?resources=VCPU:1&limit=2 HTTP/1.1\r\nHost: a:8778",
        b"GET / HTTP/1.1\r\nHost: localhost\r\nOpenStack-API-Version: placement 1.39\r\nAccept: a, b;q=0.1",
        b"PUT /allocations/a%2Fb HTTP/1.1\r\nContent-Type: application/json\r\nContent-Length: 12",
        b"DELETE /allocations/a HTTP/1.1\r\nConnection: close",
    ],
)
def test_usual_requests_do_not_need_gunicorn(lines: bytes) -> None:
    head = lines + b"\r\n\r\n"
    request = read_plain(head)
    assert request is not None
    assert seen_by_us(request, ("192.0.2.1", 5)) == seen_by_gunicorn(head, ("192.0.2.1", 5))


@pytest.mark.parametrize(
    "lines",
    [
        b"GET // HTTP/1.1\r\nHost: a",
        b"GET /#a HTTP/1.1\r\nHost: a",
        b"GET / HTTP/1.0\r\nHost: a",
        b"GET / HTTP/1.1\r\nHost: a\r\nHost: b",
        b"GET / HTTP/1.1\r\nX_Forged: a",
        b"PUT / HTTP/1.1\r\nTransfer-Encoding: chunked",
        b"PUT / HTTP/1.1\r\nContent-Length: +1",
        b"PUT / HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: 1",
        b"GET /" + 9000 * b"a" + b" HTTP/1.1\r\nHost: a",
        b"GET / HTTP/1.1\r\n" + b"\r\n".join([b"A%d: a" % number for number in range(51)]),
    ],
)
def test_gunicorn_decides_about_other_requests(lines: bytes) -> None:
    assert read_plain(lines + b"\r\n\r\n") is None


def test_gunicorn_finds_names_at_a_unix_socket_and_below_a_prefix(monkeypatch: pytest.MonkeyPatch) -> None:
    assert make_base(Config(), None, "", "/run/placement.sock") is None
    monkeypatch.setenv("SCRIPT_NAME", "/placement")
    assert make_base(Config(), None, ("192.0.2.1", 5), SERVER) is None


HEADER = st.tuples(
    st.sampled_from(
        ("Content-Type", "content-length", "Vary", "ETag", "Connection", "Set-Cookie", "A B", "")
    ),
    st.sampled_from(("application/json", "3", "12", "", " a ", "a\r\nEtag: b", "keep-alive", "\xe9", "-1")),
)
STATUS = st.sampled_from(("200 OK", "204 No Content", "304 Not Modified", "201", "099 \n"))


def sent(
    response: type[wsgi.Response], status: str, headers: Sequence[tuple[str, str]], close: str
) -> object:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        connection = ClientConnection(Config(), ours, ("192.0.2.1", 5), SERVER)
        request = read_plain(b"GET / HTTP/1.1\r\nConnection: %b\r\n\r\n" % close.encode())
        answer = response(request, connection, Config())
        try:
            answer.start_response(status, headers)
            answer.write(b"abc")
            answer.close()
        except Exception as error:
            return type(error)
        connection.flush()
        data = theirs.recv(65536)
        lines = [line for line in data.split(b"\r\n") if not line.startswith(b"Date: ")]
        return lines, answer.should_close()


@given(STATUS, st.lists(HEADER, max_size=4), st.sampled_from(("close", "keep-alive")))
def test_an_answer_is_sent_as_gunicorn_sends_it(
    status: str, headers: list[tuple[str, str]], close: str
) -> None:
    assert sent(PlainResponse, status, headers, close) == sent(wsgi.Response, status, headers, close)
