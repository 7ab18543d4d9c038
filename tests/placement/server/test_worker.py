"""The bundled server, with clients that are slow, hostile or gone."""

import signal
import socket
import stat
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import urlsplit

import psutil
import pytest
import requests

from placement.db import migration
from tests.placement.hard_world import HARD, call, create, make_hard
from tests.placement.serving import HEADERS, RunningService, service
from tests.programs import run_program
from tests.waits import wait_for

pytestmark = pytest.mark.slow

TOKEN = b"X-Auth-Token: admin\r\nOpenStack-API-Version: placement 1.39\r\nContent-Type: application/json\r\n"


@pytest.fixture
def running(tmp_path: Path) -> Iterator[RunningService]:
    """One worker, with searches that may take very long."""
    url = f"sqlite:///{tmp_path}/placement.sqlite"
    migration.upgrade_schema(url)
    with service(url, tmp_path, workers=1, api_options="candidates_deadline = 600") as started:
        yield started


def connect(service: RunningService, data: bytes = b"") -> socket.socket:
    address = urlsplit(service.base)
    made = socket.create_connection((address.hostname, address.port), timeout=60)
    made.sendall(data)
    return made


def exchange(service: RunningService, data: bytes) -> bytes:
    """The first part of the answer to these bytes."""
    with connect(service, data) as made:
        return made.recv(65536)


def test_slow_clients_do_not_delay_other_answers(running: RunningService) -> None:
    body = b"POST /resource_providers HTTP/1.1\r\nHost: a\r\nContent-Length: 1000\r\n" + TOKEN + b"\r\n{"
    with ExitStack() as stack:
        for _ in range(200):
            stack.enter_context(connect(running))
        dripping = [
            stack.enter_context(connect(running, b"GET / HTTP/1.1\r\nHost: a\r\nX-Slow: ")) for _ in range(64)
        ]
        dripping += [stack.enter_context(connect(running, body)) for _ in range(32)]
        for number in range(20):
            for each in dripping:
                each.sendall(b"a")
            uuid = create(running, f"host{number}")
            assert call(running, "GET", f"/resource_providers/{uuid}")["name"] == f"host{number}"


@pytest.mark.parametrize("piece", [1, 7, 100, 10_000])
def test_a_request_that_comes_in_pieces_is_answered(running: RunningService, piece: int) -> None:
    body = b'{"name": "slow"}'
    request = b"POST /resource_providers HTTP/1.1\r\nHost: a\r\nConnection: close\r\n" + TOKEN
    for framing in (
        b"Content-Length: %d\r\n\r\n%b" % (len(body), body),
        b"Transfer-Encoding: chunked\r\n\r\n4\r\n%b\r\n%x\r\n%b\r\n0\r\n\r\n"
        % (body[:4], len(body) - 4, body[4:].replace(b"slow", b"more")),
    ):
        with connect(running) as made:
            whole = request + framing
            for at in range(0, len(whole), piece):
                made.sendall(whole[at : at + piece])
            assert made.recv(65536).startswith(b"HTTP/1.1 200 ")
    names = {each["name"] for each in call(running, "GET", "/resource_providers")["resource_providers"]}
    assert names == {"slow", "more"}


def test_several_requests_may_come_at_once(running: RunningService) -> None:
    one = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"
    last = b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"
    answer = b""
    with connect(running, one + one + last) as made:
        while data := made.recv(65536):
            answer += data
    assert answer.count(b"HTTP/1.1 200 OK") == 3


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"POST /resource_providers HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n%b\r\nzz\r\n", 400),
        (
            b"POST /resource_providers HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n%b\r\n2\r\n{}xx",
            400,
        ),
        (b"POST /resource_providers HTTP/1.1\r\nHost: a\r\nContent-Length: 99999999999\r\n%b\r\n", 413),
        (b"GET / HTTP/1.1\r\nHost: a\r\n%bX: " + b"a" * 65_500, 431),
        (b"nonsense\r\n%b\r\n", 400),
    ],
)
def test_malformed_requests_are_refused(running: RunningService, data: bytes, status: int) -> None:
    assert exchange(running, data % TOKEN).startswith(b"HTTP/1.1 %d " % status)


CHUNKED = b"POST /resource_providers HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n%b\r\n" % TOKEN


def test_a_body_of_many_small_chunks_is_answered(running: RunningService) -> None:
    name = b'{"name": "chunks"}'
    body = b"1\r\n \r\n" * 80_000 + b"%x\r\n%b\r\n0\r\n\r\n" % (len(name), name)
    assert exchange(running, CHUNKED + body).startswith(b"HTTP/1.1 200 ")
    names = [each["name"] for each in call(running, "GET", "/resource_providers")["resource_providers"]]
    assert names == ["chunks"]


@pytest.mark.parametrize(
    ("body", "status", "reason"),
    [
        (b"1\r\n \r\n" * 100_001, 413, b"100000 chunks"),
        (b"0\r\n" + b"a" * (64 * 1024 + 8), 431, b"64 KiB"),
        (b"0\r\nA: " + b"a" * 64 * 1024 + b"\r\n\r\n", 431, b"64 KiB"),
    ],
    ids=["chunks", "endless trailers", "long trailers"],
)
def test_a_chunked_body_beyond_the_limits_is_refused(
    running: RunningService, body: bytes, status: int, reason: bytes
) -> None:
    answer = exchange(running, CHUNKED + body)
    assert answer.startswith(b"HTTP/1.1 %d " % status)
    assert reason in answer


def test_no_client_can_choose_where_the_service_is_mounted(running: RunningService) -> None:
    headers = {**HEADERS, "SCRIPT_NAME": "/elsewhere"}
    body = {"name": "host"}
    answer = requests.post(f"{running.base}/resource_providers", headers=headers, json=body, timeout=60)
    assert answer.status_code == 200
    assert answer.json()["links"][0]["href"].startswith("/resource_providers/")


def test_a_search_ends_when_its_client_leaves(running: RunningService, tmp_path: Path) -> None:
    make_hard(running)
    with connect(running, b"GET %b HTTP/1.1\r\nHost: a\r\n%b\r\n" % (HARD.encode(), TOKEN)):
        time.sleep(1)
    log = tmp_path / "service.log"
    wait_for(lambda: f'"GET {HARD[:30]}' in log.read_text(), evidence=log.read_text)
    assert "status: 503" in next(
        line for line in (tmp_path / "service.log").read_text().splitlines() if HARD[:30] in line
    )


def test_a_search_does_not_delay_the_end_of_the_service(running: RunningService) -> None:
    make_hard(running)
    master = psutil.Process(running.master)
    with ThreadPoolExecutor(1) as others:
        hard = others.submit(requests.get, running.base + HARD, headers=HEADERS, timeout=120)
        time.sleep(1)
        master.send_signal(signal.SIGTERM)
        answer = hard.result()
    assert answer.status_code == 503
    assert "stopping" in answer.json()["errors"][0]["detail"]


def test_connections_in_use_get_their_answers_while_the_service_stops(running: RunningService) -> None:
    one = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"
    (worker,) = map(psutil.Process, running.workers())
    with ExitStack() as stack:
        kept = stack.enter_context(connect(running, one))
        assert b"Connection: keep-alive" in kept.recv(65536)
        worker.suspend()
        waiting = [stack.enter_context(connect(running, one)) for _ in range(30)]
        kept.sendall(one)
        worker.terminate()
        worker.resume()
        end = time.monotonic() + 30
        for each in (kept, *waiting):
            answer = each.recv(65536)
            # threads answer some requests before the main thread of the worker handles the signal
            while b"Connection: close" not in answer and time.monotonic() < end:
                assert answer.startswith(b"HTTP/1.1 200 OK")
                each.sendall(one)
                answer = each.recv(65536)
            assert answer.startswith(b"HTTP/1.1 200 OK")
            assert b"Connection: close" in answer


def test_a_socket_in_the_file_system_is_for_owner_and_group(tmp_path: Path) -> None:
    config, path = tmp_path / "placement.conf", tmp_path / "socket"
    config.write_text(f"[placement_database]\nconnection = sqlite:///{tmp_path}/placement.sqlite\n")
    command = [sys.executable, "-m", "placement.cmd.api", "--config-file", str(config)]
    log = tmp_path / "service.log"
    with (
        run_program([*command, "--bind", f"unix:{path}", "--workers", "1"], log),
        socket.socket(socket.AF_UNIX) as made,
    ):
        made.settimeout(60)
        wait_for(lambda: made.connect_ex(str(path)) == 0, evidence=log.read_text)
        assert stat.S_IMODE(path.stat().st_mode) == 0o660
        made.sendall(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
        assert made.recv(65536).startswith(b"HTTP/1.1 200 OK")
