"""Runs programs of the operator, which evict a guest, move it to another host, or measure a metric."""

from __future__ import annotations

import os
import selectors
import shlex
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final

from compute_agent.model.messages import printable_text

_MAX_MESSAGE: Final = 500
"""Maximum number of characters of a failed program's output in an error message. The end of the output is
shown."""

_PIECE_BYTES: Final = 1 << 16
"""Maximum number of bytes of one read: the default capacity of a pipe on Linux (pipe(7))."""

_LOCK_SECONDS: Final = 1.0
"""Maximum seconds that :meth:`RunningProgram.end_program` waits while a program starts."""

_PASSED_ON: Final = frozenset(
    {"HOME", "LANG", "LC_ALL", "LOGNAME", "PATH", "SHELL", "TMPDIR", "TZ", "USER", "XDG_RUNTIME_DIR"}
)
"""Environment variables that a command inherits from the agent.

OS_PASSWORD is left out, because a command needs no credentials of the agent. Variables of systemd, such as
NOTIFY_SOCKET, are left out, because with them a command could report a state in the agent's name.
"""


class CommandFailedError(Exception):
    """A command could not be run, took too long, or ended with a status other than 0."""


GuestCommand = Callable[[str], None]
"""A function that runs the operator's command for the guest with the given uuid, and waits for its end.

:raises CommandFailedError: the command could not be run, took too long, or ended with a status other than 0.
"""


def guest_command(command: str, timeout: float) -> GuestCommand:
    """Return a function that runs ``command`` with a guest's uuid as the last argument.

    The command is split into words as a shell does, but no shell runs. After ``timeout`` seconds the command
    is killed. When the command ends, its children are killed.

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


class RunningProgram:
    """The program that a thread runs. Another thread can end the program, and can prevent the next start."""

    def __init__(self) -> None:
        self.is_ended = False
        # The lock is held while a process is started, and while the process is reaped. Afterwards another
        # process can get the same process id.
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, words: Sequence[str]) -> subprocess.Popen[bytes]:
        """Start a program in a process group of its own.

        :raises CommandFailedError: the program cannot be run, or end_program() was called earlier.
        """
        with self._lock:
            if self.is_ended:
                raise CommandFailedError(f"{words[0]} is not run, because its section ends")
            try:
                self._process = subprocess.Popen(
                    words,
                    # A program that reads its input gets the end of the file at once, and does not wait.
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    env={name: value for name, value in os.environ.items() if name in _PASSED_ON},
                    # the process has a process group of its own, so that killpg() ends its children, too
                    start_new_session=True,
                )
            # The agent checks the program when it starts, but the file may have been removed since.
            except OSError as error:
                raise CommandFailedError(f"{words[0]} cannot be run: {error}") from error
            return self._process

    def reap_program(self) -> None:
        """Kill the program and its children if they still run, and wait for the end of the program."""
        with self._lock:
            process, self._process = self._process, None
            if process is not None:
                _kill_group(process)
                with process:
                    pass  # closes the pipes, and waits

    def end_program(self) -> None:
        """Kill the program and its children. Later calls of start() fail."""
        self.is_ended = True
        # The wait has a timeout, because the start of a program on a network folder can hang.
        if self._lock.acquire(timeout=_LOCK_SECONDS):
            try:
                if self._process is not None:
                    _kill_group(self._process)
            finally:
                self._lock.release()


def _kill_group(process: subprocess.Popen[bytes]) -> None:
    """Kill the process group of a process that is not reaped yet."""
    with suppress(ProcessLookupError, PermissionError):  # all processes have ended, or run as other users
        os.killpg(process.pid, signal.SIGKILL)


def run_program(words: Sequence[str], timeout: float, running: RunningProgram | None = None) -> str:
    """Run a program without a shell, and return the end of its standard output.

    The children of the program are killed when it ends, or after ``timeout`` seconds.

    :param running: an object by which another thread can end the program.
    :raises CommandFailedError: the program could not be run, took too long, or ended with a status other than
        0.
    """
    running = running or RunningProgram()
    process = running.start(words)
    try:
        output, errors = _last_words(process, time.monotonic() + timeout)
    except subprocess.TimeoutExpired as error:
        raise CommandFailedError(f"{words[0]} did not end within {timeout:g} seconds") from error
    except OSError as error:
        raise CommandFailedError(f"{words[0]} cannot be watched: {error}") from error
    finally:
        running.reap_program()
    if process.returncode:
        message = printable_text(" ".join(f"{output} {errors}".split())[-_MAX_MESSAGE:]) or "no message"
        raise CommandFailedError(f"{words[0]} ended with {process.returncode}: {message}")
    return output


def _last_words(process: subprocess.Popen[bytes], deadline: float) -> tuple[str, str]:
    """Wait for the end of a process; return the last part of its standard output and of its standard error.

    :raises subprocess.TimeoutExpired: the process still runs at ``deadline``, in monotonic seconds.
    :raises OSError: the process cannot be watched.
    """
    # Popen was called with PIPE, so the attributes are set.
    assert process.stdout is not None
    assert process.stderr is not None
    words = {process.stdout.fileno(): b"", process.stderr.fileno(): b""}
    # pidfd_open(2) shows the end of a process without reaping it. So the process group still belongs to the
    # process.
    watch = os.pidfd_open(process.pid)
    try:
        with selectors.DefaultSelector() as selector:
            for descriptor in (*words, watch):
                selector.register(descriptor, selectors.EVENT_READ)
            is_over = False
            while selector.get_map():
                left = deadline - time.monotonic()
                ready = selector.select(0 if is_over else max(0.0, left))
                if is_over and not ready:
                    break
                # The deadline is fixed, so a program that prints a byte now and then gets no more time.
                if left <= 0 or not ready:
                    raise subprocess.TimeoutExpired(process.args, left)
                for descriptor in (key.fd for key, _ in ready):
                    if descriptor == watch:
                        # Children are killed, because a child in the background would keep the pipes open.
                        _kill_group(process)
                        is_over = True
                        selector.unregister(watch)
                    elif piece := os.read(descriptor, _PIECE_BYTES):
                        # Only the end is kept, because the output can have any length. A character of UTF-8
                        # has at most four bytes.
                        words[descriptor] = (words[descriptor] + piece)[-4 * _MAX_MESSAGE :]
                    else:
                        selector.unregister(descriptor)
    finally:
        os.close(watch)
    output, errors = (one.decode(errors="replace") for one in words.values())
    return output, errors


def missing_program(command: str) -> str:
    """The reason why the program of a command cannot run here; empty if the program can run.

    The result is also empty for a command that :func:`guest_command` refuses.
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
