"""Tests that the number of guests that fit is that of a brute-force count, in random small clouds."""

from unittest.mock import patch

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from placement.read_model.provider import SHARES
from placement.read_model.snapshot import ModelSnapshot
from placement.search.budget import SearchBudget
from placement.search.request import CandidatesRequest, RequestGroup
from placement_extras.planner import proportions
from placement_extras.planner.capacity import CloudHosts, count_flavor
from placement_extras.planner.packing import FitBounds
from placement_extras.planner.proportions import FlavorProportion, count_sets
from tests.examples import examples
from tests.placement.search.diagnosis.brute import is_query
from tests.placement.search.strategies import crowded_hosts, fleets, packings, situations, sizes
from tests.placement_extras.planner import brute

exhaustive = settings(
    max_examples=examples(60),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example],
)
one_each = (
    situations(requests_each=1).map(lambda each: (each[0], each[1][0])).filter(lambda each: is_query(each[1]))
)
anything = one_each | fleets() | crowded_hosts() | packings() | sizes()
Situation = tuple[ModelSnapshot, CandidatesRequest]


@exhaustive
@given(anything)
def test_the_guests_that_fit_are_those_that_find_a_place(situation: Situation) -> None:
    snapshot, request = situation
    found = count_flavor(CloudHosts(snapshot, SearchBudget()), request)
    expected = brute.most(snapshot, request)
    assert found.fit == FitBounds(expected, expected)


@exhaustive
@given(anything)
def test_hosts_are_those_that_could_serve_it_with_nothing_used(situation: Situation) -> None:
    snapshot, request = situation
    found = count_flavor(CloudHosts(snapshot, SearchBudget()), request)
    serving = [root for root in brute.roots(snapshot) if brute.serves_when_empty(snapshot, request, root.id)]
    assert found.hosts == len(serving)
    for short in found.shortages:
        assert {each.root.id for each in short.examples} <= {root.id for root in serving}


@exhaustive
@given(anything)
def test_each_aggregate_has_its_number_of_guests(situation: Situation) -> None:
    snapshot, request = situation
    found = count_flavor(CloudHosts(snapshot, SearchBudget()), request).by_aggregate
    for aggregate in {each for root in brute.roots(snapshot) for each in root.aggregates}:
        members = {root.id for root in brute.roots(snapshot) if aggregate in root.aggregates}
        expected = brute.most(snapshot, request, on=members)
        assert found.get(aggregate, FitBounds(0, 0)) == FitBounds(expected, expected)


@exhaustive
@given(anything)
def test_the_guests_without_the_worst_host_are_counted(situation: Situation) -> None:
    snapshot, request = situation
    expected = {root.id: brute.most(snapshot, request, [root.id]) for root in brute.roots(snapshot)}
    found = count_flavor(CloudHosts(snapshot, SearchBudget()), request)
    worst = min(expected.values())
    if found.worst is None:
        assert found.fit.lower_bound == worst
    else:
        assert found.without_worst == FitBounds(worst, worst)
        assert expected[found.worst.id] == worst
    for root, left in expected.items():
        assert count_flavor(CloudHosts(snapshot, SearchBudget(), {root}), request).fit == FitBounds(
            left, left
        )


@exhaustive
@given(anything)
def test_stranded_amounts_serve_their_guests_with_enough_of_the_short_classes(
    situation: Situation,
) -> None:
    snapshot, request = situation
    asked = {name for group in request.groups for name in group.resources}
    found = count_flavor(CloudHosts(snapshot, SearchBudget()), request)
    assert sum(each.hosts for each in found.shortages) == found.hosts - found.candidate_hosts
    for short in found.shortages:
        assert not set(short.classes) & set(short.stranded)
        assert set(short.classes) | set(short.stranded) == asked or snapshot.by_trait.get(SHARES)
        for each in short.examples:
            root = {each.root.id}
            empty = brute.when_empty(snapshot, each.root.id)
            assert brute.most(snapshot, request, on=root) == 0
            if short.stranded:
                plenty = brute.with_plenty(snapshot, short.classes)
                # in the ways that it has with nothing used
                assert brute.most(plenty, request, on=root, among=empty) == each.guests
                # there is no way that lacks fewer classes
                for name in short.classes:
                    rest = brute.with_plenty(snapshot, set(short.classes) - {name})
                    assert brute.most(rest, request, on=root, among=empty) == 0


ONE_CPU = CandidatesRequest((RequestGroup("", {"VCPU": 1}),))
several = situations(requests_each=2).filter(lambda each: all(map(is_query, each[1]))) | fleets().map(
    lambda each: (each[0], [each[1], ONE_CPU])
)


@exhaustive
@given(several, st.tuples(st.integers(1, 2), st.integers(1, 3)), st.booleans())
def test_the_sets_of_flavors_that_fit_are_those_that_find_a_place(
    situation: tuple[ModelSnapshot, list[CandidatesRequest]], numbers: tuple[int, int], falls_back: bool
) -> None:
    snapshot, (one, other) = situation
    cloud = CloudHosts(snapshot, SearchBudget())
    flavors = [(one, other), (other,)] if falls_back else [(one,), (other,)]
    shares = [
        FlavorProportion(
            requests, number, sum(count_flavor(cloud, request).fit.upper_bound for request in requests)
        )
        for requests, number in zip(flavors, numbers, strict=True)
    ]
    expected = brute.most_sets(snapshot, flavors, numbers)
    found = count_sets(cloud, shares)
    assert found.lower_bound <= expected <= found.upper_bound
    with patch.object(proportions, "_MAX_TRIES", 1_000_000):  # it is not given up
        assert count_sets(cloud, shares) == FitBounds(expected, expected)
