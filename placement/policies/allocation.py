"""Rules of ``/allocations`` and ``/resource_providers/{uuid}/allocations``."""

from typing import Final

from placement.policies.base import operation

MANAGE: Final = "placement:allocations:manage"
LIST: Final = "placement:allocations:list"
UPDATE: Final = "placement:allocations:update"
DELETE: Final = "placement:allocations:delete"
PROVIDER_LIST: Final = "placement:resource_providers:allocations:list"

_CONSUMER: Final = "/allocations/{consumer_uuid}"

RULES: Final = [
    operation(MANAGE, "Replace the allocations of several consumers.", ("POST", "/allocations")),
    operation(LIST, "List the allocations of a consumer.", ("GET", _CONSUMER)),
    operation(UPDATE, "Replace the allocations of a consumer.", ("PUT", _CONSUMER)),
    operation(DELETE, "Delete the allocations of a consumer.", ("DELETE", _CONSUMER)),
    operation(
        PROVIDER_LIST,
        "List the allocations of a resource provider.",
        ("GET", "/resource_providers/{uuid}/allocations"),
    ),
]
