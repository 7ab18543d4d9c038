"""Tests that the service accepts and returns each example of the API reference, sent in the order of one
story.
"""

import copy
import json
from typing import Any

import pytest
from jsonschema_rs import Draft202012Validator
from werkzeug.test import TestResponse

from placement import microversion
from placement.schemas import (
    allocation,
    candidates,
    claim,
    inventory,
    reservation,
    resource_provider,
    tree,
)
from placement.schemas import query as queries
from placement.schemas.base import load as load_by_schema
from placement_extras.planner import handler
from tests.placement.api_ref import document
from tests.placement.api_ref.document import Operation
from tests.placement.api_ref.story import STORY, happen
from tests.placement.running import Admin, application

TOLD = {step[0] for step in STORY if len(step) == 2}

# lists that the examples show in part
VARYING = {
    "findWindows": ("windows.0.starts_at", "windows.0.ends_at"),
    "getExtensions": ("version.release",),
    "listChanges": ("cursor",),
    "listClaims": ("now",),
    "listTimeEvents": ("now",),
    "makeReservationCalendar": ("calendar.created_at", "calendar.url"),
    "showReservationCalendar": ("calendar.created_at",),
    "showClaim": ("claim.expires_at", "claim.expires_in"),
}
IN_PART = {"listResourceClasses": "resource_classes"}

SCHEMAS = {
    "createResourceProvider": resource_provider.creation_schema(microversion.MAX),
    "updateResourceProvider": resource_provider.update_schema(microversion.MAX),
    "createInventory": inventory.InventoryCreation(),
    "updateInventories": inventory.ReplaceAll(),
    "updateInventory": inventory.InventoryUpdate(),
    "updateAggregates": resource_provider.AggregatesBody(),
    "updateProviderTraits": resource_provider.TraitsBody(),
    "createResourceClass": resource_provider.CustomName(),
    "updateAllocations": allocation.put_allocations(microversion.MAX),
    "updateSeveralAllocations": allocation.post_allocations(microversion.MAX),
    "reshape": allocation.reshaper_body(microversion.MAX),
    "explainAllocationCandidates": candidates.ExplanationBody(),
    "findWindows": reservation.AvailabilityBody(),
    "showCapacity": handler.CapacityBody(),
    "claim": claim.ClaimsBody(),
    "confirmClaim": claim.ConfirmationBody(),
    "updateAttributes": resource_provider.AttributesBody(),
    "writeTree": tree.TreeBody(),
    "reserve": reservation.ReservationCreation(),
    "updateReservation": reservation.ReservationUpdate(),
}
PARSERS = {
    "listResourceProviders": queries.parse_provider_filter,
    "listTraits": queries.parse_traits,
    "listAllocationCandidates": candidates.parse_candidates,
    "showUsages": queries.parse_usages,
    "listReservations": reservation.parse_list,
    "showReservationLimits": queries.parse_project,
    "makeReservationCalendar": queries.parse_project,
    "showReservationCalendar": queries.parse_project,
    "revokeReservationCalendar": queries.parse_project,
    "listClaims": claim.parse_ending,
    "listTimeEvents": reservation.parse_events,
    "listChanges": queries.parse_following,
    "showTree": tree.parse_show,
}


def test_the_story_has_every_operation():
    assert {each.id for each in document.operations()} == TOLD


def test_the_service_accepts_and_returns_the_examples(database_url):
    service = Admin(application(database_url, console={"enabled": True}))
    for step in STORY:
        answer = happen(service, step)
        if len(step) == 2:
            operation, status = document.by_id(step[0]), step[1]
            assert answer.status_code == status, f"{operation.id}: {answer.text}"
            check(operation, answer)
        else:
            assert answer.status_code < 300, answer.text


def check(operation: Operation, answer: TestResponse) -> None:
    """Compare the answer with the example in the reference."""
    described = operation.answers()[str(answer.status_code)]
    for name, reference in described["headers"].items():
        header = document.resolve(reference)
        if header.get("required") is False and name not in answer.headers:
            continue  # its description says that it is for special cases
        assert name in answer.headers, f"{operation.id}: no {name}"
        schema = header["schema"]
        assert Draft202012Validator(schema).is_valid(answer.headers[name]), f"{operation.id}: {name}"
    undescribed = {"content-type", "content-length"} | {name.lower() for name in described["headers"]}
    assert {name.lower() for name, _ in answer.headers} <= undescribed, operation.id
    if "content" not in described:
        assert answer.data == b""
        return
    assert answer.mimetype == "application/json"
    expected = described["content"]["application/json"]["example"]
    found = json.loads(answer.data)
    if operation.id in IN_PART:
        key = IN_PART[operation.id]
        assert expected.keys() == found.keys() == {key}
        assert [each for each in found[key] if each in expected[key]] == expected[key]
    else:
        expected = copy.deepcopy(expected)
        for path in VARYING.get(operation.id, ()):
            *within, name = path.split(".")
            for one in (found, expected):
                for key in within:
                    one = one[int(key) if key.isdigit() else key]
                assert one.pop(name)
        assert unordered(found) == unordered(expected), operation.id


def unordered(document: Any) -> Any:
    """Sort the lists of names in a document, because their order has no meaning."""
    if isinstance(document, dict):
        return {name: unordered(each) for name, each in document.items()}
    if isinstance(document, list):
        return (
            sorted(document)
            if all(isinstance(each, str) for each in document)
            else [*map(unordered, document)]
        )
    return document


@pytest.mark.parametrize(
    "operation",
    [each for each in document.operations() if each.body_example is not None],
    ids=lambda each: each.id,
)
def test_the_schema_of_the_service_reads_the_example_of_a_body(operation):
    schema = SCHEMAS[operation.id]
    wrapped = operation.id == "updateSeveralAllocations"
    load_by_schema(schema, {"allocations": operation.body_example} if wrapped else operation.body_example)


@pytest.mark.parametrize(
    "operation", [each for each in document.operations() if each.query_example()], ids=lambda each: each.id
)
def test_the_schema_of_the_service_reads_the_example_of_a_query(operation):
    PARSERS[operation.id](operation.query_example(), microversion.MAX)
