"""Rules of ``/resource_providers/{uuid}/inventories``."""

from typing import Final

from placement.policies.base import operation

LIST: Final = "placement:resource_providers:inventories:list"
CREATE: Final = "placement:resource_providers:inventories:create"
SHOW: Final = "placement:resource_providers:inventories:show"
UPDATE: Final = "placement:resource_providers:inventories:update"
DELETE: Final = "placement:resource_providers:inventories:delete"

_ALL: Final = "/resource_providers/{uuid}/inventories"
_ONE: Final = "/resource_providers/{uuid}/inventories/{resource_class}"

RULES: Final = [
    operation(LIST, "List the inventories of a resource provider.", ("GET", _ALL)),
    operation(CREATE, "Create one inventory of a resource provider.", ("POST", _ALL)),
    operation(SHOW, "Show one inventory of a resource provider.", ("GET", _ONE)),
    operation(UPDATE, "Replace one or all inventories of a resource provider.", ("PUT", _ALL), ("PUT", _ONE)),
    operation(
        DELETE, "Delete one or all inventories of a resource provider.", ("DELETE", _ALL), ("DELETE", _ONE)
    ),
]
