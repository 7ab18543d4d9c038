"""Tests of API methods that wait for the worker while the worker is busy."""

from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any, cast

import pytest

from compute_agent.agent import api
from compute_agent.agent.protocol import RequestError
from tests.compute_agent.builders import build_guest

GUEST = build_guest("11111111-0000-4000-8000-000000000001")


@pytest.fixture
def methods(monkeypatch: pytest.MonkeyPatch) -> api.ApiMethods:
    """The API methods of an agent with a worker that answers no event."""
    monkeypatch.setattr(api, "ANSWER_SECONDS", 0)

    def refuse_change(params: Any) -> None:
        raise TimeoutError

    configurator = SimpleNamespace(
        find_guest=lambda wanted: SimpleNamespace(guest=GUEST), change_guest=refuse_change
    )
    agent = SimpleNamespace(
        configurator=configurator,
        pipeline=SimpleNamespace(submit=lambda event: Future[None]()),
        driver=SimpleNamespace(stop=lambda guest, seconds: None),
        options=SimpleNamespace(guests=SimpleNamespace(stop_timeout=1)),
    )
    return api.ApiMethods(cast(Any, agent), lambda: None)


def test_a_guest_has_ended_though_the_worker_takes_it_later(methods: api.ApiMethods) -> None:
    assert methods.guest_stop({"guest": GUEST.uuid}) == {"uuid": GUEST.uuid, "name": GUEST.name}


def test_settings_that_the_worker_has_no_time_for_are_an_error_of_the_request(
    methods: api.ApiMethods,
) -> None:
    with pytest.raises(RequestError, match="the agent is busy"):
        methods.guest_set({"guest": GUEST.uuid, "vcpus": 2})
