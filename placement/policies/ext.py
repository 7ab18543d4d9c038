"""The policy rules of ``/ext/v1``, the API that OpenStack Placement does not have."""

from typing import Final

from placement.policies.base import ADMIN, ADMIN_OR_PROJECT_READER_OR_SERVICE, define_rule

ATTRIBUTES: Final = "placement:ext:resource_providers:attributes:list"
CHANGE_ATTRIBUTES: Final = "placement:ext:resource_providers:attributes:update"
CHANGES: Final = "placement:ext:changes:list"
CLAIM: Final = "placement:ext:claims:create"
CONFIRM: Final = "placement:ext:claims:update"
LIST_CLAIMS: Final = "placement:ext:claims:list"
SHOW_CLAIM: Final = "placement:ext:claims:show"
FIND_WINDOWS: Final = "placement:ext:availability:find"
EXPLAIN: Final = "placement:ext:explanations:explain"
LIST_RESERVATIONS: Final = "placement:ext:reservations:list"
SHOW_RESERVATION: Final = "placement:ext:reservations:show"
RESERVE: Final = "placement:ext:reservations:create"
MAINTAIN_HOST: Final = "placement:ext:reservations:create:maintenance"
CHANGE_RESERVATION: Final = "placement:ext:reservations:update"
DELETE_RESERVATION: Final = "placement:ext:reservations:delete"
LIST_TIME_EVENTS: Final = "placement:ext:time_events:list"
TREE: Final = "placement:ext:trees:show"
WRITE_TREE: Final = "placement:ext:trees:update"

_RESERVATIONS: Final = "/ext/v1/reservations"
_RESERVATION: Final = "/ext/v1/reservations/{reservation_uuid}"

_ATTRIBUTES: Final = "/ext/v1/resource_providers/{uuid}/attributes"

RULES: Final = [
    define_rule(ATTRIBUTES, "List the attributes of a resource provider.", ("GET", _ATTRIBUTES)),
    define_rule(CHANGE_ATTRIBUTES, "Replace the attributes of a resource provider.", ("PUT", _ATTRIBUTES)),
    define_rule(CHANGES, "List the changes since a cursor.", ("GET", "/ext/v1/changes")),
    define_rule(CLAIM, "Find candidates and claim them in one call.", ("POST", "/ext/v1/claims")),
    define_rule(
        LIST_CLAIMS, "List the claims that end on a host, or on all hosts.", ("GET", "/ext/v1/claims")
    ),
    define_rule(
        CONFIRM,
        "Confirm a claim that would expire, or change its expiry or the end of a claim.",
        ("PUT", "/ext/v1/claims/{consumer_uuid}"),
    ),
    define_rule(SHOW_CLAIM, "Show when a claim expires.", ("GET", "/ext/v1/claims/{consumer_uuid}")),
    define_rule(
        FIND_WINDOWS,
        "Find the earliest windows in which requests fit.",
        ("POST", "/ext/v1/availability"),
    ),
    define_rule(
        EXPLAIN,
        "Explain why a request has its allocation candidates, or none.",
        ("POST", "/ext/v1/explanations"),
        old_name="placement:ext:explanations:list",
    ),
    define_rule(
        LIST_RESERVATIONS,
        "List reservations, and show the limits of a project on them.",
        ("GET", _RESERVATIONS),
        ("GET", "/ext/v1/reservation_limits"),
        check=ADMIN_OR_PROJECT_READER_OR_SERVICE,
    ),
    define_rule(
        SHOW_RESERVATION,
        "Show a reservation.",
        ("GET", _RESERVATION),
        check=ADMIN_OR_PROJECT_READER_OR_SERVICE,
        old_name=LIST_RESERVATIONS,
    ),
    define_rule(RESERVE, "Hold resources for a project until a time.", ("POST", _RESERVATIONS)),
    define_rule(
        MAINTAIN_HOST,
        "Take a whole host away for a maintenance. The rule to create reservations is also needed.",
        ("POST", _RESERVATIONS),
        check=ADMIN,
    ),
    define_rule(
        CHANGE_RESERVATION,
        "Change the end of a reservation or whether it may move, or give back a part of its amounts.",
        ("PUT", _RESERVATION),
    ),
    define_rule(DELETE_RESERVATION, "Release a reservation.", ("DELETE", _RESERVATION)),
    define_rule(
        LIST_TIME_EVENTS,
        "List starts and ends of reservations, and ends of claims.",
        ("GET", "/ext/v1/time_events"),
        check=ADMIN_OR_PROJECT_READER_OR_SERVICE,
    ),
    define_rule(
        TREE,
        "Show all resource providers of a tree, with inventories, traits, aggregates and attributes.",
        ("GET", "/ext/v1/trees/{uuid}"),
    ),
    define_rule(
        WRITE_TREE,
        "Create and change resource providers of a tree, with inventories, traits, aggregates and"
        " attributes.",
        ("POST", "/ext/v1/trees"),
    ),
]
