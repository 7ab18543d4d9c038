"""Results of functions, kept for the next call with the same arguments in bounded memory."""

from collections import OrderedDict
from collections.abc import Callable, Hashable
from threading import Lock
from typing import Final, Generic, TypeVar

Result = TypeVar("Result")

_EXPANSION: Final = 64
"""Bytes that are reckoned for each character of an argument as Python shows it: the result and the key."""


class KeptResults(Generic[Result]):
    """The results that were of use last.

    A client chooses how long its arguments are: a count of results would bound no memory, their size does.

    :param max_bytes: how much they take together, reckoned generously.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._bytes = 0
        self._lock = Lock()
        self._kept: OrderedDict[Hashable, tuple[Result, int]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._kept)

    def get(self, key: Hashable, make: Callable[[], Result]) -> Result:
        """The result that is kept for the key, or else a new one; errors of ``make`` are not kept."""
        with self._lock:
            if (known := self._kept.get(key)) is not None:
                self._kept.move_to_end(key)
                return known[0]
        result = make()
        size = _EXPANSION * len(repr(key))
        if size > self._max_bytes:
            return result
        with self._lock:
            if (known := self._kept.get(key)) is not None:  # another thread was faster
                return known[0]
            self._kept[key] = (result, size)
            self._bytes += size
            while self._bytes > self._max_bytes:
                _, (_, freed) = self._kept.popitem(last=False)
                self._bytes -= freed
        return result
