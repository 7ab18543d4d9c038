"""A cache for results of functions, limited by memory."""

from collections import OrderedDict
from collections.abc import Callable, Hashable
from threading import Lock
from typing import Final, Generic, TypeVar

Result = TypeVar("Result")

# this is a generous factor, because results have fields for each parameter of a query, and Python objects are
# large
_EXPANSION: Final = 64
"""Assumed number of bytes of a result and its key, for each character of the argument."""


class KeptResults(Generic[Result]):
    """A cache that keeps the most recently used results.

    Clients choose the length of arguments, so the limit applies to the total size of the results, not to
    their number.

    :param max_bytes: the maximum total size of all results, by a generous estimate.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._bytes = 0
        self._lock = Lock()
        self._kept: OrderedDict[Hashable, tuple[Result, int]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._kept)

    def get(self, key: Hashable, make: Callable[[], Result]) -> Result:
        """Return the cached result for the key, or make it; errors of ``make`` are not cached."""
        with self._lock:
            if (known := self._kept.get(key)) is not None:
                self._kept.move_to_end(key)
                return known[0]
        # computed without the lock, so that other requests do not wait; sometimes two requests compute the
        # same result
        result = make()
        size = _EXPANSION * len(repr(key))
        # too large for the cache: it would remove all other results, and then itself
        if size > self._max_bytes:
            return result
        with self._lock:
            if (known := self._kept.get(key)) is not None:  # another thread has stored this result meanwhile
                return known[0]
            self._kept[key] = (result, size)
            self._bytes += size
            while self._bytes > self._max_bytes:
                _, (_, freed) = self._kept.popitem(last=False)
                self._bytes -= freed
        return result
