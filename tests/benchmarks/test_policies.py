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
    Record,
    Score,
    WrongPlacement,
    compare,
    goals,
    run,
)
from benchmarks.policy_judge import Judge
from benchmarks.policy_sides import Decision, Nova, Ours
from benchmarks.policy_streams import MAX_LOAD, Arrival, Departure, Guest, amount, stream
from benchmarks.reference import environment, is_installed
from compute_agent.model.guest_settings import ThreadPolicy
from compute_agent.policy import POLICIES
from tests.compute_agent.inventory.machines import machine
from tests.examples import examples

HOST = machine(nodes=2, l3=2, cores=2, threads=2)


def test_a_stream_is_the_same_again_and_asks_for_no_more_than_it_should():
    steps = list(stream(HOST, 200, seed=1))
    assert steps == list(stream(HOST, 200, seed=1)) != list(stream(HOST, 200, seed=2))
    asked: dict[str, int] = {}
    for step in steps:
        match step:
            case Arrival(guest):
                assert 1 <= amount(HOST, guest) <= 4
                asked[guest.name] = amount(HOST, guest)
            case Departure(name):
                del asked[name]
        assert sum(asked.values()) <= MAX_LOAD * len(HOST.online)
    guests = [step.guest for step in steps if isinstance(step, Arrival)]
    assert len(guests) == 200
    assert {guest.thread_policy for guest in guests} == set(ThreadPolicy) - {ThreadPolicy.SPREAD}


@settings(max_examples=examples(100), deadline=None)
@given(
    st.sets(st.integers(0, 15)),
    st.integers(1, 5),
    st.sampled_from([ThreadPolicy.PREFER, ThreadPolicy.ISOLATE]),
)
def test_the_fewest_domains_are_those_that_brute_force_finds(free, count, policy):
    judge, free = Judge(HOST), frozenset(free)
    guest = Guest("guest", count, policy)
    possible = [
        frozenset(cpus)
        for cpus in combinations(sorted(free), count)
        if policy is ThreadPolicy.PREFER
        or (all(HOST.threads_of(cpu) <= free for cpu in cpus) and len({cpu // 2 for cpu in cpus}) == count)
    ]
    splits = [judge.split(free, guest, cpus) for cpus in possible]
    if splits:
        assert min(split.nodes for split in splits) == min(split.l3s for split in splits) == 0


@pytest.mark.parametrize("given_away", [{0}, {0, 1, 2}, {0, 99}])
def test_the_judge_detects_a_policy_that_assigns_occupied_cpus(given_away):
    class Careless:
        def arrive(self, guest):
            return Decision(frozenset(given_away), 1)

    guests = [Guest(name, 2, ThreadPolicy.PREFER) for name in "ab"]
    with pytest.raises(WrongPlacement):
        run(HOST, map(Arrival, guests), Careless(), Record())


def test_our_policies_place_every_guest_that_fits():
    guests = [Guest(str(number), 2, policy) for number, policy in enumerate(list(ThreadPolicy)[:3])]
    record = Record()
    run(
        HOST,
        [*map(Arrival, guests), Departure("2")],
        Ours(HOST, POLICIES["topology-aware"], [HOST.online], True),
        record,
    )
    assert (record.accepted, record.split_nodes, record.split_l3s) == (3, 0, 0)
    assert (record.whole_cores, record.loads) == ([6], [0.25])
    assert len(record.times) == 3


def test_goals_count_lines_and_not_machines():
    def score(side, accepted, splits, median):
        return Score("m", "z", side, 10, accepted, 0, splits, 1.0, 0.8, median, 1.0)

    reached = goals([score("nova", 8, 2, 100.0), score("topology-aware", 8, 1, 5.1)])
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
    with Nova(environment(NOVA, NOVA_REQUIREMENTS) / "python") as nova:
        scores = list(compare("host", HOST, 40, 1, nova))
    found = {(score.zones, score.side): score for score in scores}
    assert len(found) == 8
    for zones in (policies.FULLEST, policies.EMPTIEST):
        assert found[zones, "nova"].accepted > 30
        assert found[zones, "nova"].asked == found[zones, "topology-aware"].asked == 40
