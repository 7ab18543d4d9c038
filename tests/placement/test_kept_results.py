"""Tests of the cache of results, which drops the least recently used results when it is full."""

import pytest

from placement.exceptions import InvalidRequest
from placement.kept_results import KeptResults

ROOM = 3 * 64 * len(repr("aaaa"))


def test_the_most_recently_used_result_stays() -> None:
    kept = KeptResults[str](ROOM)
    for key in ("aaaa", "bbbb", "cccc", "aaaa", "dddd"):
        kept.get(key, lambda key=key: key.upper())
    assert len(kept) == 3
    assert kept.get("aaaa", lambda: "made again") == "AAAA"
    assert kept.get("bbbb", lambda: "made again") == "made again"


def test_a_too_large_result_evicts_no_other() -> None:
    kept = KeptResults[str](ROOM)
    kept.get("aaaa", lambda: "A")
    assert kept.get("b" * 100, lambda: "B") == "B"
    assert kept.get("aaaa", lambda: "made again") == "A"
    assert len(kept) == 1


def test_errors_are_not_kept() -> None:
    def refuse() -> str:
        raise InvalidRequest("no")

    kept = KeptResults[str](ROOM)
    with pytest.raises(InvalidRequest):
        kept.get("aaaa", refuse)
    assert kept.get("aaaa", lambda: "A") == "A"
