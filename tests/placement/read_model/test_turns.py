"""Tests of the turns in which requests use the model. Their locks are released, however a turn ends."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from placement.exceptions import Unavailable
from placement.read_model import feed as module
from placement.read_model.feed import ReadGate, ReadTurn
from placement.read_model.provider import Provider
from placement.read_model.snapshot import ModelSnapshot
from placement.read_model.tree_classes import TreeClasses


class Ended(Exception):
    """An error by which a test ends a turn."""


def is_free(gate: ReadGate) -> bool:
    """Whether another thread could acquire all locks of the model."""
    with ThreadPoolExecutor() as others:
        return others.submit(_is_free, gate).result()


def _is_free(gate: ReadGate) -> bool:
    locks: tuple[Any, ...] = (gate.first, gate.later, gate.counting, gate.long_requests)
    got = [lock.acquire(blocking=False) for lock in locks]
    for lock, acquired in zip(locks, got, strict=True):
        if acquired:
            lock.release()
    return all(got)


@pytest.mark.parametrize("times", [0, 1, 2, 3])
@pytest.mark.parametrize("fails", [False, True])
def test_a_turn_releases_all_its_locks(times: int, fails: bool) -> None:
    gate, snapshot = ReadGate(1), ModelSnapshot()
    try:
        with ReadTurn(gate) as turn:
            for _ in range(times):
                turn.yield_lock(snapshot)
            assert snapshot.pin_count == min(times, 1)
            if fails:
                raise Ended
    except Ended:
        pass
    assert is_free(gate)
    assert snapshot.pin_count == 0


@pytest.mark.parametrize("pauses", [0, 1])
def test_a_turn_that_ends_releases_no_lock_of_others(pauses: int, monkeypatch: pytest.MonkeyPatch) -> None:
    gate, snapshot = ReadGate(1), ModelSnapshot()
    left = [None] * pauses

    def pause(seconds: float) -> None:
        if not left:
            gate.later.acquire()  # held by another request
            raise Ended
        left.pop()

    monkeypatch.setattr(module.time, "sleep", pause)

    def work() -> None:
        with ReadTurn(gate) as turn:
            for _ in range(pauses + 1):
                turn.yield_lock(snapshot)

    with pytest.raises(Ended):
        work()
    assert gate.later.locked()
    gate.later.release()
    assert is_free(gate)
    assert snapshot.pin_count == 0


def test_surplus_long_requests_are_refused_and_pin_nothing() -> None:
    gate, snapshot = ReadGate(1), ModelSnapshot()
    with ReadTurn(gate) as first:
        first.yield_lock(snapshot)
        with pytest.raises(Unavailable, match="maximum number of long requests"), ReadTurn(gate) as second:
            second.yield_lock(snapshot)
        assert snapshot.pin_count == 1
    assert is_free(gate)


def test_the_trees_of_a_pinned_snapshot_are_up_to_date_for_all_readers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gate, snapshot = ReadGate(), ModelSnapshot()
    one = Provider(1, f"{1:032}", "cn1", 0, None, 1, 0.0, {}, {}, frozenset(), frozenset())
    snapshot.put(one)
    gate.pin_snapshot(snapshot)
    monkeypatch.setattr(TreeClasses, "renew_trees", None)
    assert list(snapshot.whole_trees()) == [1]
