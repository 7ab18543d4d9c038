"""Commands of the operator about a guest: his own way to make it leave, or whom he tells of it."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
from collections.abc import Callable
from typing import Final

_MAX_MESSAGE: Final = 500
"""Characters of a command's last words that are passed on."""


class CommandFailedError(Exception):
    """It could not be run, took too long, or ended with another status than 0: the text says which."""


GuestCommand = Callable[[str], None]
"""Runs for a guest, named by its uuid, and returns when that is over.

:raises CommandFailedError:
"""


def guest_command(command: str, timeout: float) -> GuestCommand:
    """What runs a command with the uuid of a guest as its last argument, without a shell.

    :raises ValueError: ``command`` is none.
    """
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise ValueError(f"{command!r}: {error}") from error
    if not words:
        raise ValueError("the command is empty")

    def run(guest: str) -> None:
        try:
            process = subprocess.Popen(
                [*words, guest],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                start_new_session=True,
            )
        except OSError as error:
            raise CommandFailedError(f"{words[0]} cannot be run: {error}") from error
        with process:
            try:
                output, _ = process.communicate(timeout=timeout)
            except subprocess.TimeoutExpired as error:
                os.killpg(process.pid, signal.SIGKILL)  # with its children, which hold the pipe open as well
                raise CommandFailedError(f"{words[0]} did not end within {timeout:g} seconds") from error
        if process.returncode:
            message = output.strip()[-_MAX_MESSAGE:] or "no message"
            raise CommandFailedError(f"{words[0]} ended with {process.returncode}: {message}")

    return run


def missing_program(command: str) -> str:
    """Why a command cannot be run here, a clause; empty if it can, or if :func:`guest_command` refuses it."""
    try:
        words = shlex.split(command)
    except ValueError:
        return ""
    if not words or shutil.which(words[0]):
        return ""
    if os.path.dirname(words[0]):
        return f"{words[0]} is no program that can be executed"
    return f"there is no program {words[0]} on PATH: give its whole path"
