"""Windows that claims use: they last until their end, and get back what claims do not need any more."""

from collections.abc import Collection
from typing import Any

import pytest
import sqlalchemy as sa
from werkzeug.test import TestResponse

from placement.store import window_promises
from placement.store.window_promises import PromisedAmount
from tests.placement.api.ext.windows import HOUR, PATH, book, booked, show
from tests.placement.builders import (
    make_provider,
    new_claim,
    post_claims,
    provider_path,
    put_allocation,
    put_inventories,
    read_error,
    read_usages,
)
from tests.placement.moving_clock import advance_clock, after
from tests.placement.running import Admin
from tests.placement.sql import execute_sql, read_scalar
from tests.placement.workers.window_tables import find_broken_promises


@pytest.fixture
def host(admin: Admin) -> str:
    return make_provider(admin, "cn", VCPU=8)


@pytest.fixture
def window(admin: Admin, host: str) -> str:
    """Return a window with 6 of the 8 VCPUs of the host, from now until in 3 hours."""
    return booked(admin, 6, 0, 3, allowed_hosts=[host])


def claim(admin: Admin, window: str, amount: int, end: float, **fields: Any) -> str:
    """Claim VCPUs from a window until some hours from now; return the consumer."""
    wanted = new_claim(f"resources=VCPU:{amount}", **fields)
    answer = post_claims(admin, wanted, reservation=window, ends_at=after(end * HOUR))
    assert answer.status_code == 201, answer.text
    found: str = wanted["consumer_uuid"]
    return found


def amounts_of(admin: Admin, window: str) -> tuple[int, int]:
    """Return the VCPUs that a window holds, and those that its claims use."""
    shown = show(admin, window)
    held, claimed = (
        sum(each["resources"]["VCPU"] for each in shown[name].values()) for name in ("allocations", "claimed")
    )
    return held, claimed


def test_a_window_exists_until_its_end_whatever_claims_take(
    admin: Admin, url: str, host: str, window: str
) -> None:
    claim(admin, window, 6, 2)
    shown = show(admin, window)
    assert (shown["state"], shown["degraded"], amounts_of(admin, window)) == ("active", [], (0, 6))
    assert admin("GET", f"{PATH}?state=active").json["reservations"] == [shown]
    path = f"/ext/v1/time_events?since={after(0)}&until={after(4 * HOUR)}&notice=600"
    events = [each for each in admin("GET", path).json["events"] if each["consumer_uuid"] == window]
    assert [each["kind"] for each in events] == ["reservation.ends_soon", "reservation.ended"]
    assert [each["root_provider_uuids"] for each in events] == [[host], [host]]
    assert read_usages(admin, host) == {"VCPU": 6}
    usages = admin("GET", "/usages?project_id=project").json["usages"]
    assert usages == {"INSTANCE": {"consumer_count": 1, "VCPU": 6}}
    assert find_broken_promises(url) == []
    advance_clock(url, 4 * HOUR)
    assert admin("GET", f"{PATH}/{window}").status_code == 404
    assert admin("GET", f"{PATH}?state=ended").json["reservations"][0]["ended_at"] is None
    assert read_usages(admin, host) == {"VCPU": 0}
    assert read_scalar(url, "SELECT count(*) FROM window_promises") == 0


@pytest.mark.parametrize("by", ["delete", "put", "end", "reservation"])
def test_a_window_gets_back_what_a_claim_leaves(
    admin: Admin, url: str, host: str, window: str, by: str
) -> None:
    consumer = claim(admin, window, 6, 1)
    # the room after the claim is promised, so no other consumer gets it
    assert post_claims(admin, new_claim("resources=VCPU:3"), ends_at=after(2 * HOUR)).status_code == 409
    assert book(admin, 3, 1.5, 2.5).status_code == 409
    if by == "delete":
        assert admin("DELETE", f"/allocations/{consumer}").status_code == 204
    elif by == "put":
        assert put_allocation(admin, {}, consumer, generation=1).status_code == 204
    elif by == "reservation":
        claim(admin, window, 1, 1, consumer_uuid=consumer, consumer_generation=1)
    else:
        advance_clock(url, 1.5 * HOUR)
    assert find_broken_promises(url) == []
    left = 5 if by == "reservation" else 6
    assert amounts_of(admin, window) == (left, 6 - left)
    assert read_usages(admin, host) == {"VCPU": 6}
    assert put_allocation(admin, {host: {"VCPU": 3}}).status_code == 409
    assert post_claims(admin, new_claim("resources=VCPU:3"), ends_at=after(HOUR)).status_code == 409
    assert book(admin, 3, 0.1, 1).status_code == 409
    assert put_allocation(admin, {host: {"VCPU": 2}}).status_code == 204
    claim(admin, window, left, 1)
    assert amounts_of(admin, window) == (0, 6)
    assert find_broken_promises(url) == []


def test_other_claims_use_what_a_window_does_not_have(admin: Admin, url: str, host: str, window: str) -> None:
    claim(admin, window, 6, 1)
    assert post_claims(admin, new_claim("resources=VCPU:2"), ends_at=after(9 * HOUR)).status_code == 201
    assert post_claims(admin, new_claim("resources=VCPU:1"), ends_at=after(0.5 * HOUR)).status_code == 409
    assert find_broken_promises(url) == []


def test_a_claim_moves_away_from_its_window_only_if_it_has_room_elsewhere(
    admin: Admin, url: str, host: str, window: str
) -> None:
    consumer = claim(admin, window, 4, 1)
    # without an end it is no claim of the window, which wants its room back
    assert put_allocation(admin, {host: {"VCPU": 4}}, consumer, generation=1).status_code == 409
    assert amounts_of(admin, window) == (2, 4)
    assert put_allocation(admin, {host: {"VCPU": 2}}, consumer, generation=1).status_code == 204
    assert amounts_of(admin, window) == (6, 0)
    assert read_usages(admin, host) == {"VCPU": 8}
    other = make_provider(admin, "other", VCPU=8)
    assert put_allocation(admin, {other: {"VCPU": 4}}, consumer, generation=2).status_code == 204
    assert read_usages(admin, host) == {"VCPU": 6}
    assert find_broken_promises(url) == []


def test_a_claim_is_extended_in_place_up_to_the_end_of_its_window(
    admin: Admin, url: str, host: str, window: str
) -> None:
    consumer = claim(admin, window, 6, 1)
    booked(admin, 2, 0, 9)
    again = new_claim("resources=VCPU:6", consumer_uuid=consumer, consumer_generation=1)
    late = post_claims(admin, again, reservation=window, ends_at=after(4 * HOUR))
    assert "needs an ends_at of at most" in read_error(late)[2]
    until = show(admin, window)["expires_at"]
    assert post_claims(admin, again, reservation=window, ends_at=until).status_code == 201
    assert amounts_of(admin, window) == (0, 6)
    larger = new_claim("resources=VCPU:7", consumer_uuid=consumer, consumer_generation=2)
    assert post_claims(admin, larger, reservation=window, ends_at=until).status_code == 409
    smaller = new_claim("resources=VCPU:2", consumer_uuid=consumer, consumer_generation=2)
    assert post_claims(admin, smaller, reservation=window, ends_at=until).status_code == 201
    assert amounts_of(admin, window) == (4, 2)
    # the end of a claim at the end of the window returns nothing, but an early deletion does
    assert admin("DELETE", f"/allocations/{consumer}").status_code == 204
    assert amounts_of(admin, window) == (6, 0)
    assert find_broken_promises(url) == []


def test_the_end_of_a_used_window_moves_with_its_promise(
    admin: Admin, url: str, host: str, window: str
) -> None:
    consumer = claim(admin, window, 6, 1)
    following = booked(admin, 6, 5, 6)
    path, generation = f"{PATH}/{window}", show(admin, window)["generation"]
    refused = admin("PUT", path, json={"generation": generation, "expires_at": after(5.5 * HOUR)})
    latest = show(admin, following)["starts_at"]
    assert f"it may end at {latest} at the latest" in read_error(refused)[2]
    # the window has begun, although its room returns later
    assert f"this time: {window} until " in read_error(book(admin, 8, 2, 2.5))[2]
    answer = admin("PUT", path, json={"generation": generation, "expires_at": latest})
    assert answer.status_code == 200, answer.text
    assert answer.json["reservation"]["claimed"] == {host: {"resources": {"VCPU": 6}}}
    assert find_broken_promises(url) == []
    assert book(admin, 3, 3.5, 4).status_code == 409
    # an earlier end gives room to others, but claims stay
    body = {"generation": generation + 1, "expires_at": after(0.5 * HOUR)}
    assert admin("PUT", path, json=body).status_code == 200
    assert find_broken_promises(url) == []
    assert book(admin, 3, 0.6, 0.9).status_code == 409
    assert book(admin, 3, 1.5, 2).status_code == 201
    advance_clock(url, 0.7 * HOUR)
    assert admin("GET", path).status_code == 404
    assert read_usages(admin, host) == {"VCPU": 6}
    assert admin("DELETE", f"/allocations/{consumer}").status_code == 204
    assert find_broken_promises(url) == []


def test_a_window_gives_back_a_part_of_what_it_holds_and_claims_stay(
    admin: Admin, url: str, host: str, window: str
) -> None:
    consumer = claim(admin, window, 2, 1)
    path, generation = f"{PATH}/{window}", show(admin, window)["generation"]
    body = {"generation": generation, "allocations": {host: {"resources": {"VCPU": 1}}}}
    answer = admin("PUT", path, json=body)
    assert answer.status_code == 200, answer.text
    assert amounts_of(admin, window) == (1, 2)
    assert put_allocation(admin, {host: {"VCPU": 5}}).status_code == 204
    assert put_allocation(admin, {host: {"VCPU": 1}}).status_code == 409
    assert admin("DELETE", f"/allocations/{consumer}").status_code == 204
    assert amounts_of(admin, window) == (3, 0)
    assert find_broken_promises(url) == []


def test_the_usage_of_a_project_has_what_its_windows_have_got_back(
    admin: Admin, url: str, host: str, window: str
) -> None:
    def usages(more: str = "") -> dict[str, dict[str, int]]:
        found: dict[str, dict[str, int]] = admin("GET", f"/usages?project_id=project{more}").json["usages"]
        return found

    other = booked(admin, 2, 0, 3, user_id="other")
    claim(admin, window, 4, 2)
    consumer = claim(admin, window, 2, 1)
    assert usages() == {
        "INSTANCE": {"consumer_count": 2, "VCPU": 6},
        "RESERVATION": {"consumer_count": 1, "VCPU": 2},
    }
    assert admin("DELETE", f"/allocations/{consumer}").status_code == 204
    assert usages() == {
        "INSTANCE": {"consumer_count": 1, "VCPU": 4},
        "RESERVATION": {"consumer_count": 2, "VCPU": 4},
    }
    assert usages("&user_id=other") == {"RESERVATION": {"consumer_count": 1, "VCPU": 2}}
    # the other claim is over, but not released
    advance_clock(url, 2.5 * HOUR)
    assert usages() == {"RESERVATION": {"consumer_count": 2, "VCPU": 8}}
    assert admin("DELETE", f"{PATH}/{other}").status_code == 204
    assert usages("&consumer_type=all") == {"all": {"consumer_count": 1, "VCPU": 6}}
    advance_clock(url, HOUR)
    assert usages() == {}


def test_a_claim_reads_the_promise_of_its_window_once_before_its_locks_and_once_below_them(
    admin: Admin, window: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads, reading = [], window_promises.promised_amounts

    def counting(conn: sa.Connection, windows: Collection[str]) -> list[PromisedAmount]:
        reads.append(list(windows))
        return reading(conn, windows)

    claim(admin, window, 2, 1)
    monkeypatch.setattr(window_promises, "promised_amounts", counting)
    claim(admin, window, 2, 1)
    assert reads == [[window], [window]]


@pytest.mark.parametrize("by", ["delete", "end"])
def test_a_client_does_not_give_away_amounts_that_have_come_back_since_its_read(
    admin: Admin, url: str, host: str, window: str, by: str
) -> None:
    consumer, _ = claim(admin, window, 3, 1), claim(admin, window, 1, 2)
    path, read = f"{PATH}/{window}", show(admin, window)
    body = {name: read[name] for name in ("generation", "allocations")}
    if by == "delete":
        assert admin("DELETE", f"/allocations/{consumer}").status_code == 204
    else:
        advance_clock(url, 1.5 * HOUR)
        # any such read releases claims that are over
        assert admin("GET", PATH).status_code == 200
    status, _, detail = read_error(admin("PUT", path, json=body))
    assert (status, "Claims have given amounts back" in detail) == (409, True)
    assert (amounts_of(admin, window), read_usages(admin, host)) == ((5, 1), {"VCPU": 6})
    assert find_broken_promises(url) == []
    # the generation of the read is over
    assert "generation conflict" in read_error(admin("PUT", path, json=body))[2]
    # the next read has the amounts, and can give them back
    kept = {
        "generation": show(admin, window)["generation"],
        "allocations": {host: {"resources": {"VCPU": 4}}},
    }
    answer = admin("PUT", path, json=kept)
    assert answer.status_code == 200, answer.text
    assert amounts_of(admin, window) == (4, 1)
    assert find_broken_promises(url) == []


def test_a_deleted_window_leaves_its_claims_and_gets_nothing_back(
    admin: Admin, url: str, host: str, window: str
) -> None:
    consumer = claim(admin, window, 6, 1)
    assert admin("DELETE", f"{PATH}/{window}").status_code == 204
    assert admin("GET", f"{PATH}/{window}").status_code == 404
    assert read_usages(admin, host) == {"VCPU": 6}
    assert find_broken_promises(url) == []
    assert book(admin, 8, 1.5, 2).status_code == 201
    # the same uuid is another window, to which the claim returns nothing
    again = booked(admin, 2, 0, 1, uuid=window)
    assert amounts_of(admin, again) == (2, 0)
    assert admin("DELETE", f"/allocations/{consumer}").status_code == 204
    assert amounts_of(admin, again) == (2, 0)
    assert find_broken_promises(url) == []


def test_a_claim_with_cleaning_returns_its_room_when_the_host_is_clean(
    admin: Admin, url: str, host: str
) -> None:
    window = booked(admin, 8, 0, 4, cleaning_time=int(HOUR))
    claim(admin, window, 8, 1)
    advance_clock(url, 1.5 * HOUR)
    assert amounts_of(admin, window) == (0, 8)
    assert find_broken_promises(url) == []
    advance_clock(url, HOUR)
    assert amounts_of(admin, window) == (8, 0)
    claim(admin, window, 8, 1)
    assert find_broken_promises(url) == []


def reshape(admin: Admin, host: str, child: str, amounts: dict[str, int]) -> TestResponse:
    """Move all VCPUs of a host to its child, with these amounts of consumers."""
    body: dict[str, Any] = {"inventories": {}, "allocations": {}}
    for provider, amount in ((host, 0), (child, 8)):
        shown = admin("GET", f"/resource_providers/{provider}").json
        inventories = {"VCPU": {"total": amount}} if amount else {}
        body["inventories"][provider] = {
            "resource_provider_generation": shown["generation"],
            "inventories": inventories,
        }
    for consumer, used in amounts.items():
        held = admin("GET", f"/allocations/{consumer}").json
        body["allocations"][consumer] = {**held, "allocations": {child: {"resources": {"VCPU": used}}}}
    return admin("POST", "/reshaper", json=body)


def test_a_reshape_moves_the_promise_of_a_window_with_its_claims(
    admin: Admin, url: str, host: str, window: str
) -> None:
    consumer = claim(admin, window, 6, 1)
    child = make_provider(admin, "numa", parent=host)
    answer = reshape(admin, host, child, {consumer: 6})
    assert answer.status_code == 204, answer.text
    assert show(admin, window)["claimed"] == {child: {"resources": {"VCPU": 6}}}
    assert find_broken_promises(url) == []
    assert admin("DELETE", f"/allocations/{consumer}").status_code == 204
    assert show(admin, window)["allocations"] == {child: {"resources": {"VCPU": 6}}}
    assert put_allocation(admin, {child: {"VCPU": 3}}).status_code == 409
    claim(admin, window, 6, 1)
    assert find_broken_promises(url) == []


@pytest.mark.parametrize("are_claims_left", [True, False])
def test_a_reshape_loses_no_amount_that_a_window_has_got_back(
    admin: Admin, url: str, host: str, window: str, are_claims_left: bool
) -> None:
    gone = claim(admin, window, 2, 1)
    rest = {claim(admin, window, 2, 1): 2} if are_claims_left else {}
    assert admin("DELETE", f"/allocations/{gone}").status_code == 204
    child = make_provider(admin, "numa", parent=host)
    # GET /allocations does not show the amounts that are no allocations yet
    seen = 4 - sum(rest.values())
    refused = reshape(admin, host, child, {window: seen, **rest})
    assert refused.status_code == 409
    assert f"given amounts back to the reservations {window}" in read_error(refused)[2]
    held = admin("GET", f"/allocations/{window}").json["allocations"][host]["resources"]
    assert held == {"VCPU": seen + 2}
    answer = reshape(admin, host, child, {window: seen + 2, **rest})
    assert answer.status_code == 204, answer.text
    assert amounts_of(admin, window) == (seen + 2, sum(rest.values()))
    assert show(admin, window)["allocations"].keys() == {child}
    assert find_broken_promises(url) == []


def test_a_reshape_removes_no_consumer_that_was_a_window_until_just_now(
    admin: Admin, url: str, host: str, window: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    consumer = claim(admin, window, 2, 1)
    changed = {**admin("GET", f"/allocations/{window}").json, "consumer_type": "INSTANCE"}
    assert admin("PUT", f"/allocations/{window}", json=changed).status_code == 204
    child = make_provider(admin, "numa", parent=host)
    seen = [{consumer: window}, {}]
    # as if the change came between the first read and the locks
    monkeypatch.setattr("placement.store.window_promises.source_windows", lambda *_: seen.pop(0))
    answer = reshape(admin, host, child, {consumer: 2})
    assert answer.status_code == 409
    assert "has just changed" in read_error(answer)[2]
    held = admin("GET", f"/allocations/{window}").json["allocations"]
    assert held[host]["resources"] == {"VCPU": 4}


@pytest.mark.parametrize("version", ["1.12", "1.39"])
def test_allocations_do_not_replace_what_a_used_window_holds(
    admin: Admin, url: str, host: str, window: str, version: str
) -> None:
    consumer = claim(admin, window, 4, 1)
    body = admin("GET", f"/allocations/{window}").json
    if version == "1.12":
        fields = ("allocations", "project_id", "user_id")
        body = {name: body[name] for name in fields}
    headers = {"OpenStack-API-Version": f"placement {version}"}
    answer = admin("PUT", f"/allocations/{window}", json=body, headers=headers)
    assert answer.status_code == 409
    assert "only /ext/v1/reservations changes its amounts" in read_error(answer)[2]
    # the window still has its promise
    assert book(admin, 4, 1.2, 2).status_code == 409
    claim(admin, window, 2, 0.5)
    assert admin("DELETE", f"/allocations/{consumer}").status_code == 204
    assert amounts_of(admin, window) == (4, 2)
    assert find_broken_promises(url) == []


def test_a_claim_that_its_window_cannot_serve_is_a_conflict(
    admin: Admin, url: str, host: str, window: str
) -> None:
    claim(admin, window, 4, 1)
    # as if a worker of an older release had written the window
    execute_sql(url, "DELETE FROM window_promises")
    booked(admin, 4, 1.2, 2)
    answer = post_claims(admin, new_claim("resources=VCPU:1"), reservation=window, ends_at=after(HOUR / 2))
    assert answer.status_code == 409, answer.text
    assert "exceed the capacity" in read_error(answer)[2]


def test_an_inventory_below_a_used_window_stays_in_use(
    admin: Admin, url: str, host: str, window: str
) -> None:
    consumer = claim(admin, window, 6, 1)
    generation = admin("GET", f"/resource_providers/{host}").json["generation"]
    put_inventories(admin, host, generation, VCPU=4)
    assert show(admin, window)["state"] == "active"
    assert admin("DELETE", f"/allocations/{consumer}").status_code == 204
    shown = show(admin, window)
    assert (shown["state"], [each["missing"] for each in shown["degraded"]]) == ("active", [2])
    assert admin("DELETE", f"/resource_providers/{host}").status_code == 409
    assert admin("DELETE", f"/resource_providers/{host}/inventories/VCPU").status_code == 409
    assert find_broken_promises(url, {host: 8}) == []
    assert admin("DELETE", f"{PATH}/{window}").status_code == 204
    assert admin("DELETE", f"/resource_providers/{host}").status_code == 204


def test_a_plain_reservation_still_disappears_with_its_last_amount(admin: Admin, url: str, host: str) -> None:
    body = {"query": "resources=VCPU:4", "project_id": "project", "user_id": "user", "expires_in": 600}
    reservation = admin("POST", PATH, json=body).json["reservation"]["uuid"]
    answer = post_claims(admin, new_claim("resources=VCPU:4"), reservation=reservation)
    assert answer.status_code == 201, answer.text
    assert admin("GET", f"{PATH}/{reservation}").status_code == 404
    assert read_scalar(url, "SELECT count(*) FROM window_promises") == 0


def test_windows_that_claims_have_left_count_for_the_limit_of_a_provider(
    admin: Admin, host: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("placement.store.time_profile.MAX_TIMED_AMOUNTS", 3)
    for _ in range(3):
        consumer = claim(admin, booked(admin, 1, 0, 3), 1, 1)
        assert admin("DELETE", f"/allocations/{consumer}").status_code == 204
    answer = book(admin, 1, 0, 3)
    assert answer.status_code == 409
    assert "which is the maximum" in read_error(answer)[2]


@pytest.mark.parametrize("is_deleted", [True, False])
def test_a_window_is_over_at_its_end_even_if_claims_have_all_its_amounts(
    admin: Admin, url: str, host: str, window: str, is_deleted: bool
) -> None:
    claim(admin, window, 6, 2)
    advance_clock(url, 4 * HOUR)
    path = f"/allocations/{window}"
    if is_deleted:
        assert admin("DELETE", path).status_code == 404
        return
    body = {"allocations": {host: {"resources": {"VCPU": 1}}}, "project_id": "project", "user_id": "user"}
    answer = admin("PUT", path, json=body, headers={"OpenStack-API-Version": "placement 1.12"})
    assert answer.status_code == 204, answer.text
    assert admin("GET", path).json["allocations"][host]["resources"] == {"VCPU": 1}
    assert find_broken_promises(url) == []


def test_a_claim_changes_only_the_hosts_from_which_it_takes(admin: Admin, url: str) -> None:
    hosts = [make_provider(admin, f"cn{number}", VCPU=8) for number in range(4)]
    body = {"claims": [{"query": "resources=VCPU:6", "count": 4}], "different_hosts": True}
    body |= {"project_id": "project", "user_id": "user"}
    window, _ = (
        admin("POST", PATH, json={**body, "starts_at": begin, "expires_at": end}).json["reservation"]["uuid"]
        # the later window keeps holds on all hosts
        for begin, end in ((after(0), after(3 * HOUR)), (after(4 * HOUR), after(5 * HOUR)))
    )

    def generations() -> dict[str, int]:
        return {each: admin("GET", provider_path(each)).json["generation"] for each in hosts}

    def changed_hosts(before: dict[str, int]) -> set[str]:
        after_it = generations()
        return {each for each in hosts if after_it[each] != before[each]}

    def present_rows(host: str) -> int:
        return read_scalar(
            url,
            "SELECT count(*) FROM allocations a JOIN resource_providers p ON p.id = a.provider_id"
            f" WHERE p.uuid = '{host}' AND a.updated_at > 0",
        )

    # rows of the other hosts would get a new time
    execute_sql(url, "UPDATE allocations SET updated_at = 0")
    known = generations()
    first = claim(admin, window, 4, 1, allowed_hosts=[hosts[0]])
    assert changed_hosts(known) == {hosts[0]}
    assert [bool(present_rows(each)) for each in hosts] == [True, False, False, False]
    assert read_scalar(url, "SELECT count(*) FROM window_promises") == 4
    assert amounts_of(admin, window) == (20, 4)
    known = generations()
    # the claim moves within its window
    claim(admin, window, 5, 1, consumer_uuid=first, consumer_generation=1, allowed_hosts=[hosts[1]])
    assert changed_hosts(known) == {hosts[0], hosts[1]}
    assert amounts_of(admin, window) == (19, 5)
    second = claim(admin, window, 6, 1, allowed_hosts=[hosts[2]])
    assert amounts_of(admin, window) == (13, 11)
    known = generations()
    body = {"consumer_generation": 1, "ends_at": after(2 * HOUR)}
    assert admin("PUT", f"/ext/v1/claims/{second}", json=body).status_code == 200
    assert changed_hosts(known) == {hosts[2]}
    assert find_broken_promises(url) == []
    claim(admin, window, 6, 1, allowed_hosts=[hosts[3]])
    claim(admin, window, 6, 1, allowed_hosts=[hosts[0]])
    assert amounts_of(admin, window) == (1, 23)
    claim(admin, window, 1, 1, allowed_hosts=[hosts[1]])
    assert amounts_of(admin, window) == (0, 24)
    for each in hosts:
        assert put_allocation(admin, {each: {"VCPU": 3}}).status_code == 409
    advance_clock(url, 2.5 * HOUR)
    assert amounts_of(admin, window) == (24, 0)
    assert find_broken_promises(url) == []
    advance_clock(url, HOUR)
    assert admin("GET", f"{PATH}/{window}").status_code == 404
    assert read_scalar(url, "SELECT count(*) FROM window_promises") == 0
    assert find_broken_promises(url) == []
