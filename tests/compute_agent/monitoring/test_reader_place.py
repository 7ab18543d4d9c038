"""Tests of threads of the agent that move to a CPU near a cache in order to read its counters.

The threads keep off quiet CPUs, and return afterwards.
"""

import os
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from compute_agent.isolation.shell import OwnThreads
from compute_agent.monitoring.readings import CacheReaderPlace, find_counter_cpus

ALL = frozenset(os.sched_getaffinity(0))
FIRST = frozenset({min(ALL)})

pytestmark = pytest.mark.skipif(len(ALL) < 2, reason="needs two CPUs to tell apart")


@pytest.mark.parametrize(
    ("tickless", "found"), [((), {0, 4}), ((0, 1), {2, 4}), (range(8), {0, 4}), ((4, 5, 6), {0, 7})]
)
def test_the_kernel_reads_on_the_first_cpu_of_a_cache(tickless, found):
    caches = [frozenset(range(4)), frozenset(range(4, 8)), frozenset()]
    assert find_counter_cpus(caches, frozenset(tickless)) == found


def in_thread(work):
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(work).result()


@pytest.fixture
def own_threads():
    found = OwnThreads()
    yield found
    found.keep_off(frozenset())
    assert os.sched_getaffinity(0) == ALL


def test_a_reader_moves_near_a_cache_and_returns():
    def read():
        place, seen = CacheReaderPlace({0: FIRST, 1: ALL - FIRST, 2: frozenset(), 3: frozenset({1023})}), []
        for cache in (0, 1, 2, 3, 7):
            place.move_near(cache)
            seen.append(frozenset(os.sched_getaffinity(0)))
        place.return_home()
        return [*seen, frozenset(os.sched_getaffinity(0))]

    # Without CPUs, or with none that it may use, it stays.
    assert in_thread(read) == [FIRST, *[ALL - FIRST] * 4, ALL]
    assert os.sched_getaffinity(0) == ALL


def test_all_threads_keep_off_quiet_cpus_until_these_are_free(own_threads):
    ended = threading.Event()
    thread = threading.Thread(target=ended.wait)
    thread.start()
    try:
        own_threads.keep_off(FIRST)
        assert os.sched_getaffinity(0) == os.sched_getaffinity(thread.native_id) == ALL - FIRST
        assert in_thread(lambda: os.sched_getaffinity(0)) == ALL - FIRST
        own_threads.keep_off(frozenset())
        assert os.sched_getaffinity(0) == os.sched_getaffinity(thread.native_id) == ALL
    finally:
        ended.set()
        thread.join()


def test_an_agent_with_no_other_cpu_stays(own_threads):
    own_threads.keep_off(ALL)
    assert os.sched_getaffinity(0) == ALL


def test_an_agent_elsewhere_is_not_touched(own_threads):
    own_threads.keep_off(frozenset({1023}))
    assert os.sched_getaffinity(0) == ALL
