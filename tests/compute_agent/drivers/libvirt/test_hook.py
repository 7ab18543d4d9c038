"""Tests of the hook that libvirt runs: it is installed in the right place, and can neither fail nor hang."""

import json
import os
import socket
import subprocess
import sys
import threading

import pytest

from compute_agent.cmd.libvirt import COMMANDS
from compute_agent.drivers.libvirt import hook
from compute_agent.drivers.libvirt.hook import ForeignHookError, HookState
from tests.compute_agent.cmd.agents import run_here

SECONDS = 60
XML = '<domain><name>it\'s "a" $(guest)</name></domain>'


@pytest.fixture
def listener(tmp_path):
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "agent's socket"))
        listener.listen()
        yield listener


def run(script, tmp_path, operation="start", suboperation="begin", xml=XML):
    path = tmp_path / "hook"
    path.write_text(script)
    command = ["/bin/sh", str(path), "guest", operation, suboperation, "-"]
    done = subprocess.run(command, input=xml, capture_output=True, text=True, timeout=SECONDS, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def serve(listener, answer):
    """Answer one request of the hook, and return the request."""
    asked = []

    def one():
        connection, _ = listener.accept()
        with connection, connection.makefile("rb") as file:
            asked.append(json.loads(file.readline()))
            connection.sendall(answer)

    thread = threading.Thread(target=one)
    thread.start()
    return asked, thread


@pytest.mark.parametrize("answer", [b'{"result": {}}\n', b'{"error": "no"}\n', b"nonsense\n", b""])
def test_the_agent_is_asked_and_the_guest_starts_after_any_answer(listener, tmp_path, answer):
    asked, thread = serve(listener, answer)
    run(hook.hook_script(tmp_path / "agent's socket"), tmp_path)
    thread.join(SECONDS)
    assert asked == [{"method": "guest.announce", "params": {"description": XML}}]


@pytest.mark.parametrize(
    ("operation", "suboperation"),
    [
        ("prepare", "begin"),
        ("started", "begin"),
        ("reconnect", "begin"),
        ("migrate", "begin"),
        ("start", "x"),
    ],
)
def test_other_operations_cause_no_request_and_no_output(listener, tmp_path, operation, suboperation):
    run(hook.hook_script(tmp_path / "agent's socket"), tmp_path, operation, suboperation)
    listener.setblocking(False)
    with pytest.raises(BlockingIOError):
        listener.accept()


def test_without_an_agent_or_without_its_python_the_guest_starts(tmp_path):
    run(hook.hook_script(tmp_path / "nobody"), tmp_path)
    run(hook.hook_script(tmp_path / "nobody", python="/usr/bin/no python"), tmp_path)


def test_an_agent_that_does_not_answer_holds_the_start_up_for_a_bounded_time(listener, tmp_path):
    script = hook.hook_script(tmp_path / "agent's socket")
    assert f"timeout -s KILL {hook.HOOK_SECONDS} " in script
    run(script.replace(f"KILL {hook.HOOK_SECONDS} ", "KILL 0.3 "), tmp_path)


def test_the_hook_is_installed_once_repaired_and_removed(tmp_path):
    agent, hooks = tmp_path / "socket", tmp_path / "hooks"
    assert hook.state(hooks, agent) is HookState.ABSENT
    assert hook.install_hook(hooks, agent)
    assert not hook.install_hook(hooks, agent)
    path = hooks / "qemu.d/compute-agent"
    assert (os.access(path, os.X_OK), os.listdir(hooks)) == (True, ["qemu.d"])
    assert hook.state(hooks, tmp_path / "other") is HookState.OUTDATED
    path.chmod(0o644)
    assert hook.state(hooks, agent) is HookState.OUTDATED
    assert hook.install_hook(hooks, agent)
    assert hook.state(hooks, agent) is HookState.INSTALLED
    assert hook.remove(hooks)
    assert not hook.remove(hooks)


def _identity(path):
    # Reading a file changes the time of its last access.
    found = path.lstat()
    return found.st_ino, found.st_mode, found.st_size, found.st_mtime_ns, found.st_uid, found.st_gid


@pytest.mark.parametrize("kind", ["file", "binary", "link", "folder", "fifo"])
def test_a_foreign_hook_stays(tmp_path, kind):
    path = tmp_path / "qemu.d/compute-agent"
    path.parent.mkdir()
    match kind:
        case "file":
            path.write_text("#!/bin/sh\nexit 0\n")
        case "binary":
            path.write_bytes(b"\x7fELF\xff" * 20000)
        case "link":
            path.symlink_to(tmp_path / "elsewhere")
        case "folder":
            path.mkdir()
        case "fifo":
            os.mkfifo(path)
    before = _identity(path)
    assert hook.state(tmp_path, tmp_path / "socket") is HookState.FOREIGN
    for change in (lambda: hook.install_hook(tmp_path, tmp_path / "socket"), lambda: hook.remove(tmp_path)):
        with pytest.raises(ForeignHookError, match="not the agent's"):
            change()
    assert _identity(path) == before
    assert not (tmp_path / "elsewhere").exists()


def test_an_installation_on_a_full_disk_leaves_no_file(tmp_path, monkeypatch):
    def full(self, target):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(type(tmp_path), "replace", full)
    with pytest.raises(OSError, match="No space"):
        hook.install_hook(tmp_path, tmp_path / "socket")
    assert [path.name for path in tmp_path.iterdir()] == ["qemu.d"]


def test_commands_show_install_and_remove_the_hook(tmp_path, write_ini):
    ini, hooks = write_ini(), ("--hooks", tmp_path / "hooks")
    path = tmp_path / "hooks/qemu.d/compute-agent"

    def state():
        return json.loads(run_here(ini, "libvirt", "hook", "show", *hooks, "-f", "json").stdout)

    expected = {"path": str(path), "state": "absent", "socket": str(tmp_path / "state/agent.sock")}
    assert state() == expected
    done = run_here(ini, "libvirt", "hook", "install", *hooks)
    assert (done.returncode, done.stdout.startswith(f"{path} is installed.")) == (0, True)
    assert state() == expected | {"state": "installed"}
    assert run_here(ini, "libvirt", "hook", "install", *hooks).stdout == f"{path} is there already.\n"
    assert run_here(ini, "libvirt", "hook", "remove", *hooks).stdout == f"{path} is removed.\n"
    path.write_text("#!/bin/sh\n")
    for command in ("install", "remove"):
        done = run_here(ini, "libvirt", "hook", command, *hooks)
        assert (done.returncode, "is not the agent's" in done.stderr) == (1, True)
    assert len(COMMANDS) == 3
    assert sys.executable in hook.hook_script(path)
