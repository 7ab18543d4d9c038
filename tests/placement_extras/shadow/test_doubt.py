"""Tests of items that several clients wrote at the same time: only differences about these are in doubt."""

import json
import random
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from placement_extras.shadow.ambiguous_writes import AmbiguousWrites, WrittenKeys
from placement_extras.shadow.exchange import MirroredRequest, ReceivedAnswer, ShadowRequest
from placement_extras.shadow.replay import ReplayVerdict
from tests.placement_extras.shadow.replays import ReplayPlayer, copy, received

C, D, P, Q, X = (f"{letter * 8}-0000-4000-8000-000000000000" for letter in "cdabe")
CLAIM, OTHER = f"/allocations/{C}", f"/allocations/{D}"
PROVIDER = f"/resource_providers/{P}"
INVENTORIES = f"{PROVIDER}/inventories"


def claim(provider: str, project: str = "red") -> dict[str, Any]:
    return {"allocations": {provider: {"resources": {"VCPU": 1}}}, "project_id": project}


RESHAPED = {"inventories": {P: {}}, "allocations": {C: claim(Q)}}


def accepted(number: int, method: str, path: str, *beside: int, body: Any = None) -> MirroredRequest:
    return copy(number, method, path, received(204), *beside, body=body)


@pytest.mark.parametrize(
    ("method", "path", "body", "things", "names"),
    [
        ("PUT", CLAIM, claim(P), {CLAIM}, {C, P, "red"}),
        ("DELETE", CLAIM, None, {CLAIM}, {C}),
        ("POST", "/allocations", {C: claim(P), D: claim(Q, "b")}, {CLAIM, OTHER}, {C, D, P, Q, "red", "b"}),
        ("POST", "/reshaper", RESHAPED, {CLAIM, INVENTORIES}, {C, P, Q, "red"}),
        ("PUT", f"{INVENTORIES}/VCPU", {}, {INVENTORIES}, {P}),
        ("PUT", f"{PROVIDER}/aggregates?a=1", [Q], {f"{PROVIDER}/aggregates"}, {P, Q}),
        ("PUT", "/traits/CUSTOM_A", None, {"/traits/CUSTOM_A"}, {"CUSTOM_A"}),
        ("POST", "/resource_providers", {"name": "a", "uuid": P}, {PROVIDER}, {P}),
        ("POST", "/resource_classes", {"name": "CUSTOM_A"}, {"/resource_classes/CUSTOM_A"}, {"CUSTOM_A"}),
        ("POST", "/reshaper", [], set(), set()),
        ("POST", "/reshaper", {"inventories": [], "allocations": 1}, set(), set()),
        ("PUT", CLAIM, "[[", {CLAIM}, {C}),
        ("POST", "/allocations", {C: {"project_id": {}}}, {CLAIM}, {C}),
    ],
)  # fmt: skip
def test_a_write_has_the_items_that_it_changes_and_their_names(
    method: str, path: str, body: Any, things: set[str], names: set[str]
) -> None:
    content = body.encode() if isinstance(body, str) else b"" if body is None else json.dumps(body).encode()
    written = WrittenKeys.of_request(ShadowRequest(method, path, (), content))
    assert (written.things, written.names) == (things, names)


def doubts(*copies: MirroredRequest, waiting: tuple[int, ...] = ()) -> int:
    doubt = AmbiguousWrites()
    for each in copies:
        doubt.record_write(each, waiting)
    return len(doubt)


def test_two_different_claims_of_one_consumer_at_once_leave_a_doubt() -> None:
    first = accepted(0, "PUT", CLAIM, 1, body=claim(P))
    assert doubts(first, accepted(1, "DELETE", CLAIM, 0)) == 1
    assert doubts(first, accepted(1, "PUT", CLAIM, 0, body=claim(P))) == 0
    assert doubts(first, accepted(1, "PUT", OTHER, 0, body=claim(P))) == 0
    assert doubts(first, copy(1, "DELETE", CLAIM, received(404), 0)) == 0
    assert doubts(accepted(0, "PUT", CLAIM, body=claim(P)), accepted(1, "DELETE", CLAIM)) == 0
    assert doubts(first, accepted(1, "DELETE", CLAIM), waiting=(0,)) == 1
    assert doubts(copy(0, "DELETE", CLAIM, received(500))) == 1


def raced(*answers: Mapping[str, Any]) -> ReplayPlayer:
    """A replay of two simultaneous claims of one consumer, which then answers further requests with the given
    answers.
    """
    player = ReplayPlayer(
        lambda each: received(204) if each.number < 2 else received(**answers[each.number - 2])
    )
    player.replay.replay_copy(accepted(0, "PUT", CLAIM, 1, body=claim(P)))
    player.replay.replay_copy(accepted(1, "PUT", CLAIM, 0, body=claim(Q)))
    return player


def usages(amount: int) -> dict[str, Any]:
    return {"usages": {"VCPU": amount}}


@pytest.mark.parametrize(
    ("path", "there", "here", "verdict"),
    [
        (CLAIM, {"allocations": {P: 1}}, {"allocations": {Q: 1}}, ReplayVerdict.DOUBTFUL),
        (f"/resource_providers/{P}/usages", usages(1), usages(0), ReplayVerdict.DOUBTFUL),
        (f"/resource_providers/{X}/usages", usages(1), usages(0), ReplayVerdict.DIFFERENT),
        ("/usages?project_id=red", usages(1), usages(0), ReplayVerdict.DOUBTFUL),
        ("/usages?project_id=blue", usages(1), usages(0), ReplayVerdict.DIFFERENT),
        ("/allocation_candidates?resources=VCPU:1", [{P: 1}, {X: 1}], [{X: 1}], ReplayVerdict.DOUBTFUL),
        ("/allocation_candidates?resources=VCPU:1", [{P: 1}, {X: 1}], [{P: 1}], ReplayVerdict.DIFFERENT),
        ("/resource_providers", {"all": {P: 1, X: 1}}, {"all": {P: 2, X: 1}}, ReplayVerdict.DOUBTFUL),
        ("/resource_providers", {"all": {P: 1, X: 1}}, {"all": {P: 1, X: 2}}, ReplayVerdict.DIFFERENT),
    ],
)
def test_a_later_difference_is_doubtful_if_it_concerns_an_item_in_doubt(
    path: str, there: Any, here: Any, verdict: ReplayVerdict
) -> None:
    player = raced({"status": 200, "body": here})
    player.replay.replay_copy(copy(2, "GET", path, received(200, there)))
    assert player.outcomes[2].verdict == verdict
    assert not player.outcomes[2].parts


def test_a_write_that_one_service_refuses_because_of_a_doubt_is_in_doubt_itself() -> None:
    player = raced({"status": 409}, {"status": 200, "body": {}})
    player.replay.replay_copy(accepted(2, "PUT", OTHER, body=claim(Q, "blue")))
    player.replay.replay_copy(copy(3, "GET", OTHER, received(200, {"allocations": {Q: 1}})))
    assert player.verdicts()[2] == player.verdicts()[3] == ReplayVerdict.DOUBTFUL
    assert not player.outcomes[2].parts


def test_a_write_of_the_whole_item_ends_the_doubt() -> None:
    player = raced({"status": 204}, {"status": 200, "body": {"allocations": {Q: 1}}})
    assert len(player.replay.doubt) == 1
    player.replay.replay_copy(accepted(2, "DELETE", CLAIM))
    assert len(player.replay.doubt) == 0
    player.replay.replay_copy(copy(3, "GET", CLAIM, received(200, {"allocations": {}})))
    assert player.outcomes[3].verdict == ReplayVerdict.DIFFERENT


def test_a_write_of_a_part_leaves_the_doubt() -> None:
    player = ReplayPlayer(lambda each: received(200))
    player.replay.replay_copy(copy(0, "DELETE", INVENTORIES, received(200), 1))
    player.replay.replay_copy(copy(1, "PUT", f"{INVENTORIES}/VCPU", received(200), 0, body={"total": 1}))
    player.replay.replay_copy(copy(2, "PUT", f"{INVENTORIES}/VCPU", received(200), body={"total": 2}))
    assert len(player.replay.doubt) == 1
    player.replay.replay_copy(copy(3, "PUT", INVENTORIES, received(200), body={}))
    assert len(player.replay.doubt) == 0


class PoolService:
    """A service of two providers with room for two consumers each. Its claims have no generation."""

    def __init__(self) -> None:
        self.claims: dict[str, str] = {}

    def answer(self, request: ShadowRequest) -> ReceivedAnswer:
        _, kind, uuid, *_ = request.path.split("/")
        if kind == "resource_providers":
            return received(200, usages(sum(pool == uuid for pool in self.claims.values())))
        if request.method == "GET":
            return received(200, {"allocations": {self.claims[uuid]: 1} if uuid in self.claims else {}})
        if request.method == "DELETE":
            return received(204 if self.claims.pop(uuid, None) else 404)
        (pool,) = json.loads(request.body)["allocations"]
        if sum(held == pool for each, held in self.claims.items() if each != uuid) >= 2:
            return received(409)
        self.claims[uuid] = pool
        return received(204)


@given(seed=st.integers(0, 2**32), requests=st.integers(1, 80), together=st.integers(1, 4))
def test_random_writes_at_once_differ_only_where_they_are_in_doubt(
    seed: int, requests: int, together: int
) -> None:
    """Each write takes effect at one moment between its begin and its end. The writes end in any order."""
    chosen = random.Random(seed)
    stock, ours = PoolService(), PoolService()
    player = ReplayPlayer(lambda each: ours.answer(each.request))
    flying: dict[int, tuple[ShadowRequest, set[int]]] = {}
    done: dict[int, ReceivedAnswer] = {}
    begun = 0
    while begun < requests or flying:
        waiting = sorted(flying.keys() - done.keys())
        if begun < requests and len(flying) < together and (not flying or chosen.random() < 0.4):
            request = _request(chosen)
            beside = {each for each, (other, _) in flying.items() if other.method != "GET"}
            if request.method != "GET":
                for _, theirs in flying.values():
                    theirs.add(begun)
            flying[begun] = (request, beside)
            begun += 1
        elif waiting and chosen.random() < 0.6:
            number = chosen.choice(waiting)
            done[number] = stock.answer(flying[number][0])
        elif done:
            number = chosen.choice(sorted(done))
            request, theirs = flying.pop(number)
            player.replay.replay_copy(
                MirroredRequest(number, request, done.pop(number), 0.0, 0.0, frozenset(theirs))
            )
    player.replay.conclude_all()
    assert ReplayVerdict.DIFFERENT not in player.verdicts().values()
    assert not any(each.parts for each in player.outcomes.values())
    if together == 1:
        assert set(player.verdicts().values()) == {ReplayVerdict.SAME}
    if not len(player.replay.doubt):
        assert ours.claims == stock.claims


def _request(chosen: random.Random) -> ShadowRequest:
    consumer, pool = f"/allocations/{chosen.choice([C, D, X])}", chosen.choice([P, Q])
    body = json.dumps(claim(pool)).encode()
    return chosen.choice(
        [
            ShadowRequest("PUT", consumer, (), body),
            ShadowRequest("PUT", consumer, (), body),
            ShadowRequest("DELETE", consumer, (), b""),
            ShadowRequest("GET", consumer, (), b""),
            ShadowRequest("GET", f"/resource_providers/{pool}/usages", (), b""),
        ]
    )
