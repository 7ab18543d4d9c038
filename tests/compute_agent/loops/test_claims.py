"""Tests of reading claims that expire, one of which Placement refuses to show."""

from types import SimpleNamespace
from typing import Any, cast

from compute_agent.loops.allocations import ClaimWatch
from compute_agent.report.answers import ConflictError
from compute_agent.report.client import ExpiringClaim, PlacementClient
from tests.compute_agent.builders import build_guest

GUEST = "11111111-0000-4000-8000-000000000001"
VIEW = SimpleNamespace(guest=build_guest(GUEST), allocation={"zone": {"PCPU": 1}}, migration=None)


class Answers:
    """A client that returns the given answers one after the other. An exception among them is raised."""

    def __init__(self, *answers: ExpiringClaim | ConflictError | None) -> None:
        self.left = list(answers)

    def expiring_claim(self, consumer: str) -> ExpiringClaim | None:
        answer = self.left.pop(0)
        if isinstance(answer, ConflictError):
            raise answer
        return answer


def read_claims(watch: ClaimWatch, answers: Answers, times: int) -> None:
    for _ in range(times):
        watch.read_claims(cast(PlacementClient, answers), cast(Any, [VIEW]))


def refusal(text: str) -> ConflictError:
    return ConflictError("GET", "/ext/v1/claims", text)


def test_a_claim_that_could_not_be_read_is_read_again(caplog: Any) -> None:
    watch, answers = ClaimWatch(), Answers(refusal("locked"), ExpiringClaim(1, 60))
    read_claims(watch, answers, 2)
    assert watch.claim_end(GUEST) is not None
    assert "loses its allocation in 60 s" in caplog.text


def test_each_reason_why_a_claim_is_not_read_is_logged_once(caplog: Any) -> None:
    watch, answers = ClaimWatch(), Answers(refusal("locked"), refusal("locked"), refusal("full"), None, None)
    read_claims(watch, answers, 5)
    assert [text.rpartition(" ")[2] for text in caplog.messages] == ["locked", "full"]
    assert len(answers.left) == 1


def test_a_refused_read_keeps_the_known_end_of_a_claim(caplog: Any) -> None:
    claim = ExpiringClaim(1, 60)
    watch, answers = ClaimWatch(), Answers(claim, refusal("locked"), claim)
    read_claims(watch, answers, 2)
    assert watch.claim_end(GUEST) is not None
    read_claims(watch, answers, 1)
    assert caplog.text.count("loses its allocation") == 1
