"""Tests of reserved and allocation_ratio of inventories, which come from options or are set through
the API.
"""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compute_agent.inventory.provider_tree import ProviderInventory, ProviderNode, ProviderTree
from compute_agent.report.adjustments import (
    AdjustmentVerdict,
    remember_written,
    settle_inventory,
    written_fields,
)
from compute_agent.report.plan import (
    KnownNames,
    OwnedNames,
    ReportedProvider,
    adjustment_sentences,
    ownership_after,
    ownership_before,
    plan_actions,
    wanted_inventories,
)

DERIVED = ProviderInventory(16, reserved=2, max_unit=16, allocation_ratio=4.0)
NOTHING = frozenset()


def of(reserved=2, ratio=4.0):
    return ProviderInventory(16, reserved=reserved, max_unit=16, allocation_ratio=ratio)


def by_agent(name, reserved=2, ratio=4.0):
    return frozenset({(name, "reserved", reserved), (name, "allocation_ratio", ratio)})


@pytest.mark.parametrize(
    ("name", "has", "written", "configured", "becomes", "verdicts"),
    [
        # Set by another program: it stays.
        ("VCPU", of(5, 9.0), by_agent("VCPU"), NOTHING, (5, 9.0), (AdjustmentVerdict.KEPT,) * 2),
        ("VCPU", of(0), by_agent("VCPU"), NOTHING, (0, 4.0), (AdjustmentVerdict.KEPT,)),
        # The agent's writes are forgotten: the value stays as well.
        ("VCPU", of(5, 9.0), NOTHING, NOTHING, (5, 9.0), (AdjustmentVerdict.KEPT,) * 2),
        # The agent wrote it: a reserve follows the host, a ratio without an option stays.
        ("VCPU", of(5, 9.0), by_agent("VCPU", 5, 9.0), NOTHING, (2, 9.0), ()),
        ("VCPU", of(), NOTHING, NOTHING, (2, 4.0), ()),
        # An option is set: it wins.
        ("VCPU", of(5, 9.0), by_agent("VCPU"), {"allocation_ratio"}, (5, 4.0), ("k", "o")),
        ("VCPU", of(5, 9.0), by_agent("VCPU"), {"reserved"}, (2, 9.0), ("o", "k")),
        ("VCPU", of(5, 9.0), by_agent("VCPU", 5, 9.0), {"allocation_ratio", "reserved"}, (2, 4.0), ()),
        # The host became smaller, and the reserved amount cannot exceed the total.
        (
            "VCPU",
            ProviderInventory(64, reserved=40),
            NOTHING,
            NOTHING,
            (16, 1.0),
            (AdjustmentVerdict.LIMITED, AdjustmentVerdict.KEPT),
        ),
        # What is exclusive may be offered less, never more.
        ("PCPU", of(5, 1.0), by_agent("PCPU"), NOTHING, (5, 1.0), (AdjustmentVerdict.KEPT,) * 2),
        ("LLC", of(0, 9.0), by_agent("LLC"), NOTHING, (2, 4.0), (AdjustmentVerdict.LIMITED,) * 2),
        ("CUSTOM_LLC", of(0), NOTHING, NOTHING, (2, 4.0), (AdjustmentVerdict.LIMITED,)),
        ("CUSTOM_RESCTRL_GROUP", of(5), by_agent("CUSTOM_RESCTRL_GROUP", 5), NOTHING, (2, 4.0), ()),
    ],
)
def test_options_then_foreign_values_then_derived_ones_decide(
    name, has, written, configured, becomes, verdicts
):
    options = frozenset((name, field) for field in configured)
    settled = settle_inventory(name, DERIVED, has, written, options)
    assert (settled.inventory.reserved, settled.inventory.allocation_ratio) == becomes
    assert settled.inventory.total == DERIVED.total
    short = {"k": AdjustmentVerdict.KEPT, "o": AdjustmentVerdict.OVERRULED}
    assert [one.verdict for one in settled.adjustments] == [short.get(each, each) for each in verdicts]


def test_a_new_inventory_has_the_ratio_that_the_class_has_on_the_host():
    """Otherwise a reshape would offer less than before, and have no room for existing allocations."""
    assert settle_inventory("VCPU", DERIVED, None, NOTHING, NOTHING, 9.0).inventory == of(ratio=9.0)
    assert settle_inventory("VCPU", DERIVED, None, NOTHING, NOTHING).inventory == DERIVED
    configured = frozenset({("VCPU", "allocation_ratio")})
    assert settle_inventory("VCPU", DERIVED, None, NOTHING, configured, 9.0).inventory == DERIVED
    assert settle_inventory("PCPU", DERIVED, None, NOTHING, NOTHING, 9.0).inventory == DERIVED


def test_possible_writes_are_remembered_until_they_are_seen():
    old = by_agent("VCPU", 1)
    settled = {"VCPU": settle_inventory("VCPU", DERIVED, of(1), old, NOTHING)}
    claimed = old | written_fields(settled)
    assert remember_written(settled, claimed, {"VCPU": of(1)}) >= {
        ("VCPU", "reserved", 1),
        ("VCPU", "reserved", 2),
    }
    assert remember_written(settled, claimed, {"VCPU": of(2)}) == by_agent("VCPU", 2)


def test_foreign_values_are_never_remembered_as_the_agents():
    settled = {"VCPU": settle_inventory("VCPU", DERIVED, of(7), by_agent("VCPU"), NOTHING)}
    claimed = by_agent("VCPU") | written_fields(settled)
    assert remember_written(settled, claimed, {"VCPU": of(7)}) == by_agent("VCPU")


def test_the_sentence_names_provider_value_and_option():
    derived = ProviderTree((ProviderNode("h", "u", None, {"MEMORY_MB": replace(DERIVED, total=2097152)}),))
    has = {"u": ReportedProvider("u", "h", None, 1, {"MEMORY_MB": of(1048576)})}
    owned = {"u": OwnedNames(frozenset({"MEMORY_MB"}), written=by_agent("MEMORY_MB"))}
    (sentence,) = adjustment_sentences(derived, has, owned)
    assert sentence == (
        "h (u): reserved of MEMORY_MB was set to 1048576 through the API and stays; the agent's is 2; set"
        " [DEFAULT] reserved_host_memory_mb to enforce it"
    )


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("host"), st.integers(0, 4), st.sampled_from([2.0, 4.0])),
        st.tuples(st.just("api"), st.integers(5, 8), st.sampled_from([8.0, 16.0])),
        st.tuples(st.just("crash"), st.booleans(), st.none()),
    ),
    max_size=12,
)


@given(STEPS)
def test_over_any_history_the_last_word_is_the_operators_or_else_the_hosts(steps):
    """The agent may crash before or after a write. It never takes its own value for one of another
    program.
    """
    known = KnownNames(frozenset({"VCPU"}), frozenset())
    owned, has, derived = {}, {}, of(0, 2.0)
    operator = None  # the values that an operator set last: reserved and ratio

    def tree():
        return ProviderTree((ProviderNode("h", "u", None, {"VCPU": derived}),))

    def send():
        for action in plan_actions(tree(), has, owned, known):
            if hasattr(action, "inventories"):
                has["u"] = ReportedProvider("u", "h", None, 1, action.inventories)
            else:
                has.setdefault("u", ReportedProvider("u", "h", None, 0))

    for step, first, second in [("report", None, None), *steps]:
        if step == "host":
            derived = of(first, second)
        elif step == "api":
            has["u"] = ReportedProvider("u", "h", None, 1, {"VCPU": of(first, second)})
            operator = (first, second)
        claims = ownership_before(tree(), has, owned)
        owned = claims
        if step == "crash":
            if first:
                send()
            continue
        before = dict(owned)
        send()
        owned = ownership_after(tree(), before, has)
        shown = has["u"].inventories["VCPU"]
        assert shown.reserved == (operator[0] if operator else derived.reserved)
        if operator:
            assert shown.allocation_ratio == operator[1]
        assert wanted_inventories(tree(), tree().root, has, owned)["VCPU"] == shown
