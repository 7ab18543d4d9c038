"""Tests of the choice of cores, checked by brute force over the used threads of each core."""

import random

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from compute_agent.model.guest_settings import ThreadPolicy
from compute_agent.policy.cores import CoreDemand, capacity, choice_cost, choose_cpus, free_cores
from tests.compute_agent.inventory.machines import machine
from tests.examples import examples

HOST = machine(l3=2, cores=3, threads=4)


MIXED = machine(cores=6, threads=5, offline=frozenset({4, 8, 9, 12, 13, 14, 25}))
"""Whole cores of two to five threads."""


def ways(numbers, count):
    """All ways to take ``count`` threads from cores with these numbers of free threads."""
    if not numbers:
        yield ()
        return
    first, *others = numbers
    for use in range(max(0, count - sum(others)), min(first, count) + 1):
        for rest in ways(others, count - use):
            yield (use, *rest)


def brute_force(host, free, count, policy, least):
    """The least cost, as used cores and broken cores; None if there is no choice."""
    cores = [(len(core.cpus & free), core.cpus <= free) for core in host.cores if core.cpus & free]
    if policy is ThreadPolicy.REQUIRE:
        cores = [core for core in cores if core[0] > 1]
    if policy is ThreadPolicy.ISOLATE:
        cores = [core for core in cores if core[1]]
    found = []
    if sum(number for number, _ in cores) < count:
        return None
    for used in ways([number for number, _ in cores], count):
        taken = [(use, number, whole) for use, (number, whole) in zip(used, cores, strict=True) if use]
        if len(taken) < least:
            continue
        if policy is ThreadPolicy.REQUIRE and sum(use == 1 for use, _, _ in taken) > 1:
            continue
        if policy is ThreadPolicy.ISOLATE and any(use < number for use, number, _ in taken):
            continue
        broken = sum(whole and use < number for use, number, whole in taken)
        mended = sum(not whole and use == number for use, number, whole in taken)
        found.append((len(taken), broken - mended))
    return min(found, default=None)


def check(host, free, count, policy, least=0):
    """Check that the choice of cores costs as little as the best choice by brute force."""
    want = CoreDemand(policy, count, least)
    available = free_cores(host, free)
    best = choice_cost(available, want)
    assert best == brute_force(host, free, count, policy, least), (sorted(free), want)
    if best is not None:
        chosen = choose_cpus(available, want)
        assert set(chosen) <= free
        assert len(set(chosen)) == len(chosen) == count
        assert len({host.threads_of(cpu) for cpu in chosen}) == best.cores


@settings(max_examples=examples(300), deadline=None)
@given(
    st.sets(st.integers(0, 23), min_size=1),
    st.integers(1, 12),
    st.sampled_from([ThreadPolicy.PREFER, ThreadPolicy.REQUIRE, ThreadPolicy.ISOLATE]),
    st.integers(0, 3),
)
@example({4, 5, 6, 7, 10, 12, 16, 19}, 3, ThreadPolicy.PREFER, 0)
@example({4, 8, 9, 10, 11, 13, 14, 16, 17, 18, 19, 21, 22}, 7, ThreadPolicy.PREFER, 0)
def test_the_fewest_cores_are_used_and_then_the_fewest_broken(free, count, policy, least):
    check(HOST, frozenset(free), count, policy, least if policy is ThreadPolicy.ISOLATE else 0)


@pytest.mark.parametrize("host", [HOST, MIXED], ids=["cores of a size", "cores of many sizes"])
@pytest.mark.parametrize("policy", [ThreadPolicy.PREFER, ThreadPolicy.REQUIRE, ThreadPolicy.ISOLATE])
def test_choices_equal_brute_force_for_a_thousand_random_states(host, policy):
    """The states are the same in each run, so that a rare fault is found in every run."""
    chance = random.Random(12)
    for _ in range(1000):
        share = chance.choice((0.3, 0.5, 0.8))
        free = frozenset(cpu for cpu in sorted(host.online) if chance.random() < share)
        least = chance.randint(0, 3) if policy is ThreadPolicy.ISOLATE else 0
        check(host, free, chance.randint(1, 12), policy, least)


def test_a_choice_among_many_broken_cores_is_fast():
    """Without a bound on the number of tried plans, this choice would take very long."""
    large = machine(cores=128, threads=8)
    free = frozenset(random.Random(1).sample(sorted(large.online), 512))
    found = choice_cost(free_cores(large, free), CoreDemand(ThreadPolicy.PREFER, 250))
    fullest_first = sorted((len(core.cpus & free) for core in large.cores), reverse=True)
    assert found is not None
    assert found.cores == next(count for count in range(129) if sum(fullest_first[:count]) >= 250)


@pytest.mark.parametrize("policy", [ThreadPolicy.PREFER, ThreadPolicy.REQUIRE, ThreadPolicy.ISOLATE])
def test_a_core_with_one_online_thread_is_used_up_rather_than_broken(policy):
    # of one, one, two and three threads
    host = machine(cores=6, threads=3, offline=frozenset({1, 2, 4, 5, 8}))
    chance = random.Random(7)
    for _ in range(300):
        free = frozenset(cpu for cpu in sorted(host.online) if chance.random() < 0.6)
        check(host, free, chance.randint(1, 8), policy)


ONE_THREAD_LEFT = frozenset({0, 1, 2, 3, 4})
"""Of :data:`HOST`: a whole core, and one thread of another."""


@pytest.mark.parametrize(
    ("want", "cpus"),
    [
        (CoreDemand(ThreadPolicy.PREFER, 1), 5),
        (CoreDemand(ThreadPolicy.ISOLATE, 1), 4),
        (CoreDemand(ThreadPolicy.ISOLATE, 1, extra=True), 5),
        (CoreDemand(ThreadPolicy.REQUIRE, 1), 4),
    ],
)
def test_a_single_cpu_counts_only_for_demands_that_accept_one(want, cpus):
    (free,) = free_cores(HOST, ONE_THREAD_LEFT)
    assert capacity(free, want) == cpus


@pytest.mark.parametrize(
    ("free", "cpus", "expected"),
    [
        (range(9), 5, (2, -1)),  # a whole core, and the last thread of one that was broken
        (range(10), 5, (2, 0)),
        (range(8), 5, (2, 1)),
        (range(8), 4, (1, 0)),
        (range(12), 6, None),  # five are not whole cores
        (range(4), 5, None),
    ],
)
def test_isolated_guests_get_whole_cores_and_one_cpu_for_the_emulator(free, cpus, expected):
    want = CoreDemand(ThreadPolicy.ISOLATE, cpus, 1, extra=True)
    assert choice_cost(free_cores(HOST, frozenset(free)), want) == expected


def test_a_host_without_free_cpus_has_no_pieces():
    assert free_cores(HOST, frozenset()) == []


@pytest.mark.parametrize(
    ("free", "cpus", "expected"),
    [
        (range(12), 1, (0, 0)),
        (range(12), 3, (0, 0)),
        (range(12), 4, (1, 0)),
        (range(12), 12, (9, 0)),
        (range(12), 13, None),
        (range(1, 12), 2, (0, 0)),  # whole cores first
        (range(1, 12), 3, (0, 1)),
        (range(1, 12), 5, (2, 1)),
        ((0, 4, 8), 3, (0, 3)),
    ],
)
def test_spread_counts_threads_on_one_core_and_cores_shared_with_others(free, cpus, expected):
    """The host has three cores with four threads each."""
    assert choice_cost(free_cores(HOST, frozenset(free)), CoreDemand(ThreadPolicy.SPREAD, cpus)) == expected
