"""Programs as children of a test, that are ended with it."""

import os
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import requests

SECONDS = 60
"""How long anything may take: a guard against hanging."""


@contextmanager
def program(
    words: Sequence[object], log: Path, environ: Mapping[str, str]
) -> "Iterator[subprocess.Popen[bytes]]":
    """A program that prints to a file, with these variables beside those of the test."""
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*map(str, words)],
            env={**os.environ, **environ},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
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


def until_it_answers(url: str, process: "subprocess.Popen[bytes]", log: Path) -> None:
    """:raises AssertionError: it does not, or it ended; the message is what it printed."""
    deadline = time.monotonic() + SECONDS
    while True:
        try:
            if requests.get(url, timeout=10).ok:
                return
        except requests.RequestException:
            pass
        assert process.poll() is None, log.read_text()
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.05)
