"""Tests of finding differences between guests and allocations, and of the allocations that a guest should
have.
"""

from dataclasses import replace

import pytest

from compute_agent.inventory.provider_tree import ProviderInventory, ProviderNode, ProviderTree
from compute_agent.model.guest import ConsumerAllocations
from compute_agent.report.audit import (
    UNKNOWN_OWNER,
    AuditedGuest,
    AuditFinding,
    ConsumerRecord,
    FindingKind,
    HealOptions,
    allocation_for,
    compare_holdings,
    decide_creation,
    decide_deletion,
    needed_amounts,
)
from compute_agent.report.capacity import CpuLocation, FreeCapacity

OWN = CpuLocation(frozenset({1, 2}), frozenset(), 2)
FLOATING = CpuLocation(frozenset(), frozenset({4, 5}))


def kinds(guests, held, inactive=frozenset()):
    return [(finding.kind, finding.consumer) for finding in compare_holdings(guests, held, inactive)]


def audited_guest(uuid="a", vcpus=2, location=OWN, **fields):
    return AuditedGuest(uuid, uuid, vcpus, location, **fields)


def test_an_audit_mends_nothing_unless_it_is_told_to():
    assert HealOptions() == HealOptions(
        heal=False, delete=False, confirmed=None, dry_run=False, min_age=3600.0
    )
    assert HealOptions().consumers == frozenset()  # which are all


class TestFindings:
    """The differences that an audit reports."""

    def test_matching_guests_have_no_findings(self):
        assert kinds([audited_guest()], {"a": {"node": {"PCPU": 2}}}) == []

    def test_each_side_may_lack_the_other(self):
        held = {"b": {"node": {"PCPU": 2}}}
        assert compare_holdings([audited_guest()], held, frozenset()) == [
            AuditFinding(FindingKind.UNALLOCATED, "a", "a"),
            AuditFinding(FindingKind.UNUSED, "b", allocation=held["b"]),
        ]

    def test_a_guest_that_does_not_run_now_may_hold_what_it_will_need(self):
        assert kinds([], {"b": {"node": {"PCPU": 2}}}, frozenset({"b"})) == []

    def test_guests_on_the_same_cpus_are_findings_of_each_other(self):
        held = {uuid: {"node": {"PCPU": 2}} for uuid in "abc"}
        pins = {"a": {1, 2}, "b": {2, 3}, "c": {4}}
        guests = [audited_guest(uuid, held=frozenset(cpus)) for uuid, cpus in pins.items()]
        assert [(it.kind, it.consumer, it.detail) for it in compare_holdings(guests, held, frozenset())] == [
            (FindingKind.OVERLAP, "a", "CPU 2 also of guest b"),
            (FindingKind.OVERLAP, "b", "CPU 2 also of guest a"),
        ]

    def test_a_guest_that_migrates_is_a_pair(self):
        held = {"m": {"node": {"PCPU": 2}}}
        pair = AuditFinding(FindingKind.MIGRATING, "a", "a", held["m"], "held by consumer m")
        assert compare_holdings([audited_guest(migration="m")], held, frozenset(), {"m": "a"}) == [pair]
        assert compare_holdings([], held, frozenset(), {"m": "a"}) == [replace(pair, name="")]

    def test_a_refused_guest_is_told_with_the_reason(self):
        (finding,) = compare_holdings(
            [audited_guest(refusal="no room")], {"a": {"node": {"PCPU": 2}}}, frozenset()
        )
        assert (finding.kind, finding.detail) == (FindingKind.REFUSED, "no room")

    @pytest.mark.parametrize(
        ("fields", "held", "detail"),
        [
            ({}, {"PCPU": 4}, "holds 4 PCPU, uses 2"),
            ({"vcpus": 4}, {"PCPU": 2}, "holds 0 VCPU, uses 2"),
            ({"vcpus": 3}, {"PCPU": 2, "VCPU": 1}, ""),
            ({"location": FLOATING}, {"VCPU": 2}, ""),
            ({"location": FLOATING}, {"VCPU": 3}, "holds 3 VCPU, uses 2"),
            ({"location": FLOATING}, {"CUSTOM_RECLAIMED_VCPU": 2}, ""),
            ({"location": FLOATING}, {"CUSTOM_RECLAIMED_VCPU": 1}, "holds 0 VCPU, uses 1"),
            ({"location": FLOATING}, {"CUSTOM_RECLAIMED_VCPU": 2, "VCPU": 1}, "holds 1 VCPU, uses 0"),
            (
                {"location": FLOATING, "dedicated": 2},
                {"VCPU": 2},
                "holds 0 PCPU, uses 2, holds 2 VCPU, uses 0",
            ),
            ({"resources": {"MEMORY_MB": 2048}}, {"PCPU": 2}, "holds 0 MEMORY_MB, uses 2048"),
            ({"resources": {"MEMORY_MB": 2048}}, {"PCPU": 2, "MEMORY_MB": 2048, "LLC": 3}, ""),
            ({"extra_cpu": True}, {"PCPU": 3}, ""),
            ({"extra_cpu": True, "dedicated": 2}, {"PCPU": 2}, "holds 2 PCPU, uses 3"),
        ],
    )
    def test_amounts(self, fields, held, detail):
        found = compare_holdings([audited_guest(**fields)], {"a": {"node": held}}, frozenset())
        assert [finding.detail for finding in found] == ([detail] if detail else [])

    def test_amounts_are_summed_over_providers(self):
        assert kinds([audited_guest()], {"a": {"n0": {"PCPU": 1}, "n1": {"PCPU": 1}}}) == []

    def test_siblings_that_are_kept_empty_may_be_held_or_not(self):
        isolated = audited_guest(location=CpuLocation(frozenset({0, 1, 2, 3}), frozenset(), 2))
        for pcpu, count in ((2, 0), (4, 0), (3, 1)):
            assert len(compare_holdings([isolated], {"a": {"node": {"PCPU": pcpu}}}, frozenset())) == count


class TestNeeds:
    """The allocation that a guest without allocations should get."""

    @pytest.mark.parametrize(
        ("fields", "amounts"),
        [
            ({}, {"PCPU": 2}),
            ({"location": FLOATING}, {"VCPU": 2}),
            ({"location": CpuLocation(frozenset({1}), frozenset({4, 5}))}, {"PCPU": 1, "VCPU": 1}),
            ({"location": CpuLocation(frozenset({0, 1, 2, 3}), frozenset(), 2)}, {"PCPU": 4}),
            ({"location": FLOATING, "dedicated": 2}, {"PCPU": 2}),
            ({"location": FLOATING, "dedicated": 2, "extra_cpu": True}, {"PCPU": 3}),
            ({"location": FLOATING, "dedicated": 1}, {"PCPU": 1, "VCPU": 1}),
            ({"dedicated": 0, "extra_cpu": True}, {"VCPU": 2}),
            ({"dedicated": 3}, {"PCPU": 3}),  # more than there are guest CPUs
            ({"resources": {"DISK_GB": 20}}, {"PCPU": 2, "DISK_GB": 20}),
        ],
    )
    def test_amounts(self, fields, amounts):
        assert needed_amounts(audited_guest(**fields)) == amounts


class TestAuditedAllocations:
    """The providers on which the missing allocation of a guest is created."""

    NODES = (frozenset({0, 1, 2, 3}), frozenset({4, 5, 6, 7}))

    def free(self, held=None, pcpu=3):
        inventories = {
            "root": {"DISK_GB": ProviderInventory(100, max_unit=100)},
            **{
                f"n{n}": {
                    "PCPU": ProviderInventory(pcpu, max_unit=pcpu),
                    "VCPU": ProviderInventory(1, max_unit=1, allocation_ratio=4.0),
                    "MEMORY_MB": ProviderInventory(4096, max_unit=4096),
                }
                for n in range(2)
            },
        }
        nodes = (
            ProviderNode("h", "root", None, inventories["root"], cpus=frozenset(range(8))),
            *(
                ProviderNode(f"h_{n}", f"n{n}", "root", inventories[f"n{n}"], cpus=cpus)
                for n, cpus in enumerate(self.NODES)
            ),
        )
        return FreeCapacity(ProviderTree(nodes), inventories, held or {})

    def test_on_the_node_where_it_runs(self):
        there = audited_guest(
            location=CpuLocation(frozenset({5, 6}), frozenset(), 2), resources={"MEMORY_MB": 1024}
        )
        assert allocation_for(there, self.free()) == {"n1": {"PCPU": 2, "MEMORY_MB": 1024}}

    def test_disk_is_the_hosts(self):
        assert allocation_for(audited_guest(resources={"DISK_GB": 20}), self.free())["root"] == {
            "DISK_GB": 20
        }

    def test_on_both_nodes_if_it_runs_on_both(self):
        there = audited_guest(location=CpuLocation(frozenset({1, 5}), frozenset(), 2))
        assert allocation_for(there, self.free()) == {"n0": {"PCPU": 1}, "n1": {"PCPU": 1}}

    def test_a_guest_that_floats_everywhere_is_kept_together_where_there_is_room(self):
        ordered = audited_guest(
            location=CpuLocation(floating=frozenset({3, 7})), dedicated=2, resources={"MEMORY_MB": 4096}
        )
        assert allocation_for(ordered, self.free({"x": {"n0": {"PCPU": 2}}})) == {
            "n1": {"PCPU": 2, "MEMORY_MB": 4096}
        }

    def test_no_room_and_no_such_class(self):
        assert allocation_for(audited_guest(), self.free({"x": {"n0": {"PCPU": 3}, "n1": {"PCPU": 2}}})) == (
            "there is no room for 2 PCPU (free: h_0 0, h_1 1)"
        )
        assert allocation_for(audited_guest(resources={"VGPU": 1}), self.free()) == (
            "there is no room for 1 VGPU (free: none)"
        )


# Just before something is changed


HELD = ConsumerAllocations("c", {"node": {"VCPU": 2}, "disk": {"DISK_GB": 5}}, 3)
NOTHING = ConsumerAllocations("c")
WANTED = {"node": {"VCPU": 2}}


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        (ConsumerRecord(HELD, WANTED, here=True), "not needed: it has an allocation by now"),
        (
            ConsumerRecord(HELD, {}, here=True),
            "left: it holds something on other hosts, as guests do that are migrated",
        ),
        (ConsumerRecord(NOTHING, {}, here=False), "not needed: it is gone"),
    ],
)
def test_an_allocation_is_not_made_for_a_guest_that_has_one_or_is_gone(record, reason):
    assert decide_creation(record, WANTED, "project", "user") == reason


def test_an_allocation_that_is_made_has_the_owner_and_the_type_of_the_guest():
    record = ConsumerRecord(NOTHING, {}, here=True)
    made = ConsumerAllocations("c", WANTED, None, "project", "user", "INSTANCE")
    assert decide_creation(record, WANTED, "project", "user") == made
    unknown = ConsumerAllocations("c", WANTED, None, UNKNOWN_OWNER, UNKNOWN_OWNER, None)
    assert decide_creation(record, WANTED, "", "", typed=False) == unknown


@pytest.mark.parametrize(
    ("record", "age", "confirmed", "reason"),
    [
        (ConsumerRecord(HELD, {}, here=False), 99.0, None, "left: another program changes it"),
        (
            ConsumerRecord(replace(HELD, consumer_type="MIGRATION"), WANTED, here=False),
            *(99.0, None, "left: a migration holds it"),
        ),
        (
            ConsumerRecord(HELD, WANTED, here=False),
            *(9.0, None, "left: it has been without a guest for 9 s, as far as is known"),
        ),
        (
            ConsumerRecord(HELD, WANTED, here=False),
            *(99.0, frozenset({"other"}), "left: it was not among those confirmed"),
        ),
        (ConsumerRecord(HELD, WANTED, here=True), 99.0, None, "not needed: its guest is here by now"),
    ],
)
def test_an_allocation_without_guest_stays_while_there_is_doubt(record, age, confirmed, reason):
    finding = AuditFinding(FindingKind.UNUSED, "c", allocation=WANTED)
    options = HealOptions(delete=True, min_age=10.0, confirmed=confirmed)
    assert decide_deletion(record, finding, age, options) == reason


def test_only_the_part_of_this_host_of_an_unused_allocation_is_deleted():
    finding = AuditFinding(FindingKind.UNUSED, "c", allocation=WANTED)
    record = ConsumerRecord(HELD, WANTED, here=False)
    options = HealOptions(delete=True, min_age=10.0, confirmed=frozenset({"c"}))
    assert decide_deletion(record, finding, 10.0, options) == HELD.without_providers(["node"])


@pytest.mark.parametrize(
    ("pinned", "detail"),
    [
        ({0, 2}, None),
        (
            {0, 1},
            "guest CPUs 0,2 are to be dedicated (hw:cpu_dedicated_mask), those on dedicated CPUs are 0-1",
        ),
        (
            set(),
            "guest CPUs 0,2 are to be dedicated (hw:cpu_dedicated_mask), those on dedicated CPUs are none",
        ),
    ],
)
def test_guest_cpus_of_another_kind_than_the_mask_says_are_found(pinned, detail):
    guest = audited_guest(
        vcpus=3,
        location=CpuLocation(frozenset({1, 2}), frozenset({4})),
        dedicated=2,
        held=frozenset({1, 2}),
        dedicated_vcpus=frozenset({0, 2}),
        pinned_vcpus=frozenset(pinned),
    )
    found = compare_holdings([guest], {"a": {"node": {"PCPU": 2, "VCPU": 1}}}, frozenset())
    assert [(it.kind, it.detail) for it in found] == ([(FindingKind.KINDS, detail)] if detail else [])


def test_devices_that_a_guest_does_not_hold_are_a_finding():
    guest = audited_guest(devices="it has 1 of 0000:81:00.0, and holds 0")
    kinds = {one.kind: one.detail for one in compare_holdings([guest], {}, frozenset(), {})}
    assert kinds[FindingKind.DEVICES] == "it has 1 of 0000:81:00.0, and holds 0"
