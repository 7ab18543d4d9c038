"""Rules of ``/ext/v1``, what OpenStack Placement does not have."""

from typing import Final

from placement.policies.base import ADMIN_OR_PROJECT_READER_OR_SERVICE, operation

ATTRIBUTES: Final = "placement:ext:resource_providers:attributes:list"
CHANGE_ATTRIBUTES: Final = "placement:ext:resource_providers:attributes:update"
CHANGES: Final = "placement:ext:changes:list"
CLAIM: Final = "placement:ext:claims:create"
CONFIRM: Final = "placement:ext:claims:update"
SHOW_CLAIM: Final = "placement:ext:claims:show"
EXPLAIN: Final = "placement:ext:explanations:explain"
LIST_RESERVATIONS: Final = "placement:ext:reservations:list"
SHOW_RESERVATION: Final = "placement:ext:reservations:show"
RESERVE: Final = "placement:ext:reservations:create"
CHANGE_RESERVATION: Final = "placement:ext:reservations:update"
DELETE_RESERVATION: Final = "placement:ext:reservations:delete"
TREE: Final = "placement:ext:trees:show"
WRITE_TREE: Final = "placement:ext:trees:update"

_RESERVATIONS: Final = "/ext/v1/reservations"
_RESERVATION: Final = "/ext/v1/reservations/{reservation_uuid}"

_ATTRIBUTES: Final = "/ext/v1/resource_providers/{uuid}/attributes"

RULES: Final = [
    operation(ATTRIBUTES, "List the attributes of a resource provider.", ("GET", _ATTRIBUTES)),
    operation(CHANGE_ATTRIBUTES, "Replace the attributes of a resource provider.", ("PUT", _ATTRIBUTES)),
    operation(CHANGES, "List what changed since a cursor.", ("GET", "/ext/v1/changes")),
    operation(CLAIM, "Find candidates and claim them in one call.", ("POST", "/ext/v1/claims")),
    operation(CONFIRM, "Have a claim stay that would expire.", ("PUT", "/ext/v1/claims/{consumer_uuid}")),
    operation(SHOW_CLAIM, "Show when a claim expires.", ("GET", "/ext/v1/claims/{consumer_uuid}")),
    operation(
        EXPLAIN,
        "Explain why a request has the allocation candidates that it has, or none.",
        ("POST", "/ext/v1/explanations"),
        old_name="placement:ext:explanations:list",
    ),
    operation(
        LIST_RESERVATIONS,
        "List reservations.",
        ("GET", _RESERVATIONS),
        check=ADMIN_OR_PROJECT_READER_OR_SERVICE,
    ),
    operation(
        SHOW_RESERVATION,
        "Show a reservation.",
        ("GET", _RESERVATION),
        check=ADMIN_OR_PROJECT_READER_OR_SERVICE,
        old_name=LIST_RESERVATIONS,
    ),
    operation(RESERVE, "Hold resources for a project until a time.", ("POST", _RESERVATIONS)),
    operation(CHANGE_RESERVATION, "Change when a reservation expires.", ("PUT", _RESERVATION)),
    operation(DELETE_RESERVATION, "Give back what a reservation holds.", ("DELETE", _RESERVATION)),
    operation(
        TREE,
        "Show all resource providers of a tree with what belongs to them.",
        ("GET", "/ext/v1/trees/{uuid}"),
    ),
    operation(
        WRITE_TREE,
        "Make and change resource providers of a tree with what belongs to them.",
        ("POST", "/ext/v1/trees"),
    ),
]
