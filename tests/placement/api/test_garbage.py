"""Tests of the collection of garbage between requests: objects in reference cycles are freed, too."""

import gc
import multiprocessing
import weakref
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace

import pytest
from werkzeug.test import Client
from werkzeug.wrappers import Response

from placement.api import garbage as module
from placement.api.garbage import GcScheduler
from tests.placement.search.snapshots import Spec, build


class Knot:
    """An object that refers to itself, so that only the collector frees it."""

    def __init__(self) -> None:
        self.itself = self


@pytest.fixture(autouse=True)
def thresholds() -> Iterator[None]:
    """Restore the thresholds of the garbage collector after the test. Frozen objects stay frozen."""
    before = gc.get_threshold()
    yield
    gc.set_threshold(*before)


def grow_old() -> None:
    """Collect the young generations so often that a collection of the oldest generation is due."""
    for _ in range(module._OFTEN + 1):
        gc.collect(1)


def lost() -> "weakref.ref[Knot]":
    """An unreferenced object in a reference cycle, in the oldest generation of the collector."""
    knot = Knot()
    gone = weakref.ref(knot)
    grow_old()
    return gone


def test_garbage_is_collected_after_a_request() -> None:
    served = Client(GcScheduler(lambda: 0).collect_after(Response("done")))
    gone = lost()
    assert served.get("/").text == "done"
    assert gone() is None


def test_the_collector_does_not_run_after_every_request() -> None:
    garbage = GcScheduler(lambda: 0)
    gc.collect()
    knot = Knot()
    gc.collect(1)
    gone = weakref.ref(knot)
    del knot
    garbage.collect_if_due()
    assert gone() is not None


def test_the_collector_waits_for_long_requests_with_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    garbage = GcScheduler(lambda: 1)
    gone = lost()
    garbage.collect_if_due()
    assert gone() is not None
    monkeypatch.setattr(module, "_PATIENCE", 0.0)
    garbage.collect_if_due()
    assert gone() is None


def test_pythons_own_collections_are_rare_and_small() -> None:
    GcScheduler(lambda: 0)
    assert gc.get_threshold() == (4000, 1, 900)


def replace_trees() -> tuple[int, int]:
    """Replace each of 50 trees eight times, while all old objects are frozen (excluded from collection).

    :returns: the number of replaced trees that still exist, and the number of objects frozen between the
        101st and the last change.
    """
    module._LONG = -1.0  # every collection counts as long
    module._OFTEN = 0
    garbage = GcScheduler(lambda: 0)
    snapshot = build(*(Spec(f"cn{number}", None, {"VCPU": 8}) for number in range(50)))
    replaced, frozen = [], []
    for change in range(400):
        old = snapshot.whole_trees()[1 + change % 50]
        replaced.append(weakref.ref(old.kind))
        traits = frozenset({f"CUSTOM_{change}"})
        snapshot.put(replace(snapshot.providers[1 + change % 50], used={"VCPU": change % 7}, traits=traits))
        snapshot.whole_trees()
        del old
        gc.collect(1)
        garbage.collect_if_due()
        if change in (100, 399):
            frozen.append(gc.get_freeze_count())
    return sum(each() is not None for each in replaced), frozen[1] - frozen[0]


def test_frozen_trees_are_freed_when_they_are_replaced() -> None:
    # in a process of its own: threads of other tests make objects that would be frozen and counted as well
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=spawn) as process:
        left, frozen = process.submit(replace_trees).result(timeout=120)
    assert left <= 50  # the current one of each tree
    assert frozen < (399 - 100) + 50  # one weak reference for each replaced tree
