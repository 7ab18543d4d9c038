"""The worker limits clients that leave, or send and take more than their share."""

import json
import socket
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from tests.placement.server.slow_service import MIB
from tests.programs import run_program
from tests.waits import wait_for

pytestmark = pytest.mark.slow

KEPT_ALIVE = b"GET /ok HTTP/1.1\r\nHost: a\r\n\r\n"


class Slow:
    """The service of :mod:`tests.placement.server.slow_service`."""

    def __init__(self, folder: Path) -> None:
        self.path, self.log = folder / "socket", folder / "service.log"

    def connect(self, data: bytes = b"") -> socket.socket:
        made = socket.socket(socket.AF_UNIX)
        made.settimeout(60)
        made.connect(str(self.path))
        made.sendall(data)
        return made

    def ask(self, path: str) -> bytes:
        """The body of the answer."""
        with self.connect(get(path)) as made:
            answer = b""
            while data := made.recv(65536):
                answer += data
        return answer.partition(b"\r\n\r\n")[2]

    def state_when(self, proper: Callable[[Any], bool]) -> Any:
        """The state of the worker as soon as it is the expected one."""
        state: Any = None

        def is_proper() -> bool:
            nonlocal state
            state = json.loads(self.ask("/state"))
            return proper(state)

        wait_for(is_proper, "the state of the worker", evidence=lambda: state)
        return state


def get(path: str) -> bytes:
    return f"GET {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n".encode()


@contextmanager
def slow(folder: Path, **limits: float) -> Iterator[Slow]:
    made = Slow(folder)
    given = json.dumps({name.replace("__", "."): value for name, value in limits.items()})
    command = [sys.executable, "-m", "tests.placement.server.slow_service", f"unix:{made.path}", given]
    with run_program(command, made.log):
        # The socket's file is there a little earlier.
        wait_for(lambda: "Listening at" in made.log.read_text(), evidence=made.log.read_text)
        yield made


def answered(connections: list[socket.socket]) -> int:
    """The number of connections that are open, and answered when they ask again."""
    count = 0
    for each in connections:
        with suppress(ConnectionError):
            each.sendall(KEPT_ALIVE)
            count += each.recv(1024).endswith(b"ok")
    return count


def test_a_client_that_leaves_while_waiting_leaves_nothing_behind(tmp_path: Path) -> None:
    with slow(tmp_path, connection__HEADERS_TIMEOUT=1) as service:
        for _ in range(2):
            service.connect(get("/wait")).close()
        assert service.state_when(lambda state: state["busy"] == 2)["busy"] == 2
        service.ask("/go")
        state = service.state_when(lambda state: (state["busy"], state["connections"]) == (0, 1))
        assert (state["busy"], state["connections"]) == (0, 1)
        with ExitStack() as stack:
            silent = [stack.enter_context(service.connect()) for _ in range(6)]
            assert [each.recv(1) for each in silent] == [b""] * len(silent)
        assert service.ask("/state")
    assert "Traceback" not in service.log.read_text()


def test_a_new_connection_stays_while_others_are_at_rest(tmp_path: Path) -> None:
    with slow(tmp_path) as service, ExitStack() as stack:
        idle = [stack.enter_context(service.connect(KEPT_ALIVE)) for _ in range(6)]
        assert all(each.recv(1024).endswith(b"ok") for each in idle)
        new = [stack.enter_context(service.connect()) for _ in range(5)]  # 11, where 8 are allowed
        for each in new:
            each.sendall(KEPT_ALIVE)
        assert all(each.recv(1024).endswith(b"ok") for each in new)
        assert answered(idle) == 3
    assert "Traceback" not in service.log.read_text()


def test_silent_connections_get_at_most_half_of_the_places(tmp_path: Path) -> None:
    with slow(tmp_path) as service, ExitStack() as stack:
        idle = [stack.enter_context(service.connect(KEPT_ALIVE)) for _ in range(8)]
        assert all(each.recv(1024).endswith(b"ok") for each in idle)
        silent = [stack.enter_context(service.connect(some)) for some in (b"", b"GET /ok HT") * 10]
        assert [each.recv(1) for each in silent[:15]] == [b""] * 15
        assert answered(idle) == 3
    assert "Traceback" not in service.log.read_text()


def test_the_next_request_waits_until_the_first_is_answered(tmp_path: Path) -> None:
    put = b"PUT /wait HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nhi"
    with slow(tmp_path) as service:
        with service.connect(put) as made:
            service.state_when(lambda state: state["busy"] == 1)
            made.sendall(b"PUT /second HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nho")
        state = json.loads(service.ask("/state"))
        assert [each for each in state["calls"] if each != "/state"] == ["/wait"]
        service.ask("/go")
        state = service.state_when(lambda state: state["connections"] == 1)
        assert (state["busy"], state["connections"]) == (0, 1)
        assert state["calls"].count("/wait") == 1
    assert "Traceback" not in service.log.read_text()


def test_bodies_of_present_requests_count_as_held(tmp_path: Path) -> None:
    put = b"PUT /wait HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n" % MIB + bytes(MIB)
    with slow(tmp_path, worker___MAX_HELD=3 * MIB) as service, ExitStack() as stack:
        waiting = [stack.enter_context(service.connect(put)) for _ in range(3)]
        assert service.state_when(lambda state: state["busy"] == 3)["busy"] == 3
        refused = stack.enter_context(service.connect())
        with suppress(BrokenPipeError):  # the server refuses the request before the whole request is sent
            refused.sendall(put)
        assert refused.recv(65536).startswith(b"HTTP/1.1 503 ")
        service.ask("/go")
        assert [each.recv(65536)[:12] for each in waiting] == [b"HTTP/1.1 200"] * 3
        assert service.state_when(lambda state: state["held"] == 0)["held"] == 0
    assert f"Refused a request from a client of {service.path}: 503 " in service.log.read_text()


def test_a_slow_client_gets_its_answer_and_one_that_reads_nothing_is_closed(tmp_path: Path) -> None:
    with slow(tmp_path, connection__ANSWER_TIMEOUT=5) as service:
        with service.connect(get("/big")) as honest, service.connect(get("/big")):
            taken = 0
            while data := honest.recv(MIB, socket.MSG_WAITALL):
                taken += len(data)
                time.sleep(0.5)
        assert taken > 16 * MIB
        service.state_when(lambda state: state["connections"] == 1)
    log = service.log.read_text()
    assert log.count("reads its answer too slowly") == 1


def test_only_clients_of_http_1_1_get_100_continue(tmp_path: Path) -> None:
    put = b"PUT /go HTTP/1.%d\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n"
    with slow(tmp_path) as service:
        for minor, first in ((1, b"HTTP/1.1 100 Continue\r\n\r\n"), (0, b"")):
            with service.connect(put % minor) as made:
                assert made.recv(len(first)) == first
                if not first:
                    service.ask("/state")  # the worker has seen the headers by now
                made.sendall(b"hi")
                assert made.recv(65536).startswith(b"HTTP/1.%d 200 OK" % minor)


def test_a_client_that_waits_for_a_thread_has_no_deadline(tmp_path: Path) -> None:
    limits = {f"connection__{name}_TIMEOUT": 1 for name in ("HEADERS", "IDLE", "ANSWER")}
    with slow(tmp_path, gunicorn__worker_connections=100, **limits) as service, ExitStack() as stack:
        new = stack.enter_context(service.connect())
        kept = stack.enter_context(service.connect(KEPT_ALIVE))
        assert kept.recv(1024).endswith(b"ok")
        twice = stack.enter_context(service.connect(KEPT_ALIVE.replace(b"ok", b"sleep") + KEPT_ALIVE))
        busy = [stack.enter_context(service.connect(get("/sleep"))) for _ in range(6)]
        for each in (new, kept):
            each.sendall(KEPT_ALIVE)
        for each in (*busy, new, kept):
            assert each.recv(1024).endswith(b"ok")
        assert twice.recv(2048).endswith(b"ok")
    assert "Traceback" not in service.log.read_text()


def test_new_clients_do_not_wait_for_many_rounds_of_clients_that_always_ask(tmp_path: Path) -> None:
    ended = Event()

    def ask_always(client: socket.socket) -> None:
        while not ended.is_set():
            client.sendall(KEPT_ALIVE * 20)
            answers = b""
            while answers.count(b"ok") < 20:
                answers += client.recv(65536)

    with slow(tmp_path, gunicorn__worker_connections=100) as service, ExitStack() as stack:
        asking = [stack.enter_context(service.connect()) for _ in range(40)]
        with ThreadPoolExecutor(len(asking)) as others:
            stack.callback(ended.set)
            running = [others.submit(ask_always, each) for each in asking]
            time.sleep(0.5)
            new = [stack.enter_context(service.connect(get(f"/new{number}"))) for number in range(20)]
            assert all(each.recv(1024).endswith(b"ok") for each in new)
            ended.set()
            for each in running:
                each.result()
        calls = json.loads(service.ask("/state"))["calls"]
    at = [position for position, path in enumerate(calls) if path.startswith("/new")]
    # one at a time, the last one would wait for 20 rounds of the 40 others
    assert at[-1] - at[0] < 10 * len(asking)


def test_a_thread_that_fails_ends_its_worker(tmp_path: Path) -> None:
    with slow(tmp_path) as service:
        first = json.loads(service.ask("/state"))["pid"]
        assert service.ask("/exit") == b""
        state = service.state_when(lambda state: state["pid"] != first)
        assert state["connections"] == 1
