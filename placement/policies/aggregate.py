"""Rules of ``/resource_providers/{uuid}/aggregates``."""

from typing import Final

from placement.policies.base import operation

LIST: Final = "placement:resource_providers:aggregates:list"
UPDATE: Final = "placement:resource_providers:aggregates:update"

_PATH: Final = "/resource_providers/{uuid}/aggregates"

RULES: Final = [
    operation(LIST, "List the aggregates of a resource provider.", ("GET", _PATH)),
    operation(UPDATE, "Replace the aggregates of a resource provider.", ("PUT", _PATH)),
]
