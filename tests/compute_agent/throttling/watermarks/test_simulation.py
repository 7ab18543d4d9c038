"""Tests of watermarks on a simulated host, over many rounds."""

import itertools
import math
import xml.etree.ElementTree as ET

import pytest

from compute_agent.throttling.levers import ThrottleSteps
from compute_agent.throttling.watermarks.state import (
    EvictAction,
    RestoreAction,
    SwitchScheduling,
    ThrottleAction,
    WatermarkState,
)
from tests.compute_agent.throttling.watermarks import chart
from tests.compute_agent.throttling.watermarks.builders import line, rules
from tests.compute_agent.throttling.watermarks.simulate import Loop, SimulatedGuest, SimulatedHost
from tests.compute_agent.throttling.watermarks.worlds import (
    COOL_DOWN,
    DOWN,
    SAMPLES,
    cpu_rules,
    host,
    picture,
)

QUIET_FROM, ROUNDS = 9000, 10_000

STEPS_UP = math.ceil(math.log(ThrottleSteps().min_share) / math.log(1 - ThrottleSteps().step)) + 1
"""Steps from the floor to the full entitlement; one more for what rounding loses."""


@pytest.fixture(scope="module")
def long_run():
    """10,000 rounds: four days with too much demand, and a quiet time at the end."""
    loop = Loop(host(day=2500, until=QUIET_FROM), cpu_rules())
    loop.run(ROUNDS)
    return loop


def acts(history, kind):
    """The actions of a kind, each with the round in which it was taken."""
    return [
        (number, action)
        for number, seen in enumerate(history)
        for action in seen.actions
        if isinstance(action, kind)
    ]


@pytest.mark.slow
def test_host_recovers_in_as_many_rounds_as_confirming_takes(long_run):
    history = long_run.history
    assert sum(seen.demand > DOWN for seen in history) > 1000, "too little demand to show anything"
    above = 0
    for before, seen in itertools.pairwise(history):
        # Demand that rises meanwhile begins another breach.
        above = 0 if seen.usage <= DOWN else 1 if seen.demand > before.demand else above + 1
        assert above <= SAMPLES


@pytest.mark.slow
def test_no_guest_is_throttled_again_without_more_demand_than_at_its_restore(long_run):
    history = long_run.history
    given_back: dict[str, int] = {}
    flaps = []
    for number, seen in enumerate(history):
        for action in seen.actions:
            if isinstance(action, RestoreAction):
                given_back[action.guest] = number
            elif isinstance(action, ThrottleAction) and action.guest in given_back:
                since = history[given_back[action.guest] : number + 1]
                if max(one.demand for one in since) <= since[0].demand:
                    flaps.append((number, action))
    assert len(acts(history, RestoreAction)) > 100
    assert flaps == []


@pytest.mark.slow
def test_everything_is_given_back_soon_after_demand_has_gone(long_run):
    history = long_run.history
    assert history[QUIET_FROM].throttled > 0
    assert all(seen.throttled == 0 for seen in history[QUIET_FROM + COOL_DOWN + STEPS_UP :])
    assert long_run.trigger.state == WatermarkState(scheduling_off=False)
    assert all(guest.limit is None for guest in long_run.host.guests.values())


@pytest.mark.slow
def test_dedicated_guests_are_never_touched(long_run):
    touched = {
        action.guest for _, action in acts(long_run.history, ThrottleAction | RestoreAction | EvictAction)
    }
    assert touched
    assert all(guest.startswith("best-effort") for guest in touched)


@pytest.mark.slow
def test_one_guest_is_evicted_when_memory_is_short_and_one_is_enough(long_run):
    (number, eviction) = acts(long_run.history, EvictAction)[0]
    assert len(long_run.history[number].actions) == 1
    assert long_run.host.evicted == [action.guest for _, action in acts(long_run.history, EvictAction)]
    assert eviction.guest not in long_run.host.guests
    assert all(seen.memory <= 230 for seen in long_run.history[number + long_run.host.grace + 1 :])


@pytest.mark.slow
def test_picture_shows_every_action(long_run):
    root = ET.fromstring(picture(long_run, "a <host>"))
    paths = {path.get("stroke"): path.get("d", "") for path in root.iter("{http://www.w3.org/2000/svg}path")}
    rounds = {number for number, _ in acts(long_run.history, EvictAction)}
    assert paths[chart.VERMILION].count("v12") == len(rounds)
    texts = [text.text for text in root.iter("{http://www.w3.org/2000/svg}text")]
    assert {"a <host>", "throttle_down", "throttle_up", "used", "wanted", "evict"} <= set(texts)


@pytest.mark.parametrize("noise", [0.0, 0.05])
@pytest.mark.parametrize(
    "lines",
    [
        [line(throttle_down=48, throttle_up=44, for_samples=3, cool_down=30)],
        [line("psi", "cpu_pressure", throttle_down=10, throttle_up=4, for_samples=3, cool_down=30)],
        [
            line(throttle_down=48, throttle_up=44, for_samples=3, cool_down=30),
            line("psi", "cpu_pressure", throttle_down=10, throttle_up=4, for_samples=3, cool_down=30),
        ],
    ],
    ids=["usage", "pressure", "both"],
)
def test_steady_demand_above_the_line_is_settled_once(lines, noise):
    def steady(level, number):
        return lambda second: level * (1 + noise * math.sin(second * 1.7 + number))

    guests = {
        f"g{number:02}": SimulatedGuest(f"g{number:02}", 4.0, steady(3.5, number)) for number in range(16)
    }
    loop = Loop(SimulatedHost(64, 256, guests, own_use=1.0), rules(*lines, margin=0.1))
    history = loop.run(1500)
    assert acts(history[:50], ThrottleAction)
    # The agent restores a little if it has taken too much, and takes nothing again afterwards.
    assert acts(history[50:], ThrottleAction) == []


def test_restarts_leave_no_guest_throttled_and_no_eviction_unfinished():
    loop = Loop(host(day=1000, until=1500), cpu_rules())
    for _ in range(25):
        loop.run(80)
        loop.restart()
    assert sum(len(seen.actions) for seen in loop.history) > 50
    assert loop.saved == WatermarkState(scheduling_off=False)
    assert all(guest.limit is None for guest in loop.host.guests.values())


def test_guest_that_is_being_evicted_is_seen_off_by_the_next_agent():
    guests = {
        name: SimulatedGuest(name, 1.0, lambda second: 0.5, lambda second: 100.0) for name in ("a", "b", "c")
    }
    by = rules(line("memory", "memory_usage", evict=230, disable_scheduling=150, for_samples=2, cool_down=5))
    loop = Loop(SimulatedHost(64, 256, guests, grace=5), by)
    loop.run(3)
    assert [eviction.guest for eviction in loop.saved.evictions] == ["a"]
    assert loop.host.scheduling_off
    loop.host.leaving.clear()  # the old agent and its pending waits are gone
    loop.restart()
    loop.run(8)
    assert (loop.host.evicted, loop.saved.evictions) == (["a"], ())
    assert loop.host.scheduling_off, "200 of memory are still above the scheduling line"
    loop.host.guests.pop("b")
    loop.restart()
    history = loop.run(10)
    assert [action for _, action in acts(history, SwitchScheduling)] == [SwitchScheduling(False)]
    assert not loop.host.scheduling_off


def test_guests_that_come_and_go_while_the_host_is_short_are_no_trouble():
    loop = Loop(host(), cpu_rules())
    for number in range(300):
        uuid = f"passing-{number % 7}"
        if uuid in loop.host.guests:
            del loop.host.guests[uuid]
        else:
            loop.host.guests[uuid] = SimulatedGuest(uuid, 4.0, lambda second: 4.0, started=1e3 + number)
        loop.run(1)
    state = loop.trigger.state
    assert {one.guest for one in state.throttles} <= set(loop.host.guests)
    assert {uuid: guest.limit for uuid, guest in loop.host.guests.items() if guest.limit is not None} == {
        one.guest: one.limit for one in state.throttles
    }
