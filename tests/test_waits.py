"""A wait returns the awaited value, or names the value that did not come."""

import pytest

from tests.waits import wait_for


def test_the_first_true_value_is_returned() -> None:
    values = iter([0, None, "", "here", "too late"])
    assert wait_for(lambda: next(values), pause=0) == "here"


def test_a_vain_wait_says_what_it_waited_for_and_shows_its_evidence() -> None:
    never: list[int] = []
    with pytest.raises(AssertionError, match=r"not within 0 s: .*lambda: never.*; last value \[\]\nthe log"):
        wait_for(lambda: never, evidence=lambda: "the log", seconds=0)
    with pytest.raises(AssertionError, match=r"not within 0 s: the guest is gone; last value False$"):
        wait_for(lambda: False, "the guest is gone", seconds=0)


def test_a_condition_without_source_is_named() -> None:
    with pytest.raises(AssertionError, match=r"built-in method .* of dict"):
        wait_for({}.copy, seconds=0)
