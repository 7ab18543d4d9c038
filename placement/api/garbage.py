"""When Python looks for garbage in cycles: between requests, and not while somebody waits.

What is garbage without a cycle goes at once, and that is nearly all. For the rest Python walks
through everything that lived for some time, whenever it likes, and nothing else of the process goes
on meanwhile: 0.1 s and more in the middle of a long search, all of whose finds it walks through.

So here it walks when a request is done and no long one is in hand. What it walked through for long without
result, as it belongs to the read model, it does not walk through again (:func:`gc.freeze`): it goes as
everything goes that is in no cycle.

What is young it walks through by itself, a few hundred objects at a time. These may be large (a search for
many claims together has a world for each, with sets of all hosts), so they are not gathered to be walked
through a second time together: of ten times as many, that takes 0.1 s and more.
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
"""After one look at what is new, the next looks a second time at what is left of both."""
_OFTEN: Final = 500
"""So many times what is young is looked through before what is old is: a few hundred thousand objects."""
_SELDOM: Final = 5000
"""The same where Python does it by itself: requests are too long, or nobody tells that they end."""
_LONG: Final = 0.01
"""Seconds of work after which there is too much that stays."""
_PATIENCE: Final = 300.0
"""Seconds in which long requests are waited for."""


class GcScheduler:
    """Collects the garbage of a worker process, which does nothing else.

    :param long_requests: how many requests take long at present.
    """

    def __init__(self, long_requests: Callable[[], int]) -> None:
        self._long_requests = long_requests
        self._lock = threading.Lock()
        self._collected = time.monotonic()
        young, *_ = gc.get_threshold()
        gc.set_threshold(young, _GATHERED, _SELDOM)

    def tidy(self) -> None:
        """Collect it, if it is time. To be called when a request is done."""
        if gc.get_count()[2] < _OFTEN:
            return
        if self._long_requests() and time.monotonic() < self._collected + _PATIENCE:
            return
        if self._lock.acquire(blocking=False):
            try:
                self._collect()
            finally:
                self._lock.release()

    def after(self, app: "WSGIApplication") -> "WSGIApplication":
        """The application, which tidies up when it has answered."""

        def serve(environ: "WSGIEnvironment", start_response: "StartResponse") -> Iterable[bytes]:
            try:
                return app(environ, start_response)
            finally:
                self.tidy()

        return serve

    def _collect(self) -> None:
        began = time.thread_time()
        found = gc.collect()
        took = time.thread_time() - began
        self._collected = time.monotonic()
        if took > _LONG:
            gc.freeze()
            LOG.debug(
                "looked for garbage for %.0f ms, found %d objects, and keep the rest", 1000 * took, found
            )
