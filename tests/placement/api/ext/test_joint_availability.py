"""Finding the earliest windows of several claims together over REST, and booking them."""

from typing import Any

import pytest

from tests.placement.api.ext.windows import HOUR, booked, show
from tests.placement.builders import make_provider, put_allocation, read_error
from tests.placement.moving_clock import after
from tests.placement.running import Admin
from tests.placement.workers.window_tables import find_broken_promises

PATH = "/ext/v1/availability"


@pytest.fixture
def hosts(admin: Admin) -> list[str]:
    return [make_provider(admin, f"cn{number}", VCPU=8) for number in range(2)]


def asked(amount: int, **fields: Any) -> dict[str, Any]:
    return {"query": f"resources=VCPU:{amount}", **fields}


def find(admin: Admin, *claims: dict[str, Any], **fields: Any) -> Any:
    answer = admin("POST", PATH, json={"claims": claims, "duration": int(HOUR), **fields})
    assert answer.status_code == 200, answer.text
    return answer.json


def test_claims_fit_together_when_windows_on_several_hosts_end(
    admin: Admin, url: str, hosts: list[str]
) -> None:
    windows = [booked(admin, 8, 0.5, 2 + number, allowed_hosts=[each]) for number, each in enumerate(hosts)]
    ends = [show(admin, each)["expires_at"] for each in windows]
    (alone,) = find(admin, asked(4, count=2), limit=1)["windows"]
    (apart,) = find(admin, asked(4, count=2), different_hosts=True, limit=1)["windows"]
    (large,) = find(admin, asked(8), asked(4), limit=1)["windows"]
    assert [each["starts_at"] for each in (alone, apart, large)] == [ends[0], ends[1], ends[1]]
    assert {each["root_provider_uuid"] for each in alone["claims"]} == {hosts[0]}
    assert {each["root_provider_uuid"] for each in apart["claims"]} == set(hosts)
    assert [
        sum(each["allocations"][each["root_provider_uuid"]]["resources"].values()) for each in large["claims"]
    ] == [8, 4]
    for amount, each in zip((8, 4), large["claims"], strict=True):
        times = {"starts_at": large["starts_at"], "expires_at": large["ends_at"]}
        booked(admin, amount, 0, 0, **times, allowed_hosts=[each["root_provider_uuid"]])
    assert find(admin, asked(8), asked(4), limit=1)["windows"][0]["starts_at"] == large["ends_at"]
    assert find_broken_promises(url) == []


def test_margins_are_free_around_a_joint_window(admin: Admin, hosts: list[str]) -> None:
    end = after(2 * HOUR)
    for each in hosts:
        booked(admin, 8, 1, 2, expires_at=end, allowed_hosts=[each])
        booked(admin, 8, 6, 7, allowed_hosts=[each])
    (first, *_) = find(admin, asked(8, count=2), lead_time=1800, cleaning_time=1800)["windows"]
    assert first["starts_at"] > end
    assert set(first) == {"starts_at", "ends_at", "free_until", "claims"}
    assert set(first["claims"][0]) == {"root_provider_uuid", "allocations", "mappings"}


def test_claims_that_never_fit_together_are_explained(admin: Admin, hosts: list[str]) -> None:
    assert put_allocation(admin, {hosts[0]: {"VCPU": 1}}).status_code == 204
    found = find(admin, asked(8, count=2), explain=True)
    assert (found["windows"], found["explanation"]["hosts"]) == ([], 2)
    assert found["reason"].startswith(
        "There is no candidate for claim 1 of the request in addition to 1 that fit"
    )
    found = find(admin, asked(8, count=2))
    assert (found["explanation"], "at any time" in found["reason"]) == (None, True)
    window = booked(admin, 8, 1, 9, allowed_hosts=[hosts[1]])
    times = {"not_before": after(2 * HOUR), "deadline": after(8 * HOUR)}
    found = find(admin, asked(7), asked(8), **times)
    assert (found["windows"], found["explanation"]) == ([], None)
    assert f"overlap this time: {window} from " in found["reason"]
    # windows do not matter for too few hosts
    for explain in (False, True):
        found = find(admin, asked(1, count=3), different_hosts=True, explain=explain)
        assert (found["windows"], "overlap" in found["reason"]) == ([], False)
    assert found["reason"].endswith(
        "2 hosts are excluded by different_hosts. Windows, and claims that end, are not the reason."
    )


def test_hosts_of_each_claim_are_allowed_and_excluded(admin: Admin, hosts: list[str]) -> None:
    (window,) = find(admin, asked(1, allowed_hosts=[hosts[0]]), asked(1, excluded_hosts=[hosts[0]]))[
        "windows"
    ]
    assert [each["root_provider_uuid"] for each in window["claims"]] == hosts
    one = find(admin, asked(1, allowed_hosts=[hosts[1]]))["windows"]
    assert [each["claims"][0]["root_provider_uuid"] for each in one] == [hosts[1]]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"claims": []}, "claims"),
        ({"claims": [asked(1, count=65)]}, "count"),
        ({"claims": [asked(1, count=40), asked(1, count=25)]}, "At most 64 claims"),
        ({"claims": [{}]}, "is needed"),
        ({"claims": [asked(1)], "query": "resources=VCPU:1"}, "query is a field of each claim"),
        ({"claims": [asked(1)], "topology": "spread"}, "topology is a field of each claim"),
        ({"query": "resources=VCPU:1", "different_hosts": True}, "different_hosts needs claims"),
    ],
)
def test_wrong_questions_are_refused(
    admin: Admin, hosts: list[str], fields: dict[str, Any], message: str
) -> None:
    answer = admin("POST", PATH, json={"duration": 60, **fields})
    assert answer.status_code == 400
    assert message in read_error(answer)[2]
