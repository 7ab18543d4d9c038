"""Which cores a guest takes, judged by brute force over the threads used of every core."""

import random
from itertools import product

from hypothesis import given, settings
from hypothesis import strategies as st

from compute_agent.policy.base import ThreadPolicy
from compute_agent.policy.cores import Want, choose, cost
from compute_agent.policy.pieces import rooms
from tests.compute_agent.inventory.machines import machine

HOST = machine(l3=2, cores=3, threads=4)


def brute_force(free, count, policy, least):
    """The least cores crossed and cores broken, less those mended; None if it cannot be."""
    cores = [(len(core.cpus & free), core.cpus <= free) for core in HOST.cores if core.cpus & free]
    if policy is ThreadPolicy.REQUIRE:
        cores = [core for core in cores if core[0] > 1]
    if policy is ThreadPolicy.ISOLATE:
        cores = [core for core in cores if core[1]]
    found = []
    for used in product(*(range(number + 1) for number, _ in cores)):
        taken = [(use, number, whole) for use, (number, whole) in zip(used, cores, strict=True) if use]
        if sum(used) != count or len(taken) < least:
            continue
        if policy is ThreadPolicy.REQUIRE and sum(use == 1 for use, _, _ in taken) > 1:
            continue
        if policy is ThreadPolicy.ISOLATE and any(use < number for use, number, _ in taken):
            continue
        broken = sum(whole and use < number for use, number, whole in taken)
        mended = sum(not whole and use == number for use, number, whole in taken)
        found.append((len(taken), broken - mended))
    return min(found, default=None)


@settings(max_examples=300, deadline=None)
@given(
    st.sets(st.integers(0, 23), min_size=1),
    st.integers(1, 12),
    st.sampled_from([ThreadPolicy.PREFER, ThreadPolicy.REQUIRE, ThreadPolicy.ISOLATE]),
    st.integers(0, 3),
)
def test_as_few_cores_as_can_be_and_of_these_choices_the_one_that_breaks_fewest(free, count, policy, least):
    least = least if policy is ThreadPolicy.ISOLATE else 0
    want = Want(policy, count, least)
    available = rooms(HOST, frozenset(free))
    best = cost(available, want)
    assert best == brute_force(free, count, policy, least)
    if best is not None:
        chosen = choose(available, want)
        assert set(chosen) <= free
        assert len(set(chosen)) == len(chosen) == count
        assert len({HOST.threads_of(cpu) for cpu in chosen}) == best.cores


def test_much_choice_between_broken_cores_is_soon_made():
    """Without a bound on what is tried, this takes very long."""
    large = machine(cores=128, threads=8)
    free = frozenset(random.Random(1).sample(sorted(large.online), 512))
    found = cost(rooms(large, free), Want(ThreadPolicy.PREFER, 250))
    fullest_first = sorted((len(core.cpus & free) for core in large.cores), reverse=True)
    assert found is not None
    assert found.cores == next(count for count in range(129) if sum(fullest_first[:count]) >= 250)
