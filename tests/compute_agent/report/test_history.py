"""Tests of recognising an older copy of Placement's database by the allocations that guests have lost."""

import pytest

from compute_agent.report.history import AllocationLoss, went_back, why_older

HELD = {"p": {"PCPU": 1}}


def losses(count, now=None):
    return [AllocationLoss(f"g{number}", "", HELD, now or {}) for number in range(count)]


@pytest.mark.parametrize(
    ("before", "now", "words"),
    [
        ({}, {"a": 1}, ""),
        ({"a": 1}, {"a": 1, "b": 0}, ""),
        ({"a": 1}, {"a": 2}, ""),
        ({"a": 5, "b": 1}, {"a": 4, "b": 1}, "generations of 1 providers went back (a from 5 to 4)"),
        ({"a": 5, "b": 1}, {"a": 6}, "1 of 2 providers are gone"),
        ({"a": 5}, {}, "1 of 1 providers are gone"),
    ],
)
def test_generations_only_go_up_and_providers_stay(before, now, words):
    assert went_back(before, now) == words


@pytest.mark.parametrize(
    ("evidence", "lost", "holding", "words"),
    [
        ("gone", [], 4, ""),
        ("gone", losses(1), 4, "gone"),
        ("", losses(1), 1, ""),
        ("", losses(2), 2, ""),
        ("", losses(3), 7, ""),
        ("", losses(3), 6, "3 of 6 guests lost their allocations at once"),
        ("", losses(3, {"p": {"PCPU": 2}}), 3, ""),
    ],
)
def test_a_loss_is_doubted_with_evidence_or_among_many(evidence, lost, holding, words):
    assert why_older(evidence, lost, holding) == words
