"""A cache for results of functions, limited by memory."""

from collections import OrderedDict
from collections.abc import Callable, Hashable
from threading import Lock
from typing import Final, Generic, TypeVar

Result = TypeVar("Result")

# the factor is large, because a result has fields for each parameter of a query, and Python objects are large
_EXPANSION: Final = 64
"""Assumed size of a result with its key: this number of bytes for each character of the key as text."""


class KeptResults(Generic[Result]):
    """A cache that keeps the most recently used results.

    The limit applies to the total size of the results and not to their number, because clients choose the
    length of keys.

    :param max_bytes: the maximum total size of all results. The size of a result is estimated, rather too
        large.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._bytes = 0
        self._lock = Lock()
        self._kept: OrderedDict[Hashable, tuple[Result, int]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._kept)

    def get(self, key: Hashable, make: Callable[[], Result]) -> Result:
        """Return the cached result for the key, or make it. Errors of ``make`` are not cached."""
        with self._lock:
            if (known := self._kept.get(key)) is not None:
                self._kept.move_to_end(key)
                return known[0]
        # the lock is not held here, so that other requests do not wait. Sometimes two requests compute the
        # same result.
        result = make()
        size = _EXPANSION * len(repr(key))
        # a result larger than the cache is not stored, because the loop below would remove all results
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
