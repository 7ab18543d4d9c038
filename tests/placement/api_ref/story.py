"""Sends the examples of the API reference in an order in which each example finds the objects that it
needs.
"""

from typing import Any, Final

from werkzeug.test import TestResponse

from tests.placement.api_ref import document
from tests.placement.api_ref.document import Operation
from tests.placement.running import Admin

ROOT: Final = "4e8e5957-649f-477b-9e5b-f1f75b21c03c"
NODE1: Final = "35791f28-fb45-4717-9ea9-435b3ef7c3b3"
MIGRATION: Final = "c8e96ef0-6d1e-4f0c-8a23-0e0f4f4f0a22"

CLAIMED: Final = "0b5d0a34-6bb5-4a2f-9d6e-2f8a4c1b7e90"

EXPIRING: Final[dict[str, Any]] = {
    "consumer_uuid": "67a82c9a-4a12-4b0a-8b5b-6e5d0b2a9b11",
    "consumer_generation": None,
    "consumer_type": "INSTANCE",
    "project_id": "project",
    "user_id": "user",
    "query": "resources=MEMORY_MB:1024",
    "allowed_hosts": [ROOT],
    "expires_in": 3600,
}

ENDING: Final = {
    **{name: value for name, value in EXPIRING.items() if name != "expires_in"},
    "consumer_uuid": "9c0f4f0e-7a52-4a7b-8f63-0d1c2e3f4a5b",
}

Step = tuple[str, int] | tuple[str, str, Any]

# Operations in the order of the story, with the status of the answer; between them further steps that
# the examples need.
STORY: Final[list[Step]] = [
    ("getVersions", 200),
    ("getExtensions", 200),
    ("createResourceClass", 201),
    ("updateResourceClass", 201),
    ("updateResourceClass", 204),
    ("showResourceClass", 200),
    ("listResourceClasses", 200),
    ("deleteResourceClass", 204),
    ("POST", "/resource_providers", {"name": "compute-1", "uuid": ROOT}),
    ("createResourceProvider", 200),
    ("showResourceProvider", 200),
    ("createInventory", 201),
    ("updateInventories", 200),
    ("listInventories", 200),
    ("updateInventory", 200),
    ("showInventory", 200),
    ("createTrait", 201),
    ("createTrait", 204),
    ("PUT", "/traits/CUSTOM_BROKEN", None),
    ("showTrait", 204),
    ("updateProviderTraits", 200),
    ("listProviderTraits", 200),
    ("listTraits", 200),
    ("updateAggregates", 200),
    ("listAggregates", 200),
    ("listResourceProviders", 200),
    ("listAllocationCandidates", 200),
    ("explainAllocationCandidates", 200),
    ("showCapacity", 200),
    ("updateAllocations", 204),
    ("listAllocations", 200),
    ("listProviderAllocations", 200),
    ("showProviderUsages", 200),
    ("showUsages", 200),
    ("updateResourceProvider", 200),
    ("POST", "/resource_providers", {"name": "compute-1-node1", "uuid": NODE1, "parent_provider_uuid": ROOT}),
    ("reshape", 204),
    ("updateSeveralAllocations", 204),
    ("deleteAllocations", 204),
    ("DELETE", f"/allocations/{MIGRATION}", None),
    ("listChanges", 200),
    ("reserve", 201),
    ("listReservations", 200),
    ("showReservationLimits", 200),
    ("makeReservationCalendar", 201),
    ("showReservationCalendar", 200),
    ("revokeReservationCalendar", 204),
    ("showReservation", 200),
    ("updateReservation", 200),
    ("deleteReservation", 204),
    ("findWindows", 200),
    ("claim", 201),
    ("DELETE", f"/allocations/{CLAIMED}", None),
    ("updateAttributes", 200),
    ("listAttributes", 200),
    ("writeTree", 200),
    ("showTree", 200),
    ("POST", "/ext/v1/claims", {"claims": [ENDING], "ends_at": "2126-10-03T12:00:00Z", "on_end": "evict"}),
    ("listClaims", 200),
    ("listTimeEvents", 200),
    ("DELETE", f"/allocations/{ENDING['consumer_uuid']}", None),
    ("POST", "/ext/v1/claims", {"claims": [EXPIRING]}),
    ("showClaim", 200),
    ("confirmClaim", 200),
    ("DELETE", f"/allocations/{EXPIRING['consumer_uuid']}", None),
    ("deleteProviderTraits", 204),
    ("deleteTrait", 204),
    ("deleteInventory", 204),
    ("deleteInventories", 204),
    ("deleteResourceProvider", 204),
]


def send(service: Admin, operation: Operation) -> TestResponse:
    """Send the example request of an operation."""
    body = operation.body_example
    options = {} if body is None else {"json": body}
    return service(
        operation.method, operation.path_example(), query_string=operation.query_example(), **options
    )


def happen(service: Admin, step: Step) -> TestResponse:
    """Send one step of the story and return the answer."""
    if len(step) == 2:
        return send(service, document.by_id(step[0]))
    method, path, body = step
    return service(method, path, json=body)


def tell_until(service: Admin, operation_id: str) -> None:
    """Send all steps of the story before an operation."""
    for step in STORY:
        if step[0] == operation_id:
            return
        answer = happen(service, step)
        assert answer.status_code < 300, answer.text
