"""Tests of the protocol of the UNIX socket, and of methods that wait for a busy worker."""

import json
import logging
import os
import socket
import stat
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from compute_agent.agent import api, protocol
from compute_agent.agent.api import OPEN_METHODS, ApiMethods
from compute_agent.agent.protocol import DaemonUnreachableError, RequestError, SocketServer, call_agent
from tests.compute_agent.builders import build_guest
from tests.waits import wait_for


def fail(params):
    raise RequestError("no such guest")


def crash(params):
    raise ZeroDivisionError("by zero")


def leave_socket(path):
    """Leave a socket file behind, as an agent does that was killed."""
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(path))


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "s.sock"
    leave_socket(path)
    methods = {"echo": lambda params: params, "fail": fail, "crash": crash, "odd": lambda params: object()}
    server = SocketServer(path, methods)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    yield path
    server.shutdown()
    server.server_close()
    assert not path.exists()


@pytest.fixture
def few(monkeypatch):
    """Limit the server to three simultaneous connections."""
    monkeypatch.setattr(SocketServer, "max_connections", 3)


def connect(path):
    connection = socket.socket(socket.AF_UNIX)
    connection.settimeout(20)
    connection.connect(str(path))
    return connection


def test_a_question_is_answered(path):
    assert call_agent(path, "echo", {"a": ["ü", None]}) == {"a": ["ü", None]}


def test_only_owner_and_group_may_ask(path):
    assert stat.S_IMODE(path.stat().st_mode) == 0o660


@pytest.mark.parametrize(
    ("method", "words"),
    [
        ("fail", "no such guest"),
        ("crash", "internal error: ZeroDivisionError"),
        ("odd", "internal error: TypeError"),
        ("nothing", "'nothing'"),
    ],
)
def test_errors_of_requests_have_messages(path, method, words):
    with pytest.raises(RequestError, match=words):
        call_agent(path, method)


@pytest.mark.parametrize(
    "line",
    [
        b"\n",
        b"hello\n",
        b"[]\n",
        b"{}\n",
        b'{"method": 3}\n',
        b'{"method": "echo", "params": 1}\n',
        b"[" * 100_000 + b"\n",
        b'{"method": "echo", "params": {"a": ' + b"9" * 10_000 + b"}}\n",
        b'{"method": "echo", "params": {"a": "' + b"a" * protocol.MAX_LINE + b'"}}\n',
    ],
)
def test_nonsense_is_answered_and_does_no_harm(path, line):
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(path))
        connection.sendall(line)
        assert connection.makefile().readline().startswith('{"error": ')
    assert call_agent(path, "echo", {}) == {}


def test_a_silent_client_does_not_keep_others_waiting(path):
    with socket.socket(socket.AF_UNIX) as silent:
        silent.connect(str(path))
        assert call_agent(path, "echo", {"a": 1}) == {"a": 1}


def test_any_number_of_silent_clients_leaves_room_for_others(path, few):
    silent = [connect(path) for _ in range(7)]
    try:
        assert call_agent(path, "echo", {"a": 1}) == {"a": 1}
        assert silent[0].recv(1) == b"", "the oldest is let go"
    finally:
        for connection in silent:
            connection.close()


def test_a_connection_beyond_the_limit_is_refused_with_the_reason(tmp_path, few):
    going_on, entered = threading.Event(), threading.Semaphore(0)

    def wait(params):
        entered.release()
        going_on.wait(20)

    server = SocketServer(tmp_path / "s.sock", {"wait": wait})
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    busy = [connect(tmp_path / "s.sock") for _ in range(3)]
    try:
        for connection in busy:
            connection.sendall(b'{"method": "wait"}\n')
            assert entered.acquire(timeout=20)
        with pytest.raises(RequestError, match="3 requests in hand"):
            call_agent(tmp_path / "s.sock", "wait")
        going_on.set()
        assert [connection.makefile().readline() for connection in busy] == ['{"result": null}\n'] * 3
        assert call_agent(tmp_path / "s.sock", "wait") is None
    finally:
        going_on.set()
        for connection in busy:
            connection.close()
        server.shutdown()
        server.server_close()


@pytest.mark.parametrize("drops", [[], [b"{", b'"', b"m"]], ids=["silent", "slow"])
def test_a_client_that_does_not_finish_in_time_is_disconnected(path, monkeypatch, drops):
    monkeypatch.setattr(SocketServer, "receive_timeout", 0.2)
    with connect(path) as connection:
        for drop in drops:
            connection.sendall(drop)
            time.sleep(0.05)
        while connection.recv(1000):
            pass
    assert call_agent(path, "echo", {}) == {}


def test_an_answer_may_take_longer_than_the_request(tmp_path, monkeypatch):
    monkeypatch.setattr(SocketServer, "receive_timeout", 0.1)
    server = SocketServer(tmp_path / "s.sock", {"slow": lambda params: time.sleep(0.4)})
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    try:
        assert call_agent(tmp_path / "s.sock", "slow") is None
    finally:
        server.shutdown()
        server.server_close()


@pytest.mark.parametrize("has_served", [False, True])
def test_an_idle_server_stops_without_waiting_for_its_next_check(tmp_path, monkeypatch, has_served):
    monkeypatch.setattr(protocol, "_IDLE_SECONDS", 600)
    server = SocketServer(tmp_path / "s.sock", {"echo": lambda params: params})
    thread = threading.Thread(target=server.serve_until_stopped, daemon=True)
    thread.start()
    if has_served:
        assert call_agent(tmp_path / "s.sock", "echo") == {}
    stopper = threading.Thread(target=server.shutdown, daemon=True)
    stopper.start()
    for each in (stopper, thread):
        each.join(60)
        assert not each.is_alive()
    server.server_close()


ASK = """
import json, os, socket, sys
os.setgroups([]), os.setgid(65534), os.setuid(65534)
with socket.socket(socket.AF_UNIX) as connection:
    connection.connect(sys.argv[1])
    connection.sendall(json.dumps({"method": sys.argv[2]}).encode() + b"\\n")
    print(connection.makefile().readline())
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can ask as another user")
def test_another_user_of_the_sockets_group_may_read_and_not_change():
    names = ApiMethods(None, None).list_methods()
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:  # where others get at it
        os.chmod(folder, 0o755)
        path = Path(folder) / "s.sock"
        server = SocketServer(path, {name: lambda params: "done" for name in names}, OPEN_METHODS)
        os.chown(path, -1, 65534)
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        try:
            answers = {
                name: json.loads(
                    subprocess.run(
                        [sys.executable, "-S", "-E", "-c", ASK, path, name],
                        capture_output=True, text=True, timeout=60, check=True,
                    ).stdout
                )
                for name in ("status", "guest.list", "guest.run", "guest.stop", "guest.adopt", "audit")
            }  # fmt: skip
            assert call_agent(path, "guest.run") == "done"
        finally:
            server.shutdown()
            server.server_close()
    assert answers["status"] == answers["guest.list"] == {"result": "done"}
    for name in ("guest.run", "guest.stop", "guest.adopt", "audit"):
        assert answers[name] == {
            "error": f"user 65534 may not call {name}: only root and the agent's user (0) may"
        }
    assert names.keys() >= OPEN_METHODS


def test_a_file_that_is_no_socket_is_not_removed(tmp_path):
    path = tmp_path / "precious"
    path.write_text("content")
    with pytest.raises(OSError, match=f"cannot listen on {path}: it is not a socket"):
        SocketServer(path, {})
    assert path.read_text() == "content"


def test_no_socket_is_created_in_a_folder_that_others_can_write(tmp_path):
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    with pytest.raises(OSError, match=f"{tmp_path}/open .* is writable for other users"):
        SocketServer(tmp_path / "open" / "s.sock", {})
    assert list((tmp_path / "open").iterdir()) == []


def test_a_socket_that_another_process_listens_on_is_not_replaced(path):
    with pytest.raises(OSError, match=f"cannot listen on {path}, because another process does"):
        SocketServer(path, {})
    assert call_agent(path, "echo", {}) == {}


def test_a_client_that_does_not_read_the_answer_leaves_no_traceback(path, monkeypatch, caplog, capfd):
    monkeypatch.setattr(SocketServer, "answer_timeout", 1.0)
    caplog.set_level(logging.INFO)
    more_than_buffers_take = json.dumps({"method": "echo", "params": {"a": "a" * 900_000}}) + "\n"
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(path))
        connection.sendall(more_than_buffers_take.encode())
        wait_for(lambda: "ended its connection to the agent before it got the answer" in caplog.text)
    assert capfd.readouterr().err == ""


def test_a_server_that_does_not_answer_is_unavailable(tmp_path):
    with pytest.raises(DaemonUnreachableError, match=r"none\.sock.*does it run\? Give the command"):
        call_agent(tmp_path / "none.sock", "status")


def test_a_path_that_is_too_long_is_named(tmp_path):
    long = tmp_path / ("x" * 120)
    with pytest.raises(OSError, match=r"cannot listen on .*xxx"):
        SocketServer(long, {})


GUEST = build_guest("11111111-0000-4000-8000-000000000001")


@pytest.fixture
def methods(monkeypatch: pytest.MonkeyPatch) -> api.ApiMethods:
    """The API methods of an agent with a worker that answers no event."""
    monkeypatch.setattr(api, "ANSWER_SECONDS", 0)

    def refuse_change(params: Any) -> None:
        raise TimeoutError

    configurator = SimpleNamespace(
        find_guest=lambda wanted: SimpleNamespace(guest=GUEST), change_guest=refuse_change
    )
    agent = SimpleNamespace(
        configurator=configurator,
        pipeline=SimpleNamespace(submit=lambda event: Future[None]()),
        driver=SimpleNamespace(stop=lambda guest, seconds: None),
        options=SimpleNamespace(guests=SimpleNamespace(stop_timeout=1)),
    )
    return api.ApiMethods(cast(Any, agent), lambda: None)


def test_a_guest_has_ended_though_the_worker_takes_it_later(methods: api.ApiMethods) -> None:
    assert methods.guest_stop({"guest": GUEST.uuid}) == {"uuid": GUEST.uuid, "name": GUEST.name}


def test_settings_that_the_worker_has_no_time_for_are_an_error_of_the_request(
    methods: api.ApiMethods,
) -> None:
    with pytest.raises(RequestError, match="the agent is busy"):
        methods.guest_set({"guest": GUEST.uuid, "vcpus": 2})
