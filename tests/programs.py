"""Programs as children of a test, which end with it, and waiting until one answers."""

import os
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from http.client import HTTPException
from pathlib import Path
from typing import Final
from urllib.request import urlopen

from tests.waits import wait_for

SECONDS: Final = 120.0
"""How long a program may take to end, and to answer one request: a guard against hanging."""


def environ_without_python() -> dict[str, str]:
    """Return the variables of the test without those of its Python, such as PYTHONPATH.

    A program of another environment would import modules of the checkout by these.
    """
    return {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}


@contextmanager
def run_program(
    words: Sequence[object],
    log: Path,
    environ: Mapping[str, str] | None = None,
    folder: Path | None = None,
    *,
    pass_fds: Sequence[int] = (),
) -> "Iterator[subprocess.Popen[bytes]]":
    """A program that prints to a file.

    :param environ: all its variables; by default those of the test.
    :param pass_fds: file descriptors that it inherits.
    :raises subprocess.TimeoutExpired: it did not end by SIGTERM, and was killed.
    """
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*map(str, words)],
            cwd=folder,
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            pass_fds=pass_fds,
        )
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise


def wait_for_answer(url: str, process: "subprocess.Popen[bytes]", log: Path) -> None:
    """Return when a GET succeeds.

    :raises AssertionError: the program ended, or did not answer in time; with its log.
    """

    def answers() -> bool:
        assert process.poll() is None, log.read_text()
        return is_answering(url)

    wait_for(answers, f"{url} answers", evidence=log.read_text)


def is_answering(url: str) -> bool:
    """Whether a GET succeeds now."""
    try:
        with urlopen(url, timeout=SECONDS):
            return True
    except (OSError, HTTPException):  # refused, broken off, or an error in the answer
        return False
