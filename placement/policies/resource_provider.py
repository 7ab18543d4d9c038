"""Rules of ``/resource_providers``."""

from typing import Final

from placement.policies.base import operation

LIST: Final = "placement:resource_providers:list"
CREATE: Final = "placement:resource_providers:create"
SHOW: Final = "placement:resource_providers:show"
UPDATE: Final = "placement:resource_providers:update"
DELETE: Final = "placement:resource_providers:delete"

RULES: Final = [
    operation(LIST, "List resource providers.", ("GET", "/resource_providers")),
    operation(CREATE, "Create a resource provider.", ("POST", "/resource_providers")),
    operation(SHOW, "Show a resource provider.", ("GET", "/resource_providers/{uuid}")),
    operation(UPDATE, "Update a resource provider.", ("PUT", "/resource_providers/{uuid}")),
    operation(DELETE, "Delete a resource provider.", ("DELETE", "/resource_providers/{uuid}")),
]
