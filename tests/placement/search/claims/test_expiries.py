"""Tests that unconfirmed claims expire and confirmed claims stay, on each kind of database."""

import time
import uuid
from datetime import UTC, datetime

import pytest

from tests.placement.builders import (
    claim_body,
    make_provider,
    new_claim,
    post_claims,
    put_allocation,
    read_error,
    read_usages,
)
from tests.placement.running import Admin, application
from tests.placement.sql import execute_sql, read_scalar

SOON = 60.0


def let_pass(database_url: str, seconds: float = 2 * SOON) -> None:
    """Let a number of seconds pass for claims that expire."""
    execute_sql(database_url, f"UPDATE claim_expiries SET expires_at = expires_at - {seconds}")


def made(admin: Admin, provider: str, **fields: object) -> str:
    """Make a claim that expires; return the uuid of its consumer."""
    wanted = new_claim("resources=VCPU:4", expires_in=SOON, **fields)
    answer = post_claims(admin, wanted)
    assert answer.status_code == 201, answer.text
    (shown,) = answer.json["claims"]
    seconds = datetime.fromisoformat(shown["expires_at"]).timestamp() - time.time()
    assert 0 < seconds <= SOON + 5
    assert read_usages(admin, provider) == {"VCPU": 4}
    return str(wanted["consumer_uuid"])


def test_a_dry_run_shows_when_the_claim_would_expire(admin: Admin) -> None:
    make_provider(admin, "cn", VCPU=8)
    wanted = [new_claim("resources=VCPU:4", expires_in=SOON), new_claim("resources=VCPU:4")]
    answer = post_claims(admin, *wanted, dry_run=True)
    expires_at, never = (each["expires_at"] for each in answer.json["claims"])
    assert 0 < datetime.fromisoformat(expires_at).timestamp() - time.time() <= SOON + 5
    assert never is None


def confirm(admin: Admin, consumer: str, **body: object) -> tuple[int, object]:
    answer = admin("PUT", f"/ext/v1/claims/{consumer}", json={"consumer_generation": 1, **body})
    return answer.status_code, answer.json.get("claim")


def put(
    admin: Admin, provider: str, amount: int, consumer: str | None = None, generation: int | None = None
) -> int:
    """Send ``PUT /allocations``; return the status of the answer."""
    return put_allocation(admin, {provider: {"VCPU": amount}}, consumer, generation).status_code


def post(admin: Admin, provider: str, amount: int, consumer: str, generation: int | None) -> int:
    """Send ``POST /allocations`` for one consumer; return the status of the answer."""
    body = {consumer: claim_body({provider: {"VCPU": amount}}, generation)}
    return admin("POST", "/allocations", json=body).status_code


def elsewhere(database_url: str) -> Admin:
    """Another worker, which learns of expiry times only from the database."""
    return Admin(application(database_url))


def test_an_expired_claim_takes_no_room(admin: Admin, database_url: str) -> None:
    provider = make_provider(admin, "cn", VCPU=4)
    consumer = made(admin, provider)
    assert read_error(post_claims(admin, new_claim("resources=VCPU:1")))[1] == "placement.ext.no_candidate"
    let_pass(database_url)
    assert post_claims(elsewhere(database_url), new_claim("resources=VCPU:4")).status_code == 201
    assert admin("GET", f"/allocations/{consumer}").json == {"allocations": {}}
    assert confirm(admin, consumer)[0] == 404


def test_expired_allocations_are_hidden_before_they_are_deleted(admin: Admin, database_url: str) -> None:
    provider = make_provider(admin, "cn", VCPU=4)
    changes = f"/ext/v1/changes?since={admin('GET', '/ext/v1/changes').json['cursor']}"
    consumer = made(admin, provider)
    usages = "/usages?project_id=project"
    holders = [{"uuid": consumer, "generation": 1}]
    assert admin("GET", changes).json["resource_providers"][0]["consumers"] == holders
    assert admin("GET", usages).json["usages"]["INSTANCE"] == {"consumer_count": 1, "VCPU": 4}
    let_pass(database_url)
    assert admin("GET", f"/allocations/{consumer}").json == {"allocations": {}}
    assert admin("GET", usages).json == {"usages": {}}
    assert admin("GET", f"{usages}&consumer_type=all").json == {"usages": {}}
    assert admin("GET", changes).json["resource_providers"][0]["consumers"] == []
    # no request has written anything for that
    assert read_scalar(database_url, "SELECT COUNT(*) FROM allocations") == 1
    assert admin("GET", f"/resource_providers/{provider}/allocations").json["allocations"] == {}


def test_an_expired_consumer_can_be_made_again(admin: Admin, database_url: str) -> None:
    provider = make_provider(admin, "cn", VCPU=8)
    consumer = made(admin, provider)
    assert put(admin, provider, 4, consumer) == 409
    let_pass(database_url)
    assert put(admin, provider, 4, consumer) == 204
    assert admin("GET", f"/allocations/{consumer}").json["consumer_generation"] == 1


@pytest.mark.parametrize("ask", ["put", "post", "claim", "confirm", "dry run"])
def test_the_generation_of_an_expired_claim_is_refused(admin: Admin, database_url: str, ask: str) -> None:
    provider = make_provider(admin, "cn", VCPU=8)
    consumer = made(admin, provider)
    let_pass(database_url)
    if ask == "put":
        assert put(admin, provider, 4, consumer, 1) == 409
    elif ask == "post":
        assert post(admin, provider, 4, consumer, 1) == 409
    elif ask == "confirm":
        assert confirm(admin, consumer)[0] == 404
    else:
        wanted = new_claim("resources=VCPU:4", consumer_uuid=consumer, consumer_generation=1)
        answer = post_claims(admin, wanted, dry_run=ask == "dry run")
        assert read_error(answer)[:2] == (409, "placement.concurrent_update")
    assert admin("GET", f"/allocations/{consumer}").json == {"allocations": {}}


@pytest.mark.parametrize("ask", ["put", "post", "claim", "before generations"])
def test_an_expired_claim_can_be_made_again_at_once(admin: Admin, database_url: str, ask: str) -> None:
    provider = make_provider(admin, "cn", VCPU=8)
    consumer = made(admin, provider)
    let_pass(database_url)
    if ask == "put":
        assert put(admin, provider, 4, consumer) == 204
    elif ask == "post":
        assert post(admin, provider, 4, consumer, None) == 204
    elif ask == "claim":
        assert post_claims(admin, new_claim("resources=VCPU:4", consumer_uuid=consumer)).status_code == 201
    else:
        body = {
            "allocations": [{"resource_provider": {"uuid": provider}, "resources": {"VCPU": 4}}],
            "project_id": "project",
            "user_id": "user",
        }
        old = {"OpenStack-API-Version": "placement 1.8"}
        assert admin("PUT", f"/allocations/{consumer}", headers=old, json=body).status_code == 204
    shown = admin("GET", f"/allocations/{consumer}").json
    assert shown["consumer_generation"] == 1
    assert shown["allocations"][provider]["resources"] == {"VCPU": 4}


def test_an_expired_claim_cannot_be_deleted(admin: Admin, database_url: str) -> None:
    consumer = made(admin, make_provider(admin, "cn", VCPU=8))
    let_pass(database_url)
    assert admin("DELETE", f"/allocations/{consumer}").status_code == 404


def test_put_allocations_can_use_the_room_of_an_expired_claim(admin: Admin, database_url: str) -> None:
    provider = make_provider(admin, "cn", VCPU=4)
    made(admin, provider)
    let_pass(database_url)
    assert put(elsewhere(database_url), provider, 4) == 204


def test_a_confirmed_claim_stays(admin: Admin, database_url: str) -> None:
    provider = make_provider(admin, "cn", VCPU=4)
    consumer = made(admin, provider)
    shown = {"consumer_uuid": consumer, "consumer_generation": 2, "expires_at": None}
    assert confirm(admin, consumer) == (200, shown)
    assert confirm(admin, consumer)[0] == 404  # the confirmation is over
    let_pass(database_url)
    assert post_claims(elsewhere(database_url), new_claim("resources=VCPU:1")).status_code == 409
    assert admin("GET", f"/allocations/{consumer}").json["consumer_generation"] == 2


def test_a_claim_can_be_prolonged(admin: Admin, database_url: str) -> None:
    provider = make_provider(admin, "cn", VCPU=4)
    consumer = made(admin, provider)
    status, shown = confirm(admin, consumer, expires_in=5 * SOON)
    assert isinstance(shown, dict)
    assert (status, shown["consumer_generation"]) == (200, 2)
    end = datetime.fromisoformat(shown["expires_at"]).astimezone(UTC)
    assert end.timestamp() > time.time() + 3 * SOON
    let_pass(database_url)
    assert post_claims(elsewhere(database_url), new_claim("resources=VCPU:1")).status_code == 409
    let_pass(database_url, 10 * SOON)
    assert post_claims(elsewhere(database_url), new_claim("resources=VCPU:1")).status_code == 201


def test_an_old_generation_confirms_nothing(admin: Admin) -> None:
    consumer = made(admin, make_provider(admin, "cn", VCPU=4))
    answer = admin("PUT", f"/ext/v1/claims/{consumer}", json={"consumer_generation": 7})
    assert read_error(answer)[:2] == (409, "placement.concurrent_update")


@pytest.mark.parametrize("again", ["put", "claim"])
def test_writing_its_allocations_confirms_a_claim(admin: Admin, database_url: str, again: str) -> None:
    provider = make_provider(admin, "cn", VCPU=4)
    consumer = made(admin, provider)
    if again == "put":
        assert put(admin, provider, 3, consumer, 1) == 204
    else:
        wanted = new_claim("resources=VCPU:3", consumer_uuid=consumer, consumer_generation=1)
        assert post_claims(admin, wanted).json["claims"][0]["expires_at"] is None
    assert confirm(admin, consumer, consumer_generation=2)[0] == 404
    assert post_claims(admin, new_claim("resources=VCPU:1", expires_in=SOON)).status_code == 201
    let_pass(database_url)
    assert post_claims(elsewhere(database_url), new_claim("resources=VCPU:2")).status_code == 409
    assert read_usages(admin, provider) == {"VCPU": 3}
    # expired rows were deleted
    assert read_scalar(database_url, "SELECT COUNT(*) FROM claim_expiries") == 0


def test_a_claim_renewed_by_a_claim_expires_at_the_new_time(admin: Admin, database_url: str) -> None:
    provider = make_provider(admin, "cn", VCPU=4)
    consumer = made(admin, provider)
    wanted = new_claim("resources=VCPU:3", consumer_uuid=consumer, consumer_generation=1, expires_in=SOON)
    assert post_claims(admin, wanted).json["claims"][0]["expires_at"] is not None
    let_pass(database_url)
    assert post_claims(elsewhere(database_url), new_claim("resources=VCPU:4")).status_code == 201


def test_members_leave_their_group_when_they_expire(admin: Admin, database_url: str) -> None:
    group = {"name": "web", "policy": "anti-affinity"}
    made(admin, make_provider(admin, "cn", VCPU=4), group=group)
    let_pass(database_url)
    assert post_claims(elsewhere(database_url), new_claim("resources=VCPU:1", group=group)).status_code == 201


@pytest.mark.parametrize("fields", [{"expires_in": 0}, {"expires_in": 1e9}, {"expires_in": "soon"}])
def test_impossible_times_are_refused(admin: Admin, fields: dict[str, object]) -> None:
    make_provider(admin, "cn", VCPU=4)
    assert post_claims(admin, new_claim("resources=VCPU:1", **fields)).status_code == 400
    assert admin("PUT", "/ext/v1/claims/none", json={"consumer_generation": 1}).status_code == 404


def test_a_claim_shows_its_expiry_until_it_is_confirmed_or_expires(admin: Admin, database_url: str) -> None:
    provider = make_provider(admin, "cn", VCPU=8)
    consumer = made(admin, provider)
    shown = admin("GET", f"/ext/v1/claims/{consumer}").json["claim"]
    assert (shown["consumer_uuid"], shown["consumer_generation"]) == (consumer, 1)
    assert 0 < shown["expires_in"] <= SOON
    assert 0 < datetime.fromisoformat(shown["expires_at"]).timestamp() - time.time() <= SOON + 5
    assert confirm(admin, consumer)[0] == 200
    assert admin("GET", f"/ext/v1/claims/{consumer}").status_code == 404
    other = made_beside(admin)
    let_pass(database_url)
    for one in (other, str(uuid.uuid4()), "nonsense"):
        assert admin("GET", f"/ext/v1/claims/{one}").status_code == 404


def made_beside(admin: Admin) -> str:
    """Make a claim that expires of all remaining amounts; return the uuid of its consumer."""
    wanted = new_claim("resources=VCPU:4", expires_in=SOON)
    assert post_claims(admin, wanted).status_code == 201
    return str(wanted["consumer_uuid"])
