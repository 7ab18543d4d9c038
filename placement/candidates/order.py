"""In which order the candidates of one root come: those that keep together come first.

Nova takes the first candidate of the host that it has chosen. Which candidates there are, and how
many of each root, has been decided before.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from operator import le

from placement.candidates.pattern import Offer, Pattern, PatternBatch
from placement.model.trees import ProviderSet, Shape, Tree


def topology_first(offers: Sequence[Offer]) -> list[Offer]:
    """The same candidates; where those of one root stood, those come first that cross fewest branches.

    A branch is a child of the root with all that is below it, such as a NUMA node with its caches and
    devices. Of as many branches fewer providers come first; else the order stays as it is. Like batches
    are ordered once, so that what is made of one is still made once.
    """
    branches_at = _Branches()
    if len({provider_set for provider_set, _ in offers}) == len(offers):
        where = {batch: provider_set for provider_set, batch in offers}  # any of those that have it
        ordered = {
            batch: _ordered(branches_at(provider_set), [batch])[0]
            for batch, provider_set in where.items()
            if len(batch) > 1
        }
        return [(each, ordered.get(batch, batch)) for each, batch in offers] if ordered else [*offers]
    return _of_several_batches(offers, branches_at)


class _Branches:
    """The branches of sets of providers; of trees of one shape they are looked for once."""

    def __init__(self) -> None:
        self._known: dict[Shape, list[int | None]] = {}

    def __call__(self, provider_set: ProviderSet) -> list[int | None]:
        if not isinstance(provider_set, Tree):
            return branches_of(provider_set)
        shape = provider_set.kind.shape
        found = self._known.get(shape)
        if found is None:
            found = self._known[shape] = branches_of(provider_set)
        return found


def _of_several_batches(offers: Sequence[Offer], branches_at: _Branches) -> list[Offer]:
    of_root: dict[ProviderSet, list[PatternBatch]] = {}
    for provider_set, batch in offers:
        of_root.setdefault(provider_set, []).append(batch)
    known: dict[tuple[PatternBatch, ...], list[PatternBatch]] = {}
    left: dict[ProviderSet, Iterator[PatternBatch]] = {}
    for provider_set, batches in of_root.items():
        key = tuple(batches)
        if key not in known:
            known[key] = _ordered(branches_at(provider_set), batches)
        left[provider_set] = iter(known[key])
    return [(each, next(left[each])) for each, _ in offers]


def _ordered(branches: Sequence[int | None], batches: Sequence[PatternBatch]) -> list[PatternBatch]:
    """Batches as large as these, with the patterns of all of them in order."""
    patterns = [pattern for batch in batches for pattern in batch]
    spreads = [_spread(pattern, branches) for pattern in patterns]
    if all(map(le, spreads, spreads[1:])):
        return [*batches]
    by_spread = sorted(range(len(patterns)), key=spreads.__getitem__)
    rest = iter([patterns[at] for at in by_spread])
    return [PatternBatch(islice(rest, len(batch))) for batch in batches]


def _spread(pattern: Pattern, branches: Sequence[int | None]) -> tuple[int, int]:
    """How many branches something is taken of, and how many providers."""
    used = pattern.resources
    found = {branches[at] for at in used}
    return len(found) - (None in found), len(used)


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
