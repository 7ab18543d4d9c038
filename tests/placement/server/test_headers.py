"""Headers that the bundled server reads itself mean the same as to gunicorn."""

import pytest
from gunicorn.config import Config
from gunicorn.http.message import Request
from gunicorn.http.parser import RequestParser
from hypothesis import given
from hypothesis import strategies as st

from placement.server.connection import PlainParser

NAMES = ("Host", "X-Auth-Token", "content-length", "Transfer-Encoding", "Expect", "Connection")
OTHER_NAMES = ("X_Under", "X-Forwarded-Proto", "Bad Name", "", "Na\xefve", " Folded")
NAME = st.sampled_from((*NAMES, *OTHER_NAMES)) | st.text("aA-9_: \t\xdf", max_size=4)
VALUE = st.sampled_from(("1", "a b", "100-continue", "chunked", "https", "")) | st.text(
    "a: \t\x00\x7f\xe9\r\n", max_size=5
)
SEPARATOR = st.sampled_from((": ", ":", ":  ", ":\t", " : "))
LINE = st.tuples(NAME, SEPARATOR, VALUE).map("".join)


def read(parser: type[RequestParser], peer: str, head: bytes) -> object:
    try:
        request = next(parser(Config(), iter([head]), (peer, 1)))
    except Exception as error:
        return type(error)
    return request.headers, request.scheme, type(request.body.reader), request.should_close()


@given(st.lists(LINE, max_size=5), st.sampled_from(("127.0.0.1", "192.0.2.1")))
def test_headers_are_read_as_gunicorn_reads_them(lines: list[str], peer: str) -> None:
    head = "".join(f"{line}\r\n" for line in ("GET / HTTP/1.1", *lines, "")).encode("latin-1")
    assert read(PlainParser, peer, head) == read(RequestParser, peer, head)


@pytest.mark.parametrize("field", [b"Host: a", b"X-Auth-Token: admin", b"Accept: a, b;q=0.1 "])
def test_a_usual_header_keeps_its_value(field: bytes) -> None:
    head = b"GET / HTTP/1.1\r\n%b\r\n\r\n" % field
    name, value = field.decode().split(": ")
    assert read(PlainParser, "127.0.0.1", head)[0] == [(name.upper(), value.strip())]  # type: ignore[index]


def test_most_requests_do_not_need_gunicorn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Request, "parse_headers", None)
    head = b"GET / HTTP/1.1\r\nHost: localhost:8778\r\nOpenStack-API-Version: placement 1.39\r\n\r\n"
    assert read(PlainParser, "127.0.0.1", head)[0][0] == ("HOST", "localhost:8778")  # type: ignore[index]
