"""The simulation of guests that disturb others still runs, and its judge judges."""

from dataclasses import replace

import pytest

from benchmarks import interference
from benchmarks.interference_worlds import KINDS, QUOTA, STEP, make_world
from compute_agent.throttling.interference.cases import CaseVerdict

CPU = make_world("quick 2", "cpu")


def test_culprits_are_found_and_restored_and_innocent_guests_keep_their_work():
    found = interference.InterferenceResult()
    for kind in KINDS[:3]:
        found.add(interference.judge_world(make_world(f"quick {kind}", kind)))
    assert (found.worlds, found.not_returned) == (3, 0)
    assert found.in_time == found.disturbed >= 2
    assert found.right >= found.actions - 1
    assert sum(found.kept) > sum(found.kept_minimum)
    assert found.speed["agent"] > found.speed["no limits"]
    assert len(interference.rows(found)) == 14


def test_no_guest_is_limited_on_a_calm_host():
    found = interference.judge_world(make_world("quick calm", "calm"))
    assert (found.actions, found.calm_actions, found.disturbed) == (0, 0, 0)
    assert found.calm_hours > 9


def test_the_judge_counts_limits_of_harmless_guests_as_wrong():
    """A controller that limits a guest with nearly no usage."""

    class Wrong(interference.AgentController):
        def decide_limits(self, sample):
            super().decide_limits(sample)
            self.limits = {}
            self.decisions = tuple(
                replace(one, case=replace(one.case, suspect=idle))
                for one in self.decisions
                if one.what is CaseVerdict.TRY
            )

    idle = min((u for u in CPU.guests if u.startswith("be")), key=lambda u: sum(CPU.guests[u].wants))
    found = interference.play_world(CPU, Wrong())
    assert found.actions
    assert not any(action.right for action in found.actions)


def test_a_world_is_the_same_again_and_a_limit_is_kept():
    first, second = (interference.play_world(CPU, interference.IdleController()) for _ in range(2))
    assert first.uses == second.uses
    limited = CPU.fresh_copy().run_step(CPU.begin + 1, {CPU.culprit: {QUOTA: 1.0}})
    assert limited[CPU.culprit].had <= 1.0
    assert STEP * CPU.begin >= 300


def test_a_culprit_begins_and_ends_between_two_samples():
    guest, before = CPU.guests[CPU.culprit], CPU.begin - 1
    assert 0 < CPU.offset < 1
    nothing = [CPU.fresh_copy().run_step(number, {})[CPU.culprit].want for number in (before, CPU.end + 1)]
    assert nothing == [guest.wants[before], guest.wants[CPU.end + 1]]
    for number, (first, rest) in {
        CPU.begin: (guest.wants[CPU.begin], guest.other_wants[0]),
        CPU.end: (guest.other_wants[-1], guest.wants[CPU.end]),
    }.items():
        want = CPU.fresh_copy().run_step(number, {})[CPU.culprit].want
        assert want == pytest.approx(CPU.offset * first + (1 - CPU.offset) * rest)
