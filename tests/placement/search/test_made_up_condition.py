"""Tests that a condition is a single class, listed once: a new condition works everywhere without other
changes.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass, replace

import pytest
from hypothesis import HealthCheck, assume, given, settings

from placement.read_model.provider import Provider
from placement.read_model.snapshot import ModelSnapshot
from placement.search import conditions
from placement.search.budget import SearchBudget
from placement.search.claims.claim import ClaimScenario, WantedClaim
from placement.search.claims.placement import UnplacedClaim, place_claims
from placement.search.conditions import ConditionWords, ProviderCondition, needs_of
from placement.search.diagnosis import sentences
from placement.search.diagnosis.clauses import (
    RequestClause,
    droppable_clauses,
    resource_clause,
    without_clauses,
)
from placement.search.diagnosis.explanation import explain_request
from placement.search.equivalence import group_trees
from placement.search.request import CandidatesRequest, RequestGroup
from placement.search.roots import SharingProviders, possible_roots
from placement.store.consumers import ConsumerOwnership
from placement_extras.console import questions
from tests.examples import examples
from tests.placement.search.asking import comparable, find
from tests.placement.search.snapshots import Spec, build
from tests.placement.search.strategies import fleets, situations


@dataclass(frozen=True, slots=True)
class LabelledGroup(RequestGroup):
    """A request group with one more field, for labels."""

    labels: tuple[frozenset[str], ...] = ()


@dataclass(frozen=True, slots=True)
class HasLabels(ProviderCondition):
    """A condition for tests: the provider has a label of each set, with any value."""

    name = "labels"
    field = "labels"
    words = ConditionWords("have {names}", "lack {any_of}", "labels")
    index = "by_attribute"

    def met_by(self, provider: Provider, snapshot: ModelSnapshot) -> bool:
        return all(any(name in provider.attributes for name in names) for names in self.sets)


@pytest.fixture(autouse=True, scope="module")
def registered() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(conditions, "GROUP_CONDITIONS", (*conditions.GROUP_CONDITIONS, HasLabels))
        yield


def labelled(snapshot: ModelSnapshot, *names: str) -> ModelSnapshot:
    """The snapshot with labels in place of these traits."""
    return ModelSnapshot(
        replace(
            each,
            traits=each.traits - {*names},
            attributes=dict.fromkeys(sorted(each.traits.intersection(names)), 1.0),
        )
        for each in snapshot
    )


def group(suffix: str = "", **said: object) -> LabelledGroup:
    return LabelledGroup(suffix, {"VCPU": 2}, **said)  # type: ignore[arg-type]  # of many types


@pytest.fixture
def cloud() -> ModelSnapshot:
    """A snapshot with hosts of one class. The third host has a label, and the first has less free."""
    hosts = [
        Spec(f"cn{at}", None, {"VCPU": 8}, ["L"] if at == 2 else [], [], {"VCPU": 7 * (at == 0)})
        for at in range(4)
    ]
    return labelled(build(*hosts), "L")


ASKED = CandidatesRequest((group(labels=(frozenset("L"),)),))
CLAUSE = RequestClause("labels", "", ("L",))


def test_candidates_meet_it_in_trees_of_one_class(cloud: ModelSnapshot) -> None:
    assert [each.provider_set.members[0].name for each in find(cloud, ASKED)] == ["cn2"]
    assert len({tree.kind for tree in cloud.whole_trees().values()}) == 1


def test_the_search_begins_at_its_index(cloud: ModelSnapshot) -> None:
    budget = SearchBudget()
    roots = possible_roots(cloud, ASKED, needs_of(ASKED), SharingProviders(cloud, budget))
    assert [cloud.providers[root].name for root in roots] == ["cn2"]


def test_hosts_are_distinguished_by_it(cloud: ModelSnapshot) -> None:
    alike = group_trees(cloud, ASKED, None, SearchBudget())
    assert sorted([tree.root.name for tree in each.member_trees] for each in alike) == [
        ["cn0"],
        ["cn1", "cn3"],
        ["cn2"],
    ]


def test_explanations_count_it_and_have_its_words(cloud: ModelSnapshot) -> None:
    nowhere = CandidatesRequest((group(labels=(frozenset("LM"), frozenset("X"))),))
    found = explain_request(cloud, nowhere, SearchBudget())
    steps = [(step.clause.condition, step.clause.names, step.hosts) for step in found.groups[0].steps]
    assert steps[-2:] == [("labels", ("L", "M"), 1), ("labels", ("X",), 0)]
    assert sentences.explanation_sentence(found) == (
        "0 of 4 hosts: 2 lack any of L, M, 1 has less than 2 VCPU free (most: 1 on cn0), 1 lacks X; "
        "leaving out labels=X would leave 1 host"
    )
    assert (
        questions.condition_words({"condition": "labels", "names": ["L", "M"], "amount": None})
        == "have L or M"
    )


def test_relaxations_leave_it_out_and_keep_it_when_others_are_left_out(cloud: ModelSnapshot) -> None:
    asked = CandidatesRequest((replace(group(labels=(frozenset("L"),)), resources={"VCPU": 9, "PCPU": 1}),))
    assert CLAUSE in droppable_clauses(cloud, asked)
    found = explain_request(cloud, CandidatesRequest((group(labels=(frozenset("X"),)),)), SearchBudget())
    assert [(each.left_out, each.hosts) for each in found.relaxations] == [
        ((RequestClause("labels", "", ("X",)),), 3)
    ]
    left = without_clauses(asked, {resource_clause("", "PCPU")})
    assert left is not None
    assert left.groups == (LabelledGroup("", {"VCPU": 9}, labels=(frozenset("L"),)),)
    left = without_clauses(asked, {CLAUSE})
    assert left is not None
    assert left.groups == (LabelledGroup("", {"VCPU": 9, "PCPU": 1}),)


def test_claims_go_to_hosts_that_meet_it(cloud: ModelSnapshot) -> None:
    owner = ConsumerOwnership("project", "user", "INSTANCE")
    wanted = [WantedClaim(str(number), None, owner, ASKED, (1, 39)) for number in range(5)]
    world = ClaimScenario.from_members(cloud, {}, wanted)
    placed = place_claims(world, wanted[:4], SearchBudget(), random.Random(0))
    assert not isinstance(placed, UnplacedClaim)
    assert {each.choice.root.name for each in placed} == {"cn2"}
    unplaced = place_claims(world, wanted, SearchBudget(), random.Random(0))
    assert isinstance(unplaced, UnplacedClaim)
    assert unplaced.number == 4


def as_labels(request: CandidatesRequest) -> CandidatesRequest:
    """The request with labels instead of traits that groups with a suffix require."""
    return replace(
        request,
        groups=tuple(
            LabelledGroup(each.suffix, each.resources, labels=each.required)
            if each.suffix
            else LabelledGroup(each.suffix, each.resources)
            for each in request.groups
        ),
    )


def bare(request: CandidatesRequest) -> CandidatesRequest:
    """The request without any condition except traits that groups with a suffix require."""
    groups = tuple(
        LabelledGroup(each.suffix, each.resources, required=each.required if each.suffix else ())
        for each in request.groups
    )
    return replace(request, groups=groups, root_required=frozenset(), root_forbidden=frozenset())


@settings(deadline=None, max_examples=examples(40), suppress_health_check=list(HealthCheck))
@given(situations(requests_each=2) | fleets().map(lambda each: (each[0], [each[1]])))
def test_a_made_up_condition_works_as_required_traits_do(
    situation: tuple[ModelSnapshot, list[CandidatesRequest]],
) -> None:
    snapshot, requests = situation
    traits = sorted({trait for each in snapshot for trait in each.traits if "SHARES" not in trait})
    with_labels = labelled(snapshot, *traits)
    for request in map(bare, requests):
        named = frozenset[str]().union(*request.same_subtrees)
        assume(all(each.resources or (each.suffix in named and each.required) for each in request.groups))
        other = as_labels(request)
        assert [*map(comparable, find(snapshot, request))] == [*map(comparable, find(with_labels, other))]
        by_trait = sentences.explanation_document(explain_request(snapshot, request, SearchBudget()))
        by_label = sentences.explanation_document(explain_request(with_labels, other, SearchBudget()))
        assert by_trait == _renamed(by_label)


def _renamed(document: object) -> object:
    """The explanation about labels, changed to the words about required traits."""
    if isinstance(document, dict):
        return {key: _renamed(value) for key, value in document.items()}
    if isinstance(document, list):
        return [_renamed(each) for each in document]
    if isinstance(document, str):
        return "required" if document == "labels" else document.replace("labels_", "required_")
    return document


@dataclass(frozen=True, slots=True)
class WiderGroup(LabelledGroup):
    """A request group with one more field, which no condition reads."""

    made_up: str = ""


def test_a_condition_without_a_clause_stays_when_others_are_left_out() -> None:
    group = WiderGroup("_A", {"VCPU": 1, "DISK_GB": 2}, made_up="kept")
    left = without_clauses(CandidatesRequest((group,)), {resource_clause("_A", "DISK_GB")})
    assert left is not None
    assert left.groups == (WiderGroup("_A", {"VCPU": 1}, made_up="kept"),)
