"""What tests of ``/ext/v1`` send again and again."""

import uuid
from typing import Any

from werkzeug.test import TestResponse

from tests.placement.running import Admin


def host(admin: Admin, name: str, *, parent: str | None = None, **totals: int) -> str:
    """The uuid of a new provider with these inventories."""
    body = {"name": name, "parent_provider_uuid": parent}
    made: str = admin("POST", "/resource_providers", json=body).json["uuid"]
    put = {
        "resource_provider_generation": 0,
        "inventories": {each: {"total": total} for each, total in totals.items()},
    }
    assert admin("PUT", f"/resource_providers/{made}/inventories", json=put).status_code == 200
    return made


def wants(query: str, **fields: Any) -> dict[str, Any]:
    """A claim of a new consumer."""
    return {
        "consumer_uuid": str(uuid.uuid4()),
        "consumer_generation": None,
        "consumer_type": "INSTANCE",
        "project_id": "project",
        "user_id": "user",
        "query": query,
        **fields,
    }


def claim(admin: Admin, *claims: dict[str, Any], **fields: Any) -> TestResponse:
    """The answer to a call that claims."""
    return admin("POST", "/ext/v1/claims", json={"claims": claims, **fields})


def used(admin: Admin, provider: str) -> dict[str, int]:
    """How much of each class of a provider is used."""
    usages: dict[str, int] = admin("GET", f"/resource_providers/{provider}/usages").json["usages"]
    return usages


def refused(answer: TestResponse) -> tuple[int, str, str]:
    """The status, code and detail of an error."""
    (error,) = answer.json["errors"]
    return answer.status_code, error["code"], error["detail"]
