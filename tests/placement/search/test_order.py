"""Tests of the order of the candidates of one root. The order does not change the set of candidates."""

from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import HealthCheck, given, settings

from placement.read_model.provider import SHARES
from placement.read_model.snapshot import ModelSnapshot
from placement.search.candidate_search import find_candidates
from placement.search.candidates import AllocationCandidate, Offer, candidates_of, topology_first
from placement.search.request import CandidatesRequest, RequestGroup
from tests.examples import examples
from tests.placement.search.snapshots import Spec, build
from tests.placement.search.strategies import situations

HOSTS = build(
    *(
        spec
        for host in ("h0", "h1")
        for spec in (
            Spec(host, None, {"MEMORY_MB": 64}),
            *(Spec(f"{host}n{node}", host, {"PCPU": 4}) for node in (0, 1)),
            *(Spec(f"{host}n{node}cache", f"{host}n{node}", {"CUSTOM_LLC": 8}) for node in (0, 1)),
        )
    )
)


def asking(*resources: dict[str, int], limit: int | None = None) -> CandidatesRequest:
    groups = (RequestGroup(f"_{number}", each) for number, each in enumerate(resources))
    return CandidatesRequest(tuple(groups), group_policy="none", limit=limit)


CPUS_AND_CACHE = asking({"PCPU": 1}, {"CUSTOM_LLC": 1}, {"PCPU": 1})


def root_of(candidate: AllocationCandidate) -> int:
    return candidate.provider_set.members[0].root_id


def spread(candidate: AllocationCandidate) -> tuple[int, int]:
    """The number of branches that a candidate uses, and the number of its providers."""
    # the provider set may have only the options of the request, without their parents
    whole = getattr(candidate.provider_set, "whole", candidate.provider_set)
    members = {each.id: each for each in whole.members}
    own = {each.id for each in whole.members[: whole.own_count]}
    used = candidate.resources.keys()
    branches = set()
    for provider_id in used & own:
        path = [members[provider_id]]
        while (parent := path[-1].parent_id) is not None:
            path.append(members[parent])
        if len(path) > 1:
            branches.add(path[-2].id)
    return len(branches), len(used)


def names(offers: Sequence[Offer]) -> list[str]:
    """The names of the providers of each candidate."""
    return [
        " ".join(sorted(each.name for each in offer.provider_set.members if each.id in offer.resources))
        for offer in candidates_of(offers)
    ]


def test_candidates_within_one_node_come_first_at_each_host() -> None:
    found = names(topology_first(find_candidates(HOSTS, CPUS_AND_CACHE)))
    assert len(found) == 16
    for host, part in (("h0", found[:8]), ("h1", found[8:])):
        assert part[:2] == [f"{host}n0 {host}n0cache", f"{host}n1 {host}n1cache"]
        assert all(f"{host}n0" in each and f"{host}n1" in each for each in part[2:])


def test_equivalent_hosts_are_ordered_once() -> None:
    offers = topology_first(find_candidates(HOSTS, CPUS_AND_CACHE))
    used_by = Counter(id(batch) for _, batch in offers)
    assert {*used_by.values()} == {len({provider_set for provider_set, _ in offers})} == {2}


@pytest.mark.parametrize("limit", [1, 3, 9])
def test_a_limit_leaves_the_same_candidates(limit: int) -> None:
    found = find_candidates(HOSTS, asking({"PCPU": 1}, {"CUSTOM_LLC": 1}, {"PCPU": 1}, limit=limit))
    assert sorted(names(topology_first(found))) == sorted(names(found))


def test_sharing_providers_are_no_branch() -> None:
    pool = Spec("pool", None, {"DISK_GB": 9}, [SHARES], ["all"])
    snapshot = build(Spec("h", None, {"MEMORY_MB": 9}, (), ["all"]), Spec("n", "h", {"PCPU": 2}), pool)
    (candidate,) = candidates_of(find_candidates(snapshot, asking({"PCPU": 1}, {"DISK_GB": 1})))
    by_name = dict(
        zip(
            [each.name for each in candidate.provider_set.members],
            candidate.provider_set.member_branches,
            strict=True,
        )
    )
    at = [each.name for each in candidate.provider_set.members].index("n")
    assert by_name == {"h": None, "n": at, "pool": None}


@settings(max_examples=examples(100), suppress_health_check=list(HealthCheck))
@given(situations(requests_each=2))
def test_only_the_order_within_a_root_changes(
    situation: tuple[ModelSnapshot, list[CandidatesRequest]],
) -> None:
    snapshot, requests = situation
    for request in requests:
        for strategy in ("depth-first", "breadth-first"):
            before = find_candidates(snapshot, request, strategy=strategy)  # type: ignore[arg-type]  # of a list
            after = topology_first(before)
            assert [each for each, _ in before] == [each for each, _ in after]
            assert [len(batch) for _, batch in before] == [len(batch) for _, batch in after]
            was, now = (list(candidates_of(offers)) for offers in (before, after))
            assert Counter(map(repr, was)) == Counter(map(repr, now))
            for provider_set in {each for each, _ in after}:
                ours = [spread(each) for each in now if each.provider_set is provider_set]
                assert ours == sorted(ours)
