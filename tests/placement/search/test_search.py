"""Tests of the amount of work of a search, its order, and its results in trees with many providers."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest

from placement.read_model.provider import SHARES, Provider
from placement.read_model.snapshot import ModelSnapshot
from placement.search import candidate_search as module
from placement.search.candidates import AllocationCandidate, candidates_of
from placement.search.compiled_request import CompiledRequest, NeedOptions
from placement.search.request import CandidatesRequest, RequestGroup
from placement.search.rules import NeedAssignment
from tests.placement.search.asking import comparable, find
from tests.placement.search.snapshots import Spec, build


def hosts(number: int, nodes: int = 2) -> ModelSnapshot:
    """A snapshot with a number of hosts that have a number of NUMA nodes of 4 VCPU each."""
    return build(
        *(
            spec
            for host in range(number)
            for spec in (
                Spec(f"cn{host}", None, {"MEMORY_MB": 1024}),
                *(Spec(f"numa{host}_{node}", f"cn{host}", {"VCPU": 4}) for node in range(nodes)),
            )
        )
    )


def devices(number: int, size: int = 1) -> ModelSnapshot:
    """A snapshot with one host that has a number of devices."""
    return build(Spec("cn"), *(Spec(f"dev{index}", "cn", {"CUSTOM_DEV": size}) for index in range(number)))


def groups_of(amounts: list[int], policy: str, limit: int | None = None) -> CandidatesRequest:
    return CandidatesRequest(
        tuple(RequestGroup(f"_{index}", {"CUSTOM_DEV": amount}) for index, amount in enumerate(amounts)),
        group_policy=policy,
        limit=limit,
    )


def roots(snapshot: ModelSnapshot, candidates: list[AllocationCandidate]) -> list[int]:
    """The root of each candidate."""
    return [snapshot.providers[min(candidate.resources)].root_id for candidate in candidates]


SMALL = RequestGroup("", {"VCPU": 1, "MEMORY_MB": 1})


@pytest.fixture
def looked_at(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Counters of the trees and providers that are checked, and of the choices that the search makes."""
    counts: Counter[str] = Counter()
    options_of, batches, allowed = (
        module.options_of,
        CompiledRequest.pattern_batches,
        NeedAssignment.allows_provider,
    )

    def counting_options(*args: Any) -> Sequence[NeedOptions] | None:
        found = options_of(*args)
        counts["providers"] += sum(len(own) for own, _ in {id(each): each for each in found or ()}.values())
        return found

    def counting_batches(self: CompiledRequest, *args: object) -> object:
        counts["trees"] += 1
        return batches(self, *args)  # type: ignore[arg-type]  # passed on

    def counting_allowed(self: NeedAssignment, *args: object) -> bool:
        counts["choices"] += 1
        return allowed(self, *args)  # type: ignore[arg-type]  # passed on

    monkeypatch.setattr(module, "options_of", counting_options)
    monkeypatch.setattr(CompiledRequest, "pattern_batches", counting_batches)
    monkeypatch.setattr(NeedAssignment, "allows_provider", counting_allowed)
    return counts


def test_hosts_of_different_structure_share_patterns() -> None:
    snapshot = build(
        Spec("a", None, {"MEMORY_MB": 8}),
        *(Spec(f"a{node}", "a", {"VCPU": 4}) for node in range(2)),
        Spec("b", None, {"MEMORY_MB": 8}),
        Spec("b0", "b", {"VCPU": 4}),
        Spec("device", "b0", {"CUSTOM_DEV": 1}),
        Spec("b1", "b", {"VCPU": 4}),
    )
    request = CandidatesRequest(
        (RequestGroup("_0", {"VCPU": 1}), RequestGroup("_1", {"VCPU": 2})), group_policy="isolate"
    )
    offers = module.find_candidates(snapshot, request)
    assert len({id(batch) for _, batch in offers}) == 1
    names = [
        {
            suffix: [snapshot.providers[each].name for each in ids]
            for suffix, ids in candidate.mappings.items()
        }
        for candidate in candidates_of(offers)
    ]
    assert names == [
        {"_0": [f"{host}{first}"], "_1": [f"{host}{1 - first}"]} for host in "ab" for first in range(2)
    ]


class TestOrder:
    def test_depth_first_gives_all_of_a_root_before_the_next(self) -> None:
        snapshot = hosts(3)
        assert roots(snapshot, find(snapshot, CandidatesRequest((SMALL,)))) == [1, 1, 4, 4, 7, 7]

    def test_breadth_first_gives_one_of_each_root_in_turn(self) -> None:
        snapshot, request = hosts(3), CandidatesRequest((SMALL,))
        assert roots(snapshot, find(snapshot, request, strategy="breadth-first")) == [1, 4, 7, 1, 4, 7]

    def test_breadth_first_goes_on_with_the_roots_that_have_more(self) -> None:
        snapshot = build(
            Spec("cn1", None, {"VCPU": 1}),
            Spec("cn2"),
            *(Spec(f"numa{node}", "cn2", {"VCPU": 1}) for node in range(3)),
        )
        request = CandidatesRequest((RequestGroup("", {"VCPU": 1}),))
        assert roots(snapshot, find(snapshot, request, strategy="breadth-first")) == [1, 2, 2, 2]

    def test_same_question_gets_the_same_answer(self) -> None:
        snapshot, request = hosts(20), CandidatesRequest((SMALL,), limit=7)
        first, second = find(snapshot, request), find(snapshot, request)
        assert [*map(comparable, first)] == [*map(comparable, second)]

    def test_random_order_picks_candidates_from_many_roots(self) -> None:
        snapshot, request = hosts(200), CandidatesRequest((SMALL,), limit=10)
        answers = [roots(snapshot, find(snapshot, request, randomize=True)) for _ in range(5)]
        assert all(len(set(answer)) == 10 for answer in answers)
        assert len(set(map(tuple, answers))) > 1


class TestSearchLimits:
    @pytest.mark.parametrize(
        ("limit", "most", "expected"),
        [(None, -1, 6), (4, -1, 4), (None, 3, 3), (4, 3, 3), (3, 4, 3), (9, 9, 6)],
    )
    def test_lower_limit_counts(self, limit: int | None, most: int, expected: int) -> None:
        request = CandidatesRequest((SMALL,), limit=limit)
        assert len(find(hosts(3), request, max_candidates=most)) == expected

    @pytest.mark.parametrize("strategy", ["depth-first", "breadth-first"])
    def test_limit_bounds_the_number_of_searched_trees(self, strategy: str, looked_at: Counter[str]) -> None:
        request = CandidatesRequest((SMALL,), limit=5)
        assert len(find(hosts(1000), request, strategy=strategy)) == 5  # type: ignore[arg-type]  # of a list
        assert looked_at["trees"] <= 5

    @pytest.mark.parametrize(
        "group",
        [
            RequestGroup("", {"VCPU": 1}, required=(frozenset({"RARE"}),)),
            RequestGroup("_1", {"VCPU": 1}, required=(frozenset({"RARE", "RARER"}),)),
            RequestGroup("", {"VCPU": 1, "CUSTOM_RARE": 1}),
            RequestGroup("", {"VCPU": 1}, member_of=(frozenset({"nowhere"}),)),
            RequestGroup("", {"VCPU": 1}, in_tree="0fd6a5b5-0e4c-4b4e-8a7e-6fd2d8a4b0f1"),
        ],
        ids=["trait", "any trait", "class", "aggregate", "tree"],
    )
    def test_a_name_without_providers_needs_no_search(
        self, group: RequestGroup, looked_at: Counter[str]
    ) -> None:
        assert find(hosts(100), CandidatesRequest((group,))) == []
        assert looked_at["providers"] == 0

    def test_trees_without_a_rare_root_trait_are_not_searched(self, looked_at: Counter[str]) -> None:
        snapshot = hosts(100)
        snapshot.put(
            Provider(
                999,
                "u",
                "rare",
                0,
                None,
                999,
                0.0,
                snapshot.providers[2].inventories,
                {},
                frozenset({"RARE"}),
                frozenset(),
            )
        )
        request = CandidatesRequest((RequestGroup("", {"VCPU": 1}),), root_required=frozenset({"RARE"}))
        assert roots(snapshot, find(snapshot, request)) == [999]
        assert looked_at["providers"] == 1

    @pytest.mark.parametrize("full", [90, 100])
    def test_full_hosts_are_not_searched(self, full: int, looked_at: Counter[str]) -> None:
        snapshot = build(
            *(
                Spec(f"cn{host}", None, {"VCPU": 4}, used={"VCPU": 3 if host < full else 1})
                for host in range(100)
            )
        )
        found = find(snapshot, CandidatesRequest((RequestGroup("", {"VCPU": 2}),)))
        assert roots(snapshot, found) == list(range(full + 1, 101))
        assert looked_at["trees"] == 100 - full

    def test_equivalent_trees_are_searched_once(self, looked_at: Counter[str]) -> None:
        snapshot = build(
            *(
                spec
                for host in range(50)
                for spec in (
                    Spec(f"cn{host}", None, {"VCPU": 4, "DISK_GB": 100 + host}, used={"DISK_GB": host}),
                    Spec(f"dev{host}_0", f"cn{host}", {"CUSTOM_DEV": 1}, used={"CUSTOM_DEV": host % 2}),
                    Spec(f"dev{host}_1", f"cn{host}", {"CUSTOM_DEV": 1}),
                )
            )
        )
        found = find(snapshot, groups_of([1, 1], "isolate"))
        assert len(found) == 2 * 25
        assert looked_at["providers"] == 2
        assert looked_at["choices"] <= 10

    def test_the_positions_of_a_trait_of_the_unsuffixed_group_distinguish_trees(self) -> None:
        node = {"VCPU": 4, "DISK_GB": 4}
        snapshot = build(
            *(
                spec
                for host in range(2)
                for spec in (
                    Spec(f"cn{host}"),
                    *(Spec(f"n{host}_{at}", f"cn{host}", node, ("T1",) * (at == host)) for at in range(2)),
                )
            )
        )
        group = RequestGroup("", {"VCPU": 1, "DISK_GB": 1}, required=(frozenset({"T1"}),))
        found = find(snapshot, CandidatesRequest((group,)))
        having = {snapshot.by_name["n0_0"], snapshot.by_name["n1_1"]}
        assert len(found) == 2 * 3
        assert all(not having.isdisjoint(candidate.resources) for candidate in found)

    def test_sharing_providers_alone_are_combined_once_for_like_trees(self, looked_at: Counter[str]) -> None:
        snapshot = build(
            Spec("disk", None, {"DISK_GB": 10}, [SHARES], ["agg"]),
            *(Spec(f"cn{host}", None, {"VCPU": 1}, (), ["agg"]) for host in range(100)),
        )
        found = find(snapshot, CandidatesRequest((RequestGroup("", {"DISK_GB": 1}),)))
        assert [dict(candidate.resources) for candidate in found] == [{1: {"DISK_GB": 1}}]
        assert looked_at["choices"] <= 2


class TestWideTrees:
    @pytest.mark.parametrize("policy", ["isolate", "none"])
    @pytest.mark.parametrize("number", [3, 5, 8, 16])
    def test_limit_bounds_the_work_below_one_root(
        self, number: int, policy: str, looked_at: Counter[str]
    ) -> None:
        found = find(devices(16), groups_of([1] * number, policy, limit=10))
        assert len(found) == 10
        for candidate in found:
            assert list(candidate.resources.values()) == [{"CUSTOM_DEV": 1}] * number
        assert looked_at["choices"] < 10 * 16 * 16

    def test_all_ways_to_hand_out_devices(self) -> None:
        assert len(find(devices(6), groups_of([1] * 4, "isolate"))) == 6 * 5 * 4 * 3
        assert len(find(devices(4, size=6), groups_of([6] * 3, "none"))) == 4 * 3 * 2
        assert len(find(devices(4, size=18), groups_of([6] * 3, "none"))) == 4**3

    @pytest.mark.parametrize(
        ("amounts", "size", "policy"),
        [
            ([1] * 17, 1, "isolate"),
            ([1] * 17, 9, "isolate"),
            ([1] * 17, 1, "none"),
            ([3] * 17, 5, "none"),
            ([3] * 17 + [1], 5, "none"),
        ],
    )
    def test_impossible_requests_are_refused_at_once(
        self, amounts: list[int], size: int, policy: str, looked_at: Counter[str]
    ) -> None:
        assert find(devices(16, size), groups_of(amounts, policy)) == []
        assert looked_at["choices"] == 0

    @pytest.mark.parametrize(
        "amounts",
        [
            # a unit more than the eight devices have together
            [45, 20, 44, 21, 43, 22, 42, 23, 41, 24, 40, 25, 39, 26, 38, 27, 37, 28, 36, 29, 35, 30, 34, 24],
            # as much as they have, but only 94 of 96 units can be used
            [45] * 15 + [49, 48],
        ],
    )
    def test_amounts_beyond_all_devices_are_refused_at_once(
        self, amounts: list[int], looked_at: Counter[str]
    ) -> None:
        sizes = [97, 97, 97, 97, 96, 96, 96, 96]
        snapshot = build(
            Spec("cn"), *(Spec(f"dev{index}", "cn", {"CUSTOM_DEV": size}) for index, size in enumerate(sizes))
        )
        assert sum(amounts) in (sum(sizes) + 1, sum(sizes))
        assert find(snapshot, groups_of(amounts, "none")) == []
        assert looked_at["choices"] == 0

    @pytest.mark.parametrize("amounts", [[5] * 15 + [4, 2], [4] * 8 + [3] * 8 + [2] * 9])
    def test_equivalent_devices_are_not_tried_in_every_order(
        self, amounts: list[int], looked_at: Counter[str]
    ) -> None:
        assert find(devices(16, size=5), groups_of(amounts, "none")) == []
        assert looked_at["choices"] < 20_000

    def test_dead_ends_are_foreseen(self, looked_at: Counter[str]) -> None:
        # only the first device has the trait that the last group needs
        snapshot = build(
            Spec("cn"),
            *(
                Spec(f"dev{index}", "cn", {"CUSTOM_DEV": 1}, ["T1"] if index in (0, 1) else [])
                for index in range(12)
            ),
        )
        picky = [
            RequestGroup(f"_{index}", {"CUSTOM_DEV": 1}, required=(frozenset({"T1"}),)) for index in (10, 11)
        ]
        request = CandidatesRequest(
            (*groups_of([1] * 10, "isolate").groups, *picky), group_policy="isolate", limit=20
        )
        assert len(find(snapshot, request)) == 20
        assert looked_at["choices"] < 20 * 12 * 12 * 12

    def test_devices_below_different_parents_are_not_equivalent(self) -> None:
        # numa0 has one device only; its dead end says nothing about numa1
        snapshot = build(
            Spec("cn"),
            *(Spec(f"numa{node}", "cn", {}, ["HW_NUMA_ROOT"]) for node in range(5)),
            Spec("dev0", "numa0", {"CUSTOM_DEV": 1}),
            Spec("dev1", "numa1", {"CUSTOM_DEV": 1}),
            Spec("dev2", "numa1", {"CUSTOM_DEV": 1}),
        )
        node = RequestGroup("_N", required=(frozenset({"HW_NUMA_ROOT"}),))
        request = CandidatesRequest(
            (*groups_of([1, 1], "none").groups, node), "none", same_subtrees=(frozenset({"_0", "_1", "_N"}),)
        )
        assert [candidate.mappings for candidate in find(snapshot, request)] == [
            {"_0": (8,), "_1": (9,), "_N": (3,)},
            {"_0": (9,), "_1": (8,), "_N": (3,)},
        ]

    def test_devices_with_different_traits_are_not_equivalent(self) -> None:
        # with a2 the trait has to come from b1, which the suffixed group needs for itself
        snapshot = build(
            Spec("cn"),
            Spec("a2", "cn", {"CUSTOM_A": 1}),
            Spec("a1", "cn", {"CUSTOM_A": 1}, ["T1"]),
            Spec("b1", "cn", {"CUSTOM_B": 1}, ["T1", "T2"]),
            Spec("b2", "cn", {"CUSTOM_B": 1}),
        )
        request = CandidatesRequest(
            (
                RequestGroup("", {"CUSTOM_A": 1, "CUSTOM_B": 1}, required=(frozenset({"T1"}),)),
                RequestGroup("_1", {"CUSTOM_B": 1}, required=(frozenset({"T2"}),)),
            )
        )
        assert [candidate.mappings for candidate in find(snapshot, request)] == [{"": (3, 5), "_1": (4,)}]

    def test_hundreds_of_groups_need_no_deep_recursion(self) -> None:
        assert len(find(devices(450), groups_of([1] * 450, "isolate", limit=1))) == 1
