"""Tests that policies and rebalancing consider the measured CPU use of guests.

The host has cores of two threads: CPUs 0-1, 2-3, 4-5 and 6-7. All CPUs are dedicated.
"""

import itertools
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compute_agent.model.cpuset import CpuSets
from compute_agent.model.guest_settings import ThreadPolicy
from compute_agent.policy import POLICIES
from compute_agent.policy.base import CpuSupply, GuestRequest, ProviderDemand, build_assignment
from compute_agent.policy.load_profiles import WEEK_HOURS, LoadProfile, common_load, fill_hours
from compute_agent.policy.running_guests import best_move, place_cost
from tests.compute_agent.inventory.machines import machine

TOPOLOGY = machine(cores=4, threads=2)
SUPPLY = CpuSupply(TOPOLOGY, CpuSets(TOPOLOGY.online, frozenset(), frozenset()))


def request(name, count=1, policy=ThreadPolicy.PREFER):
    return GuestRequest(name, count, (ProviderDemand("host", TOPOLOGY.online, count),), policy)


def supply(holdings, loads=None, wanted=1):
    """The CPUs of the host with the busy part of each guest's CPUs, as a number or as a profile.

    A guest without CPUs wants ``wanted`` CPUs.
    """
    held = {guest: frozenset(cpus) for guest, cpus in holdings.items()}
    profiles = {
        guest: load if isinstance(load, LoadProfile) else LoadProfile.from_mean(load)
        for guest, load in (loads or {}).items()
    }
    use = {
        guest: LoadProfile(
            tuple(part * len(held.get(guest, range(wanted))) for part in profile.hours), profile.learnt
        )
        for guest, profile in profiles.items()
    }
    busy = {cpu: profile for guest, profile in profiles.items() for cpu in held.get(guest, ())}
    return replace(SUPPLY, holdings=held, use=use, busy=busy)


HELD = {"a": [0], "b": [2], "c": [4], "d": [6]}


@pytest.mark.parametrize(
    ("name", "policy"),
    [
        ("static", ThreadPolicy.SPREAD),
        ("topology-aware", ThreadPolicy.SPREAD),
        ("topology-aware", ThreadPolicy.PREFER),
    ],
)
def test_a_guest_is_placed_beside_the_least_busy_cpu(name, policy):
    place = POLICIES[name]
    one, two = request("new", 1, policy), request("new", 2, policy)
    use = {"a": 0.9, "b": 0.5, "c": 0.1, "d": 0.7}
    assert place(supply(HELD), one).dedicated == (1,)
    assert place(supply(HELD, use), one).dedicated == (5,)
    assert set(place(supply(HELD, use), two).dedicated) == {3, 5}


@pytest.mark.parametrize("policy", [ThreadPolicy.PREFER, ThreadPolicy.SPREAD, ThreadPolicy.ISOLATE])
@pytest.mark.parametrize("name", ["static", "topology-aware"])
def test_cpus_that_are_set_apart_are_for_guests_that_are_alone(name, policy):
    here = replace(SUPPLY, set_apart=frozenset({2, 3}))
    usual, alone = request("usual", 2, policy), replace(request("alone", 2, policy), alone=True)
    if policy is ThreadPolicy.ISOLATE:
        usual, alone = (replace(one, vcpus=1) for one in (usual, alone))
    assert not {2, 3} & set(POLICIES[name](here, usual).dedicated)
    # One thread of each core counts more than the boot options.
    expected = {2, 0} if policy is ThreadPolicy.SPREAD else {2, 3}
    assert set(POLICIES[name](here, alone).dedicated) == expected
    # Other guests get these CPUs last, and never lack a CPU.
    six = replace(here, holdings={"others": frozenset({0, 1, 4, 5, 6, 7})})
    assert POLICIES[name](six, request("late", 2)).dedicated == (2, 3)


def test_whole_cores_come_before_idle_siblings_for_spread():
    found = POLICIES["topology-aware"](supply({"a": [0]}, {"a": 0.0}), request("new", 1, ThreadPolicy.SPREAD))
    assert found.dedicated == (2,)


def moved(holdings, use, min_gain=2.0):
    here = supply(holdings, use)
    guests = [
        (request(name, len(cpus)), build_assignment(here, request(name, len(cpus)), tuple(cpus)))
        for name, cpus in holdings.items()
    ]
    return best_move(here, POLICIES["topology-aware"], guests, min_gain)


def test_two_busy_guests_on_one_core_are_separated():
    found = moved({"a": [0], "b": [1]}, {"a": 0.9, "b": 0.8})
    assert (found.guest, found.gain) == ("a", pytest.approx(3.2))
    assert found.assignment.held_cpus.isdisjoint({0, 1})


@pytest.mark.parametrize(
    ("holdings", "use"),
    [
        ({"a": [0], "b": [1]}, {}),
        ({"a": [0], "b": [1]}, {"a": 0.9}),
        ({"a": [0], "b": [1]}, {"a": 0.9, "b": 0.4}),
        ({"a": [0], "b": [2]}, {"a": 1.0, "b": 1.0}),
        ({"a": [0, 1]}, {"a": 1.0}),
    ],
)
def test_no_guest_moves_where_threads_do_not_contend(holdings, use):
    assert moved(holdings, use) is None


@given(
    st.lists(st.integers(0, 3), min_size=8, max_size=8),
    st.lists(st.sampled_from([None, 0.0, 0.3, 0.6, 1.0]), min_size=3, max_size=3),
)
def test_moves_by_contention_end_and_each_has_a_gain(owners, measured):
    """Each move lowers the costs of all guests by its gain, while use is constant."""
    holdings = {
        f"g{guest}": tuple(cpu for cpu, owner in enumerate(owners) if owner == guest) for guest in range(3)
    }
    holdings = {guest: cpus for guest, cpus in holdings.items() if cpus}
    use = {
        f"g{guest}": cores
        for guest, cores in enumerate(measured)
        if cores is not None and f"g{guest}" in holdings
    }

    def cost():
        here = supply(holdings, use)
        own = [
            place_cost(
                here, request(guest, len(cpus)), build_assignment(here, request(guest, len(cpus)), cpus)
            )
            for guest, cpus in holdings.items()
        ]
        return sum(own) / 2  # all of it is of pairs here

    for _ in range(30):
        before = cost()
        found = moved(holdings, use, min_gain=0.5)
        if found is None:
            return
        holdings[found.guest] = found.assignment.dedicated
        assert cost() == pytest.approx(before - found.gain)
    raise AssertionError("guests are moved again and again")


def hours(*busy):
    """A load profile that is fully busy in some hours of each day, and idle in all other hours."""
    return LoadProfile(tuple(float(number % 24 in busy) for number in range(WEEK_HOURS)))


DAY, NIGHT = hours(*range(8, 20)), hours(*range(8), *range(20, 24))


def test_guests_with_opposite_peaks_share_a_core_and_those_with_equal_peaks_do_not():
    """All four guests are busy half of the time."""
    assert moved({"a": [0], "b": [1]}, {"a": DAY, "b": NIGHT}, min_gain=0.5) is None
    assert moved({"a": [0], "b": [1]}, {"a": DAY, "b": DAY}, min_gain=0.5).gain == pytest.approx(4)
    # If no core is free, a guest moves beside the guest with the opposite peak.
    full = {"a": [0], "b": [1], "c": [2], "d": [4], "e": [6]}
    loads = {"a": DAY, "b": DAY, "c": DAY, "d": NIGHT, "e": DAY}
    found = moved(full, loads)
    assert (found.guest, found.assignment.dedicated) == ("a", (5,))


def learnt(profile):
    return replace(profile, learnt=True)


def test_a_small_part_of_the_gain_is_enough_for_learnt_hours():
    """Two guests may be busy together in a quarter of the time, so each could gain 1 point."""
    beside, part = {"a": [0], "b": [1]}, LoadProfile.from_mean(0.25)
    assert moved(beside, {"a": part, "b": part}) is None
    assert moved(beside, {"a": learnt(part), "b": part}) is None
    assert moved(beside, {"a": learnt(part), "b": learnt(part)}).gain == pytest.approx(1)
    assert moved(beside, {"a": learnt(part), "b": learnt(part)}, min_gain=17.0) is None
    # No core is free. The agent also has to know the use of the guest beside the new place.
    full = {"a": [0], "b": [1], "c": [2], "d": [4], "e": [6]}
    loads = {guest: learnt(part) for guest in full} | {"d": learnt(hours())}
    assert moved(full, loads).assignment.dedicated == (5,)
    assert moved(full, {**loads, "d": hours()}) is None
    del loads["d"]
    assert moved(full, loads) is None


def test_guests_that_are_busy_together_now_are_separated_unless_their_hours_get_worse():
    """The guests have opposite peaks, but today both guests are busy at once; the other cores have guests,
    too.
    """
    holdings = {"a": [0], "b": [1], "c": [2], "d": [4], "e": [6]}
    now = {"a": 0.9, "b": 0.9, "c": 0.1, "d": 0.8, "e": 0.8}
    part = LoadProfile.from_mean(0.2)
    loads = {guest: learnt(load) for guest, load in (("a", DAY), ("b", NIGHT), ("d", DAY), ("e", DAY))}

    def found(hours_of_c):
        here, recent = supply(holdings, loads | {"c": learnt(hours_of_c)}), supply(holdings, now)
        guests = [
            (request(name), build_assignment(here, request(name), tuple(cpus)))
            for name, cpus in holdings.items()
        ]
        assert best_move(here, POLICIES["topology-aware"], guests, 2.0) is None
        assert best_move(here, POLICIES["topology-aware"], guests, 2.0, here) is None
        return best_move(here, POLICIES["topology-aware"], guests, 2.0, recent)

    # 0.8 points by hour are less than half of the minimum gain.
    assert found(part).assignment.dedicated == (3,)
    assert found(LoadProfile.from_mean(0.3)) is None


def test_learnt_hours_do_not_make_moves_for_other_reasons_easier():
    """A guest leaves a second L3 domain only if it gains the whole minimum gain."""
    topology = machine(l3=2, cores=2, threads=2)
    here = replace(
        SUPPLY,
        topology=topology,
        cpu_sets=CpuSets(topology.online, frozenset(), frozenset()),
        holdings={"a": frozenset({0, 4})},
        use={"a": learnt(DAY)},
        busy={0: learnt(DAY), 4: learnt(DAY)},
    )
    want = GuestRequest("a", 2, (ProviderDemand("host", topology.online, 2),))
    guests = [(want, build_assignment(here, want, (0, 4)))]
    assert best_move(here, POLICIES["topology-aware"], guests, 2.0) is None
    assert best_move(here, POLICIES["topology-aware"], guests, 1.0) is not None


def test_a_returning_guest_is_placed_by_its_own_hours():
    loads = {"a": DAY, "b": DAY, "c": NIGHT, "d": DAY}
    place = POLICIES["topology-aware"]
    assert place(supply(HELD, {**loads, "new": DAY}), request("new")).dedicated == (5,)
    assert place(supply(HELD, {**loads, "new": NIGHT}), request("new")).dedicated == (1,)
    # A guest that was never seen might be busy at any time.
    assert place(supply(HELD, {**loads, "c": hours(3)}), request("new")).dedicated == (5,)


PROFILES = st.lists(st.sampled_from([0.0, 0.2, 0.5, 1.0]), min_size=4, max_size=4).map(
    lambda parts: LoadProfile(tuple(parts[number % 4] for number in range(WEEK_HOURS)))
)


@given(
    st.permutations(range(8)),
    st.integers(1, 6),
    st.lists(PROFILES, min_size=7, max_size=7),
    st.sampled_from([ThreadPolicy.PREFER, ThreadPolicy.SPREAD]),
)
def test_no_other_choice_of_cpus_has_less_common_use(cpus, held, profiles, policy):
    """Brute force over all free CPUs judges the choice for a guest with known hours.

    The number of cores, and of cores that are broken already, is more important than the common use.
    """
    holdings = {f"g{number}": [cpus[number]] for number in range(held)}
    loads = {guest: profiles[number] for number, guest in enumerate(holdings)} | {"new": profiles[-1]}
    count = min(2, 8 - held)
    here, want = supply(holdings, loads, count), request("new", count, policy)
    found = POLICIES["topology-aware"](here, want).dedicated

    def together(chosen):
        """The common use of the new guest and of guests on the same cores, in their worst 24 hours of the
        week.
        """
        beside = [
            loads[guest]
            for cpu in chosen
            for guest, own in holdings.items()
            if not TOPOLOGY.threads_of(cpu).isdisjoint(own)
        ]
        hourly = [[min(pair) for pair in zip(profiles[-1].hours, one.hours, strict=True)] for one in beside]
        return sum(sum(sorted(hours, reverse=True)[:24]) for hours in hourly)

    def kinds(chosen):
        """For each core, the number of chosen threads, and whether other guests use the core."""
        taken = frozenset().union(*here.holdings.values())
        cores = {TOPOLOGY.threads_of(cpu) for cpu in chosen}
        return sorted((len(core & set(chosen)), not core & taken) for core in cores)

    free = TOPOLOGY.online.difference(*here.holdings.values())
    equal = [
        other for other in itertools.combinations(sorted(free), len(found)) if kinds(other) == kinds(found)
    ]
    assert together(found) == pytest.approx(min(map(together, equal)))


@given(PROFILES, PROFILES)
def test_common_load_is_that_of_the_hours_in_which_both_are_busy(one, other):
    both = common_load(one, other)
    assert both == pytest.approx(common_load(other, one))
    assert 0 <= both <= min(max(one.hours), max(other.hours)) + 1e-9
    assert (both == 0) == all(min(pair) == 0 for pair in zip(one.hours, other.hours, strict=True))


def test_common_load_is_that_of_the_worst_day_of_a_week():
    constant = LoadProfile.from_mean
    assert common_load(constant(0.3), constant(0.7)) == pytest.approx(0.3)
    # An hour a day makes 7 of the 24 hours.
    assert common_load(hours(3), constant(1.0)) == pytest.approx(7 / 24)
    assert common_load(DAY, DAY) == pytest.approx(1)
    assert common_load(DAY, NIGHT) == 0


def test_unknown_hours_are_those_of_other_days():
    monday = [float(clock) for clock in range(24)]
    unknown = [None] * (WEEK_HOURS - 24)
    assert fill_hours([*monday[:23], None, *unknown]) is None
    filled = fill_hours(monday + unknown)
    assert filled.hours == tuple(monday * 7)
    # 12 hours of two days: the other hours of the clock are those of the mean.
    half = [1.0] * 12 + [None] * 12 + [3.0] * 12 + [None] * (WEEK_HOURS - 36)
    assert fill_hours(half).hours[24:48] == (3.0,) * 12 + (2.0,) * 12
