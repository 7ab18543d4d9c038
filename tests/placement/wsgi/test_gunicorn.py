"""Tests of the service under plain gunicorn, with a kind of worker that reads a body only when the
application asks for it.
"""

import os
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from placement.db import migration
from tests.placement.serving import RunningService
from tests.ports import free_port
from tests.programs import run_program

pytestmark = pytest.mark.slow

HEAD = (
    b"%b HTTP/1.1\r\nHost: a\r\nX-Auth-Token: admin\r\nOpenStack-API-Version: placement 1.39\r\n"
    b"Content-Type: %b\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n"
)
REST = HEAD % (b"POST /resource_providers", b"application/json")
BODY = b'{"name": "host"}'
WHOLE = b"%x\r\n%b\r\n0\r\n\r\n" % (len(BODY), BODY)


@pytest.fixture(scope="module", params=["sync", "gthread"])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """gunicorn with this kind of worker, in a folder with its log and its socket."""
    folder = tmp_path_factory.mktemp(request.param)
    url = f"sqlite:///{folder}/placement.sqlite"
    migration.upgrade_schema(url)
    (folder / "placement.conf").write_text(
        f"[api]\nauth_strategy = noauth2\n[placement_database]\nconnection = {url}\n"
    )
    port = free_port()
    command = [sys.executable, "-m", "gunicorn", "placement.wsgi.api:application"]
    command += ["--bind", f"127.0.0.1:{port}", "--worker-class", request.param]
    environ = os.environ | {"OS_PLACEMENT_CONFIG_DIR": str(folder)}
    with run_program(command, folder / "service.log", environ) as process:
        RunningService(f"http://127.0.0.1:{port}", process.pid).wait(200)
        (folder / "port").write_text(str(port))
        yield folder


def exchange(server: Path, data: bytes) -> bytes:
    """The answer to these bytes, from a client that then sends nothing more."""
    answer = b""
    with socket.create_connection(("127.0.0.1", int((server / "port").read_text())), timeout=60) as made:
        made.sendall(data)
        made.shutdown(socket.SHUT_WR)
        while piece := made.recv(65536):
            answer += piece
    return answer


@pytest.mark.parametrize(
    "body",
    [b"no chunk\r\n", b"zz\r\n{}\r\n0\r\n\r\n", b"2\r\n{}xx", b"-1\r\n", b"8\r\n{}", b"2\r\n{}\r\n", b""],
    ids=["no chunk", "no size", "no end", "negative", "cut off", "no last chunk", "nothing"],
)
def test_a_malformed_chunk_is_a_bad_request(server: Path, body: bytes) -> None:
    answer = exchange(server, REST + body)
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert b"chunk" in answer
    assert "Traceback" not in (server / "service.log").read_text()


def test_a_proper_body_in_chunks_is_read(server: Path) -> None:
    assert exchange(server, REST + WHOLE).startswith(b"HTTP/1.1 200 ")
