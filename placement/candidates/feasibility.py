"""A quick answer to "can these needs be served together at all?".

Without it a search over many like devices proves the impossible by trying
everything: 17 groups of one unit below a host with 16 single-unit devices are
16! branches. There are two kinds of tests, and both see a part of the truth only:
what they rule out is impossible, what they let pass may still be.

- *Volume*: what is asked of a resource class has to fit into what the providers in
  question have free. Of a provider only as much counts as any of the amounts could
  fill together: 5 free units are worth 4 to groups of 2.
- *Counts*: bipartite matchings of needs with providers that can serve a limited number
  of them: one of those suffixed groups that want a provider for themselves, and for
  every resource class and amount the needs of at least that amount.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from math import gcd
from types import MappingProxyType
from typing import Final

from placement.candidates.budget import SearchBudget
from placement.candidates.needs import ProviderNeed
from placement.model.provider import Provider

Taken = dict[tuple[int, str], int]
"""Amounts by provider id and resource class."""

_MAX_UNITS: Final = 10_000
"""Which sums amounts can have takes as many bits as the largest provider has units."""
_MAX_SETS: Final = 8
"""Beyond so many different sets of providers only all of them together are looked at."""

_Asked = tuple[int, Sequence[Provider]]
"""An amount, and the providers that may give it."""


def fits_at_all(
    needs: Sequence[ProviderNeed],
    options: Sequence[Sequence[Provider]],
    isolate: bool,
    taken: Mapping[tuple[int, str], int] = MappingProxyType({}),
    budget: SearchBudget | None = None,
) -> bool:
    """False if there surely is no way to give each need one of its options.

    :param isolate: no two suffixed groups may have the same provider.
    :param taken: what a search has already taken, by provider id and class.
    :raises placement.candidates.budget.BudgetExhausted: it takes too long to find out.
    """
    budget = budget or SearchBudget()
    if isolate:
        suffixed = [index for index, need in enumerate(needs) if not need.unsuffixed]
        if len(suffixed) > 1 and not _match(
            [{at.id: 1 for at in options[index]} for index in suffixed], budget
        ):
            return False
    asked: dict[str, list[_Asked]] = {}
    for need, providers in zip(needs, options, strict=True):
        budget.spend(len(providers))
        for name, amount in need.resources:
            asked.setdefault(name, []).append((amount, providers))
    return all(_fit(each, _free(name, each, taken), budget) for name, each in asked.items() if len(each) > 1)


def _free(name: str, asked: Sequence[_Asked], taken: Mapping[tuple[int, str], int]) -> dict[int, int]:
    """How much of the class each of the providers has left, by their ids."""
    free: dict[int, int] = {}
    for _, providers in asked:
        for at in providers:
            if at.id not in free:
                free[at.id] = available(at, name) - taken.get((at.id, name), 0)
    return free


def available(provider: Provider, name: str) -> int:
    """How much one candidate may take of a resource class."""
    return min(provider.inventories[name].max_unit, provider.free(name))


def _fit(asked: Sequence[_Asked], free: Mapping[int, int], budget: SearchBudget) -> bool:
    """Whether these amounts of one class may each have a provider, as far as the tests show."""
    sizes = {amount for amount, _ in asked}
    # Counts say all there is to say where all ask for the same amount.
    if len(sizes) > 1 and any(
        sum(amounts) > _max_sum(amounts, volumes, budget) for amounts, volumes in _volumes(asked, free)
    ):
        return False
    return all(
        _match(
            [
                {at.id: free[at.id] // min_amount for at in providers}
                for amount, providers in asked
                if amount >= min_amount
            ],
            budget,
        )
        for min_amount in sizes
    )


def _volumes(
    asked: Sequence[_Asked], free: Mapping[int, int]
) -> Iterator[tuple[Sequence[int], Collection[int]]]:
    """Amounts that have to come from certain providers, and what is free at each of these."""
    yield [amount for amount, _ in asked], free.values()
    by_providers: dict[frozenset[int], list[int]] = {}
    for amount, providers in asked:
        by_providers.setdefault(frozenset([at.id for at in providers]), []).append(amount)
    if 1 < len(by_providers) <= _MAX_SETS:
        for together in by_providers:
            amounts = [amount for other, each in by_providers.items() if other <= together for amount in each]
            yield amounts, [free[provider_id] for provider_id in together]


def _max_sum(amounts: Sequence[int], volumes: Collection[int], budget: SearchBudget) -> int:
    """No more than this of the amounts can be put where so much is free each, each amount whole.

    Which sums the amounts can have is kept in the bits of a number: bit n for n units.
    """
    budget.spend(len(amounts) + len(volumes))
    min_amount, unit = min(amounts), gcd(*amounts)
    useful = [volume // unit for volume in volumes if volume >= min_amount]
    widest = max(useful, default=0)
    if widest > _MAX_UNITS:
        return sum(useful) * unit
    sums = 1
    for amount in amounts:
        sums |= (sums << (amount // unit)) & _ones(widest)
    return sum([(sums & _ones(units)).bit_length() - 1 for units in useful]) * unit


def _ones(highest: int) -> int:
    return (2 << highest) - 1


def _match(limits: Sequence[Mapping[int, int]], budget: SearchBudget) -> bool:
    """Whether everyone gets a provider.

    Grows the matching along augmenting paths, found breadth first.

    :param limits: for each, by ids of the providers that would do, how many these serve at most.
    """
    served: dict[int, list[int]] = {}
    for newcomer in range(len(limits)):
        came_from: dict[int, tuple[int, int | None]] = {}
        queue: list[tuple[int, int | None]] = [(newcomer, None)]
        free: int | None = None
        for who, previous in queue:
            budget.spend(len(limits[who]))
            for provider_id, limit in limits[who].items():
                if provider_id in came_from:
                    continue
                came_from[provider_id] = (who, previous)
                here = served.setdefault(provider_id, [])
                if len(here) < limit:
                    free = provider_id
                    break
                queue.extend((other, provider_id) for other in here)
            if free is not None:
                break
        if free is None:
            return False
        while free is not None:
            who, previous = came_from[free]
            served[free].append(who)
            if previous is not None:
                served[previous].remove(who)
            free = previous
    return True
