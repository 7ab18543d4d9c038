"""Waiting for what another thread or process does: as long as a slow machine needs, but not for ever."""

import inspect
import os
import time
from collections.abc import Callable
from typing import Final, TypeVar

SECONDS: Final = float(os.environ.get("PLACEMENT_WAIT_SECONDS", "120"))
"""A limit far above any usual duration, so that a test does not fail on a slow machine."""
PAUSE: Final = 0.02

Value = TypeVar("Value")


def wait_for(
    happens: Callable[[], Value],
    what: str = "",
    *,
    evidence: Callable[[], object] | None = None,
    seconds: float = SECONDS,
    pause: float = PAUSE,
) -> Value:
    """The first true value of a condition.

    :param what: the words for it in the error; by default the source of the condition.
    :param evidence: called at the end of a vain wait: a log, for instance, which the error shows.
    :raises AssertionError: the condition was not true within `seconds`.
    """
    deadline = time.monotonic() + seconds
    while not (value := happens()):
        if time.monotonic() > deadline:
            shown = f"; last value {value!r}" + (f"\n{evidence()}" if evidence else "")
            raise AssertionError(f"not within {seconds:g} s: {what or _source(happens)}{shown}")
        time.sleep(pause)
    return value


def _source(condition: Callable[[], object]) -> str:
    """The lines of a function or lambda, or its name where they are not to be had."""
    try:
        return " ".join(inspect.getsource(condition).split())
    except (OSError, TypeError):
        return repr(condition)
