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
"""Number of characters of a program's last output that a message shows."""

_PIECE_BYTES: Final = 1 << 16

_PASSED_ON: Final = frozenset(
    {"HOME", "LANG", "LC_ALL", "LOGNAME", "PATH", "SHELL", "TMPDIR", "TZ", "USER", "XDG_RUNTIME_DIR"}
)
"""Variables of the agent that commands have, too: not OS_PASSWORD, nor those of systemd, such as
NOTIFY_SOCKET."""


class CommandFailedError(Exception):
    """A command that could not be run, took too long, or ended with a status other than 0."""


GuestCommand = Callable[[str], None]
"""Runs the command for the guest with this uuid, and returns when the command has ended.

:raises CommandFailedError:
"""


def guest_command(command: str, timeout: float) -> GuestCommand:
    """A function that runs a command without a shell, with a guest's uuid as the last argument.

    :raises ValueError: ``command`` is not a valid command.
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
    """The last output of a program that ends with 0.

    :raises CommandFailedError:
    """
    try:
        process = subprocess.Popen(
            words,
            # A program that asks would wait for an answer for ever.
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={name: value for name, value in os.environ.items() if name in _PASSED_ON},
            start_new_session=True,  # a group of its own, which can be killed as a whole
        )
    # Checked at the start as well, and the file may be gone since.
    except OSError as error:
        raise CommandFailedError(f"{words[0]} cannot be run: {error}") from error
    with process:
        try:
            output = _last_output(process, time.monotonic() + timeout)
        except subprocess.TimeoutExpired as error:
            os.killpg(process.pid, signal.SIGKILL)  # with its children, which hold the pipe open as well
            raise CommandFailedError(f"{words[0]} did not end within {timeout:g} seconds") from error
    if process.returncode:
        message = printable_text(" ".join(output.split())[-_MAX_MESSAGE:]) or "no message"
        raise CommandFailedError(f"{words[0]} ended with {process.returncode}: {message}")
    return output


def _last_output(process: subprocess.Popen[bytes], deadline: float) -> str:
    """Return the last output of a process after its end. The output may be of any length.

    :raises subprocess.TimeoutExpired: the time is later than the deadline (monotonic).
    """
    # Popen has made it, because of PIPE.
    assert process.stdout is not None
    words = b""
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        while True:
            left = deadline - time.monotonic()
            # Silence does not end the wait, the deadline does: output may come in drops.
            if left <= 0 or not selector.select(left):
                raise subprocess.TimeoutExpired(process.args, left)
            if not (piece := os.read(process.stdout.fileno(), _PIECE_BYTES)):
                break
            # Only the end is kept: a command may write without end, and the agent must not grow with it.
            words = (words + piece)[-4 * _MAX_MESSAGE :]
    # The pipe may be closed long before the process ends.
    process.wait(max(0.0, deadline - time.monotonic()))
    return words.decode(errors="replace")


def missing_program(command: str) -> str:
    """The reason (a clause) why a command cannot be run here.

    Empty if the program can be run, or if :func:`guest_command` refuses it.
    """
    try:
        words = shlex.split(command)
    except ValueError:
        return ""
    # An empty command is refused elsewhere, with its own words.
    if not words or shutil.which(words[0]):
        return ""
    if os.path.dirname(words[0]):
        return f"{words[0]} is not an executable program"
    return f"there is no program {words[0]} on PATH: give its whole path"
