"""Programs of the operator that evict a guest, move it to another host, or measure something."""

from __future__ import annotations

import os
import selectors
import shlex
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from typing import Final

from compute_agent.model.messages import printable_text

_MAX_MESSAGE: Final = 500
"""Number of characters from the end of a failed program's output that an error message shows."""

_PIECE_BYTES: Final = 1 << 16
"""Bytes of one read: the default capacity of a pipe on Linux (pipe(7))."""

_PASSED_ON: Final = frozenset(
    {"HOME", "LANG", "LC_ALL", "LOGNAME", "PATH", "SHELL", "TMPDIR", "TZ", "USER", "XDG_RUNTIME_DIR"}
)
"""Environment variables that a command inherits from the agent.

OS_PASSWORD is not among them, because a command needs no credentials of the agent. Variables of systemd, such
as NOTIFY_SOCKET, are not either, because a command could report a state in the agent's name.
"""


class CommandFailedError(Exception):
    """A command that could not be run, took too long, or ended with a status other than 0."""


GuestCommand = Callable[[str], None]
"""A function that runs the operator's command for the guest with the given uuid, and waits for its end.

:raises CommandFailedError: the command could not be run, took too long, or ended with a status other than 0.
"""


def guest_command(command: str, timeout: float) -> GuestCommand:
    """Return a function that runs ``command`` with a guest's uuid as the last argument.

    The command is split into words as by a shell, and runs without a shell. After ``timeout`` seconds, the
    command and its children are killed.

    :raises ValueError: ``command`` is empty, or has an unbalanced quote.
    """
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise ValueError(f"{command!r}: {error}") from error
    if not words:
        raise ValueError("the command is empty")

    def run_command(guest: str) -> None:
        run_program((*words, guest), timeout)

    return run_command


def run_program(words: Sequence[str], timeout: float) -> str:
    """Run a program without a shell, and return the end of its output.

    After ``timeout`` seconds, the program and its children are killed.

    :raises CommandFailedError: it could not be run, took too long, or ended with a status other than 0.
    """
    try:
        process = subprocess.Popen(
            words,
            # A program that asks a question reads the end of the file, instead of waiting for ever.
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={name: value for name, value in os.environ.items() if name in _PASSED_ON},
            start_new_session=True,  # a process group of its own, so that killpg() ends its children, too
        )
    # The agent checks the program when it starts, but the file may have been removed since.
    except OSError as error:
        raise CommandFailedError(f"{words[0]} cannot be run: {error}") from error
    with process:
        try:
            output = _last_output(process, time.monotonic() + timeout)
        except subprocess.TimeoutExpired as error:
            # Not only the process: a child that survives would keep the pipe open.
            os.killpg(process.pid, signal.SIGKILL)
            raise CommandFailedError(f"{words[0]} did not end within {timeout:g} seconds") from error
    if process.returncode:
        message = printable_text(" ".join(output.split())[-_MAX_MESSAGE:]) or "no message"
        raise CommandFailedError(f"{words[0]} ended with {process.returncode}: {message}")
    return output


def _last_output(process: subprocess.Popen[bytes], deadline: float) -> str:
    """Wait for the end of a process, and return the end of its output.

    :raises subprocess.TimeoutExpired: the process still runs at ``deadline``, in monotonic seconds.
    """
    # Popen was called with stdout=PIPE, so the attribute is set.
    assert process.stdout is not None
    words = b""
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        while True:
            left = deadline - time.monotonic()
            # Each wait ends at the deadline: a program that prints a byte now and then gains no time by it.
            if left <= 0 or not selector.select(left):
                raise subprocess.TimeoutExpired(process.args, left)
            if not (piece := os.read(process.stdout.fileno(), _PIECE_BYTES)):
                break
            # Only the end is kept, because the output has no limit and the agent's memory has one. Four bytes
            # are the longest character of UTF-8.
            words = (words + piece)[-4 * _MAX_MESSAGE :]
    # A process may close its output long before it ends.
    process.wait(max(0.0, deadline - time.monotonic()))
    return words.decode(errors="replace")


def missing_program(command: str) -> str:
    """The reason why the program of a command cannot be run on this host, as a clause of a sentence.

    The text is empty if the program can be run. It is also empty for a command that :func:`guest_command`
    refuses, because that function reports its own error.
    """
    try:
        words = shlex.split(command)
    except ValueError:
        return ""
    # guest_command() reports an empty command.
    if not words or shutil.which(words[0]):
        return ""
    if os.path.dirname(words[0]):
        return f"{words[0]} is not an executable program"
    return f"there is no program {words[0]} on PATH: give its whole path"
