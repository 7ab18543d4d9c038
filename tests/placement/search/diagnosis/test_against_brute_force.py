"""Tests that explanations agree with those by brute force, in random small clouds."""

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from placement.read_model.snapshot import ModelSnapshot
from placement.schemas.candidates import parse_candidates
from placement.search.budget import BudgetExhausted, SearchBudget
from placement.search.diagnosis.clauses import RequestClause, joint_clauses, resource_clause, without_clauses
from placement.search.diagnosis.explanation import explain_request
from placement.search.diagnosis.relaxations import MAX_CHANGES, MAX_RELAXATIONS
from placement.search.request import CandidatesRequest, RequestGroup
from tests.examples import examples
from tests.placement.search.diagnosis import brute
from tests.placement.search.diagnosis.brute import is_query
from tests.placement.search.snapshots import Spec, build, name_to_uuid
from tests.placement.search.strategies import crowded_hosts, fleets, situations

EXAMPLES = examples(60)
exhaustive = settings(
    max_examples=EXAMPLES,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example],
)
anything = situations(requests_each=3) | fleets().map(lambda each: (each[0], [each[1]]))
one_each = situations(requests_each=1) | fleets().map(lambda each: (each[0], [each[1]]))
few = settings(exhaustive, max_examples=max(1, EXAMPLES // 5))  # trying all sets of clauses takes long


def typed(request: CandidatesRequest) -> list[tuple[str, str]]:
    """The request as query parameters of microversion 1.39."""
    pairs = [("group_policy", request.group_policy or "none")]
    for group in request.groups:
        resources = ",".join(f"{name}:{amount}" for name, amount in group.resources.items())
        pairs += [("resources" + group.suffix, resources)] if resources else []
        pairs += [("required" + group.suffix, "in:" + ",".join(sorted(each))) for each in group.required]
        pairs += [("required" + group.suffix, f"!{each}") for each in group.forbidden]
        pairs += [("member_of" + group.suffix, "in:" + ",".join(each)) for each in group.member_of]
        pairs += [("member_of" + group.suffix, f"!{each}") for each in group.forbidden_aggregates]
        pairs += [("in_tree" + group.suffix, group.in_tree)] if group.in_tree else []
    roots = [*request.root_required, *(f"!{each}" for each in request.root_forbidden)]
    pairs += [("root_required", ",".join(roots))] if roots else []
    return pairs + [("same_subtree", ",".join(each)) for each in request.same_subtrees]


def requests_of(situation: tuple[ModelSnapshot, list[CandidatesRequest]]) -> list[CandidatesRequest]:
    requests = [request for request in situation[1] if is_query(request)]
    assume(requests)
    return requests


@exhaustive
@given(anything)
def test_each_condition_leaves_the_right_numbers_of_hosts_and_providers(
    situation: tuple[ModelSnapshot, list[CandidatesRequest]],
) -> None:
    snapshot = situation[0]
    for request in requests_of(situation):
        explanation = explain_request(snapshot, request, SearchBudget())
        groups = {group.suffix: group for group in request.groups}
        for group in explanation.groups:
            clauses = [step.clause for step in group.steps]
            for number, step in enumerate(group.steps, start=1):
                ids = brute.passing(snapshot, groups[group.suffix], group.resources, clauses[:number])
                assert step.providers == len(ids)
                assert step.hosts == sum(
                    any(provider.id in ids for provider in brute.reachable(snapshot, root))
                    for root in brute.hosts(snapshot)
                )


@exhaustive
@given(anything)
def test_each_host_has_candidates_or_one_reason(
    situation: tuple[ModelSnapshot, list[CandidatesRequest]],
) -> None:
    snapshot = situation[0]
    for request in requests_of(situation):
        explanation = explain_request(snapshot, request, SearchBudget())
        assert explanation.hosts == len(brute.hosts(snapshot))
        assert explanation.fitting == brute.fitting(snapshot, request)
        assert explanation.hosts - explanation.fitting == sum(each.hosts for each in explanation.reasons)
        named = [example.root.id for each in explanation.reasons for example in each.examples]
        assert len(named) == len(set(named))
        fitting = {root.id for root in brute.hosts(snapshot) if brute.serves(snapshot, root, request)}
        assert fitting.isdisjoint(named)
        ties = dict(joint_clauses(request))
        for step in explanation.steps:
            if step.clause in ties and request.root_required == request.root_forbidden == frozenset():
                assert step.hosts == brute.fitting(snapshot, ties[step.clause])


@few
@given(one_each)
def test_relaxations_are_exactly_the_minimal_ones(
    situation: tuple[ModelSnapshot, list[CandidatesRequest]],
) -> None:
    for request in requests_of(situation):
        check_relaxations(situation[0], request)


def check_relaxations(snapshot: ModelSnapshot, request: CandidatesRequest) -> None:
    explanation = explain_request(snapshot, request, SearchBudget())
    if explanation.fitting:
        assert explanation.relaxations == ()
        return
    expected = brute.relaxations(snapshot, request, MAX_CHANGES)
    found = [
        frozenset(each.left_out) | {resource_clause(change.group, change.names[0]) for change in each.amounts}
        for each in explanation.relaxations
    ]
    assert len(set(found)) == len(found)
    assert [*map(len, found)] == sorted(map(len, found))
    assert set(found) <= expected
    if len(expected) <= MAX_RELAXATIONS:
        assert set(found) == expected


@few
@given(one_each, st.data())
def test_only_hosts_that_may_be_chosen_count(
    situation: tuple[ModelSnapshot, list[CandidatesRequest]], data: st.DataObject
) -> None:
    snapshot = situation[0]
    among = data.draw(st.sets(st.sampled_from([root.id for root in brute.hosts(snapshot)])))

    def fitting(request: CandidatesRequest | None) -> int:
        return sum(
            root.id in among and request is not None and brute.serves(snapshot, root, request)
            for root in brute.hosts(snapshot)
        )

    for request in requests_of(situation):
        explanation = explain_request(snapshot, request, SearchBudget(), among)
        assert explanation.hosts == len(among)
        assert explanation.fitting == fitting(request)
        for each in explanation.relaxations:
            amounts = {resource_clause(one.group, one.names[0]): one.amount for one in each.amounts}
            assert each.hosts == fitting(without_clauses(request, each.left_out, amounts)) > 0
        for largest in explanation.largest:
            clause = resource_clause(largest.clause.group, largest.clause.names[0])
            fits = [
                amount
                for amount in range(1, brute.MOST + 1)
                if fitting(without_clauses(request, (), {clause: amount}))
            ]
            assert largest.fits == max(fits, default=None)


@few
@given(one_each)
def test_a_request_with_the_changes_of_a_relaxation_can_be_typed(
    situation: tuple[ModelSnapshot, list[CandidatesRequest]],
) -> None:
    for request in requests_of(situation):
        assume(request.nested)  # older grammars cannot express these
        # query strings have no parameters for these
        assume(not any(group.inside or group.outside for group in request.groups))
        # a statement that is repeated in a query counts once
        assume(all(len({*group.required}) == len(group.required) for group in request.groups))
        assume(all(len({*group.member_of}) == len(group.member_of) for group in request.groups))
        for each in explain_request(situation[0], request, SearchBudget()).relaxations:
            amounts = {resource_clause(one.group, one.names[0]): one.amount for one in each.amounts}
            changed = without_clauses(request, each.left_out, amounts)
            assert changed is not None
            assert parse_candidates(typed(changed), (1, 39)) == changed


def test_a_group_that_is_left_out_is_left_out_of_same_subtree_rules() -> None:
    snapshot = build(Spec("cn"), Spec("numa0", "cn", {"PCPU": 4, "MEMORY_MB": 4096}))
    asked = {"resources_A": "PCPU:8", "resources_B": "MEMORY_MB:4096"}
    tied = {"same_subtree": "_A,_B", "group_policy": "isolate"}
    request = parse_candidates([*asked.items(), *tied.items()], (1, 39))
    (relaxation,) = (
        each
        for each in explain_request(snapshot, request, SearchBudget()).relaxations
        if len(each.left_out) == 1
    )
    assert (relaxation.left_out, relaxation.hosts) == ((resource_clause("_A", "PCPU"),), 1)
    expected = [("resources_B", "MEMORY_MB:4096"), ("same_subtree", "_B"), ("group_policy", "isolate")]
    assert without_clauses(request, relaxation.left_out) == parse_candidates(expected, (1, 39))


AGGREGATES = (frozenset({name_to_uuid("a")}), frozenset({name_to_uuid("b")}))


@pytest.mark.parametrize(
    ("suffix", "root", "child", "expected"),
    [
        ("", (), ("b",), ["a"]),  # providers in b only lack a, and no more
        ("_1", (), ("b",), ["a"]),
        ("", ("b",), ("a",), ["a", "b"]),  # either is in one aggregate: without the other clause it fits
        ("_1", ("b",), ("a",), ["b"]),
        ("", (), (), ["ab"]),
    ],
)
def test_only_empty_aggregates_are_left_out(
    suffix: str, root: tuple[str, ...], child: tuple[str, ...], expected: list[str]
) -> None:
    snapshot = build(Spec("cn", aggregates=root), Spec("numa", "cn", {"VCPU": 1}, (), child))
    request = CandidatesRequest((RequestGroup(suffix, {"VCPU": 1}, member_of=AGGREGATES),))
    wanted = {
        frozenset(RequestClause("member_of", suffix, (name_to_uuid(name),)) for name in names)
        for names in expected
    }
    assert {
        frozenset(each.left_out) for each in explain_request(snapshot, request, SearchBudget()).relaxations
    } >= wanted
    check_relaxations(snapshot, request)


@few
@given(one_each)
def test_relaxations_have_the_largest_amounts_that_fit_and_the_right_number_of_hosts(
    situation: tuple[ModelSnapshot, list[CandidatesRequest]],
) -> None:
    snapshot = situation[0]
    for request in requests_of(situation):
        asked = {
            resource_clause(group.suffix, name): amount
            for group in request.groups
            for name, amount in group.resources.items()
        }
        for each in explain_request(snapshot, request, SearchBudget()).relaxations:
            amounts = {resource_clause(one.group, one.names[0]): one.amount for one in each.amounts}
            changed = without_clauses(request, each.left_out, amounts)
            assert each.hosts == brute.fitting(snapshot, changed) > 0
            for clause, amount in amounts.items():
                assert amount == brute.largest(
                    snapshot, request, clause, asked[clause] - 1, each.left_out, amounts
                )
            for clause in asked.keys() & set(each.left_out):
                left_out = set(each.left_out) - {clause}
                assert brute.largest(snapshot, request, clause, asked[clause] - 1, left_out, amounts) is None


@few
@given(one_each | crowded_hosts().map(lambda each: (each[0], [each[1]])))
def test_the_largest_amount_is_the_largest_that_fits(
    situation: tuple[ModelSnapshot, list[CandidatesRequest]],
) -> None:
    snapshot = situation[0]
    for request in requests_of(situation):
        for each in explain_request(snapshot, request, SearchBudget()).largest:
            clause = resource_clause(each.clause.group, each.clause.names[0])
            assert each.fits == brute.largest(snapshot, request, clause)


@exhaustive
@given(anything, st.integers(1, 400))
def test_a_spent_budget_leaves_the_known_parts_and_names_the_missing_ones(
    situation: tuple[ModelSnapshot, list[CandidatesRequest]], steps: int
) -> None:
    snapshot = situation[0]
    for request in requests_of(situation):
        whole = explain_request(snapshot, request, SearchBudget())
        budget = SearchBudget(seconds=0)
        budget._steps_left = steps
        try:
            part = explain_request(snapshot, request, budget)
        except BudgetExhausted:
            continue
        named = {
            "groups": "groups",
            "largest": "max_amounts",
            "relaxations": "relaxations",
            "reasons": "reasons",
        }
        for field, name in named.items():
            if name not in part.incomplete:
                assert getattr(part, field) == getattr(whole, field)
        assert set(part.relaxations) <= set(whole.relaxations)
        assert set(part.largest) <= set(whole.largest)
        assert (part.fitting is None) == ("candidate_hosts" in part.incomplete)
        assert replace(part, incomplete=()) == whole or part.incomplete


def test_an_overcommitted_host_is_as_near_as_a_full_one() -> None:
    snapshot = build(
        *(
            Spec(name, None, {"VCPU": 8}, used={"VCPU": used})
            for name, used in (("b", 8), ("a", 20), ("d", 5), ("c", 9))
        )
    )
    request = CandidatesRequest((RequestGroup("", {"VCPU": 4}),))
    [reason] = explain_request(snapshot, request, SearchBudget()).reasons
    assert [(each.root.name, each.found) for each in reason.examples] == [
        ("d", 3),
        ("a", 0),
        ("b", 0),
        ("c", 0),
    ]


@exhaustive
@given(anything, st.data())
def test_explanations_after_writes_are_those_of_a_new_read_model(
    situation: tuple[ModelSnapshot, list[CandidatesRequest]], data: st.DataObject
) -> None:
    snapshot, requests = situation[0], requests_of(situation)
    for _ in range(3):
        for request in requests:
            found = explain_request(snapshot, request, SearchBudget())
            assert found == explain_request(ModelSnapshot([*snapshot]), request, SearchBudget())
        snapshot = snapshot.copy()
        provider = data.draw(st.sampled_from([*snapshot]))
        used = {name: data.draw(st.integers(0, each.total)) for name, each in provider.inventories.items()}
        snapshot.put(provider.with_usage(used))


def test_hosts_without_the_class_count_if_a_smaller_amount_of_a_pool_fits() -> None:
    snapshot = build(
        Spec("pool", None, {"DISK_GB": 100}, ["MISC_SHARES_VIA_AGGREGATE"], ["rack"]),
        *(Spec(f"cn{number}", None, {"VCPU": 8}, [], ["rack"]) for number in range(3)),
        Spec("cn4", None, {"VCPU": 8}),
    )
    request = CandidatesRequest((RequestGroup("", {"DISK_GB": 200}),))
    [relaxation] = explain_request(snapshot, request, SearchBudget()).relaxations
    assert ([each.amount for each in relaxation.amounts], relaxation.hosts) == ([100], 4)
