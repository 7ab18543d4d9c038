"""Tests of the limit of reads of one service or container."""

from compute_agent.drivers.peer import MAX_LOOKS, LookBudget


def test_a_burst_is_allowed_and_then_one_read_each_second():
    budget = LookBudget()
    assert sum(budget.take_look("a", 5.0) for _ in range(100)) == MAX_LOOKS
    assert [budget.take_look("a", 5.0 + tenth / 10) for tenth in range(31)].count(True) == 3
    # Other keys, and the same key after a rest, have a burst of their own.
    assert budget.take_look("b", 5.0)
    assert sum(budget.take_look("a", 100.0) for _ in range(100)) == MAX_LOOKS


def test_old_keys_are_forgotten_and_a_flood_goes_on_counting():
    budget = LookBudget()
    for number in range(MAX_LOOKS):
        budget.take_look("flood", number / 100)
    budget.take_look("old", 0.0)
    budget.forget_old(29.0)
    assert not budget.take_look("flood", 0.3)
    budget.forget_old(60.0)
    assert budget.take_look("flood", 0.3)
