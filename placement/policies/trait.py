"""Rules of ``/traits`` and ``/resource_providers/{uuid}/traits``."""

from typing import Final

from placement.policies.base import operation

LIST: Final = "placement:traits:list"
SHOW: Final = "placement:traits:show"
UPDATE: Final = "placement:traits:update"
DELETE: Final = "placement:traits:delete"
PROVIDER_LIST: Final = "placement:resource_providers:traits:list"
PROVIDER_UPDATE: Final = "placement:resource_providers:traits:update"
PROVIDER_DELETE: Final = "placement:resource_providers:traits:delete"

_PROVIDER: Final = "/resource_providers/{uuid}/traits"

RULES: Final = [
    operation(LIST, "List traits.", ("GET", "/traits")),
    operation(SHOW, "Show whether a trait exists.", ("GET", "/traits/{name}")),
    operation(UPDATE, "Create a custom trait.", ("PUT", "/traits/{name}")),
    operation(DELETE, "Delete a custom trait.", ("DELETE", "/traits/{name}")),
    operation(PROVIDER_LIST, "List the traits of a resource provider.", ("GET", _PROVIDER)),
    operation(PROVIDER_UPDATE, "Replace the traits of a resource provider.", ("PUT", _PROVIDER)),
    operation(PROVIDER_DELETE, "Remove the traits of a resource provider.", ("DELETE", _PROVIDER)),
]
