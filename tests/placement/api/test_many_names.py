"""Tests of requests with more names than a statement of any database may have: the answer is 400, and not
503.
"""

from uuid import UUID, uuid4

import pytest

from tests.placement.builders import inventories_body, make_provider, put_allocation
from tests.placement.running import Admin

pytestmark = pytest.mark.slow

MANY = 66_000  # PostgreSQL takes 65,535 values in a statement

UUIDS = [str(UUID(int=number)) for number in range(1, MANY + 1)]


@pytest.fixture
def host(admin: Admin) -> str:
    uuid = str(uuid4())
    return make_provider(admin, uuid, provider=uuid)


@pytest.mark.parametrize("kind", ["traits", "classes", "providers"])
def test_a_request_with_too_many_names_for_a_statement_is_refused(admin: Admin, host: str, kind: str) -> None:
    match kind:
        case "traits":
            body = {"resource_provider_generation": 0, "traits": [f"CUSTOM_{n}" for n in range(MANY)]}
            answer = admin("PUT", f"/resource_providers/{host}/traits", json=body)
        case "classes":
            body = inventories_body(0, **{f"CUSTOM_{number}": 1 for number in range(MANY)})
            answer = admin("PUT", f"/resource_providers/{host}/inventories", json=body)
        case "providers":
            answer = put_allocation(admin, {key: {"VCPU": 1} for key in UUIDS})
    assert answer.status_code == 400, answer.text[:300]
    assert "names more objects than can be handled at once" in answer.text
    assert admin("GET", f"/resource_providers/{host}/traits").json == {
        "traits": [],
        "resource_provider_generation": 0,
    }


def test_too_many_aggregates_for_a_statement_are_written_in_parts(admin: Admin, host: str) -> None:
    body = {"resource_provider_generation": 0, "aggregates": UUIDS}
    answer = admin("PUT", f"/resource_providers/{host}/aggregates", json=body)
    assert answer.status_code == 200, answer.text[:300]
    kept = admin("GET", f"/resource_providers/{host}/aggregates").json or {}
    assert len(kept["aggregates"]) == MANY
