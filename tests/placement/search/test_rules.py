"""Tests of the rules of candidates, one by one, in small snapshots."""

from collections import Counter

import pytest

from placement.read_model.provider import SHARES
from tests.placement.search import landscapes
from tests.placement.search.asking import ask, candidates, mappings, readable
from tests.placement.search.snapshots import Spec, build, inventory


def vfs(answer: list[str]) -> Counter[str]:
    """The number of candidates that take this number of virtual functions of the provider."""
    return Counter(
        part for candidate in answer for part in candidate.split(" + ") if part.startswith(("pf", "nic"))
    )


class TestOneGroupWithoutSuffix:
    def test_resources_may_come_from_several_providers_of_a_tree_and_from_sharing_ones(self) -> None:
        snapshot = landscapes.shared_storage()
        assert ask(snapshot, "resources=VCPU:1,SRIOV_NET_VF:4&in_tree={pf1_1}") == [
            "cn1(VCPU:1) + pf1_1(SRIOV_NET_VF:4)",
            "cn1(VCPU:1) + pf1_2(SRIOV_NET_VF:4)",
        ]
        assert ask(snapshot, "resources=VCPU:1,MEMORY_MB:1024,DISK_GB:100") == [
            "cn1(MEMORY_MB:1024, VCPU:1) + ss1(DISK_GB:100)",
            "cn1(MEMORY_MB:1024, VCPU:1) + ss2(DISK_GB:100)",
            "cn2(DISK_GB:100, MEMORY_MB:1024, VCPU:1)",
            "cn2(MEMORY_MB:1024, VCPU:1) + ss1(DISK_GB:100)",
            "cn2(MEMORY_MB:1024, VCPU:1) + ss2(DISK_GB:100)",
        ]

    def test_before_1_29_no_two_providers_of_a_tree_are_combined(self) -> None:
        snapshot = landscapes.shared_storage()
        assert ask(snapshot, "resources=VCPU:1,SRIOV_NET_VF:4", 28) == []
        assert len(ask(snapshot, "resources=VCPU:1,SRIOV_NET_VF:4", 29)) == 4
        assert ask(snapshot, "resources=SRIOV_NET_VF:4", 28) == [
            f"{name}(SRIOV_NET_VF:4)" for name in ("pf1_1", "pf1_2", "pf2_1", "pf2_2")
        ]
        # the trees are connected with the disks via their roots
        assert ask(snapshot, "resources=DISK_GB:10,SRIOV_NET_VF:4", 28) == [
            f"{name}(SRIOV_NET_VF:4) + {disk}(DISK_GB:10)"
            for name in ("pf1_1", "pf1_2", "pf2_1", "pf2_2")
            for disk in ("ss1", "ss2")
        ]

    def test_sharing_provider_alone_is_a_candidate_once_however_many_trees_it_shares_with(self) -> None:
        expected = ["disk1(DISK_GB:800)", "disk2(DISK_GB:800)"]
        assert ask(landscapes.granular(), "resources=DISK_GB:800") == expected
        assert ask(landscapes.granular(), "resources1=DISK_GB:800") == expected

    def test_sharing_needs_the_trait_and_a_common_aggregate(self) -> None:
        query = "resources=VCPU:1,CUSTOM_MAGIC:1"
        host = Spec("cn", None, {"VCPU": 20}, (), ["agg"])
        for traits, aggregates, expected in (
            ([], ["agg"], []),
            ([SHARES], [], []),
            ([SHARES], ["agg2"], []),
            ([SHARES], ["agg"], ["cn(VCPU:1) + magic(CUSTOM_MAGIC:1)"]),
        ):
            assert (
                ask(build(host, Spec("magic", None, {"CUSTOM_MAGIC": 5}, traits, aggregates)), query)
                == expected
            )

    def test_aggregate_of_any_member_connects_the_whole_tree(self) -> None:
        snapshot = build(
            Spec("cn", None, {"VCPU": 8}),
            Spec("numa", "cn", {"MEMORY_MB": 8}, (), ["agg"]),
            Spec("ss", None, {"DISK_GB": 9}, [SHARES], ["agg"]),
        )
        assert ask(snapshot, "resources=VCPU:1,DISK_GB:1") == ["cn(VCPU:1) + ss(DISK_GB:1)"]

    def test_member_of_a_tree_may_share_with_other_trees(self) -> None:
        snapshot = build(
            Spec("cn1", None, {"VCPU": 8}),
            Spec("disk", "cn1", {"DISK_GB": 9}, [SHARES], ["agg"]),
            Spec("cn2", None, {"VCPU": 8}, (), ["agg"]),
        )
        assert ask(snapshot, "resources=VCPU:1,DISK_GB:1") == [
            "cn1(VCPU:1) + disk(DISK_GB:1)",
            "cn2(VCPU:1) + disk(DISK_GB:1)",
        ]

    def test_two_sharing_providers_meet_at_a_tree_that_both_share_with(self) -> None:
        snapshot = build(
            Spec("cn", None, {"VCPU": 8}, (), ["a", "b"]),
            Spec("disk", None, {"DISK_GB": 9}, [SHARES], ["a"]),
            Spec("magic", None, {"CUSTOM_A": 9}, [SHARES], ["b"]),
        )
        assert ask(snapshot, "resources=DISK_GB:1,CUSTOM_A:1") == ["disk(DISK_GB:1) + magic(CUSTOM_A:1)"]


class TestInventory:
    @pytest.mark.parametrize(
        ("amount", "fits"),
        [(1, False), (2, True), (3, False), (8, True), (10, False)],
        ids=["below min_unit", "min_unit", "no step", "max_unit", "above max_unit"],
    )
    def test_amount_has_to_suit_the_portions_of_the_inventory(self, amount: int, fits: bool) -> None:
        snapshot = build(Spec("cn", None, {"VCPU": inventory(100, min_unit=2, max_unit=8, step_size=2)}))
        assert bool(ask(snapshot, f"resources=VCPU:{amount}")) == fits

    def test_reserved_ratio_and_usage_decide_on_free_amounts(self) -> None:
        # (10 - 1) * 1.5 = 13.5
        stock = {"VCPU": inventory(10, reserved=1, allocation_ratio=1.5)}
        snapshot = build(Spec("cn", None, stock, used={"VCPU": 3}))
        assert ask(snapshot, "resources=VCPU:10") == ["cn(VCPU:10)"]
        assert ask(snapshot, "resources=VCPU:11") == []


class TestTraits:
    def test_group_without_suffix_has_its_required_traits_together(self) -> None:
        snapshot = build(
            Spec("cn", None, {"VCPU": 8}, ["T1"]),
            Spec("nic1", "cn", {"SRIOV_NET_VF": 8}, ["T2"]),
            Spec("nic2", "cn", {"SRIOV_NET_VF": 8}),
        )
        query = "resources=VCPU:1,SRIOV_NET_VF:2&required="
        assert ask(snapshot, query + "T2") == ["cn(VCPU:1) + nic1(SRIOV_NET_VF:2)"]
        assert ask(snapshot, query + "T1,T2") == ["cn(VCPU:1) + nic1(SRIOV_NET_VF:2)"]
        assert ask(snapshot, query + "!T2") == ["cn(VCPU:1) + nic2(SRIOV_NET_VF:2)"]
        assert ask(snapshot, query + "!T1") == []
        # the traits of a member that gives nothing do not count
        assert ask(snapshot, "resources=VCPU:1&required=T2") == []

    def test_required_trait_is_one_of_the_providers_used(self) -> None:
        snapshot = landscapes.shared_storage()
        query = "resources=VCPU:1,MEMORY_MB:1024,DISK_GB:100&required="
        assert ask(snapshot, query + "HW_CPU_X86_SSE,HW_CPU_X86_SSE2") == [
            "cn1(MEMORY_MB:1024, VCPU:1) + ss1(DISK_GB:100)",
            "cn1(MEMORY_MB:1024, VCPU:1) + ss2(DISK_GB:100)",
        ]
        assert len(ask(snapshot, query + "!HW_CPU_X86_SSE")) == 3
        assert ask(snapshot, query + "HW_CPU_X86_SSE3") == []

    def test_suffixed_group_has_them_at_its_one_provider(self) -> None:
        snapshot = landscapes.granular()
        query = "resources1=VCPU:1,MEMORY_MB:1024&resources2=DISK_GB:100&group_policy="
        assert ask(snapshot, query + "isolate&required2=CUSTOM_DISK_SSD") == [
            "disk1(DISK_GB:100) + left(MEMORY_MB:1024, VCPU:1)",
            "disk1(DISK_GB:100) + middle(MEMORY_MB:1024, VCPU:1)",
        ]
        assert ask(snapshot, query + "none&required2=!CUSTOM_DISK_SSD") == [
            "disk2(DISK_GB:100) + left(MEMORY_MB:1024, VCPU:1)",
            "disk2(DISK_GB:100) + middle(MEMORY_MB:1024, VCPU:1)",
            "disk2(DISK_GB:100) + right(MEMORY_MB:1024, VCPU:1)",
            "left(DISK_GB:100, MEMORY_MB:1024, VCPU:1)",
        ]

    def test_any_of_several_traits(self) -> None:
        snapshot = landscapes.granular()
        query = "resources=VCPU:1,DISK_GB:1&required="
        assert ask(
            snapshot, query + "in:HW_GPU_API_DXVA,HW_NIC_ACCEL_TLS&required=HW_CPU_X86_AVX,!CUSTOM_FOO"
        ) == [
            "disk1(DISK_GB:1) + middle(VCPU:1)",
            "disk2(DISK_GB:1) + middle(VCPU:1)",
        ]
        assert ask(
            snapshot, query + "in:HW_CPU_X86_MMX,HW_NIC_ACCEL_TLS&required=in:CUSTOM_DISK_SSD,CUSTOM_FOO"
        ) == [
            "disk1(DISK_GB:1) + middle(VCPU:1)",
            "disk2(DISK_GB:1) + right(VCPU:1)",
            "right(DISK_GB:1, VCPU:1)",
        ]


class TestRootTraits:
    @pytest.mark.parametrize(
        ("query", "number"),
        [
            ("resources=VCPU:1&root_required=HW_NUMA_ROOT", 0),
            (f"resources=VCPU:1,MEMORY_MB:1024,DISK_GB:100&root_required={SHARES}", 0),
            (f"resources=VCPU:1,MEMORY_MB:1024,DISK_GB:100&root_required=!{SHARES}", 6),
            ("resources=VCPU:1,MEMORY_MB:1024&root_required=COMPUTE_VOLUME_MULTI_ATTACH", 4),
            ("resources=VCPU:1,DISK_GB:100&required=CUSTOM_FOO", 3),
            ("resources=VCPU:1,DISK_GB:100&root_required=CUSTOM_FOO", 2),
            ("resources=VCPU:3&root_required=!HW_NUMA_ROOT", 3),
            ("resources=VCPU:1&root_required=!CUSTOM_FOO,!COMPUTE_VOLUME_MULTI_ATTACH", 0),
            ("resources1=VCPU:1&required1=CUSTOM_FOO&root_required=!CUSTOM_FOO", 1),
            ("resources1=VCPU:1&required1=!CUSTOM_FOO&root_required=CUSTOM_FOO", 0),
        ],
    )
    def test_only_the_root_of_the_anchoring_tree_counts(self, query: str, number: int) -> None:
        assert len(ask(landscapes.numa_network(), query)) == number

    def test_sharing_provider_alone_is_anchored_at_any_tree_it_shares_with(self) -> None:
        assert ask(
            landscapes.numa_network(), "resources=DISK_GB:1&root_required=COMPUTE_VOLUME_MULTI_ATTACH"
        ) == ["ss1(DISK_GB:1)"]


class TestAggregates:
    @pytest.mark.parametrize(
        ("member_of", "expected"),
        [
            ("{aggA}", ["numa1_1", "numa1_2", "numa2_1", "numa2_2"]),
            ("{aggB}", ["numa2_1", "numa2_2"]),
            ("{aggC}", ["numa1_1"]),
            ("!{aggA}", []),
            ("!{aggB}", ["numa1_1", "numa1_2"]),
            ("!{aggC}", ["numa1_2", "numa2_1", "numa2_2"]),
            ("in:{aggB},{aggC}", ["numa1_1", "numa2_1", "numa2_2"]),
            ("!in:{aggB},{aggC}", ["numa1_2"]),
            ("{aggA}&member_of={aggB}", ["numa2_1", "numa2_2"]),
            ("in:{aggA},{aggB}&member_of=!{aggC}", ["numa1_2", "numa2_1", "numa2_2"]),
        ],
    )
    def test_aggregate_of_a_root_spans_its_tree_for_the_group_without_suffix(
        self, member_of: str, expected: list[str]
    ) -> None:
        answer = ask(landscapes.numa_aggregates(), f"resources=VCPU:1&member_of={member_of}")
        assert answer == [f"{name}(VCPU:1)" for name in expected]

    def test_provider_and_root_are_not_in_all_the_aggregates_between_them(self) -> None:
        snapshot = build(
            Spec("cn", aggregates=["b"]),
            Spec("numa1", "cn", {"VCPU": 8}, (), ["c"]),
            Spec("numa2", "cn", {"VCPU": 8}, (), ["b", "c"]),
        )
        assert ask(snapshot, "resources=VCPU:1&member_of={b}&member_of={c}") == ["numa2(VCPU:1)"]
        assert ask(snapshot, "resources=VCPU:1&member_of={b}") == ["numa1(VCPU:1)", "numa2(VCPU:1)"]

    def test_suffixed_group_asks_the_provider_itself(self) -> None:
        snapshot = landscapes.numa_aggregates()
        assert ask(snapshot, "resources1=VCPU:1&member_of1={aggA}") == []
        assert ask(snapshot, "resources1=VCPU:1&member_of1={aggC}") == ["numa1_1(VCPU:1)"]
        assert len(ask(snapshot, "resources1=VCPU:1&member_of1=!{aggB}")) == 4

    @pytest.mark.parametrize(
        ("member_of", "expected"),
        [
            (
                "",
                [
                    "numa1_1 ss1",
                    "numa1_1 ss2",
                    "numa1_2 ss1",
                    "numa1_2 ss2",
                    "numa2_1 ss1",
                    "numa2_2 ss1",
                ],
            ),
            ("&member_of={aggA}", ["numa1_1 ss1", "numa1_2 ss1", "numa2_1 ss1", "numa2_2 ss1"]),
            ("&member_of={aggB}", []),
            ("&member_of={aggC}", ["numa1_1 ss2"]),
            ("&member_of=!{aggA}", []),
            ("&member_of=!{aggB}", ["numa1_1 ss1", "numa1_1 ss2", "numa1_2 ss1", "numa1_2 ss2"]),
            ("&member_of=!{aggC}", ["numa1_2 ss1", "numa2_1 ss1", "numa2_2 ss1"]),
            ("&member_of={aggA}&member_of=!in:{aggB},{aggC}", ["numa1_2 ss1"]),
        ],
    )
    def test_sharing_provider_has_to_be_in_the_aggregate_too(
        self, member_of: str, expected: list[str]
    ) -> None:
        answer = ask(landscapes.numa_aggregates(), f"resources=VCPU:1,DISK_GB:1000{member_of}")
        assert answer == ["{}(VCPU:1) + {}(DISK_GB:1000)".format(*names.split()) for names in expected]


class TestTree:
    @pytest.mark.parametrize(
        ("query", "expected"),
        [
            ("resources=VCPU:1,DISK_GB:10&in_tree={cn1}", []),
            ("resources=VCPU:1,DISK_GB:10&in_tree={cn2}", ["cn2(DISK_GB:10, VCPU:1)"]),
            ("resources=VCPU:1,DISK_GB:10&in_tree={pf2_1}", ["cn2(DISK_GB:10, VCPU:1)"]),
            ("resources=VCPU:1,DISK_GB:10&in_tree={ss1}", []),
            ("resources=DISK_GB:10&in_tree={ss1}", ["ss1(DISK_GB:10)"]),
            ("resources=VCPU:1&in_tree={nowhere}", []),
            ("resources1=VCPU:1&in_tree1={pf1_1}", ["cn1(VCPU:1)"]),
            (
                "resources=VCPU:1&resources1=DISK_GB:10&in_tree1={ss1}",
                ["cn1(VCPU:1) + ss1(DISK_GB:10)", "cn2(VCPU:1) + ss1(DISK_GB:10)"],
            ),
            (
                "resources=VCPU:1&in_tree={cn2}&resources1=DISK_GB:10",
                [
                    "cn2(DISK_GB:10, VCPU:1)",
                    "cn2(VCPU:1) + ss1(DISK_GB:10)",
                    "cn2(VCPU:1) + ss2(DISK_GB:10)",
                ],
            ),
        ],
    )
    def test_in_tree_holds_the_providers_of_its_group(self, query: str, expected: list[str]) -> None:
        assert ask(landscapes.shared_storage(), query) == expected


class TestSeveralGroups:
    def test_isolated_groups_have_different_providers(self) -> None:
        snapshot = landscapes.granular()
        query = "resources1=VCPU:1&resources2=MEMORY_MB:1024&group_policy="
        assert ask(snapshot, query + "none") == [
            f"{name}(MEMORY_MB:1024, VCPU:1)" for name in ("left", "middle", "right")
        ]
        assert ask(snapshot, query + "isolate") == []

    def test_isolated_group_may_share_its_provider_with_the_group_without_suffix(self) -> None:
        snapshot = build(Spec("cn", None, {"VCPU": 8}))
        assert ask(snapshot, "resources=VCPU:1&resources1=VCPU:2&group_policy=isolate") == ["cn(VCPU:3)"]

    def test_groups_at_one_provider_add_up(self) -> None:
        query = (
            "resources=VCPU:3,MEMORY_MB:512&resources1=VCPU:1,MEMORY_MB:1024&resources2=VCPU:2"
            "&group_policy=none"
        )
        assert ask(landscapes.granular(), query) == [
            f"{name}(MEMORY_MB:1536, VCPU:6)" for name in ("left", "middle", "right")
        ]

    def test_sum_of_groups_is_within_capacity(self) -> None:
        query = (
            "resources=VCPU:2,MEMORY_MB:2048,SRIOV_NET_VF:1,CUSTOM_NET_MBPS:2000"
            "&resources1=SRIOV_NET_VF:1,CUSTOM_NET_MBPS:3000"
        )
        assert ask(landscapes.granular(), query) == [
            "net(CUSTOM_NET_MBPS:5000, SRIOV_NET_VF:2) + right(MEMORY_MB:2048, VCPU:2)"
        ]

    def test_sum_of_groups_is_within_max_unit(self) -> None:
        query = "resources=VGPU:1&resources1=VGPU:1&resources2=VGPU:1&group_policy=none"
        assert ask(landscapes.granular(), query) == ["left(VGPU:3)"]

    def test_sum_of_groups_is_within_max_unit_wherever_else_there_is_room(self) -> None:
        stock = {"VGPU": inventory(8, max_unit=2)}
        snapshot = build(Spec("cn"), Spec("gpu1", "cn", stock), Spec("gpu2", "cn", stock))
        query = "resources1=VGPU:1&resources2=VGPU:1&resources3=VGPU:1&group_policy=none"
        assert set(ask(snapshot, query)) == {"gpu1(VGPU:1) + gpu2(VGPU:2)", "gpu1(VGPU:2) + gpu2(VGPU:1)"}

    def test_groups_that_may_swap_providers_are_candidates_of_their_own(self) -> None:
        snapshot = landscapes.numa_network()
        found = candidates(snapshot, "resources_LEFT=VCPU:1&resources_RIGHT=VCPU:1&group_policy=isolate")
        assert [readable(snapshot, candidate) for candidate in found] == ["numa0(VCPU:1) + numa1(VCPU:1)"] * 2
        assert [mappings(snapshot, candidate) for candidate in found] == [
            {"_LEFT": ["numa0"], "_RIGHT": ["numa1"]},
            {"_LEFT": ["numa1"], "_RIGHT": ["numa0"]},
        ]

    def test_amounts_that_differ_leave_one_way_to_swap(self) -> None:
        snapshot = build(Spec("cn"), Spec("a", "cn", {"VCPU": 2}), Spec("b", "cn", {"VCPU": 2}))
        assert ask(snapshot, "resources=VCPU:1&resources1=VCPU:2") == [
            "a(VCPU:1) + b(VCPU:2)",
            "a(VCPU:2) + b(VCPU:1)",
        ]

    def test_many_disks_and_networks(self) -> None:
        query = (
            "resources1=VCPU:1&resources2=VGPU:1&required2=HW_GPU_API_DXVA&resources3=MEMORY_MB:1024"
            "&resources4=DISK_GB:100&required4=CUSTOM_DISK_SSD&resources5=DISK_GB:50&required5=!CUSTOM_DISK_SSD"
            "&resources6=SRIOV_NET_VF:1,CUSTOM_NET_MBPS:1000&resources7=SRIOV_NET_VF:2,CUSTOM_NET_MBPS:2000"
            "&group_policy=none"
        )
        left = "MEMORY_MB:1024, SRIOV_NET_VF:3, VCPU:1, VGPU:1)"
        assert ask(landscapes.granular(), query) == [
            f"disk1(DISK_GB:100) + disk2(DISK_GB:50) + left(CUSTOM_NET_MBPS:3000, {left}",
            f"disk1(DISK_GB:100) + left(CUSTOM_NET_MBPS:3000, DISK_GB:50, {left}",
            "disk2(DISK_GB:50) + net(CUSTOM_NET_MBPS:3000, SRIOV_NET_VF:3)"
            " + right(DISK_GB:100, MEMORY_MB:1024, VCPU:1, VGPU:1)",
        ]


class TestSameSubtree:
    PORTS = (
        "resources=VCPU:1&required_NIC=CUSTOM_HW_NIC_ROOT&resources_PORT1=CUSTOM_VF:{0}"
        "&required_PORT1=CUSTOM_PHYSNET1&resources_PORT2=CUSTOM_VF:{0}&required_PORT2=CUSTOM_PHYSNET2"
        "&same_subtree=_NIC,_PORT1,_PORT2&group_policy="
    )

    def test_one_provider_is_ancestor_of_the_others(self) -> None:
        snapshot = landscapes.numa_network()
        query = "resources_COMPUTE=VCPU:1&resources_ACCEL=FPGA:1&group_policy=none&same_subtree="
        assert len(ask(snapshot, query + "_COMPUTE")) == 6
        assert ask(snapshot, query + "_COMPUTE,_ACCEL") == [
            "fpga0(FPGA:1) + numa0(VCPU:1)",
            "fpga1_0(FPGA:1) + numa1(VCPU:1)",
            "fpga1_1(FPGA:1) + numa1(VCPU:1)",
        ]

    def test_provider_is_in_its_own_subtree(self) -> None:
        query = "resources_A=VCPU:1&resources_B=MEMORY_MB:1024&same_subtree=_A,_B&group_policy="
        assert ask(landscapes.numa_network(), query + "none") == [
            f"{name}(MEMORY_MB:1024, VCPU:1)" for name in ("cn2", "numa0", "numa1")
        ]
        assert ask(landscapes.numa_network(), query + "isolate") == []

    def test_group_without_resources_is_mapped_but_gets_no_allocation(self) -> None:
        snapshot = landscapes.numa_network()
        (found,) = candidates(snapshot, self.PORTS.format(4) + "none")
        assert readable(snapshot, found) == "cn2(VCPU:1) + pf1_1(CUSTOM_VF:4) + pf1_2(CUSTOM_VF:4)"
        assert mappings(snapshot, found) == {
            "": ["cn2"],
            "_NIC": ["nic1"],
            "_PORT1": ["pf1_1"],
            "_PORT2": ["pf1_2"],
        }

    @pytest.mark.parametrize("policy", ["none", "isolate"])
    def test_ports_below_one_nic(self, policy: str) -> None:
        assert vfs(ask(landscapes.numa_network(), self.PORTS.format(2) + policy)) == {
            "pf1_1(CUSTOM_VF:2)": 1,
            "pf1_2(CUSTOM_VF:2)": 1,
            "pf2_1(CUSTOM_VF:2)": 2,
            "pf2_2(CUSTOM_VF:2)": 2,
            "pf2_3(CUSTOM_VF:2)": 2,
            "pf2_4(CUSTOM_VF:2)": 2,
        }

    @pytest.mark.parametrize(("policy", "number"), [("none", 9), ("isolate", 4)])
    def test_ports_of_one_network_on_one_or_two_functions(self, policy: str, number: int) -> None:
        query = (
            "resources=VCPU:1&required_NIC=CUSTOM_HW_NIC_ROOT"
            "&resources_PORT1=CUSTOM_VF:2&required_PORT1=CUSTOM_PHYSNET1"
            "&resources_PORT2A=CUSTOM_VF:1&required_PORT2A=CUSTOM_PHYSNET2"
            "&resources_PORT2B=CUSTOM_VF:1&required_PORT2B=CUSTOM_PHYSNET2"
            f"&same_subtree=_NIC,_PORT1,_PORT2A,_PORT2B&group_policy={policy}"
        )
        answer = vfs(ask(landscapes.numa_network(), query))
        assert (
            sum(count for part, count in answer.items() if part.startswith(("pf1_1", "pf2_1", "pf2_3")))
            == number
        )
        assert answer["pf2_2(CUSTOM_VF:1)"] == 4
        assert answer["pf2_2(CUSTOM_VF:2)"] == (2 if policy == "none" else 0)

    @pytest.mark.parametrize(
        ("same_subtree", "number"),
        [("_NIC,_COMPUTE&same_subtree=_NIC,_PORT1", 4), ("_NIC,_COMPUTE,_PORT1", 12)],
    )
    def test_each_same_subtree_stands_for_itself(self, same_subtree: str, number: int) -> None:
        query = (
            "resources_COMPUTE=VCPU:1&required_NIC=CUSTOM_HW_NIC_ROOT&resources_PORT1=CUSTOM_VF:2"
            f"&required_PORT1=CUSTOM_PHYSNET1&group_policy=none&same_subtree={same_subtree}"
        )
        assert len(ask(landscapes.numa_network(), query)) == number

    @pytest.mark.parametrize(("policy", "number"), [("none", 1), ("isolate", 0)])
    def test_several_groups_without_resources_at_one_provider(self, policy: str, number: int) -> None:
        query = (
            "resources_1=VCPU:1&required_2=CUSTOM_FOO&required_3=HW_NUMA_ROOT"
            f"&same_subtree=_1,_2,_3&group_policy={policy}"
        )
        assert ask(landscapes.numa_network(), query) == ["numa1(VCPU:1)"] * number

    def test_ancestor_may_be_further_up(self) -> None:
        query = (
            "required_HOST=COMPUTE_VOLUME_MULTI_ATTACH&resources_BW=NET_BW_EGR_KILOBIT_PER_SEC:100"
            "&resources_CPU=VCPU:4&same_subtree=_HOST,_BW,_CPU&group_policy=isolate"
        )
        assert ask(landscapes.numa_network(), query) == [
            f"{esn}(NET_BW_EGR_KILOBIT_PER_SEC:100) + {numa}(VCPU:4)"
            for esn in ("esn1", "esn2")
            for numa in ("numa0", "numa1")
        ]

    def test_group_without_resources_may_only_forbid(self) -> None:
        snapshot = build(Spec("cn", aggregates=["agg"]), Spec("numa", "cn", {"VCPU": 8}, ["T1"]))
        (found,) = candidates(snapshot, "resources1=VCPU:1&required2=!T1&same_subtree=1,2&group_policy=none")
        assert mappings(snapshot, found) == {"1": ["numa"], "2": ["cn"]}
