"""Creates providers in a running service for a request of candidates that takes too long to search."""

import uuid
from typing import Any

import requests

from tests.placement.search import packing
from tests.placement.serving import HEADERS, RunningService

HARD = f"/allocation_candidates?{packing.query()}"


def make_hard(service: RunningService) -> None:
    """Create the host for the request that takes too long (see tests.placement.search.packing)."""
    for name in packing.CLASSES:
        call(service, "PUT", f"/resource_classes/{name}")
    root = create(service, "host")
    for number, size in enumerate(packing.sizes()):
        device = create(service, f"device{number}", root)
        inventories = {name: {"total": total} for name, total in size.items()}
        body = {"resource_provider_generation": 0, "inventories": inventories}
        call(service, "PUT", f"/resource_providers/{device}/inventories", body)


def create(service: RunningService, name: str, parent: str | None = None) -> str:
    """Create a provider; return its uuid."""
    body = {"name": name, "uuid": str(uuid.uuid4()), "parent_provider_uuid": parent}
    call(service, "POST", "/resource_providers", body)
    return body["uuid"] or ""


def call(service: RunningService, method: str, path: str, body: Any = None) -> Any:
    """Send a request, which must succeed, and return the body of the answer."""
    answer = requests.request(method, service.base + path, headers=HEADERS, json=body, timeout=60)
    assert answer.ok, answer.text
    return answer.json() if answer.content else None
