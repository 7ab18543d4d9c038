"""Functions that create and read providers, allocations, claims and errors over REST.

Snapshots of the read model are built by :mod:`tests.placement.search.snapshots`, claims below the REST API by
``build_claim`` of :mod:`tests.placement.store.builders`.
"""

import uuid
from collections.abc import Mapping
from typing import Any, Final

from werkzeug.test import TestResponse

from tests.placement.running import Admin

OWNER: Final = {"project_id": "project", "user_id": "user", "consumer_type": "INSTANCE"}
"""Required fields of a consumer since microversion 1.38."""


def provider_path(provider: str, part: str = "") -> str:
    """Return the path of a provider, or of a part of it such as ``inventories``."""
    return f"/resource_providers/{provider}" + (f"/{part}" if part else "")


def inventories_body(generation: int = 0, **totals: int | Mapping[str, Any]) -> dict[str, Any]:
    """Build the body of ``PUT .../inventories`` from totals or whole inventories by resource class."""
    whole = {name: {"total": each} if isinstance(each, int) else each for name, each in totals.items()}
    return {"resource_provider_generation": generation, "inventories": whole}


def claim_body(
    amounts: Mapping[str, Mapping[str, int]], generation: int | None = None, **fields: Any
) -> dict[str, Any]:
    """Build the body of ``PUT /allocations/{consumer}`` from amounts by provider and resource class."""
    held = {provider: {"resources": dict(resources)} for provider, resources in amounts.items()}
    return {"allocations": held, "consumer_generation": generation, **OWNER, **fields}


def new_claim(query: str = "resources=VCPU:4", **fields: Any) -> dict[str, Any]:
    """Build an item of ``POST /ext/v1/claims`` for a new consumer."""
    return {
        "consumer_uuid": str(uuid.uuid4()),
        "consumer_generation": None,
        "query": query,
        **OWNER,
        **fields,
    }


def make_provider(
    admin: Admin,
    name: str,
    *,
    provider: str | None = None,
    parent: str | None = None,
    **totals: int | Mapping[str, Any],
) -> str:
    """Create a provider; return its uuid. The generation of the provider is 1 if it has inventories,
    otherwise 0.

    :param provider: the uuid, if the test chooses it
    """
    body = {"name": name, "parent_provider_uuid": parent} | ({} if provider is None else {"uuid": provider})
    answer = admin("POST", "/resource_providers", json=body)
    assert answer.status_code == 200, answer.text
    made: str = answer.json["uuid"]
    if totals:
        put_inventories(admin, made, **totals)
    return made


def put_inventories(
    admin: Admin, provider: str, generation: int = 0, **totals: int | Mapping[str, Any]
) -> None:
    """Replace the inventories of a provider."""
    body = inventories_body(generation, **totals)
    answer = admin("PUT", provider_path(provider, "inventories"), json=body)
    assert answer.status_code == 200, answer.text


def put_allocation(
    admin: Admin,
    amounts: Mapping[str, Mapping[str, int]],
    consumer: str | None = None,
    generation: int | None = None,
    **fields: Any,
) -> TestResponse:
    """Send ``PUT /allocations`` and return the answer. By default the consumer is new."""
    body = claim_body(amounts, generation, **fields)
    return admin("PUT", f"/allocations/{consumer or uuid.uuid4()}", json=body)


def post_claims(admin: Admin, *claims: Mapping[str, Any], **fields: Any) -> TestResponse:
    """Send ``POST /ext/v1/claims`` and return the answer."""
    return admin("POST", "/ext/v1/claims", json={"claims": claims, **fields})


def read_usages(admin: Admin, provider: str) -> dict[str, int]:
    """Read the used amount of each resource class of a provider."""
    usages: dict[str, int] = admin("GET", provider_path(provider, "usages")).json["usages"]
    return usages


def read_allocations(admin: Admin, consumer: str) -> dict[str, Any]:
    """Read the allocations of a consumer with its project and user."""
    shown: dict[str, Any] = admin("GET", f"/allocations/{consumer}").json
    return shown


def read_error(answer: TestResponse) -> tuple[int, str, str]:
    """Return status, code and detail of an error; the code is empty in microversions without codes."""
    (error,) = answer.json["errors"]
    return answer.status_code, error.get("code", ""), error["detail"]
