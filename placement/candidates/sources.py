"""In which order offers come that are found at several sets of providers, each of which has more than one."""

from collections import deque
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import TypeVar

from placement.candidates.pattern import Offer, PatternBatch
from placement.model.trees import ProviderSet

T = TypeVar("T")

Source = tuple[ProviderSet, Iterable[PatternBatch]]
"""What there is at one set of providers; an empty batch says that the search there rests."""


def one_by_one(sources: Iterator[Source]) -> Iterator[Offer]:
    """All of one source, then all of the next; what rests waits until the last had its turn."""
    resting: deque[Source] = deque()
    for source in chain(sources, drained(resting)):
        provider_set, batches = source
        for batch in batches:
            if not batch:
                resting.append(source)
                break
            yield provider_set, batch


def round_robin(sources: Iterator[Source]) -> Iterator[Offer]:
    """One of each source, then a second of each, and so on; sources are opened as they are reached."""
    active: deque[Source] = deque()
    for provider_set, batches in chain(sources, drained(active)):
        left = iter(batches)
        for batch in left:
            active.append((provider_set, left))
            if batch:
                yield provider_set, batch
            break


def drained(waiting: deque[T]) -> Iterator[T]:
    """What waits, also what joins meanwhile."""
    while waiting:
        yield waiting.popleft()


def first(offers: Iterable[Offer], limit: int) -> Iterator[Offer]:
    """As many of the offers as have that many candidates together."""
    if limit < 1:
        return
    for provider_set, patterns in offers:
        yield provider_set, patterns if len(patterns) <= limit else PatternBatch(patterns[:limit])
        limit -= len(patterns)
        if limit <= 0:
            return
