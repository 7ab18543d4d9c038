"""Maintenance: a window that takes a whole host, beside guests and claims."""

import uuid
from typing import Any

import pytest
from werkzeug.test import TestResponse

from tests.placement.builders import (
    make_provider,
    new_claim,
    post_claims,
    provider_path,
    put_allocation,
    read_error,
    read_usages,
)
from tests.placement.moving_clock import advance_clock, after
from tests.placement.running import Admin

PATH = "/ext/v1/reservations"
HOUR = 3600.0


@pytest.fixture
def host(admin: Admin) -> str:
    return make_provider(admin, "cn", VCPU=8)


def maintain(admin: Admin, host: str, begin: float, end: float, **fields: Any) -> TestResponse:
    times = {"starts_at": after(begin * HOUR), "expires_at": after(end * HOUR)}
    body = {"maintenance_of": host, "project_id": "ops", "user_id": "eve", **times, **fields}
    return admin("POST", PATH, json=body)


def show(admin: Admin, reservation: str) -> dict[str, Any]:
    shown: dict[str, Any] = admin("GET", f"{PATH}/{reservation}").json["reservation"]
    return shown


def test_guests_stay_and_new_ones_that_would_last_into_it_are_refused(
    admin: Admin, url: str, host: str
) -> None:
    guest, short = str(uuid.uuid4()), new_claim("resources=VCPU:3")
    assert put_allocation(admin, {host: {"VCPU": 4}}, guest).status_code == 204
    answer = maintain(admin, host, 2, 3)
    assert answer.status_code == 201, answer.text
    maintenance = answer.json["reservation"]["uuid"]
    refused = put_allocation(admin, {host: {"VCPU": 1}})
    assert f"overlap this time: {maintenance} from" in read_error(refused)[2]
    lasting = post_claims(admin, new_claim("resources=VCPU:1"), ends_at=after(2.5 * HOUR))
    assert f"overlap this time: {maintenance} from" in read_error(lasting)[2]
    assert post_claims(admin, new_claim("resources=VCPU:5"), ends_at=after(HOUR)).status_code == 409
    assert post_claims(admin, short, ends_at=after(HOUR)).status_code == 201
    assert post_claims(admin, new_claim("resources=VCPU:2"), ends_at=after(HOUR)).status_code == 409
    assert post_claims(admin, new_claim("resources=VCPU:1")).status_code == 409
    shown = show(admin, maintenance)
    assert {each["consumer_uuid"]: each["has_to_move"] for each in shown["guests"]} == {
        guest: True,
        short["consumer_uuid"]: False,
    }
    advance_clock(url, 2.5 * HOUR)
    shown = show(admin, maintenance)
    assert (shown["state"], [each["missing"] for each in shown["degraded"]]) == ("active", [4])
    # the guest may change, but not grow, and its room is not given to another one
    assert put_allocation(admin, {host: {"VCPU": 5}}, guest, 1).status_code == 409
    assert put_allocation(admin, {host: {"VCPU": 3}}, guest, 1).status_code == 204
    assert admin("DELETE", f"/allocations/{guest}").status_code == 204
    assert put_allocation(admin, {host: {"VCPU": 1}}).status_code == 409
    shown = show(admin, maintenance)
    assert (shown["degraded"], "guests" in shown) == ([], False)
    advance_clock(url, HOUR)
    assert put_allocation(admin, {host: {"VCPU": 8}}).status_code == 204


def test_a_maintenance_is_neither_degraded_nor_failed_because_its_host_is_disabled(
    admin: Admin, url: str, host: str
) -> None:
    maintenance = maintain(admin, host, 1, 2).json["reservation"]["uuid"]
    generation = admin("GET", provider_path(host)).json["generation"]
    body = {"resource_provider_generation": generation, "traits": ["COMPUTE_STATUS_DISABLED"]}
    assert admin("PUT", provider_path(host, "traits"), json=body).status_code == 200
    advance_clock(url, 1.5 * HOUR)
    shown = show(admin, maintenance)
    assert (shown["state"], shown["degraded"]) == ("active", [])


def test_a_maintenance_does_not_fail_while_guests_hold_all_of_its_host(
    admin: Admin, url: str, host: str
) -> None:
    assert put_allocation(admin, {host: {"VCPU": 8}}).status_code == 204
    maintenance = maintain(admin, host, 1, 2).json["reservation"]["uuid"]
    advance_clock(url, 1.5 * HOUR)
    shown = show(admin, maintenance)
    assert (shown["state"], [each["missing"] for each in shown["degraded"]]) == ("active", [8])


def test_a_window_during_the_maintenance_is_refused_and_one_from_before_is_degraded(
    admin: Admin, host: str
) -> None:
    times = {"starts_at": after(2.5 * HOUR), "expires_at": after(4 * HOUR)}
    body = {"query": "resources=VCPU:2", "project_id": "web", "user_id": "ann"} | times
    earlier = admin("POST", PATH, json=body).json["reservation"]["uuid"]
    maintenance = maintain(admin, host, 2, 3).json["reservation"]["uuid"]
    assert admin("POST", PATH, json=body).status_code == 409
    later = body | {"starts_at": after(3.1 * HOUR)}
    assert admin("POST", PATH, json=later).status_code == 201
    (cause,) = show(admin, earlier)["degraded"]
    assert (cause["reason"], cause["missing"]) == ("capacity_exceeded", 2)
    guests = show(admin, maintenance)["guests"]
    assert [(each["consumer_uuid"], each["has_to_move"]) for each in guests] == [(earlier, True)]


def test_the_operators_project_may_test_the_host_during_the_maintenance(
    admin: Admin, url: str, host: str
) -> None:
    child = make_provider(admin, "numa", parent=host, PCPU=4)
    maintenance = maintain(admin, host, 1, 3).json["reservation"]
    assert maintenance["allocations"].keys() == {host, child}
    advance_clock(url, 2 * HOUR)
    trial = new_claim("resources=VCPU:2", project_id="ops")
    fields = {"reservation": maintenance["uuid"], "ends_at": after(0.5 * HOUR)}
    assert post_claims(admin, trial, **fields).status_code == 201
    assert read_usages(admin, host) == {"VCPU": 8}
    assert admin("DELETE", f"{PATH}/{maintenance['uuid']}").status_code == 204
    assert put_allocation(admin, {host: {"VCPU": 6}, child: {"PCPU": 4}}).status_code == 204


def test_wrong_maintenances_are_refused(admin: Admin, host: str) -> None:
    child = make_provider(admin, "numa", parent=host, PCPU=4)
    empty = make_provider(admin, "empty")
    assert maintain(admin, str(uuid.uuid4()), 1, 2).status_code == 404
    assert "is not the root" in read_error(maintain(admin, child, 1, 2))[2]
    assert read_error(maintain(admin, empty, 1, 2))[0] == 409
    assert maintain(admin, host, 2, 1).status_code == 400
    assert "without query" in read_error(maintain(admin, host, 1, 2, query="resources=VCPU:1"))[2]
    made = maintain(admin, host, 1, 2).json["reservation"]["uuid"]
    assert maintain(admin, host, 3, 4, uuid=made).status_code == 409
    body = {"maintenance_of": host, "project_id": "ops", "user_id": "eve", "expires_in": HOUR}
    assert "needs starts_at" in read_error(admin("POST", PATH, json=body))[2]


def test_maintenances_at_the_same_time_never_exceed_the_columns_of_amounts(admin: Admin) -> None:
    large = make_provider(admin, "large", DISK_GB=2**31 - 1)
    assert maintain(admin, large, 1, 3).status_code == 201
    refused = maintain(admin, large, 2, 4)
    assert refused.status_code == 409
    assert f"would need {2**31} of 'DISK_GB'" in read_error(refused)[2]
    assert maintain(admin, large, 3, 4).status_code == 201


def test_a_maintenance_with_guests_is_followed_by_another_one_instead_of_extended(
    admin: Admin, host: str
) -> None:
    guest = str(uuid.uuid4())
    assert put_allocation(admin, {host: {"VCPU": 4}}, guest).status_code == 204
    made = maintain(admin, host, 2, 3).json["reservation"]
    longer = {"generation": 1, "expires_at": after(4 * HOUR)}
    refused = admin("PUT", f"{PATH}/{made['uuid']}", json=longer)
    assert (
        f"it may end at {made['expires_at']} at the latest. A maintenance ends later"
        in read_error(refused)[2]
    )
    assert maintain(admin, host, 3, 4, starts_at=made["expires_at"]).status_code == 201
    assert admin("DELETE", f"/allocations/{guest}").status_code == 204
    assert admin("PUT", f"{PATH}/{made['uuid']}", json=longer).status_code == 409


def test_projects_do_not_see_guests_of_other_projects(admin: Admin, host: str) -> None:
    assert put_allocation(admin, {host: {"VCPU": 4}}).status_code == 204
    maintenance = maintain(admin, host, 1, 2).json["reservation"]["uuid"]
    shown = admin("GET", f"{PATH}/{maintenance}", headers={"X-Auth-Token": "eve:ops", "X-Roles": "reader"})
    assert shown.status_code == 200, shown.text
    assert "guests" not in shown.json["reservation"]


def test_only_administrators_take_hosts_away(admin: Admin, host: str) -> None:
    service = {"X-Auth-Token": "nova:services", "X-Roles": "service"}
    times = {"starts_at": after(HOUR), "expires_at": after(2 * HOUR)}
    owner = {"project_id": "ops", "user_id": "eve"}
    body = {"maintenance_of": host, **owner, **times}
    refused = admin("POST", PATH, json=body, headers=service)
    assert (refused.status_code, "create:maintenance" in refused.text) == (403, True)
    body = {"query": "resources=VCPU:1", **owner, **times}
    assert admin("POST", PATH, json=body, headers=service).status_code == 201
