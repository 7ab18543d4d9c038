"""Replays requests on a service with prepared answers."""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from placement_extras.shadow.exchange import MirroredRequest, ReceivedAnswer, ShadowAnswer, ShadowRequest
from placement_extras.shadow.replay import ReplayOutcome, ReplayVerdict, RequestReplay

JSON = (("content-type", "application/json"),)


def received(status: int, body: Any = None) -> ReceivedAnswer:
    return ReceivedAnswer(
        status, JSON if body is not None else (), b"" if body is None else json.dumps(body).encode()
    )


def copy(
    number: int,
    method: str,
    path: str,
    answer: ReceivedAnswer | None,
    *beside: int,
    body: Any = None,
    **more: Any,
) -> MirroredRequest:
    content = b"" if body is None else json.dumps(body).encode()
    return MirroredRequest(
        number, ShadowRequest(method, path, (), content), answer, 0.0, 0.0, frozenset(beside), **more
    )


@dataclass
class ReplayPlayer:
    """A replay on a service with prepared answers. It records requests and outcomes."""

    answers: Callable[[MirroredRequest], ReceivedAnswer]
    asked: list[int] = field(default_factory=list)
    outcomes: dict[int, ReplayOutcome] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.replay = RequestReplay(self._ask, self._report)

    def _ask(self, copy: MirroredRequest) -> tuple[ShadowAnswer, float]:
        self.asked.append(copy.number)
        return self.answers(copy).parse_answer(), 0.0

    def _report(self, outcome: ReplayOutcome) -> None:
        assert outcome.copy.number not in self.outcomes
        self.outcomes[outcome.copy.number] = outcome

    def verdicts(self) -> dict[int, ReplayVerdict]:
        return {number: each.verdict for number, each in sorted(self.outcomes.items())}
