"""Tests of the project and user of consumers after requests of old microversions."""

from typing import Any

import pytest

from tests.placement.builders import OWNER, make_provider, put_allocation
from tests.placement.running import Admin, application

HOST = "00000001-0000-4000-8000-000000000000"
GUEST = "00000001-0000-4000-8000-00000000c0de"
OLD = {"OpenStack-API-Version": "placement 1.7"}


@pytest.fixture
def admin(database_url: str) -> Admin:
    incomplete = {"incomplete_consumer_project_id": "a project", "incomplete_consumer_user_id": "a user"}
    admin = Admin(application(database_url, placement=incomplete))
    make_provider(admin, "host", provider=HOST, VCPU=8)
    return admin


def listed(amount: int) -> dict[str, Any]:
    """The body of a claim in the format before 1.12; before 1.8 it has no owner."""
    return {"allocations": [{"resource_provider": {"uuid": HOST}, "resources": {"VCPU": amount}}]}


def shown(admin: Admin) -> dict[str, object]:
    document = admin("GET", f"/allocations/{GUEST}").json
    return {name: document[name] for name in ("project_id", "user_id", "consumer_type")}


def test_a_claim_without_an_owner_makes_the_consumer_that_of_the_options(admin: Admin) -> None:
    """`nova-manage placement heal_allocations --force` relies on this rule of OpenStack Placement."""
    assert put_allocation(admin, {HOST: {"VCPU": 1}}, GUEST).status_code == 204
    assert shown(admin) == OWNER
    assert admin("PUT", f"/allocations/{GUEST}", json=listed(9), headers=OLD).status_code == 409
    assert shown(admin) == OWNER
    assert admin("PUT", f"/allocations/{GUEST}", json=listed(2), headers=OLD).status_code == 204
    assert shown(admin) == {"project_id": "a project", "user_id": "a user", "consumer_type": "INSTANCE"}
    named = {**listed(2), "project_id": "p", "user_id": "u"}
    headers = {"OpenStack-API-Version": "placement 1.8"}
    assert admin("PUT", f"/allocations/{GUEST}", json=named, headers=headers).status_code == 204
    assert shown(admin) == {"project_id": "p", "user_id": "u", "consumer_type": "INSTANCE"}


def test_a_new_consumer_without_an_owner_is_that_of_the_options(admin: Admin) -> None:
    assert admin("PUT", f"/allocations/{GUEST}", json=listed(2), headers=OLD).status_code == 204
    assert shown(admin) == {"project_id": "a project", "user_id": "a user", "consumer_type": "unknown"}


def test_the_last_entry_of_a_provider_that_is_listed_twice_counts(admin: Admin) -> None:
    twice = {"allocations": [*listed(7)["allocations"], *listed(3)["allocations"]]}
    assert admin("PUT", f"/allocations/{GUEST}", json=twice, headers=OLD).status_code == 204
    held = admin("GET", f"/allocations/{GUEST}").json["allocations"]
    assert held[HOST]["resources"] == {"VCPU": 3}
