"""Tests of ``compute-agent top`` in a terminal and with its output in a pipe."""

import os
import pty
import select
import subprocess
import time

import pytest

from tests.compute_agent.cmd.agents import MAIN, run_here


def test_top_prints_once_into_a_pipe(agent, claim, uid):
    claim(uid, PCPU=1)
    agent.ask("guest", "run", "--uuid", uid, "--name", "web", "--", "sleep", "100")
    done = agent.cli("top")
    assert done.returncode == 0
    head, *_, guest = done.stdout.splitlines()
    assert head.startswith("testhost at ")
    assert guest.split()[:3] == ["web", "LS", "0"]


def test_top_says_that_no_agent_runs(write_ini, two_cpus):
    done = run_here(write_ini(), "top", "--once")
    assert "agent" in done.stdout.splitlines()[1]


@pytest.mark.parametrize("interval", ["0", "x", "nan", "1e9"])
def test_an_interval_is_checked(write_ini, two_cpus, interval):
    done = run_here(write_ini(), "top", "--interval", interval)
    assert done.returncode == 2
    assert "0.2 to 3600" in done.stderr


@pytest.mark.slow
def test_top_runs_in_a_terminal_until_q_and_restores_it(agent):
    agent.start()
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [*MAIN, "--config-file", agent.ini, "top", "--interval", "0.2"],
        stdin=theirs,
        stdout=theirs,
        stderr=subprocess.PIPE,
        env=os.environ | {"COLUMNS": "80", "LINES": "24"},
    )
    os.close(theirs)
    shown = b""
    try:
        shown = read_until(ours, lambda text: text.count(b"testhost at ") >= 3)
        os.write(ours, b"q")
        shown += read_until(ours, lambda text: b"\x1b[?1049l" in text)
        assert process.wait(30) == 0
    finally:
        process.kill()
        process.wait()
        process.stderr.close()
        os.close(ours)
    assert shown.startswith(b"\x1b[?1049h")


def read_until(descriptor, enough):
    text, deadline = b"", time.monotonic() + 60
    poll = select.poll()  # select() knows no descriptors above 1023, of which long runs have some
    poll.register(descriptor, select.POLLIN)
    while not enough(text):
        assert poll.poll(max(0.0, deadline - time.monotonic()) * 1000), text
        try:
            text += os.read(descriptor, 65536)
        except OSError:  # the other end of the terminal is closed
            break
    return text
