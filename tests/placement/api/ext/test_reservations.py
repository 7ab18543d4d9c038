"""``/ext/v1/reservations``: amounts held until a time, and claims that take from them."""

import time
import uuid
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from werkzeug.test import TestResponse

from placement.db.database import ServiceDatabase
from tests.placement.builders import (
    make_provider,
    new_claim,
    post_claims,
    put_allocation,
    read_error,
    read_usages,
)
from tests.placement.running import Admin, application
from tests.placement.sql import read_scalar
from tests.waits import wait_for

PATH = "/ext/v1/reservations"
GONE = (
    "it never existed, it has ended or was cancelled, or claims have taken all of it. The lists with the"
    " states ended and cancelled have former windows"
)
NOBODY = "00000000-0000-4000-8000-00000000dead"


def reserve(admin: Admin, query: str, **fields: Any) -> TestResponse:
    until = {} if "expires_at" in fields else {"expires_in": 3600}
    body = {"query": query, "project_id": "project", "user_id": "user", **until, **fields}
    return admin("POST", PATH, json=body)


def reserved(admin: Admin, query: str, **fields: Any) -> str:
    answer = reserve(admin, query, **fields)
    assert answer.status_code == 201, answer.json
    found: str = answer.json["reservation"]["uuid"]
    return found


def let_expire(admin: Admin, reservation: str) -> None:
    """Have the reservation expire, and wait for the clock of the database, without other requests."""
    generation = admin("GET", f"{PATH}/{reservation}").json["reservation"]["generation"]
    for seconds in (0.05, 0.5, 5.0):  # on a slow machine the first is over before it is written
        body = {"generation": generation, "expires_in": seconds}
        status = admin("PUT", f"{PATH}/{reservation}", json=body).status_code
        if status != 400:
            break
    assert status == 200
    wait_for(lambda: admin("GET", f"{PATH}/{reservation}").status_code == 404)


def seconds_left(shown: dict[str, Any]) -> float:
    """The seconds until a reservation ends, by the clock of the machine, which the databases share."""
    return (datetime.fromisoformat(shown["expires_at"]) - datetime.now(UTC)).total_seconds()


def test_a_reservation_holds_amounts_for_a_project_until_a_time(admin: Admin) -> None:
    only = make_provider(admin, "cn", VCPU=8, MEMORY_MB=1024)
    chosen = str(uuid.uuid4())
    answer = reserve(admin, "resources=VCPU:6,MEMORY_MB:512", uuid=chosen)
    assert answer.headers["Location"].endswith(f"{PATH}/{chosen}")
    shown = answer.json["reservation"]
    assert admin("GET", f"{PATH}/{chosen}").json["reservation"].keys() == shown.keys()
    assert (shown["uuid"], shown["project_id"], shown["user_id"], shown["generation"]) == (
        chosen,
        "project",
        "user",
        1,
    )
    assert shown["allocations"] == {only: {"resources": {"VCPU": 6, "MEMORY_MB": 512}}}
    assert 3500 < seconds_left(shown) <= 3600
    held = admin("GET", f"/allocations/{chosen}").json
    assert (held["consumer_type"], held["allocations"][only]["resources"]["VCPU"]) == ("RESERVATION", 6)
    assert put_allocation(admin, {only: {"VCPU": 3}}).status_code == 409
    assert read_error(post_claims(admin, new_claim("resources=VCPU:3")))[:2] == (
        409,
        "placement.ext.no_candidate",
    )
    status, code, detail = read_error(reserve(admin, "resources=VCPU:3"))
    assert (status, code) == (409, "placement.ext.no_candidate")
    assert detail.startswith("There is no candidate for the reservation: 0 of 1 host: ")


def test_a_reservation_ends_at_a_time_in_the_future(admin: Admin) -> None:
    make_provider(admin, "cn", VCPU=8)
    at = datetime.now(UTC).replace(microsecond=0, tzinfo=None) + timedelta(days=2)
    shown = reserve(admin, "resources=VCPU:1", expires_at=f"{at.isoformat()}Z").json["reservation"]
    assert shown["expires_at"] == f"{at.isoformat()}.000Z"
    past = reserve(admin, "resources=VCPU:1", expires_at="2020-01-01T00:00:00Z")
    assert read_error(past)[::2] == (
        400,
        "A reservation has to end in the future, by the clock of the database; DELETE ends it at once.",
    )
    assert len(admin("GET", PATH).json["reservations"]) == 1


@pytest.mark.parametrize(
    "fields",
    [
        {"expires_in": None},
        {"expires_in": 5, "expires_at": None},
        {"expires_in": 5, "expires_at": "2100-01-01T00:00:00Z"},
        {"expires_at": "2100-13-01T00:00:00Z"},
        {"expires_at": "2100-01-01 00:00"},
        {"expires_in": 1e300},
        {"uuid": "none"},
    ],
)
def test_a_reservation_without_a_valid_end_is_refused(admin: Admin, fields: dict[str, Any]) -> None:
    make_provider(admin, "cn", VCPU=8)
    assert reserve(admin, "resources=VCPU:1", **fields).status_code == 400


def test_errors_show_the_form_of_a_time_and_of_a_group(admin: Admin) -> None:
    said = reserve(admin, "resources=VCPU:1", expires_at="yesterday").text
    assert "'yesterday' is not a time in UTC such as 2026-12-24T18:00:00Z" in said
    said = reserve(admin, "resources=VCPU:1", expires_in=60, group="a b").text
    assert "'a b' is not a name of letters, digits and any of . _ : @ + -" in said


def test_a_claim_takes_all_its_amounts_from_the_reservation(admin: Admin) -> None:
    other, only = make_provider(admin, "other", VCPU=8), make_provider(admin, "cn", VCPU=8)
    reservation = reserved(admin, "resources=VCPU:6", allowed_hosts=[only])
    answer = post_claims(admin, new_claim("resources=VCPU:4"), reservation=reservation)
    assert answer.json["claims"][0]["allocations"] == {only: {"resources": {"VCPU": 4}}}
    shown = admin("GET", f"{PATH}/{reservation}").json["reservation"]
    assert (shown["allocations"], shown["generation"]) == ({only: {"resources": {"VCPU": 2}}}, 2)
    assert (read_usages(admin, only), read_usages(admin, other)) == ({"VCPU": 6}, {"VCPU": 0})
    status, code, detail = read_error(
        post_claims(admin, new_claim("resources=VCPU:3"), reservation=reservation)
    )
    assert (status, code) == (409, "placement.ext.no_candidate")
    assert f"within the reservation, which holds 2 VCPU of {only}." in detail
    assert read_usages(admin, only) == {"VCPU": 6}


def test_an_exhausted_reservation_is_gone(admin: Admin) -> None:
    only = make_provider(admin, "cn", VCPU=8)
    reservation = reserved(admin, "resources=VCPU:8")
    answer = post_claims(
        admin, new_claim("resources=VCPU:4"), new_claim("resources=VCPU:4"), reservation=reservation
    )
    assert answer.status_code == 201
    assert read_error(admin("GET", f"{PATH}/{reservation}")) == (
        404,
        "placement.undefined_code",
        f"There is no reservation {reservation}: {GONE}.",
    )
    assert read_usages(admin, only) == {"VCPU": 8}
    late = read_error(post_claims(admin, new_claim("resources=VCPU:1"), reservation=reservation))
    assert late[:2] == (409, "placement.ext.no_reservation")


def test_the_remainder_may_be_below_the_minimum_unit(admin: Admin) -> None:
    only = make_provider(admin, "cn", VCPU=8)
    body = {"resource_provider_generation": 1, "total": 8, "min_unit": 3}
    assert admin("PUT", f"/resource_providers/{only}/inventories/VCPU", json=body).status_code == 200
    reservation = reserved(admin, "resources=VCPU:5")
    assert post_claims(admin, new_claim("resources=VCPU:3"), reservation=reservation).status_code == 201
    shown = admin("GET", f"{PATH}/{reservation}").json["reservation"]
    assert shown["allocations"] == {only: {"resources": {"VCPU": 2}}}


def test_a_claim_of_another_project_finds_no_reservation(admin: Admin) -> None:
    make_provider(admin, "cn", VCPU=8)
    reservation = reserved(admin, "resources=VCPU:4")
    answers = [
        read_error(post_claims(admin, new_claim("resources=VCPU:1", project_id="other"), reservation=each))
        for each in (reservation, NOBODY)
    ]
    assert [answer[:2] for answer in answers] == [(409, "placement.ext.no_reservation")] * 2
    assert answers[0][2].replace(reservation, NOBODY) == answers[1][2]


def test_only_members_take_from_a_reservation_for_a_group(admin: Admin) -> None:
    only = make_provider(admin, "cn", VCPU=8)
    reservation = reserved(admin, "resources=VCPU:4", group="web")
    web, db = ({"name": name, "policy": "affinity"} for name in ("web", "db"))
    for wanted in (new_claim("resources=VCPU:1"), new_claim("resources=VCPU:1", group=db)):
        answer = read_error(post_claims(admin, wanted, reservation=reservation))
        assert answer[:2] == (409, "placement.ext.no_reservation")
    assert (
        post_claims(admin, new_claim("resources=VCPU:3", group=web), reservation=reservation).status_code
        == 201
    )
    shown = admin("GET", f"{PATH}/{reservation}").json["reservation"]
    assert (shown["group"], shown["allocations"][only]["resources"]) == ("web", {"VCPU": 1})
    assert admin("GET", f"{PATH}?group=db").json["reservations"] == []
    assert admin("GET", f"{PATH}?group=web").json["reservations"] == [shown]


def test_a_dry_run_takes_nothing_and_sees_only_what_is_reserved(admin: Admin) -> None:
    one, other = make_provider(admin, "one", VCPU=8), make_provider(admin, "other", VCPU=8)
    reservation = reserved(admin, "resources=VCPU:4", allowed_hosts=[other])
    for _ in range(4):
        answer = post_claims(admin, new_claim("resources=VCPU:4"), reservation=reservation, dry_run=True)
        assert answer.json["claims"][0]["root_provider_uuid"] == other
    assert (
        post_claims(
            admin, new_claim("resources=VCPU:4", allowed_hosts=[one]), reservation=reservation
        ).status_code
        == 409
    )
    assert read_usages(admin, other) == {"VCPU": 4}


def test_a_reservation_does_not_claim_from_itself(admin: Admin) -> None:
    make_provider(admin, "cn", VCPU=8)
    reservation = reserved(admin, "resources=VCPU:4")
    own = new_claim("resources=VCPU:1", consumer_uuid=reservation, consumer_generation=1)
    assert post_claims(admin, own, reservation=reservation).status_code == 400


def test_an_expired_reservation_is_free_for_candidates(admin: Admin) -> None:
    only = make_provider(admin, "cn", VCPU=8)
    reservation = reserved(admin, "resources=VCPU:8")
    query = "/allocation_candidates?resources=VCPU:8"
    assert admin("GET", query).json["allocation_requests"] == []
    let_expire(admin, reservation)
    assert list(admin("GET", query).json["provider_summaries"]) == [only]
    assert read_usages(admin, only) == {"VCPU": 0}


def test_an_expired_reservation_is_not_shown(admin: Admin) -> None:
    make_provider(admin, "cn1", VCPU=4)
    reservation = reserved(admin, "resources=VCPU:4")
    let_expire(admin, reservation)
    assert admin("GET", f"/allocations/{reservation}").json == {"allocations": {}}
    assert admin("GET", "/usages?project_id=project").json == {"usages": {}}


def test_an_expired_reservation_is_free_for_claims(admin: Admin) -> None:
    make_provider(admin, "cn", VCPU=8)
    let_expire(admin, reserved(admin, "resources=VCPU:8"))
    assert post_claims(admin, new_claim("resources=VCPU:8")).status_code == 201


def test_an_expired_reservation_is_free_for_allocations_of_placement(admin: Admin) -> None:
    only = make_provider(admin, "cn", VCPU=8)
    let_expire(admin, reserved(admin, "resources=VCPU:8"))
    assert put_allocation(admin, {only: {"VCPU": 8}}).status_code == 204


def test_an_expired_reservation_keeps_no_inventory_and_no_provider(admin: Admin) -> None:
    only = make_provider(admin, "cn", VCPU=8)
    path = f"/resource_providers/{only}"
    first = reserved(admin, "resources=VCPU:1")
    assert admin("DELETE", f"{path}/inventories/VCPU").status_code == 409
    let_expire(admin, first)
    assert admin("DELETE", f"{path}/inventories/VCPU").status_code == 204
    body = {"resource_provider_generation": 3, "inventories": {"VCPU": {"total": 8}}}
    generation = admin("GET", path).json["generation"]
    body["resource_provider_generation"] = generation
    assert admin("PUT", f"{path}/inventories", json=body).status_code == 200
    let_expire(admin, reserved(admin, "resources=VCPU:1"))
    assert admin("DELETE", path).status_code == 204


def test_a_refusal_without_an_expired_reservation_writes_nothing(admin: Admin, url: str) -> None:
    only = make_provider(admin, "cn", VCPU=8)
    reserved(admin, "resources=VCPU:8")
    database = ServiceDatabase(url)
    try:
        before = database.position()
        assert put_allocation(admin, {only: {"VCPU": 1}}).status_code == 409
        assert database.position() == before
    finally:
        database.close()


def test_an_expired_reservation_cannot_be_claimed_from_changed_or_deleted(admin: Admin) -> None:
    make_provider(admin, "cn", VCPU=8)
    reservation = reserved(admin, "resources=VCPU:8")
    let_expire(admin, reservation)
    taken = read_error(post_claims(admin, new_claim("resources=VCPU:1"), reservation=reservation))
    assert taken[:2] == (409, "placement.ext.no_reservation")
    body = {"generation": 2, "expires_in": 60}
    assert admin("PUT", f"{PATH}/{reservation}", json=body).status_code == 404
    assert admin("DELETE", f"{PATH}/{reservation}").status_code == 404
    assert admin("GET", PATH).json == {"reservations": []}


@pytest.mark.parametrize("skew", [-3600, 3600])
def test_clocks_of_workers_do_not_matter(
    admin: Admin, url: str, skew: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    only = make_provider(admin, "cn", VCPU=8)
    reservation = reserved(admin, "resources=VCPU:8", expires_in=1800)
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + skew)
    skewed = Admin(application(url))
    assert post_claims(skewed, new_claim("resources=VCPU:1")).status_code == 409
    assert put_allocation(skewed, {only: {"VCPU": 1}}).status_code == 409
    assert skewed("GET", f"{PATH}/{reservation}").status_code == 200
    let_expire(admin, reservation)
    assert post_claims(skewed, new_claim("resources=VCPU:4")).status_code == 201
    made = reserve(skewed, "resources=VCPU:4", expires_in=1800).json["reservation"]
    assert 1700 < seconds_left(made) <= 1800


def test_a_worker_that_starts_later_knows_expired_reservations(admin: Admin, url: str) -> None:
    only = make_provider(admin, "cn", VCPU=8)
    let_expire(admin, reserved(admin, "resources=VCPU:8"))
    assert read_usages(Admin(application(url)), only) == {"VCPU": 0}


def test_several_batches_of_expired_reservations_are_released(
    admin: Admin, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("placement.store.due_changes._AT_ONCE", 2)
    only = make_provider(admin, "cn", VCPU=8)
    for reservation in [reserved(admin, "resources=VCPU:1") for _ in range(7)]:
        let_expire(admin, reservation)
    assert post_claims(admin, new_claim("resources=VCPU:8")).status_code == 201
    assert read_usages(admin, only) == {"VCPU": 8}


def test_a_prolonged_reservation_stays(admin: Admin) -> None:
    make_provider(admin, "cn", VCPU=8)
    reservation = reserved(admin, "resources=VCPU:8", expires_in=0.3)
    path = f"{PATH}/{reservation}"
    stale = admin("PUT", path, json={"generation": 7, "expires_in": 60})
    answer = admin("PUT", path, json={"generation": 1, "expires_in": 3600})
    if answer.status_code == 200:  # else the machine was too slow for that
        assert read_error(stale)[:2] == (409, "placement.concurrent_update")
        time.sleep(0.35)
        assert answer.json["reservation"]["generation"] == 2
        assert read_error(post_claims(admin, new_claim("resources=VCPU:1")))[:2] == (
            409,
            "placement.ext.no_candidate",
        )


def test_a_deleted_reservation_holds_nothing(admin: Admin, url: str) -> None:
    only = make_provider(admin, "cn", VCPU=8)
    reservation = reserved(admin, "resources=VCPU:8")
    assert admin("DELETE", f"{PATH}/{reservation}").status_code == 204
    assert read_usages(admin, only) == {"VCPU": 0}
    assert admin("GET", f"/allocations/{reservation}").json == {"allocations": {}}
    assert rows(url) == 0
    other = reserved(admin, "resources=VCPU:8")
    assert admin("DELETE", f"/allocations/{other}").status_code == 204  # as any consumer
    assert admin("GET", f"{PATH}/{other}").status_code == 404
    assert rows(url) == 0


def test_a_reservation_that_became_another_consumer_does_not_expire(admin: Admin) -> None:
    only = make_provider(admin, "cn", VCPU=8)
    reservation = reserved(admin, "resources=VCPU:8", expires_in=600)
    assert hold(admin, reservation, only, 1, "INSTANCE") == 204
    assert admin("GET", f"{PATH}/{reservation}").status_code == 404
    assert admin("DELETE", f"{PATH}/{reservation}").status_code == 404
    assert read_usages(admin, only) == {"VCPU": 8}
    # nor does the type of a later request make it one again
    assert hold(admin, reservation, only, 2, "RESERVATION") == 204
    assert admin("GET", f"{PATH}/{reservation}").status_code == 404


def test_a_reservation_that_a_claim_turns_into_a_guest_is_gone(admin: Admin, url: str) -> None:
    only = make_provider(admin, "cn", VCPU=8)
    reservation = reserved(admin, "resources=VCPU:8", expires_in=600)
    guest = {**new_claim("resources=VCPU:8"), "consumer_uuid": reservation, "consumer_generation": 1}
    assert post_claims(admin, guest).status_code == 201
    assert rows(url) == 0
    assert hold(admin, reservation, only, 2, "RESERVATION") == 204
    assert admin("GET", f"{PATH}/{reservation}").status_code == 404


def hold(admin: Admin, consumer: str, of: str, generation: int, kind: str) -> int:
    """Have a consumer of a type hold all eight VCPU of a host; return the status of the answer."""
    body = {
        "allocations": {of: {"resources": {"VCPU": 8}}},
        "project_id": "project",
        "user_id": "user",
        "consumer_generation": generation,
        "consumer_type": kind,
    }
    return admin("PUT", f"/allocations/{consumer}", json=body).status_code


def rows(url: str) -> int:
    return int(read_scalar(url, "SELECT COUNT(*) FROM reservations"))


def reader(admin: Admin, path: str, project: str = "project") -> TestResponse:
    headers = {"X-Auth-Token": f"ann:{project}", "X-Roles": "reader", "X-Project-Id": project}
    return admin("GET", path, headers=headers)


def test_pages_follow_each_other(admin: Admin) -> None:
    make_provider(admin, "cn", VCPU=8)
    ours = sorted(reserved(admin, "resources=VCPU:1") for _ in range(5))
    theirs = reserved(admin, "resources=VCPU:1", project_id="other")
    everything = admin("GET", PATH).json
    assert [each["uuid"] for each in everything["reservations"]] == sorted([*ours, theirs])
    assert "links" not in everything
    seen, path = [], f"{PATH}?project_id=project&limit=2"
    while path:
        page = admin("GET", path).json
        seen.append([each["uuid"] for each in page["reservations"]])
        path = page["links"][0]["href"] if "links" in page else ""
    assert seen == [ours[:2], ours[2:4], ours[4:]]


def test_a_reader_sees_its_own_project_alone(admin: Admin) -> None:
    make_provider(admin, "cn", VCPU=8)
    ours, theirs = (
        reserved(admin, "resources=VCPU:1"),
        reserved(admin, "resources=VCPU:1", project_id="other"),
    )
    assert [each["uuid"] for each in reader(admin, PATH).json["reservations"]] == [ours]
    assert reader(admin, f"{PATH}?project_id=other").status_code == 403
    assert reader(admin, f"{PATH}/{ours}").json["reservation"]["uuid"] == ours
    hidden, missing = reader(admin, f"{PATH}/{theirs}"), reader(admin, f"{PATH}/{NOBODY}")
    assert read_error(hidden)[2].replace(theirs, NOBODY) == read_error(missing)[2]
    assert reader(admin, PATH, project="").status_code in (401, 403)
    headers = {"X-Auth-Token": "ann:project", "X-Roles": "reader"}
    for method, path in (("POST", PATH), ("PUT", f"{PATH}/{ours}"), ("DELETE", f"{PATH}/{ours}")):
        assert admin(method, path, headers=headers, json={}).status_code == 403


def test_an_invalid_query_is_refused(admin: Admin) -> None:
    for query in ("limit=0", "limit=x", "marker=x", "nothing=1"):
        assert admin("GET", f"{PATH}?{query}").status_code == 400


def test_a_reservation_until_the_latest_possible_time_is_shown(admin):
    make_provider(admin, "cn", VCPU=8)
    last = "9999-12-31T23:59:59.999999Z"
    only = reserved(admin, "resources=VCPU:1", expires_at=last)
    (listed,) = admin("GET", PATH).json["reservations"]
    assert (listed["uuid"], listed["expires_at"]) == (only, "9999-12-31T23:59:59.000Z")


def test_a_project_with_a_blank_at_the_end_is_another_one(admin):
    make_provider(admin, "cn", VCPU=8)
    owned = {each: reserved(admin, "resources=VCPU:1", project_id=each) for each in ("web", "web ", "wéb ")}
    for project, only in owned.items():
        asked = admin("GET", PATH, query_string={"project_id": project})
        assert [each["uuid"] for each in asked.json["reservations"]] == [only]
    reader = {"X-Auth-Token": "ann", "X-Project-Id": "web ", "X-Roles": "reader"}
    seen = admin("GET", PATH, headers=reader).json["reservations"]
    assert [each["uuid"] for each in seen] == [owned["web "]]


def test_the_answer_shows_a_new_reservation_that_has_expired_meanwhile(
    admin: Admin, monkeypatch: pytest.MonkeyPatch
) -> None:
    provider = make_provider(admin, "cn", VCPU=8)
    write = ServiceDatabase.write

    def slowly(self: ServiceDatabase, work: Any) -> Any:
        """Answer only after the expiry of the reservation."""
        found = write(self, work)
        time.sleep(0.6)
        return found

    with monkeypatch.context() as patched:
        patched.setattr(ServiceDatabase, "write", slowly)
        answer = reserve(admin, "resources=VCPU:4", expires_in=0.5)
    assert answer.status_code == 201
    assert answer.json["reservation"]["allocations"] == {provider: {"resources": {"VCPU": 4}}}
    assert admin("GET", f"{PATH}/{answer.json['reservation']['uuid']}").status_code == 404
