"""Tests of the journal by which searches of the planner try and undo changes, and of the bound by volume."""

from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from placement.search.budget import SearchBudget
from placement_extras.planner.packing import most_by_volume
from placement_extras.planner.trials import TrialJournal, TriesExhausted


def test_changes_are_undone_in_reverse_order() -> None:
    journal, undone = TrialJournal(SearchBudget(), 1), list[str]()
    for name in "abc":
        journal.record_undo(undone.append, name)
    journal.undo_changes(1)
    assert (undone, len(journal)) == (["c", "b"], 1)
    journal.undo_changes()
    assert (undone, len(journal)) == (["c", "b", "a"], 0)


def test_each_option_is_undone_before_the_next_and_the_one_that_is_kept_is_not() -> None:
    journal, taken = TrialJournal(SearchBudget(), 1), list[int]()
    seen = []
    for option in journal.try_each(range(5)):
        seen.append(list(taken))
        taken.append(option)
        journal.record_undo(taken.pop)
        if option == 3:
            break
    assert seen == [[]] * 4
    assert taken == [3]
    for option in journal.try_each((7, 8)):
        taken.append(option)
        journal.record_undo(taken.pop)
    assert taken == [3]


def test_a_search_ends_after_as_many_tries_as_it_may_make() -> None:
    journal = TrialJournal(SearchBudget(), 2)
    journal.count_try()
    journal.count_try()
    with pytest.raises(TriesExhausted):
        journal.count_try()


@given(st.lists(st.integers(0, 5), max_size=5), st.integers(-1, 12))
def test_no_order_of_guests_serves_more_than_the_bound_by_volume(amounts: list[int], there: int) -> None:
    def served(order: tuple[int, ...]) -> int:
        left = max(there, 0)
        fits = 0
        for amount in order:
            if amount <= left:
                left, fits = left - amount, fits + 1
        return fits

    asked = {"VCPU": {amount: amounts.count(amount) for amount in amounts}}
    best = max(map(served, permutations(amounts)))
    assert most_by_volume(len(amounts), asked, {"VCPU": max(there, 0)}) == best
