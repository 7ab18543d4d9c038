"""What is told of requests to Placement while they run, and the id that each of them has."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Final, Protocol

REQUEST_ID: Final = "X-Openstack-Request-Id"


class Spans(Protocol):
    """What is told of the agent's work and of its requests: see :mod:`compute_agent.report.tracing`."""

    def work(self, name: str, /) -> AbstractContextManager[None]:
        """Requests in this context belong together."""

    def request(
        self, method: str, url: str, headers: dict[str, str], /
    ) -> AbstractContextManager[Callable[[int], None]]:
        """One request; what it gives takes the status of the answer."""


class NoSpans:
    """Tells nobody."""

    def work(self, name: str, /) -> AbstractContextManager[None]:
        """Nothing."""
        return nullcontext()

    def request(
        self, method: str, url: str, headers: dict[str, str], /
    ) -> AbstractContextManager[Callable[[int], None]]:
        """Nothing."""
        return nullcontext(lambda status: None)
