"""Schedules garbage collection of reference cycles: between requests, and not while a long request runs.

Python frees nearly all objects immediately, when their last reference disappears. Objects in reference cycles
are found by a walk through all old objects, which may begin at any time and stops the whole process. In the
middle of a search with many results, the walk takes 0.1 s or more.

Here the walk happens after a request, if no long request is running. If a long walk frees nothing, later
walks skip its objects, which belong to the read model (:func:`gc.freeze`). Skipped objects without a cycle
are still freed.

Python itself still walks through young objects, a few hundred at a time. The young objects may be large: a
search for many claims has a scenario for each, with sets of all hosts. So young objects are not gathered for
a later walk, which would take 0.1 s or more for ten times as many objects.

Only :mod:`placement.api.middleware` uses this module. This code is a separate module because it changes
settings of the whole process.
"""

import gc
import logging
import threading
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment

LOG = logging.getLogger(__name__)

_GATHERED: Final = 1
"""Number of walks through young objects after which Python walks through the objects that survived them."""
# 500 such walks correspond to a few hundred thousand objects
_OFTEN: Final = 500
"""After a request, old objects are walked through if there were this number of walks through survivors."""
# applies during long requests, and in applications without an end of requests
_SELDOM: Final = 5000
"""The same number for Python itself, as a fallback."""
_LONG: Final = 0.01
"""Seconds of CPU time above which a walk that frees nothing is not repeated for the same objects."""
_PATIENCE: Final = 300.0
"""Seconds for which collection waits for the end of long requests."""


class GcScheduler:
    """Collects the garbage of a process that runs a worker and nothing else.

    :param long_requests: returns the number of running long requests.
    """

    def __init__(self, long_requests: Callable[[], int]) -> None:
        self._long_requests = long_requests
        self._lock = threading.Lock()
        self._collected = time.monotonic()
        young, *_ = gc.get_threshold()
        # only the thresholds of older objects change: walks through young objects are short
        gc.set_threshold(young, _GATHERED, _SELDOM)

    def collect_if_due(self) -> None:
        """Collect garbage if it is time for it; called after each request."""
        # the third number counts the walks through survivors since the last walk through old objects
        if gc.get_count()[2] < _OFTEN:
            return
        # in the middle of a long search a walk visits all of its results, which takes 0.1 s or more
        if self._long_requests() and time.monotonic() < self._collected + _PATIENCE:
            return
        # without waiting, because another thread is collecting then, and one collection suffices
        if self._lock.acquire(blocking=False):
            try:
                self._collect()
            finally:
                self._lock.release()

    def collect_after(self, app: "WSGIApplication") -> "WSGIApplication":
        """Return the application, which collects garbage after each answer."""

        def serve_request(environ: "WSGIEnvironment", start_response: "StartResponse") -> Iterable[bytes]:
            try:
                return app(environ, start_response)
            finally:
                self.collect_if_due()

        return serve_request

    def _collect(self) -> None:
        began = time.thread_time()
        found = gc.collect()
        # CPU time of this thread, because waiting for the interpreter is no part of the walk
        took = time.thread_time() - began
        self._collected = time.monotonic()
        if took > _LONG:
            # the remaining objects belong to the read model, so later collections skip them
            gc.freeze()
            LOG.debug(
                "Python's garbage collection took %.0f ms and freed %d objects; later collections skip"
                " the others",
                1000 * took,
                found,
            )
