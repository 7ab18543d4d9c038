"""Connections that wait for their clients, and which of them ends first where there are too many."""

from collections import OrderedDict


class IdleConnections:
    """Descriptors of connections, each since when it waits as it does now. Nothing here is searched for.

    Whose requests were all answered, and who asks nothing now, is at rest: it connects again without loss.
    The others owe a request, or a part of one, or take an answer slowly. Who has only just connected is about
    to ask, so those at rest end first; but of who never asks there may be any number, so they do only while
    the others have no more than half of the places.

    :param most: how many connections there may be.
    """

    def __init__(self, most: int) -> None:
        self._share = most // 2
        self._at_rest: OrderedDict[int, None] = OrderedDict()
        self._owing: OrderedDict[int, None] = OrderedDict()

    def put(self, fd: int, *, at_rest: bool) -> None:
        """A connection waits, maybe otherwise than before."""
        now, before = (self._at_rest, self._owing) if at_rest else (self._owing, self._at_rest)
        before.pop(fd, None)
        now.setdefault(fd)

    def discard(self, fd: int) -> None:
        """It waits no more."""
        self._at_rest.pop(fd, None)
        self._owing.pop(fd, None)

    def first(self) -> int | None:
        """Which one ends first, if any waits: of the like the one that has waited longest."""
        owing_end = len(self._owing) > self._share or not self._at_rest
        return next(iter(self._owing if owing_end else self._at_rest), None)
