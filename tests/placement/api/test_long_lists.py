"""Tests that long lists of providers are written in slices, and that other requests run between these
slices.
"""

import pytest

from placement.search import budget
from placement.search.budget import SearchBudget, yielding_slices
from tests.placement.running import Admin

NAMES = [f"host{number}" for number in range(5)]


def test_a_list_in_slices_is_the_same_list(admin: Admin, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("placement.api.resource_providers._AS_ONE", 3)
    for name in NAMES:
        assert admin("POST", "/resource_providers", json={"name": name}).status_code == 200
    for at_once in (1, 2, 5, 512):
        monkeypatch.setattr(budget, "_AT_ONCE", at_once)
        listed = admin("GET", "/resource_providers").json["resource_providers"]
        assert [each["name"] for each in listed] == NAMES
        assert admin("GET", "/resource_providers?name=nobody").json == {"resource_providers": []}


def test_other_requests_run_between_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budget, "_SLICE", 0.0)
    turns: list[str] = []
    limits = SearchBudget(yield_lock=lambda: turns.append("others"), first_slice=0.0)
    dealt_with = [each for some in yielding_slices(range(2000), limits) for each in some]
    assert dealt_with == list(range(2000))
    assert len(turns) == 4
