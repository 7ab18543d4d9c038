"""Equal devices are one: of candidates that differ only in a swap of these, one comes before the others."""

from collections import Counter
from itertools import groupby

import pytest
from hypothesis import HealthCheck, given, settings

from placement.read_model.provider import Provider
from placement.read_model.snapshot import ModelSnapshot
from placement.search.candidate_search import find_candidates
from placement.search.candidates import AllocationCandidate, candidates_of
from placement.search.request import CandidatesRequest, RequestGroup
from placement.search.rules import NeedAssignment
from tests.examples import examples
from tests.placement.search.asking import comparable, find
from tests.placement.search.brute import all_candidates
from tests.placement.search.device_hosts import GPU, class_of, device_requests, unlike_hosts
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


def root_of(snapshot: ModelSnapshot, found: tuple[frozenset[tuple[int, str, int]], object]) -> int:
    provider_id, _, _ = next(iter(found[0]))
    return snapshot.providers[provider_id].root_id


def hosts(number: int, devices: int, nodes: int) -> ModelSnapshot:
    """Hosts with devices below their nodes, or below the root without nodes."""
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
    """The world of 8 devices and 6 groups: 8 * 7 * 6 * 5 * 4 * 3 candidates."""
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
    """The number of devices below each node of the host."""
    parents = [snapshot.providers[each].parent_id for each in candidate.resources]
    nodes = sorted(each.id for each in snapshot if "PCPU" in each.inventories)
    return tuple(parents.count(node) for node in nodes)


@pytest.fixture
def choices(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Counts the providers that are tried, and those that are taken."""
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


def test_an_impossible_number_of_devices_takes_few_choices(choices: Counter[str]) -> None:
    assert find(hosts(20, 16, 2), asking(17)) == []
    assert choices["tried"] < 1_000


def test_devices_with_amounts_of_their_own_take_few_choices(choices: Counter[str]) -> None:
    """One node alone cannot serve 15 groups with 14 devices, in whatever order they have them."""
    nodes = [Spec("n0", "h", {"PCPU": 4}), Spec("n1", "h", {"PCPU": 4})]
    devices = [Spec(f"{node.name}d{at}", node.name, {GPU: 4 + at}) for node in nodes for at in range(14)]
    groups = (RequestGroup("_cpu", {"PCPU": 1}), *asking(15).groups)
    near = CandidatesRequest(
        groups, group_policy="isolate", same_subtrees=(frozenset(each.suffix for each in groups),)
    )
    assert find(build(Spec("h"), *nodes, *devices), near) == []
    # 2 to the power of 14 at each node without proofs
    assert choices["taken"] < 1_000
