"""Reservations that begin later, and claims that end: which consumer gets which room at which time."""

import time
import uuid
from datetime import datetime
from typing import Any

import pytest
import sqlalchemy as sa
from werkzeug.test import TestResponse

from placement.search.budget import BudgetExhausted
from tests.placement.api.ext.windows import HOUR, PATH, book, booked, lose_database, show
from tests.placement.builders import (
    claim_body,
    make_provider,
    new_claim,
    post_claims,
    provider_path,
    put_allocation,
    put_inventories,
    read_error,
    read_usages,
)
from tests.placement.moving_clock import advance_clock, after, iso
from tests.placement.running import Admin, application
from tests.placement.sql import read_scalar
from tests.placement.workers.window_tables import find_broken_promises


@pytest.fixture
def host(admin: Admin) -> str:
    return make_provider(admin, "cn", VCPU=8)


def test_a_window_is_pending_until_its_start_and_then_holds_its_amounts(
    admin: Admin, url: str, host: str
) -> None:
    window = booked(admin, 6, 1, 3)
    shown = show(admin, window)
    assert (shown["state"], shown["allocations"]) == ("pending", {host: {"resources": {"VCPU": 6}}})
    assert admin("GET", f"/allocations/{window}").json["allocations"] == {}
    assert admin("GET", PATH).json["reservations"] == [shown]
    advance_clock(url, 2 * HOUR)
    shown = show(admin, window)
    assert (shown["state"], shown["allocations"]) == ("active", {host: {"resources": {"VCPU": 6}}})
    assert admin("GET", "/allocation_candidates?resources=VCPU:1").status_code == 200
    assert admin("GET", f"/allocations/{window}").json["allocations"][host]["resources"] == {"VCPU": 6}
    advance_clock(url, 2 * HOUR)
    assert admin("GET", f"{PATH}/{window}").status_code == 404
    assert read_usages(admin, host) == {"VCPU": 0}


def test_consumers_without_an_end_respect_a_window_from_its_booking_on(admin: Admin, host: str) -> None:
    window = booked(admin, 6, 1, 2)
    refused = put_allocation(admin, {host: {"VCPU": 3}})
    assert refused.status_code == 409
    assert (
        f"would exceed the capacity. Other windows and claims overlap this time: {window} from "
        in (read_error(refused)[2])
    )
    answer = post_claims(admin, new_claim("resources=VCPU:3"))
    assert answer.status_code == 409
    assert f" Other windows and claims overlap this time: {window} from " in read_error(answer)[2]
    # windows do not matter to a claim that would not have a place without them
    assert "overlap" not in post_claims(admin, new_claim("resources=VCPU:9")).text
    assert window in post_claims(admin, new_claim("resources=VCPU:3", allowed_hosts=[host])).text
    moved = {str(uuid.uuid4()): {"allocations": {host: {"resources": {"VCPU": 3}}}, **OWNED}}
    assert admin("POST", "/allocations", json=moved).status_code == 409
    assert put_allocation(admin, {host: {"VCPU": 2}}).status_code == 204
    assert read_usages(admin, host) == {"VCPU": 8}


OWNED = {
    "project_id": "project",
    "user_id": "user",
    "consumer_type": "INSTANCE",
    "consumer_generation": None,
}


def test_a_refused_booking_names_the_earliest_start_and_a_smaller_amount(admin: Admin, host: str) -> None:
    first, second = booked(admin, 6, 1, 3), booked(admin, 4, 3.5, 5)
    times = {"starts_at": after(1.5 * HOUR), "expires_at": after(2.5 * HOUR)}
    (begin, end) = (datetime.fromisoformat(each).timestamp() for each in times.values())
    for amount, free_from in ((4, show(admin, first)["expires_at"]), (5, show(admin, second)["expires_at"])):
        refused = book(admin, amount, 1.5, 2.5, **times)
        status, code, detail = read_error(refused)
        assert (status, code) == (409, "placement.ext.no_candidate")
        (error,) = refused.json["errors"]
        assert error["earliest_start"] == free_from
        assert f" The reservation fits from {free_from} on." in detail
        # this amount would fit at the time of the request
        assert "asking for 2 VCPU would leave 1 host" in detail
        query = {"query": f"resources=VCPU:{amount}", "duration": 3600, "not_before": times["starts_at"]}
        found = admin("POST", "/ext/v1/availability", json=query).json["windows"]
        assert found[0]["starts_at"] == free_from
    assert book(admin, 2, 1.5, 2.5, **times).status_code == 201
    start = datetime.fromisoformat(free_from).timestamp()
    moved = {"starts_at": iso(start), "expires_at": iso(start + end - begin)}
    assert book(admin, 5, 1.5, 2.5, **moved).status_code == 201


def test_the_earliest_start_follows_the_lead_time_and_counts_the_cleaning(admin: Admin, host: str) -> None:
    first = booked(admin, 8, 2, 3)
    booked(admin, 8, 5, 6)
    margins = {"lead_time": 1800, "cleaning_time": 1200}
    (error,) = book(admin, 1, 2.5, 3.5, **margins).json["errors"]
    start = datetime.fromisoformat(show(admin, first)["expires_at"]).timestamp() + 1800
    assert error["earliest_start"] == iso(start)
    assert f"The reservation fits from {iso(start)} on." in error["detail"]
    times = {"starts_at": iso(start), "expires_at": iso(start + HOUR)}
    assert book(admin, 1, 0, 0, **margins, **times).status_code == 201


def test_a_refused_booking_of_several_claims_names_their_common_start(admin: Admin, host: str) -> None:
    other = make_provider(admin, "other", VCPU=8)
    booked(admin, 8, 1, 3, allowed_hosts=[host])
    last = booked(admin, 6, 1, 4, allowed_hosts=[other])
    fields = {
        "claims": [{"query": "resources=VCPU:4", "count": 2}],
        "different_hosts": True,
        "starts_at": after(1.5 * HOUR),
        "expires_at": after(2 * HOUR),
    }
    body = {"project_id": "project", "user_id": "user", **fields}
    (error,) = admin("POST", PATH, json=body).json["errors"]
    assert error["earliest_start"] == show(admin, last)["expires_at"]


def test_a_refused_booking_without_a_later_start_says_so(
    admin: Admin, url: str, host: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    booked(admin, 6, 1, 3)
    # the request is too large at any time
    (error,) = book(admin, 9, 1.5, 2).json["errors"]
    assert ("earliest_start" in error, "No later start was found." in error["detail"]) == (False, True)
    # a limit excludes the start
    limited = Admin(application(url, reservations={"max_ahead": 2 * HOUR}))
    (error,) = book(limited, 4, 1.5, 2).json["errors"]
    assert ("earliest_start" in error, "No later start was found." in error["detail"]) == (False, True)

    # the time is over
    with monkeypatch.context() as patch:
        patch.setattr("placement.search.claims.window_search.find_free", exhaust_budget)
        (error,) = book(admin, 4, 1.5, 2).json["errors"]
    assert (error["code"], "earliest_start" in error) == ("placement.ext.no_candidate", False)
    assert "No later start was found." in error["detail"]
    # without windows at that time, a later start does not help
    assert "later start" not in book(admin, 9, 4, 5).text


def exhaust_budget(*_: Any) -> Any:
    """Replace a search that does not end in time."""
    raise BudgetExhausted


def test_a_refused_end_of_a_claim_names_the_latest_end(
    admin: Admin, host: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    booked(admin, 6, 1, 2)
    other = make_provider(admin, "other", VCPU=8)
    window = booked(admin, 6, 2, 3, allowed_hosts=[other])
    latest = show(admin, window)["starts_at"]
    for fields in ({}, {"order": {"pack": 1}, "alternates": 1}):
        claim = new_claim("resources=VCPU:4", **fields)
        refused = post_claims(admin, claim, ends_at=after(3 * HOUR), dry_run=bool(fields))
        (error,) = refused.json["errors"]
        assert (error["code"], error["latest_end"]) == ("placement.ext.no_candidate", latest)
        assert f" The claim may end at {latest} at the latest." in error["detail"]
    # no place is free now
    assert "latest_end" not in post_claims(admin, new_claim("resources=VCPU:9"), ends_at=after(3 * HOUR)).text
    with monkeypatch.context() as patch:
        patch.setattr("placement.search.claims.longest_stay.place_longest", exhaust_budget)
        (error,) = post_claims(admin, claim, ends_at=after(3 * HOUR)).json["errors"]
    assert (error["code"], "latest_end" in error) == ("placement.ext.no_candidate", False)
    taken = post_claims(admin, claim, ends_at=latest)
    assert (taken.status_code, taken.json["claims"][0]["root_provider_uuid"]) == (201, other)


@pytest.mark.parametrize(
    "group",
    [None, {"name": "spread", "policy": "anti-affinity"}, {"name": "together", "policy": "affinity"}],
)
def test_a_refused_end_of_several_claims_names_their_latest_common_end(
    admin: Admin, host: str, group: dict[str, Any] | None
) -> None:
    first = booked(admin, 6, 2, 4, allowed_hosts=[host])
    other = make_provider(admin, "other", VCPU=8)
    last = booked(admin, 6, 3, 4, allowed_hosts=[other])
    # two claims fit on one host until its window begins; apart, the first window limits the claims
    latest = show(admin, first if group is not None and "anti" in group["policy"] else last)["starts_at"]

    def claims() -> list[dict[str, Any]]:
        fields = {} if group is None else {"group": group}
        return [new_claim("resources=VCPU:4", **fields) for _ in range(2)]

    refused = post_claims(admin, *claims(), ends_at=after(3.5 * HOUR))
    (error,) = refused.json["errors"]
    assert (error["code"], error.get("latest_end")) == ("placement.ext.no_candidate", latest)
    assert f" The claims may end at {latest} at the latest." in error["detail"]
    too_late = iso(datetime.fromisoformat(latest).timestamp() + 1)
    assert post_claims(admin, *claims(), ends_at=too_late).status_code == 409
    assert post_claims(admin, *claims(), ends_at=latest).status_code == 201


def test_the_latest_end_of_a_claim_counts_the_members_of_its_group(admin: Admin, host: str) -> None:
    booked(admin, 6, 2, 4, allowed_hosts=[host])
    group = {"group": {"name": "spread", "policy": "anti-affinity"}}
    assert post_claims(admin, new_claim("resources=VCPU:1", **group)).status_code == 201
    other = make_provider(admin, "other", VCPU=8)
    last = booked(admin, 6, 1, 4, allowed_hosts=[other])
    (error,) = post_claims(admin, new_claim("resources=VCPU:4", **group), ends_at=after(3 * HOUR)).json[
        "errors"
    ]
    # the other host is free for longer, but has a member of the group
    assert error["latest_end"] == show(admin, last)["starts_at"]


@pytest.mark.parametrize("count", [1, 2])
def test_a_refused_claim_without_an_end_names_other_times(admin: Admin, host: str, count: int) -> None:
    window = show(admin, booked(admin, 6, 1, 2))

    def claims() -> list[dict[str, Any]]:
        return [new_claim("resources=VCPU:4") for _ in range(count)]

    (error,) = post_claims(admin, *claims()).json["errors"]
    assert (error["earliest_start"], error["latest_end"]) == (window["expires_at"], window["starts_at"])
    subject = "claim fits" if count == 1 else "claims fit"
    assert error["detail"].endswith(
        f" The {subject} without an end time from {window['expires_at']} on, or now with an end time until"
        f" {window['starts_at']}."
    )
    # without the windows, the claims would not fit either
    too_many = [new_claim("resources=VCPU:9") for _ in range(count)]
    (error,) = post_claims(admin, *too_many).json["errors"]
    assert {"earliest_start", "latest_end"}.isdisjoint(error)
    assert post_claims(admin, *claims(), ends_at=window["starts_at"]).status_code == 201


def test_a_refused_reservation_without_a_start_names_other_times(admin: Admin, host: str) -> None:
    window = show(admin, booked(admin, 6, 1, 2))
    body = {"query": "resources=VCPU:4", "project_id": "project", "user_id": "user", "expires_in": 60}
    (error,) = admin("POST", PATH, json=body).json["errors"]
    assert (error["earliest_start"], error["latest_end"]) == (window["expires_at"], window["starts_at"])
    assert f" The reservation fits without an end time from {window['expires_at']} on" in error["detail"]


def test_a_claim_that_replaces_one_or_joins_others_names_fewer_times(admin: Admin, host: str) -> None:
    group = {"group": {"name": "web", "policy": "affinity"}}
    member = new_claim("resources=VCPU:1", **group)
    assert post_claims(admin, member).status_code == 201
    window = show(admin, booked(admin, 6, 1, 2))
    (error,) = post_claims(admin, new_claim("resources=VCPU:4", **group)).json["errors"]
    assert ("earliest_start" in error, error["latest_end"]) == (False, window["starts_at"])
    again = {**member, "consumer_generation": 1, "query": "resources=VCPU:4"}
    (error,) = post_claims(admin, again).json["errors"]
    assert "overlap this time" in error["detail"]
    assert {"earliest_start", "latest_end"}.isdisjoint(error)


def test_refused_allocations_name_a_smaller_amount_and_other_times(admin: Admin, host: str) -> None:
    first, second = (show(admin, booked(admin, *each)) for each in ((4, 1, 2), (6, 3, 4)))
    guest = str(uuid.uuid4())
    assert put_allocation(admin, {host: {"VCPU": 1}}, guest).status_code == 204
    detail = read_error(put_allocation(admin, {host: {"VCPU": 4}}))[2]
    assert detail.endswith(
        f"{first['uuid']} from {first['starts_at']} until {first['expires_at']}, {second['uuid']} from"
        f" {second['starts_at']} until {second['expires_at']}."
        " At most 1 of 'VCPU' fit there without an end time."
        f" The requested amounts fit without an end time from {second['expires_at']} on, or now with an end"
        f" time until {first['starts_at']}."
    )
    # several consumers need their sum
    body = {str(uuid.uuid4()): {"allocations": {host: {"resources": {"VCPU": 2}}}, **OWNED} for _ in range(2)}
    assert read_error(admin("POST", "/allocations", json=body))[2] == detail
    # a consumer gets its present amounts again
    changed = admin("GET", f"/allocations/{guest}").json | {"allocations": {host: {"resources": {"VCPU": 3}}}}
    detail = read_error(admin("PUT", f"/allocations/{guest}", json=changed))[2]
    assert " At most 2 of 'VCPU' fit there without an end time." in detail
    assert f" now with an end time until {second['starts_at']}." in detail
    # windows are not the reason
    assert "overlap" not in put_allocation(admin, {host: {"VCPU": 8}}).text
    assert put_allocation(admin, {host: {"VCPU": 1}}).status_code == 204
    # nothing fits without an end
    assert "At most" not in put_allocation(admin, {host: {"VCPU": 1}}).text


def test_refused_allocations_of_many_hosts_name_no_other_times(admin: Admin, host: str) -> None:
    booked(admin, 6, 1, 2)
    others = [make_provider(admin, f"other{number}", VCPU=8) for number in range(20)]
    some = {each: {"VCPU": 3} for each in (host, *others)}
    detail = read_error(put_allocation(admin, some))[2]
    assert (" At most 2 of 'VCPU' fit there" in detail, "requested amounts fit" in detail) == (True, False)
    del some[others[0]]
    assert "requested amounts fit" in read_error(put_allocation(admin, some))[2]


def test_a_consumer_that_loses_its_end_learns_until_when_it_fits(admin: Admin, host: str) -> None:
    claim = new_claim("resources=VCPU:4")
    assert post_claims(admin, claim, ends_at=after(HOUR)).status_code == 201
    window = show(admin, booked(admin, 6, 2, 3))
    path = f"/allocations/{claim['consumer_uuid']}"
    held = admin("GET", path).json
    allocations = {
        each: {"resources": held["allocations"][each]["resources"]} for each in held["allocations"]
    }
    detail = read_error(admin("PUT", path, json={**held, "allocations": allocations}))[2]
    # the claim itself is not in its way
    assert f"overlap this time: {window['uuid']} from " in detail
    assert detail.endswith(
        " At most 2 of 'VCPU' fit there without an end time. The requested amounts fit without an end time"
        f" from {window['expires_at']} on, or now with an end time until {window['starts_at']}."
    )


def test_other_times_of_refused_allocations_need_no_further_query(admin: Admin, host: str) -> None:
    sent = []

    def note(*args: Any) -> None:
        sent.append(args[2])

    def count(amount: int) -> int:
        sent.clear()
        assert put_allocation(admin, {host: {"VCPU": amount}}).status_code == 409
        return len(sent)

    sa.event.listen(sa.engine.Engine, "before_cursor_execute", note)
    try:
        before = count(9)
        booked(admin, 6, 1, 2)
        assert count(3) == before
    finally:
        sa.event.remove(sa.engine.Engine, "before_cursor_execute", note)


@pytest.mark.parametrize(("reader", "hours"), [("refusal.read_overlaps", 2), ("refusal.read_planned", None)])
def test_a_refused_claim_stays_refused_if_the_database_is_lost_after_it(
    admin: Admin, host: str, monkeypatch: pytest.MonkeyPatch, reader: str, hours: float | None
) -> None:
    booked(admin, 6, 1, 2)
    monkeypatch.setattr(f"placement.search.claims.{reader}", lose_database)
    fields = {} if hours is None else {"ends_at": after(hours * HOUR)}
    refused = post_claims(admin, new_claim("resources=VCPU:3"), **fields)
    assert refused.status_code == 409
    assert "overlap this time" not in read_error(refused)[2]


@pytest.mark.parametrize("seconds", [30, 2 * HOUR])
def test_a_refused_claim_names_no_end_if_it_has_no_place_now(admin: Admin, host: str, seconds: float) -> None:
    booked(admin, 6, -0.001, 1)
    refused = post_claims(admin, new_claim("resources=VCPU:4"), ends_at=after(seconds))
    assert (refused.status_code, "latest_end" in refused.text) == (409, False)


def test_windows_that_do_not_overlap_share_room(admin: Admin, url: str, host: str) -> None:
    first = booked(admin, 8, 1, 2)
    until = show(admin, first)["expires_at"]
    second = booked(admin, 8, 2, 3, starts_at=until)
    assert book(admin, 1, 1.5, 2.5).status_code == 409
    assert read_usages(admin, host) == {"VCPU": 8}
    advance_clock(url, 1.5 * HOUR)
    assert (show(admin, first)["state"], show(admin, second)["state"]) == ("active", "pending")
    assert read_usages(admin, host) == {"VCPU": 8}
    advance_clock(url, HOUR)
    assert read_usages(admin, host) == {"VCPU": 8}
    assert [each["uuid"] for each in admin("GET", PATH).json["reservations"]] == [second]
    assert list(admin("GET", provider_path(host, "allocations")).json["allocations"]) == [second]


def test_a_claim_that_ends_before_a_window_uses_its_room(admin: Admin, url: str, host: str) -> None:
    window = booked(admin, 8, 2, 3)
    refused = post_claims(admin, new_claim("resources=VCPU:1"), ends_at=after(2.5 * HOUR))
    status, code, detail = read_error(refused)
    assert (status, code) == (409, "placement.ext.no_candidate")
    assert f"overlap this time: {window} from " in detail
    answer = post_claims(admin, new_claim("resources=VCPU:8"), ends_at=after(HOUR))
    assert answer.status_code == 201, answer.text
    consumer = answer.json["claims"][0]["consumer_uuid"]
    assert answer.json["claims"][0]["ends_at"]
    assert read_usages(admin, host) == {"VCPU": 8}
    assert admin("GET", f"/ext/v1/claims/{consumer}").json["claim"]["is_final"] is True
    advance_clock(url, 1.5 * HOUR)
    assert admin("GET", f"/allocations/{consumer}").json["allocations"] == {}
    assert read_usages(admin, host) == {"VCPU": 8}


def test_the_end_of_a_claim_cannot_be_confirmed_away(admin: Admin, host: str) -> None:
    claimed = new_claim("resources=VCPU:1")
    assert post_claims(admin, claimed, ends_at=after(HOUR)).status_code == 201
    body = {"consumer_generation": 1}
    answer = admin("PUT", f"/ext/v1/claims/{claimed['consumer_uuid']}", json=body)
    assert answer.status_code == 409
    both = post_claims(admin, new_claim("resources=VCPU:1", expires_in=60), ends_at=after(HOUR))
    assert both.status_code == 400


def test_a_reshape_keeps_the_times_of_claims_and_windows(admin: Admin, url: str, host: str) -> None:
    window = booked(admin, 4, 0, 1, starts_at=after(0))
    later = booked(admin, 8, 3, 4)
    claim = new_claim("resources=VCPU:4")
    end = after(2 * HOUR)
    assert post_claims(admin, claim, ends_at=end, on_end="evict").status_code == 201
    consumers = [window, claim["consumer_uuid"]]
    held = {each: admin("GET", f"/allocations/{each}").json for each in consumers}
    path = f"/ext/v1/time_events?since={after(-HOUR)}&until={after(3 * HOUR)}&notice={int(3 * HOUR)}"
    events = admin("GET", path).json["events"]
    assert (claim["consumer_uuid"], "claim.ends_soon") in {
        (each["consumer_uuid"], each["kind"]) for each in events
    }
    generation = admin("GET", f"/resource_providers/{host}").json["generation"]
    inventories = admin("GET", f"/resource_providers/{host}/inventories").json["inventories"]
    body = {
        "inventories": {host: {"resource_provider_generation": generation, "inventories": inventories}},
        "allocations": {
            each: {**document, "allocations": {host: {"resources": {"VCPU": 4}}}}
            for each, document in held.items()
        },
    }
    answer = admin("POST", "/reshaper", json=body)
    assert answer.status_code == 204, answer.text
    shown = admin("GET", f"/ext/v1/claims/{claim['consumer_uuid']}").json["claim"]
    assert (shown["ends_at"], shown["on_end"], shown["is_final"]) == (end, "evict", True)
    # the end was not set again, so its events stay the same
    assert admin("GET", path).json["events"] == events
    assert find_broken_promises(url) == []
    advance_clock(url, 3.5 * HOUR)
    assert show(admin, later)["allocations"] == {host: {"resources": {"VCPU": 8}}}
    assert read_usages(admin, host)["VCPU"] == 8


def test_a_reshape_gives_no_new_consumer_the_room_of_a_window_ahead(
    admin: Admin, url: str, host: str
) -> None:
    window, consumer = booked(admin, 6, 1, 2), str(uuid.uuid4())

    def reshape(amount: int) -> TestResponse:
        shown = admin("GET", f"/resource_providers/{host}/inventories").json
        allocations = {host: {"resources": {"VCPU": amount}}}
        body = {
            "inventories": {host: shown},
            "allocations": {consumer: {"allocations": allocations, **OWNED}},
        }
        return admin("POST", "/reshaper", json=body)

    refused = reshape(3)
    assert refused.status_code == 409, refused.text
    detail = read_error(refused)[2]
    assert f" Other windows and claims overlap this time: {window} from " in detail
    assert " At most 2 of 'VCPU' fit there without an end time. The requested amounts fit " in detail
    assert admin("GET", f"/allocations/{consumer}").json["allocations"] == {}
    answer = reshape(2)
    assert answer.status_code == 204, answer.text
    assert find_broken_promises(url) == []


def test_a_host_is_no_candidate_while_a_window_ahead_needs_all_of_it(admin: Admin, host: str) -> None:
    def candidates() -> list[str]:
        answer = admin("GET", "/allocation_candidates?resources=VCPU:1")
        assert answer.status_code == 200, answer.text
        return [uuid for each in answer.json["allocation_requests"] for uuid in each["allocations"]]

    assert candidates() == [host]
    window = booked(admin, 8, 1, 2)
    assert candidates() == []
    assert admin("DELETE", f"{PATH}/{window}").status_code == 204
    assert candidates() == [host]


def test_a_claim_without_an_end_replaces_one_with_an_end_only_if_there_is_room(
    admin: Admin, host: str
) -> None:
    booked(admin, 8, 2, 3)
    claimed = new_claim("resources=VCPU:2")
    consumer = claimed["consumer_uuid"]
    assert post_claims(admin, claimed, ends_at=after(HOUR)).status_code == 201
    answer = put_allocation(admin, {host: {"VCPU": 2}}, consumer, generation=1)
    assert answer.status_code == 409, answer.text
    for amount in (2, 8):
        again = new_claim(f"resources=VCPU:{amount}", consumer_uuid=consumer, consumer_generation=1)
        assert read_error(post_claims(admin, again))[0] == 409
    again = new_claim("resources=VCPU:8", consumer_uuid=consumer, consumer_generation=1)
    assert post_claims(admin, again, ends_at=after(1.5 * HOUR)).status_code == 201
    assert read_usages(admin, host) == {"VCPU": 8}


@pytest.mark.parametrize("by_reservations", [True, False])
def test_a_deleted_window_gives_its_room_back(admin: Admin, host: str, by_reservations: bool) -> None:
    window = booked(admin, 8, 1, 2)
    other = booked(admin, 3, 3, 4)
    path = f"{PATH}/{window}" if by_reservations else f"/allocations/{window}"
    assert admin("DELETE", path).status_code == 204
    assert read_usages(admin, host) == {"VCPU": 3}
    assert put_allocation(admin, {host: {"VCPU": 5}}).status_code == 204
    assert admin("DELETE", f"{PATH}/{other}").status_code == 204
    assert read_usages(admin, host) == {"VCPU": 5}


def test_an_active_window_that_is_deleted_leaves_the_room_of_the_next_one(
    admin: Admin, url: str, host: str
) -> None:
    first = booked(admin, 8, 1, 2)
    booked(admin, 8, 3, 4)
    advance_clock(url, 1.5 * HOUR)
    assert show(admin, first)["state"] == "active"
    assert admin("DELETE", f"/allocations/{first}").status_code == 204
    assert put_allocation(admin, {host: {"VCPU": 1}}).status_code == 409
    assert read_usages(admin, host) == {"VCPU": 8}


def test_a_released_claim_with_an_end_leaves_the_room_of_a_window(admin: Admin, host: str) -> None:
    booked(admin, 8, 2, 3)
    claimed = new_claim("resources=VCPU:8")
    assert post_claims(admin, claimed, ends_at=after(HOUR)).status_code == 201
    assert admin("DELETE", f"/allocations/{claimed['consumer_uuid']}").status_code == 204
    assert put_allocation(admin, {host: {"VCPU": 1}}).status_code == 409
    assert admin("DELETE", f"/allocations/{claimed['consumer_uuid']}").status_code == 404


def test_claims_take_from_a_window_during_its_time(admin: Admin, url: str, host: str) -> None:
    window = booked(admin, 6, 1, 3)
    early = post_claims(admin, new_claim("resources=VCPU:2"), reservation=window, ends_at=after(2 * HOUR))
    assert early.status_code == 409
    assert "begins at" in read_error(early)[2]
    advance_clock(url, 2 * HOUR)
    for fields in ({}, {"ends_at": after(2 * HOUR)}):
        late = post_claims(admin, new_claim("resources=VCPU:2"), reservation=window, **fields)
        assert late.status_code == 409
        assert "needs an ends_at of at most" in read_error(late)[2]
    until = show(admin, window)["expires_at"]
    for amount in (2, 4):
        taken = post_claims(admin, new_claim(f"resources=VCPU:{amount}"), reservation=window, ends_at=until)
        assert taken.status_code == 201, taken.text
        assert read_usages(admin, host) == {"VCPU": 6}
    shown = show(admin, window)
    assert (shown["state"], shown["allocations"]) == ("active", {})
    assert shown["claimed"] == {host: {"resources": {"VCPU": 6}}}
    advance_clock(url, 2 * HOUR)
    assert read_usages(admin, host) == {"VCPU": 0}
    assert admin("GET", f"{PATH}/{window}").status_code == 404


def test_the_first_request_after_the_start_may_claim(admin: Admin, url: str, host: str) -> None:
    window = booked(admin, 6, 1, 3)
    advance_clock(url, 2 * HOUR)
    answer = post_claims(admin, new_claim("resources=VCPU:6"), reservation=window, ends_at=after(0.5 * HOUR))
    assert answer.status_code == 201, answer.text


def test_the_end_of_a_window_moves_if_its_room_is_free(admin: Admin, url: str, host: str) -> None:
    window = booked(admin, 6, 1, 2)
    booked(admin, 6, 3, 4)

    def move(end: float, generation: int) -> int:
        body = {"generation": generation, "expires_at": after(end * HOUR)}
        status: int = admin("PUT", f"{PATH}/{window}", json=body).status_code
        return status

    assert move(3.5, 1) == 409
    assert move(0.5, 1) == 400
    assert move(2.5, 1) == 200
    assert (show(admin, window)["generation"], show(admin, window)["state"]) == (2, "pending")
    assert read_usages(admin, host) == {"VCPU": 6}
    advance_clock(url, 1.5 * HOUR)
    generation = show(admin, window)["generation"]
    assert move(3.5, generation) == 409
    assert move(1.2, generation) == 200
    assert show(admin, window)["state"] == "active"
    assert read_usages(admin, host) == {"VCPU": 6}


def test_a_refused_extension_names_the_latest_end_and_what_follows(admin: Admin, host: str) -> None:
    window = booked(admin, 6, 1, 2)
    following = booked(admin, 6, 3, 4)
    body = {"generation": 1, "expires_at": after(3.5 * HOUR)}
    refused = admin("PUT", f"{PATH}/{window}", json=body)
    status, _, detail = read_error(refused)
    latest = show(admin, following)["starts_at"]
    assert status == 409
    assert f"{window} is not free until then: it may end at {latest} at the latest" in detail
    (error,) = refused.json["errors"]
    assert (error["code"], error["latest_end"]) == ("placement.ext.end_too_late", latest)
    assert f"overlap this time: {following} from {latest}" in detail
    assert admin("PUT", f"{PATH}/{window}", json=body | {"expires_at": latest}).status_code == 200


def test_a_refused_extension_stays_refused_if_the_database_is_lost_after_it(
    admin: Admin, host: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    window = booked(admin, 6, 1, 2)
    booked(admin, 6, 3, 4)
    monkeypatch.setattr("placement.store.reservation_changes.latest_expiry", lose_database)
    refused = admin("PUT", f"{PATH}/{window}", json={"generation": 1, "expires_at": after(3.5 * HOUR)})
    status, code, detail = read_error(refused)
    assert (status, code) == (409, "placement.ext.end_too_late")
    assert detail.endswith(f"{window} is not free until then.")
    assert "latest_end" not in refused.json["errors"][0]


def test_an_extension_into_a_full_hour_is_refused_even_if_a_later_hour_is_fuller(
    admin: Admin, host: str
) -> None:
    put_inventories(admin, host, generation_of(admin, host), VCPU=12)
    first, _, _ = booked(admin, 4, 1, 2), booked(admin, 8, 2.2, 3), booked(admin, 12, 4, 5)
    put_inventories(admin, host, generation_of(admin, host), VCPU=8)
    body = {"generation": 1, "expires_at": after(2.4 * HOUR)}
    assert admin("PUT", f"{PATH}/{first}", json=body).status_code == 409
    assert admin("PUT", f"{PATH}/{first}", json=body | {"expires_at": after(2.1 * HOUR)}).status_code == 200


@pytest.mark.parametrize(
    ("begin", "end", "message"),
    [
        (-1, 1, "cannot begin in the past by more than 60 seconds"),
        (2, 1, "has to end after its start"),
        (2, 2, "has to end after its start"),
        (24 * 400, 24 * 401, "within 366 days"),
    ],
)
def test_impossible_times_are_refused(
    admin: Admin, host: str, begin: float, end: float, message: str
) -> None:
    fields = {"expires_at": after(end * HOUR)}
    if begin == end:
        fields["starts_at"] = fields["expires_at"]
    answer = book(admin, 1, begin, end, **fields)
    assert answer.status_code == 400
    assert message in read_error(answer)[2]


@pytest.mark.parametrize(
    "fields", [{"starts_at": "tomorrow"}, {"starts_at": "2100-02-30T00:00:00Z"}, {"starts_at": 5}]
)
def test_times_that_are_none_are_refused(admin: Admin, host: str, fields: dict[str, Any]) -> None:
    assert book(admin, 1, 1, 2, **fields).status_code == 400


def test_a_window_needs_a_time_as_its_end(admin: Admin, host: str) -> None:
    body = {"query": "resources=VCPU:1", "project_id": "project", "user_id": "user"}
    answer = admin("POST", PATH, json={**body, "starts_at": after(HOUR), "expires_in": 60})
    assert read_error(answer)[::2] == (
        400,
        "A reservation with starts_at needs expires_at instead of expires_in.",
    )


def test_a_window_that_begins_now_holds_its_amounts_at_once(admin: Admin, host: str) -> None:
    window = booked(admin, 6, -0.001, 1)
    assert show(admin, window)["state"] == "active"
    assert admin("GET", f"/allocations/{window}").json["allocations"][host]["resources"] == {"VCPU": 6}


def test_clients_change_neither_a_pending_window_nor_a_hold(admin: Admin, host: str) -> None:
    window = booked(admin, 6, 1, 2)
    answer = put_allocation(admin, {host: {"VCPU": 1}}, window, generation=1)
    assert (answer.status_code, "begins later" in answer.text) == (409, True)
    (hold,) = admin("GET", provider_path(host, "allocations")).json["allocations"]
    generation = admin("GET", f"/allocations/{hold}").json["consumer_generation"]
    assert put_allocation(admin, {host: {"VCPU": 1}}, hold, generation=generation).status_code == 409
    assert admin("DELETE", f"/allocations/{hold}").status_code == 409
    assert read_usages(admin, host) == {"VCPU": 6}
    assert admin("DELETE", provider_path(host)).status_code == 409


def test_clients_make_no_consumer_that_looks_like_a_hold(admin: Admin, host: str) -> None:
    wanted = new_claim("resources=VCPU:1", consumer_type="WINDOW_HOLD")
    consumer, body = wanted["consumer_uuid"], claim_body({host: {"VCPU": 1}}, consumer_type="WINDOW_HOLD")
    shape = {"inventories": {host: {"resource_provider_generation": 1, "inventories": {}}}}
    for answer in (
        post_claims(admin, wanted),
        post_claims(admin, wanted, ends_at=after(HOUR)),
        admin("PUT", f"/allocations/{consumer}", json=body),
        admin("POST", "/allocations", json={consumer: body}),
        admin("POST", "/reshaper", json={**shape, "allocations": {consumer: body}}),
    ):
        status, _, detail = read_error(answer)
        assert (status, "only the service makes consumers of this type" in detail) == (400, True), detail
    assert read_usages(admin, host) == {"VCPU": 0}


def test_a_consumer_with_the_uuid_of_a_hold_is_reported(admin: Admin, host: str) -> None:
    booked(admin, 6, 1, 2)
    (hold,) = admin("GET", provider_path(host, "allocations")).json["allocations"]
    other = make_provider(admin, "other", VCPU=8)
    for each in admin("GET", PATH).json["reservations"]:
        assert admin("DELETE", f"{PATH}/{each['uuid']}").status_code == 204
    assert put_allocation(admin, {other: {"VCPU": 1}}, hold).status_code == 204
    answer = book(admin, 8, 1, 2, allowed_hosts=[host])
    assert answer.status_code == 409
    assert "has the uuid of the hold" in read_error(answer)[2]
    assert read_usages(admin, other) == {"VCPU": 1}


def test_a_smaller_inventory_keeps_windows_and_admits_no_more(admin: Admin, url: str, host: str) -> None:
    window = booked(admin, 6, 1, 2)
    put_inventories(admin, host, admin("GET", provider_path(host)).json["generation"], VCPU=4)
    assert book(admin, 1, 1, 2).status_code == 409
    assert book(admin, 4, 3, 4).status_code == 201
    advance_clock(url, 1.5 * HOUR)
    assert read_usages(admin, host) == {"VCPU": 6}
    assert show(admin, window)["state"] == "active"
    answer = post_claims(
        admin, new_claim("resources=VCPU:2"), reservation=window, ends_at=show(admin, window)["expires_at"]
    )
    assert answer.status_code == 201, answer.text


def test_a_window_ends_even_if_no_request_came_between_its_start_and_its_end(
    admin: Admin, url: str, host: str
) -> None:
    booked(admin, 8, 1, 2)
    advance_clock(url, 3 * HOUR)
    assert put_allocation(admin, {host: {"VCPU": 8}}).status_code == 204
    assert admin("GET", PATH).json == {"reservations": []}


def test_other_workers_and_new_workers_see_windows(admin: Admin, url: str, host: str) -> None:
    other = Admin(application(url))
    assert read_usages(other, host) == {"VCPU": 0}
    window = booked(admin, 8, 1, 2)
    assert read_usages(other, host) == {"VCPU": 8}
    advance_clock(url, 1.5 * HOUR)
    third = Admin(application(url))
    assert read_usages(third, host) == {"VCPU": 8}
    assert third("GET", f"/allocations/{window}").json["allocations"] != {}
    assert read_scalar(url, "SELECT COUNT(*) FROM planned_allocations") == 0


def test_projects_use_nothing_of_pending_windows(admin: Admin, host: str) -> None:
    booked(admin, 8, 1, 2)
    assert admin("GET", "/usages?project_id=project").json["usages"] == {}


def test_too_many_windows_of_a_provider_are_refused(
    admin: Admin, host: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("placement.store.time_profile.MAX_TIMED_AMOUNTS", 3)
    for number in range(3):
        booked(admin, 1, 1 + number, 2 + number)
    answer = book(admin, 1, 1, 2)
    assert answer.status_code == 409
    assert "which is the maximum" in read_error(answer)[2]


def test_the_room_of_a_window_stays_held_until_some_worker_begins_it(
    admin: Admin, url: str, host: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = booked(admin, 8, 1, 2)
    with monkeypatch.context() as patch:
        # as if each worker died before it begins windows
        patch.setattr("placement.store.due_changes.begin_windows", lambda tx: 0)
        advance_clock(url, 1.5 * HOUR)
        assert show(admin, first)["state"] == "active"
        assert put_allocation(admin, {host: {"VCPU": 1}}).status_code == 409
        assert book(admin, 1, 0.1, 0.2).status_code == 409
    assert read_usages(Admin(application(url)), host) == {"VCPU": 8}
    assert admin("GET", f"/allocations/{first}").json["allocations"] != {}


@pytest.mark.parametrize("skew", [-HOUR, HOUR])
def test_clocks_of_workers_do_not_matter_to_windows(
    admin: Admin, url: str, host: str, skew: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    early, late = booked(admin, 8, 0.5, 1), booked(admin, 8, 1, 3)
    real = time.time
    # the client of these requests uses its own clock, which is right
    times = {"starts_at": after(HOUR), "expires_at": after(1.5 * HOUR)}
    ends_at = after(0.25 * HOUR)
    monkeypatch.setattr(time, "time", lambda: real() + skew)
    skewed = Admin(application(url))
    assert [show(skewed, each)["state"] for each in (early, late)] == ["pending", "pending"]
    body = {"query": "resources=VCPU:1", "project_id": "project", "user_id": "user", **times}
    assert skewed("POST", PATH, json=body).status_code == 409
    assert post_claims(skewed, new_claim("resources=VCPU:8"), ends_at=ends_at).status_code == 201
    advance_clock(url, 0.75 * HOUR)
    assert [show(skewed, each)["state"] for each in (early, late)] == ["active", "pending"]
    assert read_usages(skewed, host) == {"VCPU": 8}
    assert find_broken_promises(url) == []


@pytest.mark.parametrize("skew", [-HOUR, HOUR])
def test_a_client_with_a_wrong_clock_gets_the_times_that_it_names(
    admin: Admin, host: str, skew: float
) -> None:
    # such a client means other times, and the answer has the time of the database where these are impossible
    answer = book(admin, 8, skew / HOUR + 0.5, skew / HOUR + 0.75)
    if skew > 0:
        assert answer.json["reservation"]["state"] == "pending"
    else:
        assert "the time of the database is" in read_error(answer)[2]
    assert book(admin, 8, 0, 1).status_code == 201


def test_windows_above_a_lowered_capacity_are_degraded(admin: Admin, url: str, host: str) -> None:
    first, second, third = booked(admin, 6, 1, 2), booked(admin, 4, 3, 4), booked(admin, 2, 3, 4)
    put_inventories(admin, host, generation_of(admin, host), VCPU=5)
    cause = {"reason": "capacity_exceeded", "provider": host, "resource_class": "VCPU", "missing": 1}
    assert [show(admin, each)["degraded"] for each in (first, second, third)] == [[cause]] * 3
    advance_clock(url, 1.5 * HOUR)
    assert (show(admin, first)["state"], show(admin, first)["degraded"]) == ("active", [cause])
    assert admin("DELETE", f"{PATH}/{third}").status_code == 204
    assert show(admin, second)["degraded"] == []
    put_inventories(admin, host, generation_of(admin, host), VCPU=6)
    assert show(admin, first)["degraded"] == []


def test_a_disabled_host_degrades_its_reservations(admin: Admin, host: str) -> None:
    window, now = booked(admin, 6, 1, 2), reserve(admin, 2)
    body = {"resource_provider_generation": generation_of(admin, host), "traits": ["COMPUTE_STATUS_DISABLED"]}
    assert admin("PUT", provider_path(host, "traits"), json=body).status_code == 200
    for each, missing in ((window, 6), (now, 2)):
        (cause,) = show(admin, each)["degraded"]
        assert (cause["reason"], cause["missing"]) == ("host_disabled", missing)
    # nothing is left of the one that has begun, so it is listed once
    assert {each["uuid"] for each in listed(admin, "state=degraded")} == {window}
    assert {each["uuid"] for each in listed(admin, "state=failed")} == {now}
    assert listed(admin, "state=active") == []


def test_a_window_fails_if_nothing_is_left_of_it_after_its_start(admin: Admin, url: str, host: str) -> None:
    window = booked(admin, 6, 1, 2)
    assert put_allocation(admin, {host: {"VCPU": 2}}).status_code == 204
    put_inventories(admin, host, generation_of(admin, host), VCPU=2)
    assert show(admin, window)["state"] == "pending"
    advance_clock(url, 1.5 * HOUR)
    assert (show(admin, window)["state"], show(admin, window)["degraded"][0]["missing"]) == ("failed", 6)
    # a part is left
    put_inventories(admin, host, generation_of(admin, host), VCPU=3)
    assert (show(admin, window)["state"], show(admin, window)["degraded"][0]["missing"]) == ("active", 5)
    assert [each["uuid"] for each in listed(admin, "state=degraded")] == [window]


def test_a_window_that_only_lacks_its_amounts_later_has_not_failed(admin: Admin, url: str, host: str) -> None:
    now = booked(admin, 4, 0, 3)
    booked(admin, 4, 1, 2)
    put_inventories(admin, host, generation_of(admin, host), VCPU=4)
    shown = show(admin, now)
    assert (shown["state"], shown["degraded"][0]["missing"]) == ("active", 4)
    advance_clock(url, 1.5 * HOUR)
    assert show(admin, now)["state"] == "failed"


def test_a_list_has_only_reservations_of_a_state_page_by_page(admin: Admin, host: str) -> None:
    pending = {booked(admin, 1, 1, 2) for _ in range(3)}
    active = {reserve(admin, 1) for _ in range(3)}
    assert {each["uuid"] for each in listed(admin, "state=pending&limit=2")} == pending
    assert {each["uuid"] for each in listed(admin, "state=active&limit=2")} == active
    assert listed(admin, "state=degraded&limit=2") == []
    assert admin("GET", f"{PATH}?state=lost").status_code == 400


def listed(admin: Admin, query: str) -> list[dict[str, Any]]:
    """Read all pages of a list."""
    found: list[dict[str, Any]] = []
    path = f"{PATH}?{query}"
    while True:
        page = admin("GET", path).json
        found += page["reservations"]
        if "links" not in page:
            return found
        path = page["links"][0]["href"].removeprefix("/placement")


def reserve(admin: Admin, amount: int) -> str:
    """Reserve VCPUs from now on."""
    body = {
        "query": f"resources=VCPU:{amount}",
        "project_id": "project",
        "user_id": "user",
        "expires_in": HOUR,
    }
    answer = admin("POST", PATH, json=body)
    assert answer.status_code == 201, answer.text
    found: str = answer.json["reservation"]["uuid"]
    return found


def generation_of(admin: Admin, provider: str) -> int:
    found: int = admin("GET", provider_path(provider)).json["generation"]
    return found


def test_a_window_is_held_from_its_lead_to_the_end_of_its_cleaning(admin: Admin, url: str, host: str) -> None:
    margins = {"lead_time": 3600, "cleaning_time": 1800}
    window = booked(admin, 8, 3, 4, **margins)
    shown = show(admin, window)
    assert {name: shown[name] for name in margins} == margins
    assert shown["state"] == "pending"
    # the room is lent until the lead, and free again after the cleaning
    assert post_claims(admin, new_claim("resources=VCPU:8"), ends_at=after(2.5 * HOUR)).status_code == 409
    assert post_claims(admin, new_claim("resources=VCPU:8"), ends_at=after(1.9 * HOUR)).status_code == 201
    assert book(admin, 1, 4.3, 5).status_code == 409
    assert book(admin, 8, 5.5, 6, lead_time=7200).status_code == 409
    later = booked(admin, 8, 5.5, 6, lead_time=3600)
    # the end moves with its cleaning time
    longer = {"generation": 1, "expires_at": after(4.4 * HOUR)}
    refused = admin("PUT", f"{PATH}/{window}", json=longer)
    assert (refused.status_code, later in refused.text) == (409, True)
    earlier = {"generation": 1, "expires_at": shown["starts_at"]}
    assert "end after its start" in read_error(admin("PUT", f"{PATH}/{window}", json=earlier))[2]
    advance_clock(url, 2.5 * HOUR)
    claim = {**new_claim("resources=VCPU:4"), "project_id": "project"}
    early = post_claims(admin, claim, reservation=window, ends_at=after(1.4 * HOUR))
    assert "begins at" in read_error(early)[2]
    assert show(admin, window)["state"] == "pending"
    advance_clock(url, HOUR)
    late = post_claims(admin, claim, reservation=window, ends_at=after(0.6 * HOUR))
    assert "ends at" in read_error(late)[2]
    end = show(admin, window)["expires_at"]
    taken = post_claims(admin, claim, reservation=window, ends_at=end)
    assert (taken.status_code, taken.json["claims"][0]["ends_at"]) == (201, end)
    advance_clock(url, 0.7 * HOUR)
    # claims of the window have ended, but their room is cleaned with the rest
    assert show(admin, window)["state"] == "cleaning"
    assert read_usages(admin, host) == {"VCPU": 8}
    assert "ends at" in read_error(post_claims(admin, claim, reservation=window, ends_at=after(60)))[2]
    assert find_broken_promises(url) == []
    advance_clock(url, 0.4 * HOUR)
    assert admin("GET", f"{PATH}/{window}").status_code == 404
    assert show(admin, later)["state"] == "pending"
    advance_clock(url, HOUR)
    assert show(admin, later)["state"] == "active"


@pytest.mark.parametrize("field", ["lead_time", "cleaning_time"])
def test_margins_need_a_start(admin: Admin, host: str, field: str) -> None:
    body = {"query": "resources=VCPU:1", "project_id": "project", "user_id": "user", "expires_in": HOUR}
    assert f"{field} needs starts_at" in read_error(admin("POST", PATH, json={**body, field: 60}))[2]
    assert book(admin, 1, 1, 2, **{field: -1}).status_code == 400


def test_a_lead_in_the_past_is_refused(admin: Admin, host: str) -> None:
    assert "with its lead time" in read_error(book(admin, 1, 1, 2, lead_time=7200))[2]
