"""A quick answer to "can these needs be served together at all?".

Without it a search over many like devices proves the impossible by trying
everything: 17 groups of one unit below a host with 16 single-unit devices are
16! branches. The tests are bipartite matchings of needs with providers that
can take a limited number of them: one of those suffixed groups that want a
provider for themselves, and for every resource class and amount the needs of
at least that amount. They see a part of the truth only: what they rule out is
impossible, what they let pass may still be.
"""

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from placement.candidates.needs import Need
from placement.model.world import Provider

#: amounts by provider id and resource class
Taken = dict[tuple[int, str], int]


def fits_at_all(
    needs: Sequence[Need],
    options: Sequence[Sequence[Provider]],
    isolate: bool,
    taken: Mapping[tuple[int, str], int] = MappingProxyType({}),
) -> bool:
    """False if there surely is no way to give each need one of its options.

    :param isolate: no two suffixed groups may have the same provider.
    :param taken: what a search has already taken, by provider id and class.
    """
    if isolate:
        suffixed = [index for index, need in enumerate(needs) if not need.collective]
        if len(suffixed) > 1 and not _match([{at.id: 1 for at in options[index]} for index in suffixed]):
            return False
    amounts: dict[str, list[tuple[int, int]]] = {}
    for index, need in enumerate(needs):
        for name, amount in need.resources:
            amounts.setdefault(name, []).append((index, amount))
    for name, wanted in amounts.items():
        if len(wanted) > 1 and not all(
            _match(
                [
                    {at.id: (room(at, name) - taken.get((at.id, name), 0)) // least for at in options[index]}
                    for index, amount in wanted
                    if amount >= least
                ]
            )
            for least in {amount for _, amount in wanted}
        ):
            return False
    return True


def room(provider: Provider, name: str) -> int:
    """How much one candidate may take of a resource class."""
    inventory = provider.inventories[name]
    return min(inventory.max_unit, inventory.capacity - provider.used.get(name, 0))


def _match(places: Sequence[Mapping[int, int]]) -> bool:
    """Whether everybody gets a place, given who may go where and how many each place takes.

    Grows the matching along augmenting paths, found breadth first.
    """
    guests: dict[int, list[int]] = {}
    for guest in range(len(places)):
        came_from: dict[int, tuple[int, int | None]] = {}
        queue: list[tuple[int, int | None]] = [(guest, None)]
        free: int | None = None
        for who, previous in queue:
            for place, size in places[who].items():
                if place in came_from:
                    continue
                came_from[place] = (who, previous)
                here = guests.setdefault(place, [])
                if len(here) < size:
                    free = place
                    break
                queue.extend((other, place) for other in here)
            if free is not None:
                break
        if free is None:
            return False
        while free is not None:
            who, previous = came_from[free]
            guests[free].append(who)
            if previous is not None:
                guests[previous].remove(who)
            free = previous
    return True
