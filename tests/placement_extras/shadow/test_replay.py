"""Tests that our service has the same content as OpenStack Placement after a replay, for any overlap of
requests.
"""

import random
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from placement_extras.shadow.exchange import MirroredRequest, ReceivedAnswer
from placement_extras.shadow.replay import ReplayVerdict, UnansweredRequest
from tests.placement_extras.shadow.replays import ReplayPlayer, copy, received

CAPACITY = 4
CONSUMERS = "bcdefghijklm"


def test_an_equal_answer_is_the_same() -> None:
    player = ReplayPlayer(lambda copy: received(200, {"a": [2, 1]}))
    player.replay.replay_copy(copy(0, "GET", "/traits", received(200, {"a": [1, 2]})))
    assert player.verdicts() == {0: ReplayVerdict.SAME}


PAGE = ReceivedAnswer(200, (("content-type", "text/html"),), b"<html>welcome</html>")


@pytest.mark.parametrize(
    ("path", "theirs", "ours", "verdict"),
    [
        ("/allocation_candidates?resources=VCPU:1&limit=1", PAGE, received(200, {}), ReplayVerdict.DIFFERENT),
        ("/allocation_candidates?resources=VCPU:1&resources1=VCPU:1", PAGE, PAGE, ReplayVerdict.SAME),
        (
            "/resource_providers?resources=NONE:1",
            PAGE,
            received(400, {"errors": [{"detail": "No such resource class NONE."}]}),
            ReplayVerdict.DIFFERENT,
        ),
    ],
)
def test_the_next_request_is_compared_after_any_answer(
    path: str, theirs: ReceivedAnswer, ours: ReceivedAnswer, verdict: ReplayVerdict
) -> None:
    player = ReplayPlayer(lambda copy: ours if copy.number == 0 else received(200, {}))
    player.replay.replay_copy(copy(0, "GET", path, theirs))
    player.replay.replay_copy(copy(1, "GET", "/traits", received(200, {})))
    assert player.verdicts() == {0: verdict, 1: ReplayVerdict.SAME}


def test_a_defect_in_one_comparison_is_counted_and_does_not_end_the_others() -> None:
    def answers(copy: MirroredRequest) -> ReceivedAnswer:
        if copy.number == 0:
            raise RecursionError
        return received(204)

    player = ReplayPlayer(answers)
    for number in range(2):
        player.replay.replay_copy(copy(number, "PUT", "/traits/CUSTOM_A", received(204)))
    assert player.verdicts() == {0: ReplayVerdict.MISSED, 1: ReplayVerdict.SAME}
    assert player.outcomes[0].parts


def test_postponed_copies_are_bounded_in_bytes() -> None:
    player = ReplayPlayer(lambda copy: received(200, {"a": 1}))
    large = replace(received(200, {}), content=b"{}" + b" " * (16 << 20))
    for number in range(1, 20):
        player.replay.replay_copy(copy(number, "GET", "/traits", large, 0))
    assert set(player.verdicts().values()) == {ReplayVerdict.RACED}
    assert len(player.outcomes) == 19 - 7


@pytest.mark.parametrize("path", ["/ext/v1", "/ext/v1/claims", "/%65xt/v1/claims?x=1"])
@pytest.mark.parametrize("beside", [(), (7,)])
def test_a_resource_that_only_our_service_has_is_not_asked_for(path: str, beside: tuple[int, ...]) -> None:
    player = ReplayPlayer(lambda copy: received(201))
    player.replay.replay_copy(copy(0, "POST", path, received(404), *beside))
    assert (player.verdicts(), player.asked) == ({0: ReplayVerdict.KNOWN}, [])
    assert (player.outcomes[0].why, player.outcomes[0].parts) == ("extensions", False)


def test_a_resource_that_both_services_have_is_compared_at_any_path() -> None:
    player = ReplayPlayer(lambda copy: received(404))
    player.replay.replay_copy(copy(0, "GET", "/ext/v1", received(200)))
    player.replay.replay_copy(copy(1, "GET", "/extras", received(404)))
    assert player.verdicts() == {0: ReplayVerdict.DIFFERENT, 1: ReplayVerdict.SAME}


def test_another_answer_to_a_request_that_was_alone_is_a_difference() -> None:
    player = ReplayPlayer(lambda copy: received(409))
    player.replay.replay_copy(copy(0, "PUT", "/traits/CUSTOM_A", received(201)))
    assert player.verdicts() == {0: ReplayVerdict.DIFFERENT}
    assert player.outcomes[0].parts
    assert "201" in player.outcomes[0].why
    assert "409" in player.outcomes[0].why


def test_a_read_that_differs_leaves_the_databases_in_step() -> None:
    player = ReplayPlayer(lambda copy: received(200, {"traits": []}))
    player.replay.replay_copy(copy(0, "GET", "/traits", received(200, {"traits": ["CUSTOM_A"]})))
    assert (player.outcomes[0].verdict, player.outcomes[0].parts) == (ReplayVerdict.DIFFERENT, False)


@pytest.mark.parametrize("refused", [True, False])
@pytest.mark.parametrize(
    ("path", "there", "here"),
    [
        ("/allocations/a", {"consumer_type": "MIGRATION", "x": 1}, {"consumer_type": "unknown", "x": 1}),
        ("/usages?project_id=red&consumer_type=unknown", {"usages": {}}, {"usages": {"unknown": {}}}),
    ],
)
def test_the_type_of_a_refused_claim_is_known_to_show_later(
    path: str, there: Any, here: Any, refused: bool
) -> None:
    typed = {"allocations": {"host": {}}, "consumer_type": "MIGRATION"}
    untyped = {"allocations": [{}], "project_id": "red"}
    player = ReplayPlayer(lambda copy: received(200, here) if copy.number == 2 else copy.received)  # type: ignore[arg-type,return-value]  # a received answer is not None
    status = 409 if refused else 204
    player.replay.replay_copy(copy(0, "PUT", "/allocations/a", received(status, {}), body=typed))
    player.replay.replay_copy(copy(1, "PUT", "/allocations/a", received(204), body=untyped))
    player.replay.replay_copy(copy(2, "GET", path, received(200, there)))
    verdict = player.outcomes[2]
    assert (verdict.verdict, verdict.why == "orphans") == (
        (ReplayVerdict.KNOWN, True) if refused else (ReplayVerdict.DIFFERENT, False)
    )


def test_a_known_deviation_has_its_name() -> None:
    player = ReplayPlayer(lambda copy: received(400))
    player.replay.replay_copy(copy(0, "GET", "/usages?project_id=%FF", received(500)))
    assert (player.outcomes[0].verdict, player.outcomes[0].why) == (ReplayVerdict.KNOWN, "status-500")


def test_other_words_in_an_error_are_known() -> None:
    def error(detail: str) -> ReceivedAnswer:
        detail = f"This is wrong.\n\n {detail}"
        return received(400, {"errors": [{"status": 400, "title": "Bad Request", "detail": detail}]})

    player = ReplayPlayer(lambda copy: error("The name is missing."))
    player.replay.replay_copy(
        copy(0, "POST", "/resource_providers", error("JSON does not validate: 'name' ..."))
    )
    assert (player.outcomes[0].verdict, player.outcomes[0].why) == (ReplayVerdict.KNOWN, "order")


def test_a_write_that_was_refused_while_others_were_in_flight_is_not_asked() -> None:
    player = ReplayPlayer(lambda copy: pytest.fail("asked"))
    player.replay.replay_copy(copy(1, "PUT", "/allocations/x", received(409), 0))
    assert player.verdicts() == {1: ReplayVerdict.RACED}


def test_a_write_that_only_the_stock_service_refuses_is_known_and_not_asked() -> None:
    detail = "consumer generation conflict - expected 0 but got None"
    error = {"errors": [{"status": 409, "title": "Conflict", "detail": detail}]}
    player = ReplayPlayer(lambda copy: pytest.fail("asked"))
    player.replay.replay_copy(copy(0, "PUT", "/allocations/x", received(409, error)))
    outcome = player.outcomes[0]
    assert (outcome.verdict, outcome.why, outcome.parts) == (ReplayVerdict.KNOWN, "orphans", False)


def test_a_write_with_an_unknown_outcome_is_not_asked() -> None:
    player = ReplayPlayer(lambda copy: pytest.fail("asked"))
    player.replay.replay_copy(copy(0, "PUT", "/allocations/x", received(500)))
    player.replay.replay_copy(copy(1, "PUT", "/allocations/x", None, missed="gone"))
    assert player.verdicts() == {0: ReplayVerdict.MISSED, 1: ReplayVerdict.MISSED}
    assert [player.outcomes[each].parts for each in (0, 1)] == [False, True]


def test_a_write_that_ours_refuses_is_asked_again_after_those_beside_it() -> None:
    accepted: list[int] = []

    def answer(copy: MirroredRequest) -> ReceivedAnswer:
        if copy.number == 0 and 1 not in accepted:
            return received(409)
        accepted.append(copy.number)
        return received(204)

    player = ReplayPlayer(answer)
    player.replay.replay_copy(copy(0, "PUT", "/allocations/x", received(204), 1))
    assert player.outcomes == {}
    player.replay.replay_copy(copy(1, "DELETE", "/allocations/y", received(204), 0))
    assert player.verdicts() == {0: ReplayVerdict.SAME, 1: ReplayVerdict.SAME}
    assert player.asked == [0, 1, 0]


def test_a_write_that_our_service_accepted_is_not_asked_again() -> None:
    player = ReplayPlayer(lambda copy: received(200, {"generation": 5}))
    player.replay.replay_copy(copy(0, "PUT", "/resource_providers/x", received(200, {"generation": 4}), 1))
    assert player.verdicts() == {0: ReplayVerdict.RACED}
    player.replay.replay_copy(copy(1, "PUT", "/resource_providers/x", received(200, {"generation": 5}), 0))
    assert player.asked == [0, 1]


def test_a_read_that_still_differs_after_those_beside_it_has_raced() -> None:
    player = ReplayPlayer(lambda copy: received(200, {"usages": {"VCPU": 2}}))
    player.replay.replay_copy(
        copy(0, "GET", "/usages?project_id=p", received(200, {"usages": {"VCPU": 1}}), 1)
    )
    assert player.outcomes == {}
    player.replay.replay_copy(copy(1, "DELETE", "/allocations/x", received(200, {"usages": {"VCPU": 2}}), 0))
    assert player.verdicts() == {0: ReplayVerdict.RACED, 1: ReplayVerdict.SAME}


def test_two_that_wait_for_each_other_are_concluded() -> None:
    player = ReplayPlayer(lambda copy: received(409))
    player.replay.replay_copy(copy(0, "PUT", "/allocations/x", received(204), 1))
    player.replay.replay_copy(copy(1, "PUT", "/allocations/y", received(204), 0))
    assert player.verdicts() == {0: ReplayVerdict.RACED, 1: ReplayVerdict.RACED}
    assert all(each.parts for each in player.outcomes.values())


@pytest.mark.parametrize(
    ("there", "beside", "parts"),
    [
        (received(200, {"traits": ["CUSTOM_B", "CUSTOM_A"]}), (1,), False),
        (received(200, {"traits": ["CUSTOM_A"]}), (1,), True),
        (received(404), (1,), True),
        (received(200, {"traits": ["CUSTOM_B", "CUSTOM_A"]}), (), True),
    ],
)
def test_two_writes_of_the_same_traits_at_once_leave_the_databases_in_step(
    there: ReceivedAnswer, beside: tuple[int, ...], parts: bool
) -> None:
    """OpenStack Placement accepts it with an old generation, because it changes nothing."""
    player = ReplayPlayer(lambda copy: there if copy.request.method == "GET" else received(409))
    path, body = "/resource_providers/x/traits", {"traits": ["CUSTOM_A", "CUSTOM_B"]}
    player.replay.replay_copy(copy(0, "PUT", path, received(200), *beside, body=body))
    player.replay.conclude_all()
    assert player.verdicts() == {0: ReplayVerdict.RACED if beside else ReplayVerdict.DIFFERENT}
    assert player.outcomes[0].parts is parts


def test_postponed_copies_are_judged_at_the_end() -> None:
    player = ReplayPlayer(lambda copy: received(409))
    player.replay.replay_copy(copy(0, "PUT", "/allocations/x", received(204), 1))
    assert player.outcomes == {}
    player.replay.conclude_all()
    assert player.verdicts() == {0: ReplayVerdict.RACED}


def test_a_write_that_the_copy_may_hold_leaves_the_databases_in_step() -> None:
    player = ReplayPlayer(lambda copy: received(409))
    player.replay.take_around_copy(copy(0, "PUT", "/allocations/x", received(204)))
    player.replay.take_around_copy(copy(1, "PUT", "/allocations/x", received(409)))
    assert player.verdicts() == {0: ReplayVerdict.RACED, 1: ReplayVerdict.RACED}
    assert not any(each.parts for each in player.outcomes.values())
    assert player.asked == [0]


def test_a_request_without_an_answer_of_our_service_is_missed() -> None:
    def away(copy: MirroredRequest) -> ReceivedAnswer:
        raise UnansweredRequest("away")

    player = ReplayPlayer(away)
    player.replay.replay_copy(copy(0, "GET", "/traits", received(200)))
    player.replay.replay_copy(copy(1, "PUT", "/traits/CUSTOM_A", received(201)))
    assert player.verdicts() == {0: ReplayVerdict.MISSED, 1: ReplayVerdict.MISSED}
    assert [player.outcomes[each].parts for each in (0, 1)] == [False, True]


class ReplayWorld:
    """A service with two providers that accept claims while there is room, and with names that have
    generations.
    """

    def __init__(self) -> None:
        self.claims: dict[str, str] = {}
        self.names = {"a": (0, "")}

    def answer(self, method: str, path: str) -> ReceivedAnswer:
        _, kind, what, *more = path.split("/")
        if kind == "allocations":
            return self._claim(method, what, more)
        if method == "GET":
            return received(200, {"generation": self.names[what][0], "name": self.names[what][1]})
        generation, name = int(more[0]), more[1]
        if self.names[what][0] != generation:
            return received(409)
        self.names[what] = (generation + 1, name)
        return received(200, {"generation": generation + 1})

    def _claim(self, method: str, consumer: str, pool: list[str]) -> ReceivedAnswer:
        if method == "GET":
            return received(200, {"pool": self.claims.get(consumer)})
        if method == "DELETE":
            return received(404 if self.claims.pop(consumer, None) is None else 204)
        held = [each for each, where in self.claims.items() if where == pool[0] and each != consumer]
        if consumer in self.claims or len(held) >= CAPACITY:
            return received(409)
        self.claims[consumer] = pool[0]
        return received(204)


@given(seed=st.integers(0, 2**32), requests=st.integers(1, 60), together=st.integers(1, 6))
def test_a_random_history_ends_with_the_same_content(seed: int, requests: int, together: int) -> None:
    """Each request takes effect at one moment between its begin and its end. The requests end in any
    order.
    """
    chosen = random.Random(seed)
    stock, ours = ReplayWorld(), ReplayWorld()
    player = ReplayPlayer(lambda copy: ours.answer(copy.request.method, copy.request.path))
    flying: dict[int, tuple[str, str, set[int]]] = {}
    done: dict[int, ReceivedAnswer] = {}
    begun = 0
    while begun < requests or flying:
        waiting = sorted(flying.keys() - done.keys())
        if begun < requests and len(flying) < together and (not flying or chosen.random() < 0.4):
            method, path = _request(chosen, stock, {path.split("/")[2] for _, path, _ in flying.values()})
            beside = {each for each, (other, _, _) in flying.items() if other != "GET"}
            if method != "GET":
                for _, _, theirs in flying.values():
                    theirs.add(begun)
            flying[begun] = (method, path, set(beside))
            begun += 1
        elif waiting and chosen.random() < 0.6:
            number = chosen.choice(waiting)
            done[number] = stock.answer(*flying[number][:2])
        elif done:
            number = chosen.choice(sorted(done))
            method, path, theirs = flying.pop(number)
            player.replay.replay_copy(copy(number, method, path, done.pop(number), *theirs))
    player.replay.conclude_all()
    assert sorted(player.outcomes) == list(range(requests))
    assert ReplayVerdict.DIFFERENT not in player.verdicts().values()
    if not any(each.parts for each in player.outcomes.values()):
        assert (ours.claims, ours.names) == (stock.claims, stock.names)
    if together == 1:
        assert set(player.verdicts().values()) <= {ReplayVerdict.SAME}


def _request(chosen: random.Random, world: ReplayWorld, busy: set[str]) -> tuple[str, str]:
    """Choose requests so that no two requests about one consumer overlap, because no answer would show their
    order.
    """
    consumer = chosen.choice([each for each in CONSUMERS if each not in busy])
    pool = chosen.choice("xy")
    generation = world.names["a"][0]
    return chosen.choice(
        [
            ("PUT", f"/allocations/{consumer}/{pool}"),
            ("PUT", f"/allocations/{consumer}/{pool}"),
            ("DELETE", f"/allocations/{consumer}"),
            ("GET", f"/allocations/{consumer}"),
            ("PUT", f"/names/a/{generation}/{chosen.randrange(9)}"),
            ("GET", "/names/a"),
        ]
    )
