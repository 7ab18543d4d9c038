"""Ends of claims that are changed in place: the room, the place, the window, and the events."""

from datetime import datetime
from typing import Any

import pytest
from werkzeug.test import TestResponse

from tests.placement.api.ext.windows import HOUR, PATH, booked, lose_database, show
from tests.placement.builders import make_provider, new_claim, post_claims, read_allocations, read_error
from tests.placement.moving_clock import advance_clock, after, iso
from tests.placement.running import Admin
from tests.placement.workers.window_tables import find_broken_promises

CLAIMS = "/ext/v1/claims"


@pytest.fixture
def host(admin: Admin) -> str:
    return make_provider(admin, "cn", VCPU=8)


def claimed(admin: Admin, amount: int = 4, hours: float = 1, **fields: Any) -> str:
    """Claim VCPUs for some hours from now, and return the consumer."""
    times = {} if "preemptible" in fields else {"ends_at": after(hours * HOUR)}
    claim = new_claim(f"resources=VCPU:{amount}", project_id="project")
    answer = post_claims(admin, claim, **times, **fields)
    assert answer.status_code == 201, answer.text
    return str(claim["consumer_uuid"])


def change(admin: Admin, consumer: str, generation: int = 1, **fields: Any) -> TestResponse:
    return admin("PUT", f"{CLAIMS}/{consumer}", json={"consumer_generation": generation, **fields})


def shown(admin: Admin, consumer: str) -> dict[str, Any]:
    found: dict[str, Any] = admin("GET", f"{CLAIMS}/{consumer}").json["claim"]
    return found


def test_a_claim_lasts_longer_where_it_is(admin: Admin, url: str, host: str) -> None:
    nodes = [make_provider(admin, f"node{number}", parent=host, PCPU=4) for number in range(2)]
    first = new_claim("resources=PCPU:3")
    assert post_claims(admin, first, ends_at=after(HOUR)).status_code == 201
    consumer = first["consumer_uuid"]
    before = read_allocations(admin, consumer)["allocations"]
    end = after(5 * HOUR)
    answer = change(admin, consumer, ends_at=end)
    assert answer.status_code == 200, answer.text
    assert answer.json["claim"] == {
        "consumer_uuid": consumer,
        "consumer_generation": 2,
        "expires_at": end,
        "ends_at": end,
        "on_end": "none",
    }
    kept = read_allocations(admin, consumer)["allocations"]
    assert {uuid: each["resources"] for uuid, each in kept.items()} == {
        uuid: each["resources"] for uuid, each in before.items()
    }
    assert kept.keys() <= set(nodes)
    assert shown(admin, consumer)["ends_at"] == end
    # earlier, with an action, and with the present generation only
    assert read_error(change(admin, consumer, ends_at=after(HOUR)))[0] == 409
    assert change(admin, consumer, 2, ends_at=after(HOUR), on_end="evict").status_code == 200
    assert change(admin, consumer, 3, on_end="notify").status_code == 200
    assert (shown(admin, consumer)["on_end"], shown(admin, consumer)["ends_at"] < end) == ("notify", True)
    assert find_broken_promises(url) == []


def test_a_window_ahead_limits_the_end(admin: Admin, url: str, host: str) -> None:
    consumer = claimed(admin, 4)
    window = booked(admin, 6, 2, 3)
    refused = change(admin, consumer, ends_at=after(2.5 * HOUR))
    status, code, detail = read_error(refused)
    latest = show(admin, window)["starts_at"]
    assert (status, code) == (409, "placement.ext.end_too_late")
    assert f"consumer {consumer} cannot last until then" in detail
    # the claim itself is no reason
    assert f"overlap this time: {window} from " in detail
    assert f" It may end at {latest} at the latest." in detail
    assert refused.json["errors"][0]["latest_end"] == latest
    assert change(admin, consumer, ends_at=latest).status_code == 200
    assert find_broken_promises(url) == []
    # the next end counts for its events
    events = admin("GET", f"/ext/v1/time_events?since={after(0)}&until={after(4 * HOUR)}&notice=0").json
    assert consumer not in {each["consumer_uuid"] for each in events["events"]}
    assert change(admin, consumer, 2, ends_at=after(HOUR), on_end="evict").status_code == 200
    events = admin("GET", f"/ext/v1/time_events?since={after(0)}&until={after(4 * HOUR)}&notice=0").json
    (ended,) = [each for each in events["events"] if each["consumer_uuid"] == consumer]
    assert (ended["kind"], ended["ends_at"]) == ("claim.ended", shown(admin, consumer)["ends_at"])


def test_a_refusal_stays_a_refusal_if_the_database_is_lost_after_it(
    admin: Admin, host: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    consumer = claimed(admin, 4)
    booked(admin, 6, 2, 3)
    monkeypatch.setattr("placement.store.claim_ends.latest_expiry", lose_database)
    refused = change(admin, consumer, ends_at=after(2.5 * HOUR))
    assert (refused.status_code, "latest_end" in refused.json["errors"][0]) == (409, False)
    assert f"consumer {consumer} cannot last until then" in read_error(refused)[2]


def test_the_latest_end_counts_every_provider_and_the_cleaning_time(
    admin: Admin, url: str, host: str
) -> None:
    make_provider(admin, "node", parent=host, PCPU=4)
    cleaned = booked(admin, 4, 1, 4, cleaning_time=600)
    first = booked(admin, 0, 3, 4, query="resources=PCPU:4")
    booked(admin, 6, 5, 6)
    both = new_claim("resources=VCPU:4&resources1=PCPU:2&group_policy=none")
    assert post_claims(admin, both, ends_at=after(2 * HOUR)).status_code == 201
    refused = change(admin, both["consumer_uuid"], ends_at=after(7 * HOUR))
    (error,) = refused.json["errors"]
    assert (error["code"], error["latest_end"]) == (
        "placement.ext.end_too_late",
        show(admin, first)["starts_at"],
    )
    # the window of a claim is deleted, and the cleaning time of the claim stays
    advance_clock(url, 1.5 * HOUR)
    consumer = claimed(admin, 4, 0.1, reservation=cleaned)
    assert admin("DELETE", f"{PATH}/{cleaned}").status_code == 204
    later = booked(admin, 8, 1, 2, query="resources=VCPU:8", allowed_hosts=[host])
    (error,) = change(admin, consumer, ends_at=after(1.5 * HOUR)).json["errors"]
    latest = error["latest_end"]
    assert moved_by(latest, 600) == show(admin, later)["starts_at"]
    assert change(admin, consumer, ends_at=moved_by(latest, 0.001)).status_code == 409
    assert change(admin, consumer, ends_at=latest).status_code == 200
    assert find_broken_promises(url) == []


def moved_by(time: str, seconds: float) -> str:
    """Return another time, which is later by some seconds."""
    return iso(datetime.fromisoformat(time).timestamp() + seconds)


def test_a_claim_from_a_window_lasts_until_its_end_at_most(admin: Admin, url: str, host: str) -> None:
    window = booked(admin, 8, 1, 4, cleaning_time=600)
    advance_clock(url, 1.5 * HOUR)
    consumer = claimed(admin, 3, 0.5, reservation=window)
    status, _, detail = read_error(change(admin, consumer, ends_at=after(3 * HOUR)))
    assert (status, f"from the reservation {window}, which ends at" in detail) == (409, True)
    end = after(2 * HOUR)
    assert change(admin, consumer, ends_at=end).status_code == 200
    document = shown(admin, consumer)
    assert (document["ends_at"], document["expires_at"] > end) == (end, True)
    assert show(admin, window)["claimed"] == {host: {"resources": {"VCPU": 3}}}
    assert find_broken_promises(url) == []
    # it still gives its room back
    assert admin("DELETE", f"/allocations/{consumer}").status_code == 204
    assert show(admin, window)["allocations"] == {host: {"resources": {"VCPU": 8}}}
    assert find_broken_promises(url) == []
    # without the window, only its room counts
    consumer = claimed(admin, 3, 0.5, reservation=window)
    assert admin("DELETE", f"{PATH}/{window}").status_code == 204
    assert change(admin, consumer, ends_at=after(3 * HOUR)).status_code == 200
    assert find_broken_promises(url) == []


def test_a_claim_that_outlasts_its_shortened_window_may_end_earlier(
    admin: Admin, url: str, host: str
) -> None:
    window = booked(admin, 8, 1, 4)
    advance_clock(url, 1.5 * HOUR)
    consumer = claimed(admin, 3, 2, reservation=window)
    shortened = {"generation": show(admin, window)["generation"], "expires_at": after(HOUR)}
    assert admin("PUT", f"{PATH}/{window}", json=shortened).status_code == 200
    # the action alone, an end after that of the window, a later end, and an end within the window
    assert change(admin, consumer, on_end="evict").status_code == 200
    assert change(admin, consumer, 2, ends_at=after(1.5 * HOUR)).status_code == 200
    assert find_broken_promises(url) == []
    assert read_error(change(admin, consumer, 3, ends_at=after(1.8 * HOUR)))[0] == 409
    assert change(admin, consumer, 3, ends_at=after(0.5 * HOUR)).status_code == 200
    assert find_broken_promises(url) == []
    assert admin("DELETE", f"/allocations/{consumer}").status_code == 204
    assert show(admin, window)["allocations"] == {host: {"resources": {"VCPU": 8}}}
    assert find_broken_promises(url) == []


def test_a_preemptible_claim_keeps_its_room_for_as_long_as_it_lasts(
    admin: Admin, url: str, host: str
) -> None:
    consumer = claimed(admin, preemptible={"min_duration": int(4 * HOUR)})
    assert change(admin, consumer, ends_at=after(2 * HOUR)).status_code == 200
    document = shown(admin, consumer)
    assert document["kept_until"] == document["expires_at"]
    assert find_broken_promises(url) == []


def test_only_claims_with_an_end_ahead_have_one_to_change(admin: Admin, url: str, host: str) -> None:
    expiring = new_claim("resources=VCPU:1", expires_in=600)
    assert post_claims(admin, expiring).status_code == 201
    status, _, detail = read_error(change(admin, expiring["consumer_uuid"], ends_at=after(HOUR)))
    assert (status, "has no fixed end" in detail) == (409, True)
    lasting = new_claim("resources=VCPU:1")
    assert post_claims(admin, lasting).status_code == 201
    assert change(admin, lasting["consumer_uuid"], ends_at=after(HOUR)).status_code == 404
    consumer = claimed(admin, 1)
    for fields, message in (
        ({"ends_at": after(-60)}, "in the future"),
        ({"ends_at": after(60), "expires_in": 60}, "either"),
        ({"ends_at": "2126-02-30T00:00:00Z"}, "ends_at is not a valid time"),
        ({"on_end": "stop"}, "on_end"),
    ):
        status, _, detail = read_error(change(admin, consumer, **fields))
        assert (status, message in detail) == (400, True), detail
    advance_clock(url, 2 * HOUR)
    assert change(admin, consumer, ends_at=after(HOUR)).status_code == 404
