"""In which order the candidates of one root come: those that keep together come first.

Nova takes the first candidate of the host that it has chosen. Which candidates there are, and how
many of each root, has been decided before.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice

from placement.candidates.pattern import Offer, Pattern, PatternBatch
from placement.model.trees import ProviderSet


def topology_first(offers: Sequence[Offer]) -> list[Offer]:
    """The same candidates; where those of one root stood, those come first that cross fewest branches.

    A branch is a child of the root with all that is below it, such as a NUMA node with its caches and
    devices. Of as many branches fewer providers come first; else the order stays as it is. Like batches
    are ordered once, so that what is made of one is still made once.
    """
    if len({provider_set for provider_set, _ in offers}) == len(offers):
        where = {batch: provider_set for provider_set, batch in offers}  # any of those that have it
        ordered = {
            batch: _ordered(provider_set, [batch])[0]
            for batch, provider_set in where.items()
            if len(batch) > 1
        }
        return [(each, ordered.get(batch, batch)) for each, batch in offers] if ordered else [*offers]
    return _of_several_batches(offers)


def _of_several_batches(offers: Sequence[Offer]) -> list[Offer]:
    of_root: dict[ProviderSet, list[PatternBatch]] = {}
    for provider_set, batch in offers:
        of_root.setdefault(provider_set, []).append(batch)
    known: dict[tuple[PatternBatch, ...], list[PatternBatch]] = {}
    left: dict[ProviderSet, Iterator[PatternBatch]] = {}
    for provider_set, batches in of_root.items():
        key = tuple(batches)
        if key not in known:
            known[key] = _ordered(provider_set, batches)
        left[provider_set] = iter(known[key])
    return [(each, next(left[each])) for each, _ in offers]


def _ordered(provider_set: ProviderSet, batches: Sequence[PatternBatch]) -> list[PatternBatch]:
    """Batches as large as these, with the patterns of all of them in order."""
    branches = branches_of(provider_set)
    patterns = [pattern for batch in batches for pattern in batch]
    in_order = sorted(patterns, key=lambda pattern: _spread(pattern, branches))
    if in_order == patterns:
        return [*batches]
    rest = iter(in_order)
    return [PatternBatch(islice(rest, len(batch))) for batch in batches]


def _spread(pattern: Pattern, branches: Sequence[int | None]) -> tuple[int, int]:
    used = set[int]().union(*pattern.mappings.values())
    return len({branches[at] for at in used} - {None}), len(used)


def branches_of(provider_set: ProviderSet) -> list[int | None]:
    """By position the id of the topmost provider of the branch; None for the root, and for what shares."""
    parents = {each.id: each.parent_id for each in provider_set.members[: provider_set.own]}
    return [_branch(each.id, parents) for each in provider_set.members]


def _branch(provider_id: int, parents: Mapping[int, int | None]) -> int | None:
    parent = parents.get(provider_id)
    while parent is not None:
        above = parents[parent]
        if above is None:
            return provider_id
        provider_id, parent = parent, above
    return None
