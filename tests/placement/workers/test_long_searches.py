"""Tests of a search that takes too long: it has a limit, and does not block other requests of the worker."""

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import requests

from tests.placement.hard_world import HARD, call, create, make_hard
from tests.placement.search import packing
from tests.placement.serving import HEADERS, RunningService, service

pytestmark = pytest.mark.slow

EASY = "/allocation_candidates?resources=CUSTOM_A:1&limit=5"


@pytest.fixture
def url(sqlite_url: str) -> str:
    return sqlite_url


@pytest.fixture
def running(url: str, tmp_path: Path) -> Iterator[RunningService]:
    """One worker that lets a search take four seconds and 2 MiB, with a host for the request that takes too
    long.
    """
    bounds = "candidates_deadline = 4\ncandidates_size = 2"
    with service(url, tmp_path, workers=1, api_options=bounds) as started:
        make_hard(started)
        yield started


def ask_in_background(others: ThreadPoolExecutor, service: RunningService, number: int) -> list[Future[Any]]:
    return [
        others.submit(requests.get, service.base + HARD, headers=HEADERS, timeout=120) for _ in range(number)
    ]


def test_other_requests_are_answered_during_a_search_that_then_ends(running: RunningService) -> None:
    with ThreadPoolExecutor(2) as others:
        hard = ask_in_background(others, running, 2)
        answered = 0
        while not any(each.done() for each in hard):
            # read, search, write, and read the written data
            new = create(running, f"new{answered}")
            assert call(running, "GET", f"/resource_providers/{new}")["name"] == f"new{answered}"
            assert len(call(running, "GET", EASY)["allocation_requests"]) == 5
            answered += 1
        answers = [each.result() for each in hard]
    assert answered > 5
    for answer in answers:
        (error,) = answer.json()["errors"]
        assert (answer.status_code, error["code"]) == (400, "placement.ext.search_too_long")
        assert "4 seconds of work" in error["detail"]
        assert any(
            f"resources{suffix}={packing.asked(suffix)}:" in error["detail"] for suffix in packing.GROUPS
        )


def test_long_searches_leave_half_of_the_threads_to_other_requests(running: RunningService) -> None:
    with ThreadPoolExecutor(8) as others:
        hard = ask_in_background(others, running, 8)
        answered = 0
        while not all(each.done() for each in hard):
            assert len(call(running, "GET", EASY)["allocation_requests"]) == 5
            answered += 1
        answers = [each.result() for each in hard]
    assert answered > 5
    refused = [answer for answer in answers if answer.status_code == 503]
    assert 0 < len(refused) <= 6  # some of them get a thread if others end first
    assert all("try again" in answer.json()["errors"][0]["detail"] for answer in refused)


def test_an_incomplete_answer_says_so(running: RunningService) -> None:
    groups = "&".join(f"resources_{number}=CUSTOM_A:1" for number in range(12))
    path = f"/allocation_candidates?{groups}&group_policy=none"
    answer = requests.get(running.base + path, headers=HEADERS, timeout=120)
    assert answer.status_code == 200
    assert answer.headers["Placement-Ext-Incomplete"] == "size"
    assert 1_000_000 < len(answer.content) < 6_000_000
    assert len(answer.json()["allocation_requests"]) > 100
    complete = requests.get(running.base + f"{path}&limit=100", headers=HEADERS, timeout=120)
    assert "Placement-Ext-Incomplete" not in complete.headers
    assert len(complete.json()["allocation_requests"]) == 100
