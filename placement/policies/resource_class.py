"""Rules of ``/resource_classes``."""

from typing import Final

from placement.policies.base import operation

LIST: Final = "placement:resource_classes:list"
CREATE: Final = "placement:resource_classes:create"
SHOW: Final = "placement:resource_classes:show"
UPDATE: Final = "placement:resource_classes:update"
DELETE: Final = "placement:resource_classes:delete"

RULES: Final = [
    operation(LIST, "List resource classes.", ("GET", "/resource_classes")),
    operation(CREATE, "Create a custom resource class.", ("POST", "/resource_classes")),
    operation(SHOW, "Show a resource class.", ("GET", "/resource_classes/{name}")),
    operation(UPDATE, "Create or rename a custom resource class.", ("PUT", "/resource_classes/{name}")),
    operation(DELETE, "Delete a custom resource class.", ("DELETE", "/resource_classes/{name}")),
]
