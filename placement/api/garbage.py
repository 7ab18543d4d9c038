"""Collects objects in reference cycles after requests, when no long request is running.

Python frees nearly all objects immediately when their last reference disappears. To find unused objects in
reference cycles, Python walks through all old objects. This walk can begin at any time, and stops all other
work of the process. In the middle of a search with many results, a walk takes 0.1 s or more.

With this module, a walk through old objects normally begins only after a request, and only if no long request
is running. After a long walk, most remaining objects belong to the read model, and later walks skip these
objects (:func:`gc.freeze`). Skipped objects that are not in a cycle are still freed.

Python itself still walks through young objects, a few thousand at a time. Young objects can be large: a
search for many claims has a scenario for each claim, with sets of all hosts. So a walk through many more
young objects could take 0.1 s.

Only :mod:`placement.api.middleware` uses this module. It is a separate module, because it changes settings of
the whole process.
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

# with Python's default of 700, walks would take 4 to 7 % of a search with many candidates. With 4,000, the
# longest time in which 64 claims at 10,000 hosts stop other requests is 23 ms instead of 20 ms
_YOUNG: Final = 4000
"""Number of new objects after which Python walks through young objects."""
_GATHERED: Final = 1
"""Number of walks through young objects after which Python also walks through the objects that have survived
one walk.
"""
# in the time of 90 walks through survivors, some hundred thousand objects are created
_OFTEN: Final = 90
"""Number of walks through survivors after which this module walks through old objects, after a request."""
# this threshold matters during long requests, and in processes that never call collect_if_due()
_SELDOM: Final = 900
"""Number of walks through survivors after which Python itself walks through old objects, if this module has
not.
"""
_LONG: Final = 0.01
"""If a walk takes more than these seconds of CPU time, later walks skip the objects that remain after it."""
_PATIENCE: Final = 300.0
"""Seconds after the last collection for which the next collection waits while long requests are running."""


class GcScheduler:
    """Collects garbage in a process that runs only a worker of the service.

    :param long_requests: a function that returns the number of running long requests.
    """

    def __init__(self, long_requests: Callable[[], int]) -> None:
        self._long_requests = long_requests
        self._lock = threading.Lock()
        self._collected = time.monotonic()
        gc.set_threshold(_YOUNG, _GATHERED, _SELDOM)

    def collect_if_due(self) -> None:
        """Collect garbage if there were enough walks through surviving objects since the last collection.

        A worker calls this after each request.
        """
        # the third count is the number of walks through survivors since the last walk through old objects
        if gc.get_count()[2] < _OFTEN:
            return
        # in the middle of a long search, a walk visits all results of the search, which takes 0.1 s or more
        if self._long_requests() and time.monotonic() < self._collected + _PATIENCE:
            return
        # if another thread holds the lock, it is collecting already, and one collection is enough
        if self._lock.acquire(blocking=False):
            try:
                self._collect()
            finally:
                self._lock.release()

    def collect_after(self, app: "WSGIApplication") -> "WSGIApplication":
        """Return an application that answers like ``app``, and collects garbage after an answer when due."""

        def serve_request(environ: "WSGIEnvironment", start_response: "StartResponse") -> Iterable[bytes]:
            try:
                return app(environ, start_response)
            finally:
                self.collect_if_due()

        return serve_request

    def _collect(self) -> None:
        began = time.thread_time()
        found = gc.collect()
        # the CPU time of this thread does not include the time for which it waited for the interpreter
        took = time.thread_time() - began
        self._collected = time.monotonic()
        if took > _LONG:
            # the remaining objects belong to the read model, so later collections skip them
            gc.freeze()
            LOG.debug(
                "Python's garbage collection took %.0f ms and freed %d objects; later collections skip the"
                " remaining objects",
                1000 * took,
                found,
            )
