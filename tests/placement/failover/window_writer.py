"""Books windows while databases fail, and checks that each confirmed window is kept.

Each writer owns its windows, so it knows their expected state. The writers compete for the same small hosts.
A claim from a window does not change what the window and its claims have together.
"""

import random
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import requests

from tests.placement.failover.judge import CLASSES, Booker, Judge, JudgedClient, UnansweredRequest
from tests.placement.moving_clock import after
from tests.placement.workers.window_tables import find_broken_promises

HOUR = 3600.0
_PATH = "/ext/v1/reservations"


@dataclass(frozen=True)
class BookedState:
    """The state of a window as clients see it: its end, and the amount that it and its claims have."""

    expires_at: str
    amount: int


class WindowWriter(Booker):
    """A client that books, extends, shrinks and deletes windows, and claims from them."""

    def __init__(self, judge: Judge, number: int, hosts: Sequence[str], seed: int) -> None:
        super().__init__(daemon=True)
        self._judge = judge
        self._rng = random.Random(f"{seed} windows {number}")
        self._hosts = hosts
        self._client = JudgedClient(judge, self._rng)
        #: possible states of each window, None if absent; several while the outcome of a request is open
        self._possible: dict[str, list[BookedState | None]] = {
            f"{number:08d}-0000-4000-9000-{each:012d}": [None] for each in range(6)
        }

    def run(self) -> None:
        try:
            while not self._judge.stopped.is_set():
                with suppress(UnansweredRequest):
                    self._step(self._rng.choice([*self._possible]))
        except Exception as error:
            self._judge.find("other", repr(error))

    def settle(self) -> None:
        """Compare each window with its possible states."""
        for window in self._possible:
            self._read(window)

    def _step(self, window: str) -> None:
        shown = self._read(window)
        if shown is None:
            self._book(window)
            return
        present = _state_of(shown)
        match self._rng.choice(("delete", "end", "shrink", "draw", "draw")):
            case "delete":
                self._write(window, "DELETE", None, None)
            case "end":
                end = after(self._rng.uniform(1, 9) * HOUR)
                body = {"generation": shown["generation"], "expires_at": end}
                self._write(window, "PUT", body, BookedState(end, present.amount))
            case "shrink" if shown["allocations"] and present.amount > 1:
                ((host, held),) = shown["allocations"].items()
                kept = {name: max(1, each - 1) for name, each in held["resources"].items()}
                body = {"generation": shown["generation"], "allocations": {host: {"resources": kept}}}
                given_back = held["resources"]["PCPU"] - kept["PCPU"]
                smaller = BookedState(present.expires_at, present.amount - given_back)
                self._write(window, "PUT", body, smaller)
            case "draw":
                self._draw(window, shown)

    def _book(self, window: str) -> None:
        amount, end = self._rng.randint(1, 4), after(self._rng.uniform(1, 9) * HOUR)
        query = "resources=" + ",".join(f"{name}:{amount}" for name in CLASSES)
        # some windows begin during a fault
        start = after(self._rng.choice([0, self._rng.uniform(0.2, 3), HOUR / 2]))
        body = {"uuid": window, "query": query, "starts_at": start, "expires_at": end}
        body |= {"allowed_hosts": self._hosts, "project_id": "project", "user_id": "user"}
        self._write(window, "POST", body, BookedState(end, amount))

    def _draw(self, window: str, shown: Mapping[str, Any]) -> None:
        """Claim a part of an active window for a few seconds: the part returns to the window."""
        query = "resources=" + ",".join(f"{name}:1" for name in CLASSES)
        claim = {"consumer_uuid": str(uuid.uuid4()), "consumer_generation": None, "query": query}
        claim |= {"project_id": "project", "user_id": "user", "consumer_type": "INSTANCE"}
        body = {"claims": [claim], "reservation": window, "ends_at": after(self._rng.uniform(1, 4))}
        if shown["state"] == "active":
            self._client.ask(self._client.any_but(), "POST", "/ext/v1/claims", json=body)

    def _write(self, window: str, method: str, body: Any, wanted: BookedState | None) -> None:
        """Send a change of a window, and find its result at another service if it is confirmed."""
        service = self._client.any_but()
        path = _PATH if method == "POST" else f"{_PATH}/{window}"
        try:
            answer = self._client.ask(service, method, path, json=body)
        except UnansweredRequest:
            self._possible[window].append(wanted)
            raise
        if answer.ok:
            self._possible[window] = [wanted]
            self._read(window, self._client.any_but(service))
        elif answer.status_code == 503:
            self._possible[window].append(wanted)
        elif answer.status_code != 409:
            self._judge.find("other", f"{method} {path}: {answer.status_code} {answer.text}")

    def _read(self, window: str, service: int | None = None) -> dict[str, Any] | None:
        """Return the document of a window in one of its possible states; None if it does not exist."""
        shown = self._find(window, service)
        state = None if shown is None else _state_of(shown)
        if state not in self._possible[window]:
            self._judge.find("lost", f"window {window} is {state}, possible: {self._possible[window]}")
            self._possible[window] = [state]
        return shown

    def _find(self, window: str, service: int | None) -> dict[str, Any] | None:
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline:
            chosen = self._client.any_but() if service is None else service
            answer: requests.Response = self._client.ask(chosen, "GET", f"{_PATH}/{window}")
            if answer.status_code == 404:
                return None
            if answer.ok:
                found: dict[str, Any] = answer.json()["reservation"]
                return found
            if answer.status_code != 503:
                self._judge.find("other", f"GET {window}: {answer.status_code} {answer.text}")
            time.sleep(0.1)
        raise AssertionError(f"no answer to GET {window}")


def _state_of(shown: Mapping[str, Any]) -> BookedState:
    amounts = [*shown["allocations"].values(), *shown["claimed"].values()]
    return BookedState(shown["expires_at"], sum(each["resources"].get("PCPU", 0) for each in amounts))


def make_writers(url: str, seed: int) -> Callable[[Judge, Sequence[str]], list[Booker]]:
    """Return a function that makes the writers of windows, and a judge of the tables.

    :param url: the URL of the database, after all faults.
    """

    def make(judge: Judge, hosts: Sequence[str]) -> list[Booker]:
        writers: list[Booker] = [WindowWriter(judge, number, hosts, seed) for number in range(3)]
        return [*writers, _TableCheck(judge, url)]

    return make


class _TableCheck(Booker):
    """Checks at the end that no instant ahead is above the capacity."""

    def __init__(self, judge: Judge, url: str) -> None:
        super().__init__(daemon=True)
        self._judge = judge
        self._url = url

    def settle(self) -> None:
        for each in find_broken_promises(self._url):
            self._judge.find("exceeded", each)
