"""Tests of the budget of a search, and of the answer if the budget is spent."""

import re
from itertools import pairwise
from unittest.mock import patch

import orjson
import pytest

from placement.exceptions import SEARCH_TOO_LONG, InvalidRequest, Unavailable
from placement.read_model.provider import SHARES
from placement.read_model.snapshot import ModelSnapshot
from placement.search import budget as budget_module
from placement.search import candidate_search as module
from placement.search.budget import BudgetExhausted, SearchBudget
from placement.search.candidate_search import find_candidates
from placement.search.candidates import candidates_of, topology_first
from placement.search.conditions import needs_of
from placement.search.rendering import ProviderSummaries, render_pieces
from placement.search.request import CandidatesRequest, RequestGroup
from placement.search.roots import SharingProviders, possible_roots
from placement.search.rules import NeedAssignment, RequestRules, fits_at_all
from tests.placement.search.asking import render
from tests.placement.search.packing import asked, hard_question, host
from tests.placement.search.snapshots import Spec, build, name_to_uuid

HARD = build(*host("hard"))
AMPLE = 60
"""Seconds of work, far more than a search should need."""


def crowd(hosts: int, devices: int = 8) -> ModelSnapshot:
    """A snapshot of hosts with many devices each."""
    return build(
        *(
            spec
            for number in range(hosts)
            for spec in (
                Spec(f"cn{number}", None, {"VCPU": 8}),
                *(Spec(f"dev{number}_{each}", f"cn{number}", {"CUSTOM_DEV": 9}) for each in range(devices)),
            )
        )
    )


def groups(number: int, limit: int | None = None) -> CandidatesRequest:
    each = (RequestGroup(f"_{suffix}", {"CUSTOM_DEV": 1}) for suffix in range(number))
    return CandidatesRequest((RequestGroup("", {"VCPU": 1}), *each), group_policy="none", limit=limit)


def test_a_search_that_finds_nothing_in_time_is_refused_with_the_group_to_blame() -> None:
    budget = SearchBudget(seconds=0.1)
    with pytest.raises(InvalidRequest) as refusal:
        find_candidates(HARD, hard_question(), budget=budget)
    assert (refusal.value.code, budget.ended) == (SEARCH_TOO_LONG, "deadline")
    found = re.fullmatch(
        r"No allocation candidate was found in 0.1 seconds of work, which is the limit "
        r"\(\[api\] candidates_deadline\)\. In \d+ ways to serve other groups "
        r"there was no place left for resources(_\d+)=(\S+): ask for fewer groups, or for smaller amounts\.",
        refusal.value.detail,
    )
    assert found is not None, refusal.value.detail
    assert found[2] == asked(found[1])


def test_a_tree_that_is_hard_to_fill_does_not_hold_up_the_others() -> None:
    snapshot = build(*host("hard"), *host("easy", spare=60))
    budget = SearchBudget(AMPLE)
    found = list(candidates_of(find_candidates(snapshot, hard_question(limit=5), budget=budget)))
    assert [each.provider_set.members[0].name for each in found] == ["easy"] * 5
    assert budget.ended is None


def test_candidates_found_in_time_are_returned() -> None:
    budget = SearchBudget(seconds=0.1)
    found = list(candidates_of(find_candidates(crowd(1), groups(12), budget=budget)))
    assert budget.ended == "deadline"
    assert found
    assert all(len(each.mappings) == 13 for each in found)


def test_an_answer_does_not_become_larger_than_allowed() -> None:
    budget = SearchBudget(AMPLE, size=2_000_000)
    snapshot = crowd(300)
    found = find_candidates(snapshot, groups(4), budget=budget)
    assert budget.ended == "size"
    size = len(render(snapshot, found, (1, 39)))
    assert 1_000_000 < size < 6_000_000


@pytest.mark.parametrize(
    ("snapshot", "asked_for"),
    [
        (crowd(20), groups(1)),
        (crowd(20), groups(3, limit=500)),
        (build(*host("roomy", spare=60)), hard_question(limit=50)),  # groups that often meet at a provider
    ],
)
def test_the_size_of_an_answer_is_estimated(snapshot: ModelSnapshot, asked_for: CandidatesRequest) -> None:
    sizes: list[int] = []

    def allow(budget: SearchBudget, size: int) -> bool:
        sizes.append(size)
        return True

    with patch.object(SearchBudget, "allows_size", allow), patch.object(module, "_CHUNK", 1):
        size = len(render(snapshot, find_candidates(snapshot, asked_for), (1, 39)))
    assert sizes[-1] / 3 < size < sizes[-1] * 1.5


def test_short_searches_never_yield() -> None:
    def refuse() -> None:
        raise AssertionError("gave way")

    assert find_candidates(crowd(3), groups(2, limit=10), budget=SearchBudget(yield_lock=refuse))


def test_long_searches_yield_regularly_until_a_yield_raises() -> None:
    calls = 0

    def stop() -> None:
        nonlocal calls
        calls += 1
        if calls == 20:
            raise Unavailable("nobody waits")

    with pytest.raises(Unavailable, match="nobody waits"):
        find_candidates(HARD, hard_question(), budget=SearchBudget(AMPLE, yield_lock=stop))
    assert calls == 20


@pytest.mark.parametrize("minor", [10, 29, 39])
def test_ordering_and_rendering_yield_to_other_threads(minor: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """An answer is rendered even if the budget is spent."""
    calls = 0

    def count() -> None:
        nonlocal calls
        calls += 1

    found = find_candidates(crowd(20), groups(2))
    candidates = sum(len(batch) for _, batch in found)
    monkeypatch.setattr(budget_module, "_SLICE", 0.0)
    budget = SearchBudget(seconds=0.0, yield_lock=count, first_slice=0.0)
    ordered = topology_first(found, budget)
    in_order, calls = calls, 0
    body = b"".join(render_pieces(crowd(20), ordered, (1, minor), ProviderSummaries(), budget))
    assert in_order >= 1  # once, as all hosts are alike
    assert calls >= 3
    assert budget.ended is None  # nothing is missing
    assert orjson.loads(body) == orjson.loads(render(crowd(20), topology_first(found), (1, minor)))
    assert len(orjson.loads(body)["allocation_requests"]) == candidates


def test_an_answer_of_many_groups_stays_within_its_limit_from_the_start() -> None:
    budget = SearchBudget(AMPLE, size=1_000_000)
    size = len(render(crowd(300), find_candidates(crowd(300), groups(60), budget=budget), (1, 39)))
    assert budget.ended == "size"
    assert size < 3_000_000


class Spending(SearchBudget):
    """A budget without limits that records the steps of each part of a search."""

    def __init__(self) -> None:
        super().__init__()
        self.parts: list[int] = []

    def spend(self, steps: int = 1) -> None:
        self.parts.append(steps)
        super().spend(steps)


def test_the_order_of_equal_groups_has_a_bounded_price() -> None:
    # 60 groups on 8 equal devices: a proof that no other distinct way is left takes a million steps per host
    budget = Spending()
    find_candidates(crowd(30), groups(60, limit=100), budget=budget)
    assert sum(budget.parts) < 20_000


def test_rules_on_several_needs_are_counted_for_each_need() -> None:
    snapshot, suffixes = crowd(1), frozenset({"_0", "_1", "_2"})
    devices = [each for each in snapshot if "CUSTOM_DEV" in each.inventories]

    def parts(rules: int) -> list[int]:
        asked_for = tuple(RequestGroup(suffix, {"CUSTOM_DEV": 1}) for suffix in sorted(suffixes))
        request = CandidatesRequest(asked_for, group_policy="none", same_subtrees=(suffixes,) * rules)
        needs, budget = needs_of(request), Spending()
        assignment = NeedAssignment(RequestRules(snapshot, request, needs, budget), [devices] * len(needs))
        assert assignment.can_complete(range(len(needs)))
        return budget.parts

    per_choice = len(suffixes) * len(devices)
    for rules in (1, 4):
        found = parts(rules)
        assert found.count(len(devices) * (1 + rules * per_choice)) == len(suffixes)
        # between any two choices, the options of the other needs count for each rule
        assert found.count(2 * len(devices)) >= rules * per_choice


def test_each_root_is_counted_once() -> None:
    budget, groups_of_roots = Spending(), 40
    snapshot = build(*(Spec(f"cn{number}", None, {"VCPU": 8}) for number in range(groups_of_roots * 32)))
    request = CandidatesRequest((RequestGroup("", {"VCPU": 1}),))
    assert len(find_candidates(snapshot, request, budget=budget)) == groups_of_roots * 32
    assert budget.parts.count(32) == groups_of_roots


def test_sums_of_amounts_are_counted() -> None:
    providers = [*build(*(Spec(name, None, {"A": 9}) for name in "vwxyz"))]
    asked_for = (RequestGroup("_0", {"A": 2}), RequestGroup("_1", {"A": 3}), RequestGroup("_2", {"A": 4}))
    budget = Spending()
    needs = needs_of(CandidatesRequest(asked_for))
    assert fits_at_all(needs, [providers] * 3, False, budget=budget)
    amounts_and_providers = 3 + 5
    assert amounts_and_providers in budget.parts


class TestRootsWithinManyAggregates:
    HOSTS, CLASSES, SETS = 50, 6, 20
    SHARED = Spec("disk", None, {"DISK_GB": 9}, [SHARES], ["elsewhere"])

    def snapshot(self) -> ModelSnapshot:
        """A snapshot of hosts in one aggregate, and a provider that shares with none of them."""
        has = {f"CUSTOM_{number}": 9 for number in range(self.CLASSES)}
        hosts = (Spec(f"cn{number}", None, has, (), ["all"]) for number in range(self.HOSTS))
        return build(*hosts, self.SHARED)

    def spent(self, classes: int) -> list[int]:
        """The steps that the search for roots spends, for a request with many sets of aggregates that each
        contain all hosts.
        """
        aggregates = tuple(
            frozenset({name_to_uuid("all"), name_to_uuid(f"other{number}")}) for number in range(self.SETS)
        )
        resources = {f"CUSTOM_{number}": 1 for number in range(classes)}
        request = CandidatesRequest((RequestGroup("", resources, member_of=aggregates),))
        snapshot, budget = self.snapshot(), Spending()
        roots = possible_roots(snapshot, request, needs_of(request), SharingProviders(snapshot, budget))
        assert len(list(roots)) == self.HOSTS
        return budget.parts

    def test_reading_the_trees_of_an_aggregate_is_counted(self) -> None:
        assert self.spent(1).count(self.HOSTS) >= self.SETS

    def test_one_bound_covers_all_classes(self) -> None:
        assert sum(self.spent(self.CLASSES)) - sum(self.spent(1)) < self.HOSTS


def test_one_step_is_counted_by_default() -> None:
    one_by_one, at_once = (SearchBudget(seconds=0) for _ in range(2))

    def spend(most: int) -> int:
        for step in range(most):
            try:
                one_by_one.spend()
            except BudgetExhausted:
                return step
        return most

    at_once.spend(spend(1_000_000))
    with pytest.raises(BudgetExhausted):
        at_once.spend(1)


def test_a_long_search_yields_once_a_slice(monkeypatch: pytest.MonkeyPatch) -> None:
    now, gave_way = 0.0, []
    for clock in ("thread_time", "perf_counter"):
        monkeypatch.setattr(f"placement.search.budget.{clock}", lambda: now)
    budget = SearchBudget(yield_lock=lambda: gave_way.append(now), first_slice=0.1)
    for _ in range(1000):
        budget.spend(64)
        now += 0.0005
    assert gave_way[0] == pytest.approx(0.1, abs=0.001)
    between = [later - earlier for earlier, later in pairwise(gave_way)]
    assert min(between) > 0.0019
    assert max(between) < 0.005
