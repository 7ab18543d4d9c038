"""Tests of equal devices: of candidates that differ only in a swap of equal devices, one comes before all the
others.
"""

from collections import Counter
from itertools import groupby

import pytest
from hypothesis import HealthCheck, given, settings

from placement.read_model.provider import Provider
from placement.read_model.snapshot import ModelSnapshot
from placement.search import compiled_request
from placement.search.budget import SearchBudget
from placement.search.candidate_search import find_candidates
from placement.search.candidates import AllocationCandidate, candidates_of
from placement.search.request import CandidatesRequest, RequestGroup
from placement.search.rules import NeedAssignment
from tests.examples import examples
from tests.placement.search.asking import comparable, find
from tests.placement.search.brute import all_candidates
from tests.placement.search.device_hosts import (
    GPU,
    card_hosts,
    class_of,
    device_requests,
    distribution_of,
    function_requests,
    unlike_hosts,
)
from tests.placement.search.snapshots import Spec, build

pytestmark = pytest.mark.usefixtures("wide_from_the_start")
exhaustive = settings(
    max_examples=examples(450),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


@exhaustive
@given(unlike_hosts(), device_requests())
def test_search_finds_every_way_to_give_devices(snapshot: ModelSnapshot, request: CandidatesRequest) -> None:
    found = [comparable(candidate) for candidate in find(snapshot, request)]
    assert len(found) == len({*found})
    assert {*found} == all_candidates(snapshot, request)


@exhaustive
@given(unlike_hosts(), device_requests())
def test_the_first_candidates_of_each_host_are_all_distinct(
    snapshot: ModelSnapshot, request: CandidatesRequest
) -> None:
    classes = {
        (root_of(snapshot, each), class_of(snapshot, request, each))
        for each in all_candidates(snapshot, request)
    }
    found = [comparable(each) for each in find(snapshot, request)]
    for root, here in groupby(found, key=lambda each: root_of(snapshot, each)):
        number = sum(root == other for other, _ in classes)
        first = [class_of(snapshot, request, each) for each in here][:number]
        assert len({*first}) == number


@exhaustive
@given(unlike_hosts(), device_requests())
def test_a_limit_leaves_one_candidate_of_each_class(
    snapshot: ModelSnapshot, request: CandidatesRequest
) -> None:
    everything = all_candidates(snapshot, request)
    classes = {(root_of(snapshot, each), class_of(snapshot, request, each)) for each in everything}
    found = [comparable(each) for each in find(snapshot, request, max_candidates=len(classes) or 1)]
    assert len(found) == len({*found}) == len(classes)
    assert {*found} <= everything
    assert {(root_of(snapshot, each), class_of(snapshot, request, each)) for each in found} == classes


@exhaustive
@given(unlike_hosts(), device_requests())
def test_comparing_two_needs_at_a_time_keeps_the_order_of_candidates(
    snapshot: ModelSnapshot, request: CandidatesRequest
) -> None:
    found = [comparable(each) for each in find(snapshot, request)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compiled_request, "SMALL_BY_KINDS", 0)
        assert [comparable(each) for each in find(snapshot, request)] == found


@exhaustive
@given(card_hosts(), function_requests())
def test_a_limit_leaves_one_candidate_of_each_distribution_of_functions(
    snapshot: ModelSnapshot, request: CandidatesRequest
) -> None:
    everything = all_candidates(snapshot, request)
    expected = {(root_of(snapshot, each), distribution_of(snapshot, request, each)) for each in everything}
    found = [comparable(each) for each in find(snapshot, request, max_candidates=len(expected) or 1)]
    assert {*found} <= everything
    assert len(found) == len(expected)
    assert {(root_of(snapshot, each), distribution_of(snapshot, request, each)) for each in found} == expected


@exhaustive
@given(card_hosts(), function_requests())
def test_every_way_to_give_functions_is_found_once(
    snapshot: ModelSnapshot, request: CandidatesRequest
) -> None:
    found = [comparable(candidate) for candidate in find(snapshot, request)]
    assert len(found) == len({*found})
    assert {*found} == all_candidates(snapshot, request)


def root_of(snapshot: ModelSnapshot, found: tuple[frozenset[tuple[int, str, int]], object]) -> int:
    provider_id, _, _ = next(iter(found[0]))
    return snapshot.providers[provider_id].root_id


def hosts(number: int, devices: int, nodes: int) -> ModelSnapshot:
    """Hosts with devices below their NUMA nodes, or below the root if they have no nodes."""
    return build(
        *(
            spec
            for host in range(number)
            for spec in (
                Spec(f"h{host}"),
                *(Spec(f"h{host}n{node}", f"h{host}", {"PCPU": 8}) for node in range(nodes)),
                *(
                    Spec(
                        f"h{host}d{at}", f"h{host}n{at * nodes // devices}" if nodes else f"h{host}", {GPU: 1}
                    )
                    for at in range(devices)
                ),
            )
        )
    )


def asking(devices: int) -> CandidatesRequest:
    return CandidatesRequest(
        tuple(RequestGroup(f"_{number}", {GPU: 1}) for number in range(devices)), group_policy="none"
    )


def test_every_way_is_found_where_no_limit_is_given() -> None:
    """A host with 8 devices has 8 * 7 * 6 * 5 * 4 * 3 candidates for 6 groups."""
    found = find(hosts(1, 8, 0), asking(6))
    assert len(found) == len({comparable(each) for each in found}) == 20_160


@pytest.mark.parametrize(("devices", "groups"), [(8, 6), (16, 8), (16, 16)])
def test_a_limit_reaches_every_host(devices: int, groups: int) -> None:
    snapshot = hosts(30, devices, 0)
    found = find_candidates(snapshot, asking(groups), max_candidates=30)
    assert len({provider_set for provider_set, _ in found}) == 30


def test_a_limit_keeps_the_only_candidate_within_one_node() -> None:
    snapshot = hosts(1, 16, 2)
    found = [*candidates_of(find_candidates(snapshot, asking(8), max_candidates=9))]
    # 0 to 8 devices of the first node
    assert sorted(nodes_of(snapshot, each) for each in found) == [(n, 8 - n) for n in range(9)]


def nodes_of(snapshot: ModelSnapshot, candidate: AllocationCandidate) -> tuple[int, ...]:
    """The number of devices below each NUMA node of the host."""
    parents = [snapshot.providers[each].parent_id for each in candidate.resources]
    nodes = sorted(each.id for each in snapshot if "PCPU" in each.inventories)
    return tuple(parents.count(node) for node in nodes)


@pytest.fixture
def choices(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Counters of the providers that the search tries, and of those that it takes."""
    counts: Counter[str] = Counter()
    allowed = NeedAssignment.allows_provider

    def counting(self: NeedAssignment, index: int, provider: Provider) -> bool:
        counts["tried"] += 1
        return allowed(self, index, provider)

    take = NeedAssignment.take_provider

    def taking(self: NeedAssignment, index: int, provider: Provider) -> None:
        counts["taken"] += 1
        take(self, index, provider)

    monkeypatch.setattr(NeedAssignment, "allows_provider", counting)
    monkeypatch.setattr(NeedAssignment, "take_provider", taking)
    return counts


@pytest.mark.parametrize(("nodes", "distinct"), [(0, 1), (2, 9)])
def test_distinct_candidates_take_few_choices(nodes: int, distinct: int, choices: Counter[str]) -> None:
    assert len(find(hosts(1, 16, nodes), asking(8), max_candidates=distinct)) == distinct
    # each number of devices taken of each node, with each option
    assert choices["tried"] <= (1 + nodes) * 8 * 9 // 2 * 16


@pytest.mark.parametrize("groups", [15, 16])
def test_a_limit_beyond_the_distinct_candidates_takes_few_choices(groups: int, choices: Counter[str]) -> None:
    assert len(find(hosts(1, 16, 0), asking(groups), max_candidates=100)) == 100
    assert choices["tried"] < 10_000


@pytest.mark.parametrize(("nodes", "distinct"), [(0, 1), (2, 7)])
def test_functions_of_cards_with_unlike_amounts_are_one_pool(
    nodes: int, distinct: int, choices: Counter[str]
) -> None:
    """The host has 16 cards with 0 to 8 free functions, for 6 groups. The first node may give 0 to 6
    functions.
    """
    parents = [f"n{node}" for node in range(nodes)] or ["h"]
    cards = [Spec(f"d{at}", parents[at % len(parents)], {GPU: 8}, used={GPU: 5 * at % 9}) for at in range(16)]
    snapshot = build(Spec("h"), *(Spec(name, "h", {"PCPU": 8}) for name in parents if nodes), *cards)
    first = [*candidates_of(find_candidates(snapshot, asking(6), max_candidates=distinct))]
    by_parent = [
        Counter(snapshot.providers[at].parent_id for mapped in each.mappings.values() for at in mapped)
        for each in first
    ]
    assert len({frozenset(each.items()) for each in by_parent}) == distinct
    assert choices["tried"] < 2_000


def test_an_impossible_number_of_devices_takes_few_choices(choices: Counter[str]) -> None:
    assert find(hosts(20, 16, 2), asking(17)) == []
    assert choices["tried"] < 1_000


def test_devices_with_amounts_of_their_own_take_few_choices(choices: Counter[str]) -> None:
    """One node with 14 devices cannot serve 15 groups, in whatever order these get their devices."""
    nodes = [Spec("n0", "h", {"PCPU": 4}), Spec("n1", "h", {"PCPU": 4})]
    devices = [Spec(f"{node.name}d{at}", node.name, {GPU: 4 + at}) for node in nodes for at in range(14)]
    groups = (RequestGroup("_cpu", {"PCPU": 1}), *asking(15).groups)
    near = CandidatesRequest(
        groups, group_policy="isolate", same_subtrees=(frozenset(each.suffix for each in groups),)
    )
    assert find(build(Spec("h"), *nodes, *devices), near) == []
    # 2 to the power of 14 at each node without proofs
    assert choices["taken"] < 1_000


# a device may serve several groups, so that each partition of 8 is a way of its own
@pytest.mark.parametrize(("policy", "distinct"), [("none", 22), ("isolate", 1)])
def test_amounts_beyond_all_groups_make_no_difference(policy: str, distinct: int) -> None:
    devices = (Spec(f"h{host}d{at}", f"h{host}", {GPU: 8 + at}) for host in range(30) for at in range(16))
    snapshot = build(*(Spec(f"h{host}") for host in range(30)), *devices)
    request = CandidatesRequest(asking(8).groups, group_policy=policy)
    found = find_candidates(snapshot, request, max_candidates=30 * distinct)
    assert len({provider_set for provider_set, _ in found}) == 30


def test_equal_hosts_are_searched_once(choices: Counter[str]) -> None:
    """The request is the simplest one, and the hosts have eight nodes with different free amounts."""
    nodes = [
        Spec(f"h{host}n{at}", f"h{host}", {"PCPU": 64}, used={"PCPU": (host * 7 + at * 5) % 60})
        for host in range(50)
        for at in range(8)
    ]
    snapshot = build(*(Spec(f"h{host}") for host in range(50)), *nodes)
    found = find(snapshot, CandidatesRequest((RequestGroup("", {"PCPU": 2}),)))
    assert len(found) == 400
    assert choices["tried"] <= 3 * 8


def test_summaries_are_in_the_size_of_the_answer_once() -> None:
    class Sizes(SearchBudget):
        largest = 0

        def allows_size(self, size: int) -> bool:
            self.largest = max(self.largest, size)
            return super().allows_size(size)

    sizes = []
    # the first way of each host, and the others
    for limit in (300, 600):
        budget = Sizes()
        find_candidates(hosts(300, 8, 0), asking(2), max_candidates=limit, budget=budget)
        sizes.append(budget.largest)
    # nine providers of each host have a summary, of some 400 bytes
    assert sizes[1] < 1.2 * sizes[0]
