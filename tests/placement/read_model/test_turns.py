"""Whose turn it is, and that every lock is given back, however a turn ends."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from placement.exceptions import Unavailable
from placement.read_model import feed as module
from placement.read_model.feed import ReadGate, ReadTurn
from placement.read_model.provider import Provider
from placement.read_model.snapshot import ModelSnapshot


class Ended(Exception):
    """What ends a turn."""


def is_free(turns: ReadGate) -> bool:
    """Whether somebody else finds that nobody holds anything of it."""
    with ThreadPoolExecutor() as others:
        return others.submit(_is_free, turns).result()


def _is_free(turns: ReadGate) -> bool:
    locks = (turns.first, turns.later, turns.counting, turns.long_requests)
    got = [lock.acquire(blocking=False) for lock in locks]
    for lock, acquired in zip(locks, got, strict=True):
        if acquired:
            lock.release()
    return all(got)


@pytest.mark.parametrize("times", [0, 1, 2, 3])
@pytest.mark.parametrize("fails", [False, True])
def test_a_turn_gives_back_all_that_it_holds(times: int, fails: bool) -> None:
    turns, snapshot = ReadGate(1), ModelSnapshot()
    try:
        with ReadTurn(turns) as turn:
            for _ in range(times):
                turn.give_way(snapshot)
            assert snapshot.keepers == min(times, 1)
            if fails:
                raise Ended
    except Ended:
        pass
    assert is_free(turns)
    assert snapshot.keepers == 0


@pytest.mark.parametrize("pauses", [0, 1])
def test_a_turn_that_ends_while_others_have_theirs_takes_nothing_from_them(
    pauses: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    turns, snapshot = ReadGate(1), ModelSnapshot()
    left = [None] * pauses

    def pause(seconds: float) -> None:
        if not left:
            turns.later.acquire()  # somebody else's
            raise Ended
        left.pop()

    monkeypatch.setattr(module.time, "sleep", pause)

    def work() -> None:
        with ReadTurn(turns) as turn:
            for _ in range(pauses + 1):
                turn.give_way(snapshot)

    with pytest.raises(Ended):
        work()
    assert turns.later.locked()
    turns.later.release()
    assert is_free(turns)
    assert snapshot.keepers == 0


def test_more_long_requests_than_there_may_be_are_refused_and_keep_nothing() -> None:
    turns, snapshot = ReadGate(1), ModelSnapshot()
    with ReadTurn(turns) as first:
        first.give_way(snapshot)
        with pytest.raises(Unavailable, match="as many long requests"), ReadTurn(turns) as second:
            second.give_way(snapshot)
        assert snapshot.keepers == 1
    assert is_free(turns)


def test_several_may_look_at_a_snapshot_that_is_kept_as_its_trees_are_up_to_date(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    turns, snapshot = ReadGate(), ModelSnapshot()
    one = Provider(1, f"{1:032}", "cn1", 0, None, 1, 0.0, {}, {}, frozenset(), frozenset())
    snapshot.put(one)
    turns.keep(snapshot)
    monkeypatch.setattr(snapshot, "_kinds", None)  # by which trees are made
    assert list(snapshot.whole_trees()) == [1]
