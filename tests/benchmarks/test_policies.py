"""The comparison of policies runs on a small scale, and its verdicts are right."""

import json
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks import policies
from benchmarks.policies import (
    NOVA,
    NOVA_REQUIREMENTS,
    PolicyRecord,
    PolicyScore,
    WrongPlacement,
    compare_sides,
    count_goals,
    run_stream,
)
from benchmarks.policy_judge import PlacementJudge
from benchmarks.policy_sides import NovaPolicy, OurPolicy, PlacementDecision
from benchmarks.policy_streams import (
    MAX_LOAD,
    GuestArrival,
    GuestDeparture,
    StreamGuest,
    claimed_cpus,
    make_stream,
)
from benchmarks.reference import install_environment, is_installed
from compute_agent.model.guest_settings import ThreadPolicy
from compute_agent.policy import POLICIES
from tests.compute_agent.inventory.machines import machine
from tests.examples import examples

HOST = machine(nodes=2, l3=2, cores=2, threads=2)


def test_a_stream_is_the_same_again_and_asks_for_no_more_than_it_should():
    steps = list(make_stream(HOST, 200, seed=1))
    assert steps == list(make_stream(HOST, 200, seed=1)) != list(make_stream(HOST, 200, seed=2))
    asked: dict[str, int] = {}
    for step in steps:
        match step:
            case GuestArrival(guest):
                assert 1 <= claimed_cpus(HOST, guest) <= 4
                asked[guest.name] = claimed_cpus(HOST, guest)
            case GuestDeparture(name):
                del asked[name]
        assert sum(asked.values()) <= MAX_LOAD * len(HOST.online)
    guests = [step.guest for step in steps if isinstance(step, GuestArrival)]
    assert len(guests) == 200
    assert {guest.thread_policy for guest in guests} == set(ThreadPolicy) - {ThreadPolicy.SPREAD}


@settings(max_examples=examples(100), deadline=None)
@given(
    st.sets(st.integers(0, 15)),
    st.integers(1, 5),
    st.sampled_from([ThreadPolicy.PREFER, ThreadPolicy.ISOLATE]),
)
def test_the_fewest_domains_are_those_that_brute_force_finds(free, count, policy):
    judge, free = PlacementJudge(HOST), frozenset(free)
    guest = StreamGuest("guest", count, policy)
    possible = [
        frozenset(cpus)
        for cpus in combinations(sorted(free), count)
        if policy is ThreadPolicy.PREFER
        or (all(HOST.threads_of(cpu) <= free for cpu in cpus) and len({cpu // 2 for cpu in cpus}) == count)
    ]
    splits = [judge.judge_split(free, guest, cpus) for cpus in possible]
    if splits:
        assert min(split.nodes for split in splits) == min(split.l3s for split in splits) == 0


@pytest.mark.parametrize("given_away", [{0}, {0, 1, 2}, {0, 99}])
def test_the_judge_detects_a_policy_that_assigns_occupied_cpus(given_away):
    class Careless:
        def place_guest(self, guest):
            return PlacementDecision(frozenset(given_away), 1)

    guests = [StreamGuest(name, 2, ThreadPolicy.PREFER) for name in "ab"]
    with pytest.raises(WrongPlacement):
        run_stream(HOST, map(GuestArrival, guests), Careless(), PolicyRecord())


def test_our_policies_place_every_guest_that_fits():
    guests = [StreamGuest(str(number), 2, policy) for number, policy in enumerate(list(ThreadPolicy)[:3])]
    record = PolicyRecord()
    run_stream(
        HOST,
        [*map(GuestArrival, guests), GuestDeparture("2")],
        OurPolicy(HOST, POLICIES["topology-aware"], [HOST.online], True),
        record,
    )
    assert (record.accepted, record.split_nodes, record.split_l3s) == (3, 0, 0)
    assert (record.whole_cores, record.loads) == ([6], [0.25])
    assert len(record.times) == 3


def test_goals_count_lines_and_not_machines():
    def score(side, accepted, splits, median):
        return PolicyScore("m", "z", side, 10, accepted, 0, splits, 1.0, 0.8, median, 1.0)

    reached = count_goals([score("nova", 8, 2, 100.0), score("topology-aware", 8, 1, 5.1)])
    assert (reached.lines, reached.never_fewer_accepted, reached.half_the_needless_splits) == (1, 1, 1)
    assert reached.twenty_times_faster == 0


def test_results_are_printed_and_written(tmp_path, monkeypatch, capsys):
    target = tmp_path / "found.json"
    options = ["--quick", "--no-nova", "--machines", policies.MADE_UP, "--json", str(target)]
    monkeypatch.setattr("sys.argv", ["policies", *options])
    policies.main()
    assert capsys.readouterr().out.count(f"| {policies.MADE_UP}") == 3
    scores = json.loads(target.read_text())["scores"]
    assert {(one["zones"], one["side"]) for one in scores} == {
        (zones, side) for zones in policies.ZONES for side in ("topology-aware", "static")
    }
    assert all(0 < one["accepted"] <= one["asked"] == 60 for one in scores)


@pytest.mark.slow
def test_nova_gets_the_same_requests():
    if not is_installed(NOVA, NOVA_REQUIREMENTS):
        pytest.skip("Nova is not installed for comparison: run python -m benchmarks.policies once")
    with NovaPolicy(install_environment(NOVA, NOVA_REQUIREMENTS) / "python") as nova:
        scores = list(compare_sides("host", HOST, 40, 1, nova))
    found = {(score.zones, score.side): score for score in scores}
    assert len(found) == 8
    for zones in (policies.FULLEST, policies.EMPTIEST):
        assert found[zones, "nova"].accepted > 30
        assert found[zones, "nova"].asked == found[zones, "topology-aware"].asked == 40
