"""The service with counters of CPU time around its parts: ``python -m benchmarks.part_counters`` serves it.

The arguments are those of ``placement-api``. The path ``/account`` answers with the counters.
"""

import gc
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from functools import wraps
from typing import Any, Final

import orjson
from flask import Flask
from gunicorn.http import wsgi

from placement.api import (
    allocation_candidates,
    auth,
    call,
    garbage,
    middleware,
    request_log,
    service,
)
from placement.cmd import api
from placement.db.batch import StatementBatch
from placement.db.position import ChangeProbe
from placement.policies.enforcer import PolicyEnforcer
from placement.read_model.feed import ReadModel
from placement.schemas import base
from placement.server.connection import ClientConnection
from placement.server.worker import BufferingWorker

ACCOUNT_PATH: Final = "/account"
WAITING: Final = "waiting, wake-ups"
_COLLECTION: Final = "garbage collection"

Place = tuple[Any, str]
"""An object, and the name of its function or property."""

#: the entry points of each part; a part's own time excludes the parts that it calls
_PLACES: Final[Mapping[str, Iterable[Place]]] = {
    "bytes in and out": [(ClientConnection, "receive"), (ClientConnection, "flush")],
    "HTTP, by gunicorn": [
        (ClientConnection, "is_complete"),
        (BufferingWorker, "_answer_request"),
        (wsgi, "create"),
        *((wsgi.Response, name) for name in ("start_response", "write", "close")),
    ],
    "log line": [(request_log, "_log_request")],
    "layers, caller": [
        (request_log.RequestLog, "__call__"),
        (middleware._HealthChecked, "__call__"),
        (auth.NoAuth, "__call__"),
        (garbage.GcScheduler, "collect_if_due"),
    ],
    "Flask and werkzeug": [(Flask, "wsgi_app")],
    "versions, headers": [
        (call, "_check_headers"),
        (call, "_add_version"),
    ],
    "policy": [(PolicyEnforcer, "authorize")],
    "handler": [],
    "schema": [
        (allocation_candidates, "parse_candidates"),
        (allocation_candidates, "check_names"),
        (call.ApiRequest, "query_parameters"),
        (call.ApiRequest, "parse_json"),
        (base, "load"),
    ],
    "version of the database": [(ChangeProbe, "position")],
    "update of the read model": [(ReadModel, "_update_state")],
    "transaction": [(service.PlacementService, "write")],
    "its statements": [(StatementBatch, "send")],
    "search": [(allocation_candidates, "find_candidates"), (allocation_candidates, "topology_first")],
    "explanation": [(call.ApiRequest, "explain_empty")],
    "rendering": [
        (allocation_candidates, "render_pieces"),
        *((call.ApiRequest, name) for name in ("answer_pieces", "json_answer", "empty_answer")),
    ],
    _COLLECTION: [],
}
PARTS: Final = (WAITING, *_PLACES)
_ROUNDS: Final = 2_000


class ThreadAccount:
    """CPU time of one thread by part, in ns, with the numbers of calls, for the cost of the counters."""

    def __init__(self) -> None:
        self._parts = [WAITING]
        self.spent = dict.fromkeys(PARTS, 0)
        self.calls = dict.fromkeys(PARTS, 0)
        self.nested = dict.fromkeys(PARTS, 0)
        self._since = time.thread_time_ns()

    def enter_part(self, part: str) -> None:
        """Begin a part, which interrupts the current part."""
        now, current = time.thread_time_ns(), self._parts[-1]
        self.spent[current] += now - self._since
        self.nested[current] += 1
        self.calls[part] += 1
        self._parts.append(part)
        self._since = now

    def leave_part(self) -> None:
        """Return to the part that was interrupted."""
        now = time.thread_time_ns()
        self.spent[self._parts.pop()] += now - self._since
        self._since = now

    def skip_past(self) -> None:
        """Ignore the time since the last begin or end of a part."""
        self._since = time.thread_time_ns()


class _CountedThread(threading.local):
    def __init__(self) -> None:
        self.account = ThreadAccount()
        _ACCOUNTS.append(self.account)


_ACCOUNTS: Final[list[ThreadAccount]] = []
_THREAD: Final = _CountedThread()


def with_counter(function: Callable[..., Any], part: str) -> Callable[..., Any]:
    """Return the function with a counter around it."""

    @wraps(function)
    def call_counted(*args: Any, **kwargs: Any) -> Any:
        account = _THREAD.account
        account.enter_part(part)
        try:
            return function(*args, **kwargs)
        finally:
            account.leave_part()

    return call_counted


def install_counters() -> None:
    """Put counters around the entry points of all parts, and around the handlers of the API."""
    for part, places in _PLACES.items():
        for owner, name in places:
            place = getattr(owner, name)
            if isinstance(place, property):
                # the getter of a property is a function of one argument
                setattr(owner, name, property(with_counter(place.fget, part)))
            else:
                setattr(owner, name, with_counter(place, part))
    create_app = middleware.create_app

    def create_counted() -> Flask:
        app = create_app()
        for endpoint, view in app.view_functions.items():
            app.view_functions[endpoint] = with_counter(view, "handler")
        return app

    middleware._handlers = create_counted
    gc.callbacks.append(_count_collection)


def _count_collection(phase: str, info: Mapping[str, int]) -> None:
    if phase == "start":
        _THREAD.account.enter_part(_COLLECTION)
    else:
        _THREAD.account.leave_part()


def read_counters() -> Mapping[str, Any]:
    """Return ns, calls and nested calls of each part, and the ns that a counter adds to its part and around.

    The sums are of all threads since the start.
    """
    cost = min((_counter_cost() for _ in range(5)), key=sum)
    kinds = ("spent", "calls", "nested")
    parts = {part: [sum(getattr(each, kind)[part] for each in _ACCOUNTS) for kind in kinds] for part in PARTS}
    return {"parts": parts, "cost": cost}


def _counter_cost() -> tuple[float, float]:
    def do_nothing() -> None:
        pass

    before = _THREAD.account
    account = _THREAD.account = ThreadAccount()
    function = with_counter(do_nothing, _COLLECTION)
    for _ in range(_ROUNDS):
        function()
    account.leave_part()
    began = time.thread_time_ns()
    for _ in range(_ROUNDS):
        do_nothing()
    bare = (time.thread_time_ns() - began) / _ROUNDS
    _THREAD.account = before
    before.skip_past()
    # the loop itself is part of both sides
    return account.spent[_COLLECTION] / _ROUNDS, account.spent[WAITING] / _ROUNDS - bare


def main() -> int:
    """Serve until stopped."""
    install_counters()
    build = middleware.build_application

    def build_counted(*args: Any, **kwargs: Any) -> Any:
        app = build(*args, **kwargs)

        def serve_request(environ: Any, start_response: Any) -> Iterable[bytes]:
            if environ["PATH_INFO"] != ACCOUNT_PATH:
                return app(environ, start_response)
            body = orjson.dumps(read_counters())
            start_response("200 OK", [("Content-Length", str(len(body)))])
            return [body]

        return serve_request

    middleware.build_application = build_counted
    return api.main(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
