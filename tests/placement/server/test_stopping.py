"""A server that stops, restarts or reloads answers each request that it has accepted."""

import json
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest

from tests.ports import free_port
from tests.programs import run_program
from tests.waits import wait_for

pytestmark = pytest.mark.slow

NEVER = 120
"""More seconds than a test takes."""

PASSED = """
import os, sys

os.dup2(int(sys.argv[1]), 3)
os.environ |= {"LISTEN_FDS": "1", "LISTEN_PID": str(os.getpid())}
os.execv(sys.argv[2], sys.argv[2:])
"""
"""Runs a program with an inherited socket, as systemd does (sd_listen_fds(3))."""


class StoppingServer:
    """The service of :mod:`tests.placement.server.slow_service` on a loopback port."""

    def __init__(self, folder: Path, port: int, process: "subprocess.Popen[bytes]") -> None:
        self.folder, self.port, self.process = folder, port, process

    def connect(self, path: str = "") -> socket.socket:
        """Connect, and send a request on a connection that is kept alive."""
        made = socket.create_connection(("127.0.0.1", self.port), timeout=60)
        if path:
            made.sendall(request(path))
        return made

    def kept(self) -> socket.socket:
        """Connect, and return the connection after its first answer."""
        made = self.connect("/ok")
        assert b"Connection: keep-alive" in made.recv(65536)
        return made

    def state(self) -> dict[str, int]:
        """The state of the worker that answers."""
        with self.connect("/state") as made:
            return json.loads(made.recv(65536).partition(b"\r\n\r\n")[2])

    def stop(self, number: int = signal.SIGTERM) -> None:
        """Send a signal, and return when the worker is about to close its listening socket."""
        self.process.send_signal(number)
        wait_for((self.folder / "paused").exists, evidence=self.log.read_text)

    def go_on(self) -> None:
        """Let the worker close its listening socket."""
        (self.folder / "go").touch()

    @property
    def log(self) -> Path:
        return self.folder / "service.log"


def request(path: str) -> bytes:
    return f"GET {path} HTTP/1.1\r\nHost: a\r\n\r\n".encode()


@contextmanager
def serving(
    folder: Path,
    *,
    idle: float = NEVER,
    graceful: float = NEVER,
    listener: socket.socket | None = None,
) -> Iterator[StoppingServer]:
    """Run the service with one worker.

    :param idle: seconds without a request after which a stopping worker closes a connection.
    :param graceful: maximum seconds of a stop.
    :param listener: a listening socket that the server gets as systemd passes it.
    """
    port = listener.getsockname()[1] if listener else free_port()
    limits = json.dumps({"worker._LAST_REQUEST_TIMEOUT": idle, "gunicorn.graceful_timeout": graceful})
    words: Sequence[object] = (sys.executable, "-m", "tests.placement.server.slow_service")
    words = (*words, f"127.0.0.1:{port}", limits, folder)
    fds: tuple[int, ...] = ()
    if listener:
        fds = (listener.fileno(),)
        words = (sys.executable, "-c", PASSED, fds[0], *words)
    with run_program(words, folder / "service.log", pass_fds=fds) as process:
        made = StoppingServer(folder, port, process)
        wait_for(lambda: "Listening at" in made.log.read_text(), evidence=made.log.read_text)
        try:
            yield made
        finally:
            made.go_on()


def test_the_first_answer_since_the_stop_closes_its_connection(tmp_path: Path) -> None:
    with serving(tmp_path) as server, ExitStack() as stack:
        kept, other = stack.enter_context(server.kept()), stack.enter_context(server.kept())
        waiting = stack.enter_context(server.connect("/wait"))
        wait_for(lambda: server.state()["busy"] == 1)
        server.stop()
        server.go_on()
        for each, path in ((kept, "/ok"), (other, "/go"), (waiting, "")):
            each.sendall(request(path) if path else b"")
            answer = each.recv(65536)
            assert answer.startswith(b"HTTP/1.1 200 ")
            assert b"Connection: close" in answer
            assert each.recv(65536) == b""
        assert server.process.wait(NEVER) == 0


def test_a_stop_ends_in_its_time_with_connections_that_are_not_used(tmp_path: Path) -> None:
    with serving(tmp_path, idle=3600, graceful=3) as server, server.kept():
        server.go_on()
        server.process.terminate()
        assert server.process.wait(NEVER) == 0
    assert "SIGKILL" not in server.log.read_text()


def test_a_stop_reaches_a_worker_that_was_just_started(tmp_path: Path) -> None:
    (tmp_path / "slow").touch()
    with serving(tmp_path) as server:
        wait_for((tmp_path / "forked").exists, evidence=server.log.read_text)
        server.go_on()
        server.process.terminate()
        wait_for(lambda: "Handling signal: term" in server.log.read_text(), evidence=server.log.read_text)
        time.sleep(0.5)  # the worker gets its signal soon after this line of the log
        (tmp_path / "boot").touch()
        assert server.process.wait(NEVER / 2) == 0


def test_a_connection_is_refused_if_no_worker_can_take_it(tmp_path: Path) -> None:
    with serving(tmp_path) as server, ThreadPoolExecutor(1) as others:
        server.stop()
        late = others.submit(server.connect, "/ok")
        # without the filter the kernel accepts the connection now, and resets it when the worker goes on
        with suppress(TimeoutError):
            late.exception(0.5)
        server.go_on()
        assert isinstance(late.exception(NEVER), ConnectionRefusedError)


def test_a_reload_answers_all_requests(tmp_path: Path) -> None:
    with serving(tmp_path) as server, server.kept() as kept:
        first = server.state()["pid"]
        server.stop(signal.SIGHUP)
        wait_for(lambda: server.state()["pid"] != first)
        server.go_on()
        kept.sendall(request("/ok"))
        assert b"Connection: close" in kept.recv(65536)
        wait_for(lambda: all(server.state()["pid"] != first for _ in range(20)))


def test_a_socket_of_systemd_keeps_connections_for_the_next_server(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener, ExitStack() as stack:
        first, second = tmp_path / "first", tmp_path / "second"
        for folder in (first, second):
            folder.mkdir()
        with serving(first, listener=listener) as server:
            kept = stack.enter_context(server.kept())
            server.stop()
            waiting = stack.enter_context(server.connect("/ok"))
            server.go_on()
            kept.sendall(request("/ok"))
            assert b"Connection: close" in kept.recv(65536)
            assert server.process.wait(NEVER) == 0
        with serving(second, listener=listener):
            assert waiting.recv(65536).startswith(b"HTTP/1.1 200 ")
            waiting.close()
