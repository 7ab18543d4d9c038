"""Actions at the end of claims and reservations: stored, inherited, and listed for each host."""

import uuid
from typing import Any

import pytest

from tests.placement.api.ext.windows import HOUR, PATH, booked, show
from tests.placement.builders import (
    make_provider,
    new_claim,
    post_claims,
    put_allocation,
    read_error,
)
from tests.placement.moving_clock import advance_clock, after, iso
from tests.placement.running import Admin
from tests.placement.sql import execute_sql

CLAIMS = "/ext/v1/claims"


@pytest.fixture
def host(admin: Admin) -> str:
    return make_provider(admin, "cn", VCPU=8)


def claimed(admin: Admin, amount: int = 1, hours: float = 1, **fields: Any) -> dict[str, Any]:
    """Claim VCPUs for some hours from now, and return the claim of the answer."""
    answer = post_claims(admin, new_claim(f"resources=VCPU:{amount}"), ends_at=after(hours * HOUR), **fields)
    assert answer.status_code == 201, answer.text
    claim: dict[str, Any] = answer.json["claims"][0]
    return claim


def ending(admin: Admin, host: str, more: str = "") -> list[dict[str, Any]]:
    """Return the claims that end on a host."""
    answer = admin("GET", f"{CLAIMS}?root={host}{more}")
    assert answer.status_code == 200, answer.text
    found: list[dict[str, Any]] = answer.json["claims"]
    return found


def shown_claim(admin: Admin, consumer: str) -> dict[str, Any]:
    found: dict[str, Any] = admin("GET", f"{CLAIMS}/{consumer}").json["claim"]
    return found


@pytest.mark.parametrize("action", ["none", "notify", "evict", None])
def test_a_claim_shows_what_happens_at_its_end(admin: Admin, host: str, action: str | None) -> None:
    claim = claimed(admin, **({} if action is None else {"on_end": action}))
    assert claim["on_end"] == (action or "none")
    shown = shown_claim(admin, claim["consumer_uuid"])
    assert (shown["on_end"], shown["ends_at"]) == (action or "none", claim["ends_at"])
    assert [(each["consumer_uuid"], each["on_end"]) for each in ending(admin, host)] == [
        (claim["consumer_uuid"], action or "none")
    ]


def test_an_action_needs_an_end(admin: Admin, host: str) -> None:
    refused = post_claims(admin, new_claim("resources=VCPU:1"), on_end="evict")
    assert read_error(refused)[0] == 400
    assert "on_end: evict needs ends_at" in read_error(refused)[2]
    assert post_claims(admin, new_claim("resources=VCPU:1"), on_end="none").status_code == 201
    unknown = post_claims(admin, new_claim("resources=VCPU:1"), ends_at=after(HOUR), on_end="kill")
    assert unknown.status_code == 400
    expiring = new_claim("resources=VCPU:1", expires_in=60)
    assert post_claims(admin, expiring).json["claims"][0]["on_end"] == "none"
    shown = shown_claim(admin, expiring["consumer_uuid"])
    assert (shown["on_end"], shown["ends_at"]) == ("none", None)
    # it expires, but does not end
    assert ending(admin, host) == []


def test_a_claim_inherits_the_action_of_its_reservation_unless_it_names_one(
    admin: Admin, url: str, host: str
) -> None:
    window = booked(admin, 6, 1, 3, on_end="evict")
    assert show(admin, window)["on_end"] == "evict"
    advance_clock(url, 1.5 * HOUR)
    dry = post_claims(
        admin, new_claim("resources=VCPU:1"), ends_at=after(HOUR), reservation=window, dry_run=True
    )
    assert dry.json["claims"][0]["on_end"] == "evict"
    inherited = claimed(admin, reservation=window)
    own = claimed(admin, reservation=window, on_end="none")
    assert (inherited["on_end"], own["on_end"]) == ("evict", "none")
    generation = show(admin, window)["generation"]
    changed = admin("PUT", f"{PATH}/{window}", json={"generation": generation, "on_end": "notify"})
    assert changed.status_code == 200, changed.text
    written = changed.json["reservation"]
    assert (written["on_end"], written["generation"]) == ("notify", generation + 1)
    assert written["allocations"] == {host: {"resources": {"VCPU": 4}}}
    later = claimed(admin, reservation=window)
    assert later["on_end"] == "notify"
    # a change of the reservation is for later claims
    assert shown_claim(admin, inherited["consumer_uuid"])["on_end"] == "evict"
    advance_clock(url, 2 * HOUR)
    (past,) = admin("GET", f"{PATH}?state=ended").json["reservations"]
    assert past["on_end"] == "notify"


def test_a_change_of_the_action_keeps_a_pending_window(admin: Admin, url: str, host: str) -> None:
    window = booked(admin, 6, 1, 3)
    before = show(admin, window)
    body = {"generation": before["generation"], "on_end": "evict"}
    assert admin("PUT", f"{PATH}/{window}", json=body).status_code == 200
    assert show(admin, window) == {**before, "on_end": "evict", "generation": before["generation"] + 1}
    assert read_error(admin("PUT", f"{PATH}/{window}", json={"generation": 2}))[2] == (
        "One of expires_at, expires_in, allocations, on_end and movable is needed."
    )


def test_a_claim_from_a_reservation_without_a_start_may_have_no_end(admin: Admin, host: str) -> None:
    body = {
        "query": "resources=VCPU:4",
        "project_id": "project",
        "user_id": "user",
        "expires_in": 3600,
        "on_end": "evict",
    }
    reservation = admin("POST", PATH, json=body).json["reservation"]
    assert reservation["on_end"] == "evict"
    taken = post_claims(admin, new_claim("resources=VCPU:1"), reservation=reservation["uuid"])
    assert (taken.json["claims"][0]["on_end"], taken.json["claims"][0]["ends_at"]) == ("none", None)
    assert claimed(admin, reservation=reservation["uuid"])["on_end"] == "evict"


def test_the_end_of_a_claim_comes_before_its_cleaning_time(admin: Admin, url: str, host: str) -> None:
    window = booked(admin, 6, 1, 3, cleaning_time=3600, on_end="evict")
    advance_clock(url, 1.5 * HOUR)
    claim = claimed(admin, reservation=window)
    shown = shown_claim(admin, claim["consumer_uuid"])
    assert shown["ends_at"] == claim["ends_at"] < shown["expires_at"]
    # an agent that was down at the end still finds the claim while the host is cleaned
    advance_clock(url, 1.5 * HOUR)
    answer = admin("GET", f"{CLAIMS}?root={host}").json
    assert [each["consumer_uuid"] for each in answer["claims"]] == [claim["consumer_uuid"]]
    assert answer["claims"][0]["ends_at"] < answer["now"]
    advance_clock(url, HOUR)
    assert ending(admin, host) == []


def test_the_list_has_claims_of_the_whole_tree_by_their_end(admin: Admin, url: str) -> None:
    host = make_provider(admin, "cn", MEMORY_MB=8)
    zone = make_provider(admin, "zone", parent=host, VCPU=8)
    other = make_provider(admin, "other", VCPU=8)
    end = iso(4_000_000_000)
    found = [
        post_claims(admin, new_claim("resources=VCPU:1,MEMORY_MB:1", consumer_type="VM"), ends_at=each)
        for each in (end, end, after(HOUR))
    ]
    assert all(each.status_code == 201 for each in found)
    claims = [each.json["claims"][0] for each in found]
    elsewhere = new_claim("resources=VCPU:1", allowed_hosts=[other])
    assert post_claims(admin, elsewhere, ends_at=end).status_code == 201
    put_allocation(admin, {zone: {"VCPU": 1}})
    listed = ending(admin, host)
    order = sorted(claims, key=lambda each: (each["ends_at"], each["consumer_uuid"]))
    assert listed == [
        {
            "consumer_uuid": each["consumer_uuid"],
            "consumer_generation": 1,
            "project_id": "project",
            "consumer_type": "VM",
            "ends_at": each["ends_at"],
            "on_end": "none",
            "kept_until": None,
            "reservation": None,
            "allocations": {zone: {"resources": {"VCPU": 1}}, host: {"resources": {"MEMORY_MB": 1}}},
        }
        for each in order
    ]
    assert [each["consumer_uuid"] for each in ending(admin, other)] == [elsewhere["consumer_uuid"]]
    # page by page, with equal ends on two pages
    path, pages = f"{CLAIMS}?root={host}&limit=1", []
    while True:
        answer = admin("GET", path).json
        pages += answer["claims"]
        if "links" not in answer:
            break
        path = answer["links"][0]["href"]
    assert pages == listed
    # any write of the allocations removes the end
    body = {
        "allocations": {zone: {"resources": {"VCPU": 1}}},
        "project_id": "project",
        "user_id": "user",
        "consumer_type": "VM",
        "consumer_generation": 1,
    }
    assert admin("PUT", f"/allocations/{order[0]['consumer_uuid']}", json=body).status_code == 204
    assert ending(admin, host) == listed[1:]


def test_only_roots_have_a_list(admin: Admin, host: str) -> None:
    child = make_provider(admin, "zone", parent=host, VCPU=8)
    for unknown in (str(uuid.uuid4()), child):
        answer = admin("GET", f"{CLAIMS}?root={unknown}")
        assert read_error(answer)[0] == 404
        assert f"no tree with the root provider {unknown}" in read_error(answer)[2]
    for wrong in (
        "root=x",
        "preemptible=yes",
        "marker=1_x",
        "reservation=x",
        f"root={host}&limit=0",
        f"root={host}&marker=1_x",
        f"root={host}&other=1",
    ):
        assert admin("GET", f"{CLAIMS}?{wrong}").status_code == 400


def test_claims_of_all_hosts_are_listed_by_the_time_of_their_release(admin: Admin, url: str) -> None:
    hosts = [make_provider(admin, f"cn{number}", VCPU=8) for number in range(3)]
    asked = [new_claim("resources=VCPU:1", allowed_hosts=[each]) for each in hosts]
    end, lasting = iso(4_000_000_000), {"preemptible": {"min_duration": 60}}
    for claim, fields in zip(asked, ({"ends_at": end}, {"ends_at": end}, lasting), strict=True):
        assert post_claims(admin, claim, **fields).status_code == 201
    window = booked(admin, 1, 0, 2, cleaning_time=3600)
    cleaned = {**new_claim("resources=VCPU:1"), "project_id": "project"}
    assert post_claims(admin, cleaned, reservation=window, ends_at=after(HOUR)).status_code == 201
    listed: list[dict[str, Any]] = admin("GET", CLAIMS).json["claims"]
    order = [cleaned, asked[2], *sorted(asked[:2], key=lambda each: str(each["consumer_uuid"]))]
    assert [each["consumer_uuid"] for each in listed] == [each["consumer_uuid"] for each in order]
    assert listed[1]["root_provider_uuids"] == [hosts[2]]
    assert [each["kept_until"] is None for each in listed] == [True, False, True, True]
    path, pages = f"{CLAIMS}?limit=1", []
    while path:
        answer = admin("GET", path).json
        pages += answer["claims"]
        path = answer["links"][0]["href"] if "links" in answer else ""
    assert pages == listed
    assert admin("GET", f"{CLAIMS}?preemptible=true").json["claims"] == [listed[1]]
    assert "links" not in admin("GET", f"{CLAIMS}?preemptible=true&limit=1").json
    (there,) = ending(admin, hosts[2], "&preemptible=true")
    assert there["kept_until"] == shown_claim(admin, asked[2]["consumer_uuid"])["kept_until"]
    assert ending(admin, hosts[1], "&preemptible=true") == []
    assert shown_claim(admin, cleaned["consumer_uuid"])["kept_until"] is None


def test_a_claim_names_the_reservation_from_which_it_has_taken_its_amounts(admin: Admin, host: str) -> None:
    window, elsewhere = booked(admin, 4, 0, 2), booked(admin, 1, 0, 2)
    first, second = (claimed(admin, amount, reservation=window) for amount in (3, 1))
    other = claimed(admin, reservation=elsewhere)
    without = claimed(admin)
    listed = {each["consumer_uuid"]: each for each in admin("GET", CLAIMS).json["claims"]}
    amounts = [listed[each["consumer_uuid"]]["allocations"] for each in (first, without)]
    assert amounts == [{host: {"resources": {"VCPU": each}}} for each in (3, 1)]
    sources = {consumer: each["reservation"] for consumer, each in listed.items()}
    assert sources == {
        **{each["consumer_uuid"]: window for each in (first, second)},
        other["consumer_uuid"]: elsewhere,
        without["consumer_uuid"]: None,
    }
    shown = shown_claim(admin, first["consumer_uuid"])
    assert (shown["reservation"], shown["allocations"]) == (window, {host: {"resources": {"VCPU": 3}}})
    assert shown_claim(admin, without["consumer_uuid"])["reservation"] is None
    ours = sorted([first["consumer_uuid"], second["consumer_uuid"]])
    assert sorted(each["consumer_uuid"] for each in ending(admin, host, f"&reservation={window}")) == ours
    path, pages = f"{CLAIMS}?reservation={window}&limit=1", []
    while path:
        answer = admin("GET", path).json
        pages += [each["consumer_uuid"] for each in answer["claims"]]
        path = answer["links"][0]["href"] if "links" in answer else ""
    assert sorted(pages) == ours
    # a consumer that is no reservation has no claims
    consumer = without["consumer_uuid"]
    assert admin("GET", f"{CLAIMS}?reservation={consumer}").json["claims"] == []
    # the claims outlast their window, which is then unknown
    assert admin("DELETE", f"{PATH}/{window}").status_code == 204
    assert shown_claim(admin, first["consumer_uuid"])["reservation"] is None
    assert admin("GET", f"{CLAIMS}?reservation={window}").json["claims"] == []


def test_rows_of_a_worker_of_the_earlier_release_have_no_action(admin: Admin, url: str, host: str) -> None:
    claim = claimed(admin)
    # its statements do not name the new columns
    execute_sql(
        url,
        "CREATE TABLE earlier AS SELECT consumer_id, generation, expires_at, is_final FROM claim_expiries",
        "DELETE FROM claim_expiries",
        "INSERT INTO claim_expiries (consumer_id, generation, expires_at, is_final) SELECT * FROM earlier",
        "DROP TABLE earlier",
    )
    shown = shown_claim(admin, claim["consumer_uuid"])
    assert (shown["on_end"], shown["ends_at"]) == ("none", claim["ends_at"])
