"""Places all wanted claims on hosts, or none of them.

The search combines each choice of a claim with choices of the later claims. Each choice leads to a new
scenario, so that nothing has to be undone. The new scenario shares all but a few provider objects with the
previous scenario. The search does not repeat a state that has already failed. The search skips a choice if an
earlier choice left the same free amounts to the other claims.
"""

import random
from collections import Counter, deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain, islice
from typing import Final

from placement.read_model.provider import SHARES
from placement.read_model.snapshot import ModelSnapshot
from placement.read_model.trees import HostTree
from placement.search.budget import BudgetExhausted, SearchBudget
from placement.search.candidate_search import CandidateSearch, drain_waiting
from placement.search.candidates import AllocationCandidate
from placement.search.claims.claim import (
    ClaimScenario,
    HostChoice,
    WantedClaim,
    known_ids,
    stays_at_its_host,
    taken_amounts,
)
from placement.search.claims.score_bounds import ScoreUpperBounds
from placement.search.claims.scores import Choices, ChoiceScorer, Found, best_first
from placement.search.claims.split_choices import SplitChoices
from placement.search.conditions import all_conditions, needs_of
from placement.search.equivalence import tree_reader
from placement.store.claims import ConsumerClaim
from placement.store.groups import GroupPolicy

# alternates are optional, so the search for them must not take longer than the search for the choice
_MAX_TRIED: Final = 10_000
"""Maximum number of choices that are examined to find alternative choices."""


@dataclass(frozen=True, slots=True)
class PlacedClaim:
    """A claim with its choice, alternates on other hosts, and its expiry by the database's clock."""

    wanted: WantedClaim
    choice: HostChoice
    alternates: tuple[HostChoice, ...] = ()
    expires_at: float | None = None
    # the consumers of preemptible claims that have to end when the window of this claim begins
    preempted: tuple[str, ...] = ()
    # the windows that move to other hosts to make room for the window of this claim
    moved: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class UnplacedClaim:
    """The index of the first claim that cannot be placed, and the scenario in which it cannot be placed."""

    number: int
    world: ClaimScenario


def consumer_claims(placed: Sequence[PlacedClaim]) -> list[ConsumerClaim]:
    """Return the claims to write; the claims of a reservation become one claim of all their amounts."""
    by_consumer: dict[str, list[PlacedClaim]] = {}
    for each in placed:
        by_consumer.setdefault(each.wanted.consumer, []).append(each)
    return [_consumer_claim(each) for each in by_consumer.values()]


def _consumer_claim(placed: Sequence[PlacedClaim]) -> ConsumerClaim:
    (first, *others), resources = placed, dict[str, Counter[str]]()
    for each in placed:
        for provider, amounts in each.choice.resources:
            resources.setdefault(provider.uuid, Counter()).update(amounts)
    wanted = first.wanted
    return ConsumerClaim(
        wanted.consumer,
        resources,
        wanted.generation,
        wanted.owner,
        # each placed claim respects min_unit, max_unit and step_size by itself; the sums need not
        in_any_portions=bool(others),
        window=wanted.window,
        on_end=wanted.end_action,
        kept_until=wanted.kept_until,
    )


def place_claims(
    world: ClaimScenario, wanted: Sequence[WantedClaim], budget: SearchBudget, rng: random.Random
) -> list[PlacedClaim] | UnplacedClaim:
    """Return choices that are possible for all claims at the same time, or the first claim without a choice.

    The snapshot must not change during the call. Among equally good choices the search picks one at random,
    so that concurrent claims mostly choose different hosts.

    :raises BudgetExhausted: the budget is spent before all claims are placed or one is known to have no
        choice.
    """
    return _ClaimPlacing(world, wanted, budget, rng).place_all()


def _exceeds_free(snapshot: ModelSnapshot, wanted: Sequence[WantedClaim]) -> bool:
    """Return whether the claims together ask for more of a class than is free in the whole fleet."""
    asked: Counter[str] = Counter()
    for each in wanted if len(wanted) > 1 else ():
        # with a fallback it is unknown which of the two requests will be served
        for group in each.request.groups if each.fallback is None else ():
            asked.update(group.resources)
    return any(amount > _free_in_all(snapshot, name) for name, amount in asked.items())


def _free_in_all(snapshot: ModelSnapshot, name: str) -> int:
    providers = [snapshot.providers[each] for each in snapshot.by_class.get(name, ())]
    # the used amount may exceed the capacity, if an inventory was reduced
    return sum(max(0, each.free(name)) for each in providers)


def _root_id(found: Found) -> int:
    """Return the id of the root where a choice is anchored."""
    return found.provider_set.members[0].root_id if isinstance(found, AllocationCandidate) else found.root.id


class _ClaimPlacing:
    """Combines choices for the first claim with choices for the later claims, until all claims are placed."""

    def __init__(
        self, world: ClaimScenario, wanted: Sequence[WantedClaim], budget: SearchBudget, rng: random.Random
    ) -> None:
        self._world = world
        self._wanted = wanted
        self._budget = budget
        self._rng = rng
        # hosts that the claim names are not interchangeable, nor are hosts with different distances between
        # their zones
        self._names_hosts = any(
            each.names_hosts or (each.topology is not None and world.distances) for each in wanted
        )
        # many claims may join one group, and its members are counted at each step of the search
        self._groups = {each.group.name: each.group for each in wanted if each.group is not None}.values()
        self._has_pools = SHARES in world.snapshot.by_trait
        #: states that failed; a state is the index of a claim, the amounts that earlier claims take, and
        #: group members
        self._failed: set[Hashable] = set()

    def place_all(self) -> list[PlacedClaim] | UnplacedClaim:
        """Return choices for all claims, or the first claim without a choice."""
        # comparing sums takes microseconds, and may prove that there is no place; a search over all
        # combinations would take seconds
        hopeless = _exceeds_free(self._world.snapshot, self._wanted) or self._lack_hosts()
        found = None if hopeless else self._place_from(self._world, 0, {})
        return found if found is not None else self._first_unplaced()

    def _lack_hosts(self) -> bool:
        """Return whether an anti-affinity group has more claims than possible hosts."""
        apart: dict[str, list[WantedClaim]] = {}
        for each in self._wanted:
            if each.group is not None and each.group.policy is GroupPolicy.ANTI_AFFINITY:
                apart.setdefault(each.group.name, []).append(each)
        # the trees of sharing providers count as hosts, too
        return not self._has_pools and any(
            len(members) > self._count_places(members) for members in apart.values()
        )

    def _count_places(self, members: Sequence[WantedClaim]) -> int:
        """Return an upper bound of the number of claims of this group that fit on the possible hosts."""
        # places are not counted for a single claim, because the search alone decides about it. With a
        # topology or a fallback the number would be wrong
        if len(members) == 1 or any(each.topology or each.fallback for each in members):
            return len(members)
        limit = max(each.group.max_per_host for each in members if each.group is not None)
        present = self._world.members_beside(members[0].group)
        places: dict[int, int] = {}
        for each in members:
            for found in self._find_choices(self._world, each):
                root = _root_id(found)
                places[root] = limit - present.get(root, 0)
                # with enough places, no more hosts need to be found
                if sum(places.values()) >= len(members):
                    return len(members)
        return sum(places.values())

    def _first_unplaced(self) -> UnplacedClaim:
        """Return the first claim that cannot be placed if each earlier claim takes the first choice found."""
        (*before, _), world = self._wanted, self._world
        for number, each in enumerate(before):
            # not all combinations are tried: the result only names one claim in an error message, and proves
            # nothing
            choice = next(self._all_choices(world, each), None)
            if choice is None:
                return UnplacedClaim(number, world)
            world = world.with_choice(each, choice)
        # a claim is known to have no place: if all earlier claims have a place, it is the last claim
        return UnplacedClaim(len(before), world)

    def _place_from(
        self, world: ClaimScenario, number: int, taken: Mapping[tuple[int, str], int]
    ) -> list[PlacedClaim] | None:
        """Place the claims from this index on, in addition to ``taken``; None if some claim has no place."""
        # the state contains the amounts that are taken, not the choices, because several choices may take the
        # same amounts
        state = (number, frozenset(taken.items()), self._member_counts(world))
        if state in self._failed:
            return None
        wanted, tried = self._wanted[number], set[Hashable]()
        # equal devices are left out only for the last claim, because they may differ in traits that a later
        # claim requires
        is_last = number + 1 == len(self._wanted)
        choices = self._all_choices(world, wanted, distinct_only=is_last)
        passed: list[HostChoice] = []
        for choice in choices:
            # no scenario is needed after the last claim
            if is_last:
                others: list[PlacedClaim] | None = []
            else:
                alike = self._choice_likeness(world, choice)
                # choices that were skipped or failed are kept as possible alternates of the final choice
                if alike in tried:
                    passed.append(choice)
                    continue
                tried.add(alike)
                # larger snapshots get more steps, because a scenario copies the indexes of the snapshot
                self._budget.spend(len(world.snapshot) // 8)
                after = Counter(taken)
                after.update(taken_amounts([choice]))
                others = self._place_from(world.with_choice(wanted, choice), number + 1, after)
            if others is not None:
                return [
                    PlacedClaim(wanted, choice, _find_alternates(wanted, choice, chain(passed, choices))),
                    *others,
                ]
            passed.append(choice)
        # the state is not added in a finally block, because an exception does not prove that the state fails
        self._failed.add(state)
        return None

    def _all_choices(
        self, world: ClaimScenario, wanted: WantedClaim, *, distinct_only: bool = False
    ) -> Iterator[HostChoice]:
        """Yield all choices of a claim, then those of its fallback; with an order, the best come first.

        :param distinct_only: whether to leave out choices that differ only in equal devices, if it has an
            order.
        """
        for way in wanted.all_ways:
            if not way.order:
                for found in self._find_choices(world, way):
                    yield _make_choice(world, found)
                continue
            scorer = ChoiceScorer(world, way)
            # equal sharing providers may have different capacities, or the claim may not use some of them
            only = distinct_only and not self._has_pools and scorer.equal_devices_score_equally
            roots, at = choices_at_hosts(world, way, self._budget, self._rng, distinct_only=only)
            hosts = ScoreUpperBounds(world, way, list(roots), self._budget).highest_first()
            for found in best_first(hosts, at, scorer, self._budget):
                yield replace(_make_choice(world, found), score=scorer.score_choice(found))

    def _find_choices(self, world: ClaimScenario, wanted: WantedClaim) -> Iterator[Found]:
        """Yield choices without scores: one of each host from a random host on, then a second one of each."""
        roots, at = choices_at_hosts(world, wanted, self._budget, self._rng)
        # hosts take turns, because most hosts have room for only one of several wanted claims
        begun: deque[Choices] = deque()
        for choices in chain(map(at, roots), drain_waiting(begun)):
            for found in choices:
                begun.append(choices)
                if found is not None:
                    yield found
                break

    @cached_property
    def _read_tree(self) -> Callable[[HostTree], Hashable]:
        """Return a function that makes a key of a tree from all that claims read, except free amounts."""
        asked = [request for each in self._wanted for request in each.all_requests]
        read = tree_reader(chain.from_iterable(all_conditions(each, needs_of(each)) for each in asked))
        if not self._has_pools:
            return read
        # aggregates are part of the key, because they decide which providers share with the tree
        return lambda tree: (read(tree), tree.aggregates)

    def _member_counts(self, world: ClaimScenario) -> Hashable:
        """Return a key with the number of members at each host, for each group that the claims join."""
        return tuple(frozenset(world.members_beside(group).items()) for group in self._groups)

    def _choice_likeness(self, world: ClaimScenario, choice: HostChoice) -> Hashable:
        """Return a key of a choice; choices with equal keys leave later claims the same free amounts."""
        taken = {provider.id: frozenset(amounts.items()) for provider, amounts in choice.resources}
        tree = world.snapshot.whole_trees()[choice.root.id]
        at = {member.id: position for position, member in enumerate(tree.members)}
        # choices that take from a sharing provider are equivalent only with the same amounts of the same
        # providers
        if self._names_hosts or not taken.keys() <= at.keys():
            return frozenset(taken.items())
        # keys have positions instead of ids, so that two hosts can have equal keys
        within = frozenset((at[provider_id], amounts) for provider_id, amounts in taken.items())
        others = tuple(world.members_beside(group).get(choice.root.id, 0) for group in self._groups)
        return self._read_tree(tree), tree.kind, tree.free, within, others


def _make_choice(world: ClaimScenario, found: Found) -> HostChoice:
    return (
        HostChoice.from_candidate(world.snapshot, found) if isinstance(found, AllocationCandidate) else found
    )


def choices_at_hosts(
    world: ClaimScenario,
    wanted: WantedClaim,
    budget: SearchBudget,
    rng: random.Random,
    *,
    distinct_only: bool = False,
) -> tuple[Iterator[int], Callable[[int], Choices]]:
    """Return the roots of hosts that possibly satisfy the claim, and a function that finds choices at a host.

    The roots begin at a random root.

    :param distinct_only: whether to leave out choices that differ from another choice only in equal devices.
    """
    snapshot, group, beside = world.snapshot, wanted.group, world.members_beside(wanted.group)
    avoided = known_ids(snapshot, wanted.avoid)
    only = None if wanted.only is None else known_ids(snapshot, wanted.only)
    shared = SHARES in snapshot.by_trait
    found: CandidateSearch | SplitChoices
    if wanted.topology is None:
        found = world.searches.search_in(snapshot, wanted.request, budget, only, distinct_only=distinct_only)
    else:
        found = SplitChoices(
            snapshot,
            wanted.request,
            wanted.topology,
            world.distances,
            budget,
            among=only,
            first_only=distinct_only,
        )
    possible = found.roots()
    roots = (possible if only is None else possible.only_among(only)).from_anywhere(rng)
    # avoided roots are not searched; the filter below drops choices at other roots that use their sharing
    # providers
    if avoided:
        roots = (root for root in roots if root not in avoided)
    # the shortcut is valid only if choices stay at their host, because a choice of sharing providers alone
    # counts at other roots
    if group is not None and stays_at_its_host(snapshot, wanted.request):
        roots = (root for root in roots if group.allows_hosts((root,), beside))

    def is_allowed(each: Found | None) -> bool:
        if each is None:
            return True
        choice = _make_choice(world, each)
        if wanted.avoid and not avoided.isdisjoint(provider.root_id for provider, _ in choice.resources):
            return False
        return group is None or group.allows_hosts(choice.hosts, beside)

    def allowed_choices_at(root: int) -> Choices:
        # without sharing providers, the checks of roots above already decide about every choice
        return filter(is_allowed, found.choices_at(root)) if shared else found.choices_at(root)

    return roots, allowed_choices_at


def _find_alternates(
    wanted: WantedClaim, choice: HostChoice, others: Iterable[HostChoice]
) -> tuple[HostChoice, ...]:
    """Find up to the wanted number of choices on other hosts; fewer if the search takes too long."""
    found: dict[int, HostChoice] = {}
    if wanted.alternates:
        with suppress(BudgetExhausted):  # the choice is found already, and alternates are optional
            for other in islice(others, _MAX_TRIED):
                if other.root.id != choice.root.id:
                    found.setdefault(other.root.id, other)
                if len(found) == wanted.alternates:
                    break
    return tuple(found.values())
