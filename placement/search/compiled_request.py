"""Compiles a request for trees that differ only in free amounts, so that equivalent trees are searched once.

The comparison uses only the free amounts that matter to the request, that is, whether each provider has
enough for a need. If several needs ask for a class, the free amount itself is compared, up to the sum of
these needs. Trees that are equal in this comparison have candidates of the same patterns.

Trees of different structures share results if their options have the same relations. In answers, positions
then count only the options (:class:`~placement.search.candidates.OptionSet`), not all providers.

Only :mod:`placement.search.candidate_search` uses this module, and passes one tree at a time.
"""

import random
from collections.abc import Callable, Collection, Generator, Hashable, Iterable, Iterator, Sequence
from functools import cached_property, partial
from inspect import GEN_CLOSED, getgeneratorstate
from itertools import chain, islice, product, tee
from operator import ge, itemgetter
from typing import Any, Final, NamedTuple

from placement.read_model.trees import (
    HostTree,
    ListEnd,
    Options,
    Places,
    ProviderSet,
    TreePart,
    is_keepable,
)
from placement.search.backtracking import (
    SMALL_BY_KINDS,
    SMALL_IN_PAIRS,
    OptionPlaces,
    complete_assignments,
    count_ways,
    list_assignments,
    pairwise_assignments,
)
from placement.search.budget import BudgetExhausted
from placement.search.candidates import (
    CandidatePattern,
    OptionSet,
    PatternBatch,
    PatternForm,
    UnusedPatterns,
)
from placement.search.rules import RequestRules
from placement.search.symmetry import AssignmentKinds, never_pooled

# below this number, recognising equivalent ways would cost more than listing all ways, which fit into one
# batch
_WIDE: Final = 17
"""If a tree has at least this number of assignments, one assignment of each set of equivalent ones comes
first.
"""

# in a cloud of unlike hosts, most requests are compiled for a few trees, which rarely have equal amounts
_UNKEYED: Final = 4
"""The number of trees of one compiled request that are searched without comparing their free amounts."""

_PartBatches = tuple[TreePart | None, Iterable[PatternBatch]]
"""A part of a tree, and batches of patterns with positions in this part. None stands for the whole tree."""
_NO_PATTERNS: Final = PatternBatch()
"""The batch that tells the caller that the search rests."""
_UNKNOWN: Final = ((-1,),)
"""Stands for options that are not in a cache, because None stands for a need without an option."""


class NeedOptions(NamedTuple):
    """The providers that can serve a need (a part of a request) if they have enough free of each class.

    ``own`` has pairs of a position in the tree and the slots of the needed amounts; these slots are in the
    order of the need's resources. ``shared`` has the positions of sharing providers.
    """

    own: Sequence[Places]
    shared: Sequence[int]

    def all_positions(self) -> Iterator[int]:
        """Yield the positions of all options."""
        return chain([at for at, _ in self.own], self.shared)


class _PatternCache(dict[tuple[int, ...], CandidatePattern]):
    """The patterns of a request, by the positions chosen for its needs; a lookup makes a missing pattern."""

    def __init__(self, rules: RequestRules) -> None:
        self._rules = rules
        #: forms; the key has for each need the index of the first need with the same provider
        self._forms: dict[tuple[int, ...], PatternForm] = {}

    # the method runs only for missing patterns, because a known pattern is looked up in C
    def __missing__(self, positions: tuple[int, ...]) -> CandidatePattern:
        self._rules.budget.spend(len(positions))
        firsts = tuple(map(positions.index, positions))
        form = self._forms.get(firsts)
        if form is None:
            form = self._forms[firsts] = PatternForm.from_firsts(self._rules, firsts)
        made = self[positions] = CandidatePattern(positions, form)
        return made


class SearchResults:
    """The results of a request at some trees, which are reused for equivalent trees.

    :param rules: the rules of the request.
    :param distinct_only: at trees with many assignments, find only one of several assignments that differ
        only in equal providers or equal groups.
    :param options_only: whether the positions in patterns count only the options of a tree.
    """

    def __init__(self, rules: RequestRules, *, distinct_only: bool, options_only: bool) -> None:
        #: number of patterns that are searched for at once
        self.batch = 1
        self.distinct_only = distinct_only
        self.options_only = options_only
        #: batches; the key has everything that decides which patterns exist. A tuple has all batches, an
        #: iterator is copied for each use
        self.batches: dict[Hashable, Iterable[PatternBatch]] = {}
        self.patterns = _PatternCache(rules)
        #: the indexes of the needs, in the order in which they are checked
        # a need that fails is moved to the front, because in a crowded cloud the same need fails in most of
        # the trees
        self.hardest_first = [*rules.distinct]


class _ContestedClass(NamedTuple):
    """A resource class that several needs ask for, and the providers that can give it to them.

    - ``asking`` has the indexes of these needs; ``asked`` is the sum of their amounts, ``least`` the smallest
      amount.
    - ``own_only`` tells whether no sharing provider can serve any of the needs.
    - ``positions`` are the positions in the tree that have the class. ``places`` has, for each position, a
      pair of its slot and the largest amount that the slot can give.
    """

    asking: Sequence[int]
    asked: int
    least: int
    own_only: bool
    positions: tuple[int, ...]
    places: Sequence[tuple[int, int]]


class CompiledRequest:
    """A request compiled for trees of one structure, with the results of its searches so far.

    :param tree: one of these trees; the conditions of the request have the same results in each of the trees.
    :param shared_ids: the ids of the sharing providers of each of these trees.
    :param options: the options of each need at all these trees, from :func:`options_of`.
    :param traits: for each trait of the group without a suffix, the options with this trait.
    """

    def __init__(
        self,
        rules: RequestRules,
        tree: HostTree,
        shared_ids: tuple[int, ...],
        options: Sequence[NeedOptions],
        traits: Sequence[Collection[int]],
        searched: SearchResults,
    ) -> None:
        self._rules = rules
        self._shape = tree.shape
        self._options = options
        self._searched = searched
        self._traits = traits
        self._shared_ids = shared_ids
        # equal needs share one list of options, because a request for many devices mostly has equal groups
        self._distinct = [options[index].own for index in rules.distinct]
        #: steps of a check of all options
        self._steps = sum(map(len, self._distinct))
        #: whether all options are sharing providers, so that no provider of the trees is an option
        self.only_shared = not any(self._distinct)
        self._relevant: Callable[[tuple[int, ...]], Any] | None = None
        self._by_relevant: dict[Hashable, _PartBatches] = {}
        #: the number of trees that were searched without a key of their free amounts
        self._unkeyed = 0

    def pattern_batches(
        self, provider_set: ProviderSet, free: tuple[int, ...], rng: random.Random | None = None
    ) -> tuple[ProviderSet, Iterable[PatternBatch]]:
        """Return the patterns of all candidates of a tree in batches, and the providers at their positions.

        The search for a batch begins when the caller asks for it. An empty batch means that the search rests,
        so that the caller can search other trees first.

        :param provider_set: the tree with its sharing providers.
        :param free: the free amounts of the tree, by slot, as :attr:`HostTree.free`.
        :param rng: source of a random order of the patterns; None keeps the order of the search.
        """
        # each tree gets its own random order, so the result is not kept for other trees
        if rng is not None:
            options = self._having_enough(free)
            return provider_set, (
                self._in_batches(self._find_patterns(provider_set, options, rng=rng)) if options else ()
            )
        known: _PartBatches | None
        if self._unkeyed < _UNKEYED:
            self._unkeyed += 1
            known = self._batches_alike(provider_set, free)
        else:
            if self._relevant is None:
                self._relevant = _pick_slots(
                    sorted({slot for own in self._distinct for _, slots in own for slot in slots})
                )
            relevant = self._relevant(free)
            known = self._by_relevant.get(relevant)
            if known is None:
                known = self._by_relevant[relevant] = self._batches_alike(provider_set, free)
        part, batches = known
        if part is not None:
            provider_set = OptionSet(provider_set, part)
        # tee() copies the iterator and keeps the results; type() is faster than isinstance() for each tree
        return provider_set, batches if type(batches) is tuple else tee(batches, 2)[1]

    def unused_patterns(self, empty: ProviderSet, parts: Sequence[int]) -> UnusedPatterns:
        """Return all patterns that a tree would have without any usage.

        The result applies to all trees of the structure. The search uses the capacities of the structure's
        largest tree. With ``distinct_only``, equal devices form pools.

        :param empty: the unused tree with its sharing providers.
        :param parts: a number for each provider of the tree; all devices of a pool have the same number.
        """
        capacities = tuple(self._shape.capacities)
        if not self._searched.distinct_only:
            _, batches = self.pattern_batches(empty, capacities)
            return UnusedPatterns(PatternBatch(chain.from_iterable(batches)))
        options = self._options_within(capacities)
        if options is None:
            return UnusedPatterns(_NO_PATTERNS)
        kinds = self._kinds_at(empty, options, pooled=True, parts=parts)
        patterns = self._find_patterns(empty, options, find_kinds=lambda: kinds)
        found = [each for each in patterns if each is not None]
        positions = {member.id: at for at, member in enumerate(empty.members)}
        # the members of a pool are sorted, so that equal pools of several requests are equal tuples
        pools = [
            (tuple(sorted([positions[each] for each in ids])), unit)
            for ids, unit in (kinds.list_pools() if kinds else ())
        ]
        return UnusedPatterns(PatternBatch(found), tuple(pools))

    def _options_within(self, free: tuple[int, ...]) -> Options | None:
        """Return for each need the positions that can serve it; None if some need has none."""
        options, subtrees = self._having_enough(free), self._rules.subtrees
        if options is None or not subtrees:
            return options
        # unusable options are removed before the key of the patterns is made, so that more trees have equal
        # keys; the same options often recur in trees of the frame, and in later requests
        kept = self._shape.frame.within_reach
        left = kept.get((subtrees, options), _UNKNOWN)
        if left is _UNKNOWN:
            left = self._rules.within_reach(options, self._shape.lineages)
            if is_keepable(options) and is_keepable(subtrees):
                kept.keep_value((subtrees, options), left)
        return left

    def _batches_alike(self, provider_set: ProviderSet, free: tuple[int, ...]) -> _PartBatches:
        """Return the patterns for all trees with these free amounts, as a tuple or an iterator to copy."""
        rules, searched, members = self._rules, self._searched, provider_set.members
        # few requests have contested classes, so others are spared the calls
        amounts = self._contested_amounts(free) if rules.adding_up else []
        options = None if amounts is None else self._options_within(free)
        if options is None:
            return None, ()
        contested = self._contested_places(amounts, options) if amounts else []
        if contested is None:
            return None, ()
        part = self._shape.frame.part_of(options)
        shown = part.positions
        is_part = searched.options_only and len(shown) < len(members)
        if is_part:
            options = part.chosen
        likeness: Hashable = options
        # the key does not need this part if the options alone decide
        if not rules.by_options_alone:
            # ids stand for the free amounts and relations of sharing providers
            by_ids = self._shared_ids if rules.by_lineage or rules.adding_up else ()
            likeness = (
                likeness,
                part.lineages if rules.by_lineage else (),
                by_ids and (part.own_count, by_ids),
                *[tuple([at in with_trait for at in shown]) for with_trait in self._traits],
                *[tuple([dict(here).get(at) for at in shown]) for here in contested],
            )
        is_wide = self._is_wide(options)
        if is_wide:
            # the key has the relations of providers, because these decide which ways are equivalent
            apart = tuple([never_pooled(members[at].traits) for at in shown])
            likeness = likeness, self._kinship_key(shown), apart
        known = searched.batches.get(likeness)
        if known is None:
            if is_part:
                provider_set = OptionSet(provider_set, part)
            # the first batch is made now: mostly it has all patterns, and then a tuple replaces the iterator
            first, end, patterns = self._first_batch(likeness, provider_set, options, is_wide)
            if end == "done":
                known = (first,) if first else ()
            else:
                known = tee(self._in_batches(patterns, first, end), 1)[0]
            searched.batches[likeness] = known
        return part if is_part else None, known

    def _first_batch(
        self, likeness: Hashable, provider_set: ProviderSet, options: Options, is_wide: bool
    ) -> tuple[PatternBatch, ListEnd, Generator[CandidatePattern | None]]:
        """Return the first batch, the reason why it ends, and a generator of the further patterns.

        If each rule compares two needs at a time, the batch has the same positions for all requests of one
        form with these options. So these positions are kept for later requests.
        """
        rules, searched = self._rules, self._searched
        # this is a generator, so no work is done until a pattern is asked for
        find_kinds = partial(self._kinds_at, provider_set, options) if is_wide else None
        patterns = self._find_patterns(provider_set, options, find_kinds=find_kinds)
        # the product of the options takes less time than a lookup
        if (
            rules.by_options_alone
            or not rules.pairwise_form
            or not is_keepable(options)
            or not self._is_lasting
        ):
            return *self._next_batch(patterns), patterns
        kept = rules.snapshot.first_assignments
        # the key has all settings that decide which patterns the first batch has
        settings = searched.batch, searched.distinct_only, searched.options_only
        form = rules.pairwise_form, settings, likeness
        known = kept.get(form)
        if known is not None:
            listed, end = known
            rules.budget.spend(len(listed))
            first = PatternBatch(map(searched.patterns.__getitem__, listed))
            return first, end, _leave_out(listed, end, patterns)
        batch, end = self._next_batch(patterns)
        # a budget that is spent has cut the batch off; a search without a pattern counts dead ends for a
        # message
        if batch and not rules.budget.ended:
            kept.keep_value(form, (tuple([positions for positions, _ in batch]), end))
        return batch, end, patterns

    @cached_property
    def _is_lasting(self) -> bool:
        """Return whether the relations of the sharing providers will be the same in later requests.

        This is so if each of them is alone in its tree. The keys of results have only their ids.
        """
        snapshot = self._rules.snapshot
        return all(len(snapshot.trees.get(each, ())) == 1 for each in self._shared_ids)

    def _is_wide(self, options: Sequence[Sequence[int]]) -> bool:
        """Return whether there are at least ``_WIDE`` assignments, and some of them can be equivalent."""
        # there are many equivalent ways only with needs of equal amounts and conditions, or with a need of
        # many options
        return (self._rules.any_alike or max(map(len, options)) >= _WIDE) and count_ways(
            options, _WIDE - 1
        ) >= _WIDE

    def _kinship_key(self, shown: Sequence[int]) -> Hashable:
        """Return a key of the relations, such as parents, that decide which providers are equivalent."""
        lineages = self._shape.lineages
        parents = {each[1] for each in lineages if len(each) > 1}
        # The entry is None for providers with children, which are never equivalent to other providers
        above = [None if at in parents else lineages[at][1:2] for at in shown if at < len(lineages)]
        # the first place with the same parent stands for the parent, so that unlike trees have equal keys
        families = tuple(map(above.index, above)), tuple([each and len(each) for each in above])
        return families, self._shared_ids

    def _kinds_at(
        self,
        provider_set: ProviderSet,
        options: Sequence[Sequence[int]],
        *,
        pooled: bool = False,
        parts: Sequence[int] = (),
    ) -> AssignmentKinds | None:
        """Return the kinds of equal needs and providers; None if there are neither equal ones nor pools."""
        members = provider_set.members
        self._rules.budget.spend(sum(map(len, options)))
        providers = [[members[at] for at in found] for found in options]
        # zip() ends before the sharing providers, which come last and have no numbers
        numbers = {member.id: part for member, part in zip(members, parts, strict=False)}
        kinds = AssignmentKinds(self._rules, providers, pooled=pooled, parts=numbers)
        if kinds.any_needs_equal or kinds.any_providers_equal:
            return kinds
        return kinds if not self._searched.distinct_only and kinds.in_pools else None

    def _contested_amounts(self, free: tuple[int, ...]) -> list[list[int]] | None:
        """Return for each contested class the free amount at each option.

        Each amount is limited to the sum that all needs ask for. The result is None if too little of a class
        is free.
        """
        found: list[list[int]] = []
        for each in self._contested_classes:
            least = each.least
            # the loop does without min() and max(), which would be half of its cost
            here = [
                0 if (amount := free[slot]) < least else amount if amount < most else most
                for slot, most in each.places
            ]
            if each.own_only and sum(here) < each.asked:
                return None
            found.append(here)
        return found

    def _contested_places(
        self, contested: Sequence[Sequence[int]], options: Sequence[Sequence[int]]
    ) -> list[tuple[tuple[int, int], ...]] | None:
        """Return positions and contested amounts of these options; None if too little of a class is free."""
        found: list[tuple[tuple[int, int], ...]] = []
        for each, amounts in zip(self._contested_classes, contested, strict=True):
            positions = set[int]().union(*[options[index] for index in each.asking])
            pairs = zip(each.positions, amounts, strict=True)
            here = tuple([(at, amount) for at, amount in pairs if at in positions])
            if each.own_only and sum([amount for _, amount in here]) < each.asked:
                return None
            found.append(here)
        return found

    @cached_property
    def _contested_classes(self) -> Sequence[_ContestedClass]:
        rules, portions = self._rules, self._shape.portions
        found = []
        for name, asking in rules.adding_up.items():
            slots = {
                at: slots[rules.names[index].index(name)]
                for index in {rules.first_alike[index] for index in asking}
                for at, slots in self._options[index].own
            }
            asked = rules.contested[name]
            found.append(
                _ContestedClass(
                    asking,
                    asked,
                    min([rules.amounts[index][name] for index in asking]),
                    not any(self._options[index].shared for index in asking),
                    tuple(slots),
                    # the amount is limited to the sum of all needs, because a larger free amount makes no
                    # difference and must not change the key
                    [(slot, min(portions[slot].max_unit, asked)) for slot in slots.values()],
                )
            )
        return found

    def _having_enough(self, free: tuple[int, ...]) -> Options | None:
        """Return for each need the positions with enough free; None if some need has none."""
        having: dict[int, tuple[int, ...]] = {}
        rules, hardest_first = self._rules, self._searched.hardest_first
        rules.budget.spend(self._steps)
        for rank, index in enumerate(hardest_first):
            own, sharing = self._options[index]
            asked = rules.asked[index]
            # one class and two classes, the usual numbers, have code of their own, because this loop runs for
            # every tree and need
            if len(asked) == 1:
                (amount,) = asked
                here = [at for at, (slot,) in own if free[slot] >= amount]
            elif len(asked) == 2:
                amount, other = asked
                here = [at for at, (slot, beside) in own if free[slot] >= amount and free[beside] >= other]
            else:
                here = [at for at, slots in own if all(map(ge, [free[slot] for slot in slots], asked))]
            # sharing providers need no check, because their free amounts were checked when the request was
            # compiled
            if sharing:
                here += sharing
            if not here:
                hardest_first.insert(0, hardest_first.pop(rank))
                return None
            having[index] = tuple(here)
        return tuple([having[index] for index in rules.first_alike])

    def _find_patterns(
        self,
        provider_set: ProviderSet,
        options: Sequence[Sequence[int]],
        *,
        rng: random.Random | None = None,
        find_kinds: Callable[[], AssignmentKinds | None] | None = None,
    ) -> Generator[CandidatePattern | None]:
        """Yield all patterns, and None whenever the search rests.

        :param find_kinds: returns the kinds of equal needs and providers; called with the first pattern.
        """
        kinds = find_kinds() if find_kinds else None
        members, rules, pattern_at = provider_set.members, self._rules, self._searched.patterns.__getitem__
        in_any_order = rng is None and kinds is None
        # no rule relates the needs to each other, so the product is the answer, computed in C
        if in_any_order and rules.by_options_alone:
            yield from map(pattern_at, product(*options))
            return
        places, in_pairs = OptionPlaces(members, options, provider_set.own_lineages), False
        limit = SMALL_IN_PAIRS if kinds is None else SMALL_BY_KINDS
        if rng is None and rules.pairwise and count_ways(options, limit) <= limit:
            # lineages have no positions of sharing providers, so options of same_subtree rules must be in the
            # tree
            own = provider_set.own_count
            in_pairs = not any(options[index][-1] >= own for rule in rules.subtrees for index in rule)
        if in_pairs and kinds is None:
            listed = list_assignments(rules, places)
            if listed is not None:
                yield from map(pattern_at, listed)
                return
            found = pairwise_assignments(rules, places)
        else:
            only = self._searched.distinct_only
            found = complete_assignments(rules, places, rng, kinds, distinct_only=only, in_pairs=in_pairs)
        for chosen in found:
            yield None if chosen is None else pattern_at(chosen)

    def _in_batches(
        self,
        patterns: Generator[CandidatePattern | None],
        batch: PatternBatch = _NO_PATTERNS,
        end: ListEnd = "full",
    ) -> Iterator[PatternBatch]:
        """Yield a batch, the other patterns in batches, and an empty batch at each rest of the search.

        :param end: the reason why the batch ended.
        """
        while True:
            if batch:
                yield batch
            if end == "done":
                return
            if end == "rest":
                yield _NO_PATTERNS
            batch, end = self._next_batch(patterns)

    def _next_batch(self, patterns: Generator[CandidatePattern | None]) -> tuple[PatternBatch, ListEnd]:
        """Return the patterns of the next batch, and the reason why the batch ends."""
        batch: list[CandidatePattern] = []
        try:
            # the loop runs in C, up to a None or the end of the generator
            batch.extend(islice(iter(patterns.__next__, None), self._searched.batch))
            if len(batch) == self._searched.batch:
                self._rules.budget.spend(len(batch))
                return PatternBatch(batch), "full"
        # patterns found before the error are valid; the next call raises the error again
        except BudgetExhausted:
            if not batch:
                raise
            return PatternBatch(batch), "done"
        return PatternBatch(batch), "done" if getgeneratorstate(patterns) == GEN_CLOSED else "rest"


def _leave_out(
    listed: Iterable[tuple[int, ...]], end: ListEnd, patterns: Iterable[CandidatePattern | None]
) -> Generator[CandidatePattern | None]:
    """Yield the patterns that are not listed, and None for each rest after the end of the list."""
    known, rested = {*listed}, end != "rest"
    for pattern in patterns:
        if pattern is None and not rested:
            # the caller knows of this rest, which ended the list
            rested = True
        elif pattern is None or pattern.positions not in known:
            yield pattern


def options_of(
    rules: RequestRules, tree: HostTree, serving: Sequence[Sequence[int]], met: Sequence[Sequence[bool]]
) -> Sequence[NeedOptions] | None:
    """Return for each need the options that an unused tree would have; None if some need has no option.

    :param serving: for each need, the sharing providers of the tree that can serve it, from
        :meth:`RequestRules.serving_needs`.
    :param met: for each condition of the rules, whether the provider at each position of the tree meets it.
    """
    shape = tree.shape
    found: list[NeedOptions] = []
    for index, like in enumerate(rules.first_alike):
        # an earlier need with the same amounts and conditions has the same options
        if like < index:
            found.append(found[like])
            continue
        # mostly no condition removes an option, and ``own`` remains the list of the frame
        own = shape.frame.places_giving(rules.names[index])
        rules.budget.spend(len(own))
        for rank, (name, amount) in rules.doubtful[index]:
            if not shape.any_gives(name, amount):
                portions = shape.portions
                own = [each for each in own if portions[each[1][rank]].is_portion(amount)]
        for condition in rules.conditions_of[index]:
            positions = met[condition]
            if not all(positions):
                own = [each for each in own if positions[each[0]]]
        sharing: Sequence[int] = serving[index] if serving else ()
        if sharing:
            # positions of sharing providers follow those of the tree
            sharing = [len(tree.members) + at for at in sharing]
        elif not own:
            return None
        found.append(NeedOptions(own, sharing))
    return found


def _pick_slots(slots: Sequence[int]) -> Callable[[tuple[int, ...]], Any]:
    # itemgetter needs at least one index
    return itemgetter(*slots) if slots else lambda _: ()
