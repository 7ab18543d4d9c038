"""Tests that trees share compiled requests only if they agree in the attributes that conditions read."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import product
from unittest.mock import patch

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from placement.read_model.provider import Provider
from placement.read_model.snapshot import ModelSnapshot
from placement.search import candidate_search as module_of_search
from placement.search import conditions as module_of_needs
from placement.search.conditions import ProviderCondition, ProviderNeed
from placement.search.request import CandidatesRequest, RequestGroup
from tests.examples import examples
from tests.placement.search.asking import comparable, find
from tests.placement.search.snapshots import Spec, build
from tests.placement.search.strategies import fleets, situations

ODD = "CUSTOM_ODD"


@dataclass(frozen=True, slots=True)
class EvenGeneration(ProviderCondition):
    """A condition for tests: the generation of the provider is even. Nothing else in a search reads
    generations.
    """

    def met_by(self, provider: Provider, snapshot: ModelSnapshot) -> bool:
        return provider.generation % 2 == 0


@dataclass(frozen=True, slots=True)
class EvenGenerationOfKind(EvenGeneration):
    """The same condition with a wrong declaration of the attributes that it reads. Trees of one class may
    differ in generations.
    """

    reads = ("traits",)


@dataclass(frozen=True, slots=True)
class WithHealthyRoot(ProviderCondition):
    """A condition for tests on a property that only the root of the provider's tree has."""

    def met_by(self, provider: Provider, snapshot: ModelSnapshot) -> bool:
        return snapshot.providers[provider.root_id].generation % 2 == 0


def also(condition: ProviderCondition) -> Callable[[CandidatesRequest], tuple[ProviderNeed, ...]]:
    """The needs of a request, each with one more condition."""

    def needs_of(request: CandidatesRequest) -> tuple[ProviderNeed, ...]:
        needs = module_of_needs.needs_of(request)
        return tuple(replace(need, conditions=(*need.conditions, condition)) for need in needs)

    return needs_of


def found(snapshot: ModelSnapshot, request: CandidatesRequest, condition: ProviderCondition) -> set[object]:
    with patch.object(module_of_search, "needs_of", also(condition)):
        return {comparable(candidate) for candidate in find(snapshot, request)}


def with_generations(snapshot: ModelSnapshot, generations: Sequence[int]) -> ModelSnapshot:
    """The snapshot with these generations in turn. A provider with an odd generation has the trait."""
    return ModelSnapshot(
        replace(
            provider,
            generation=generation,
            traits=provider.traits | ({ODD} if generation % 2 else set()),
        )
        for provider, generation in zip(sorted(snapshot, key=lambda each: each.id), generations, strict=False)
    )


def forbidding(request: CandidatesRequest, trait: str) -> CandidatesRequest:
    groups = tuple(replace(group, forbidden=group.forbidden | {trait}) for group in request.groups)
    return replace(request, groups=groups)


generations = st.lists(st.integers(0, 1), min_size=16, max_size=16)


@settings(deadline=None, max_examples=examples(60), suppress_health_check=list(HealthCheck))
@given(fleets(), generations)
def test_an_unknown_condition_holds_in_each_tree_of_a_fleet(
    situation: tuple[ModelSnapshot, CandidatesRequest], generations: list[int]
) -> None:
    snapshot, request = situation
    snapshot = with_generations(snapshot, generations)
    by_trait = {comparable(candidate) for candidate in find(snapshot, forbidding(request, ODD))}
    without_trait = ModelSnapshot(replace(each, traits=each.traits - {ODD}) for each in snapshot)
    assert found(without_trait, request, EvenGeneration()) == by_trait


@settings(deadline=None, max_examples=examples(30), suppress_health_check=list(HealthCheck))
@given(situations(requests_each=4), generations)
def test_an_unknown_condition_holds_beside_all_others(
    situation: tuple[ModelSnapshot, list[CandidatesRequest]], generations: list[int]
) -> None:
    snapshot, requests = situation
    snapshot = with_generations(snapshot, generations)
    without_trait = ModelSnapshot(replace(each, traits=each.traits - {ODD}) for each in snapshot)
    for request in requests:
        by_trait = {comparable(candidate) for candidate in find(snapshot, forbidding(request, ODD))}
        assert found(without_trait, request, EvenGeneration()) == by_trait


def hosts(*generations: int) -> ModelSnapshot:
    """A snapshot of hosts of one class."""
    snapshot = build(*(Spec(f"cn{number}", None, {"VCPU": 4}) for number, _ in enumerate(generations)))
    return ModelSnapshot(replace(each, generation=generations[each.id - 1]) for each in snapshot)


REQUEST = CandidatesRequest((RequestGroup("_1", {"VCPU": 1}),))


@pytest.mark.parametrize("generations", list(product((0, 1), repeat=3)))
@pytest.mark.parametrize("condition", [EvenGeneration(), WithHealthyRoot()])
def test_hosts_of_one_class_are_distinguished_by_it(
    condition: ProviderCondition, generations: tuple[int, ...]
) -> None:
    serving = {number + 1 for number, generation in enumerate(generations) if generation == 0}
    candidates = found(hosts(*generations), REQUEST, condition)
    assert candidates == {
        (frozenset({(number, "VCPU", 1)}), frozenset({("_1", number)})) for number in serving
    }


def test_the_declared_attributes_of_a_condition_decide() -> None:
    """If a condition reads more attributes than it declares, trees share wrong results. The tests above
    notice this.
    """
    assert len(found(hosts(0, 1), REQUEST, EvenGeneration())) == 1
    assert len(found(hosts(0, 1), REQUEST, EvenGenerationOfKind())) == 2
