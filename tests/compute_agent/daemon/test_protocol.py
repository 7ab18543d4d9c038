"""Questions and answers on the UNIX socket."""

import json
import logging
import socket
import stat
import threading
import time

import pytest

from compute_agent.daemon import protocol
from compute_agent.daemon.protocol import DaemonUnreachableError, RequestError, SocketServer, ask


def fail(params):
    raise RequestError("no such guest")


def crash(params):
    raise ZeroDivisionError("by zero")


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "s.sock"
    path.touch()  # left by an agent that was killed
    server = SocketServer(path, {"echo": lambda params: params, "fail": fail, "crash": crash})
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    yield path
    server.shutdown()
    server.server_close()
    assert not path.exists()


def test_a_question_is_answered(path):
    assert ask(path, "echo", {"a": ["ü", None]}) == {"a": ["ü", None]}


def test_only_owner_and_group_may_ask(path):
    assert stat.S_IMODE(path.stat().st_mode) == 0o660


@pytest.mark.parametrize(
    ("method", "words"),
    [("fail", "no such guest"), ("crash", "internal error: ZeroDivisionError"), ("nothing", "'nothing'")],
)
def test_what_goes_wrong_is_said(path, method, words):
    with pytest.raises(RequestError, match=words):
        ask(path, method)


@pytest.mark.parametrize(
    "line", [b"\n", b"hello\n", b"[]\n", b"{}\n", b'{"method": 3}\n', b'{"method": "echo", "params": 1}\n']
)
def test_nonsense_is_answered_and_does_no_harm(path, line):
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(path))
        connection.sendall(line)
        assert connection.makefile().readline().startswith('{"error": ')
    assert ask(path, "echo", {}) == {}


def test_somebody_who_says_nothing_does_not_keep_others_waiting(path):
    with socket.socket(socket.AF_UNIX) as silent:
        silent.connect(str(path))
        assert ask(path, "echo", {"a": 1}) == {"a": 1}


def test_somebody_who_does_not_take_the_answer_leaves_no_traceback(path, monkeypatch, caplog, capfd):
    monkeypatch.setattr(protocol._Handler, "timeout", 0.1)
    caplog.set_level(logging.INFO)
    more_than_buffers_take = json.dumps({"method": "echo", "params": {"a": "a" * 3_000_000}}) + "\n"
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(path))
        connection.sendall(more_than_buffers_take.encode())
        deadline = time.monotonic() + 20
        while "did not wait for the answer" not in caplog.text:
            assert time.monotonic() < deadline
            time.sleep(0.02)
    assert capfd.readouterr().err == ""


def test_nobody_there(tmp_path):
    with pytest.raises(DaemonUnreachableError, match=r"none\.sock.*is it running"):
        ask(tmp_path / "none.sock", "status")


def test_a_path_that_is_too_long_is_named(tmp_path):
    long = tmp_path / ("x" * 120)
    with pytest.raises(OSError, match=r"cannot listen on .*xxx"):
        SocketServer(long, {})
