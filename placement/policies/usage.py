"""Rules of ``/usages`` and ``/resource_providers/{uuid}/usages``."""

from typing import Final

from placement.policies.base import ADMIN_OR_PROJECT_READER_OR_SERVICE, operation

PROVIDER_USAGES: Final = "placement:resource_providers:usages"
TOTAL_USAGES: Final = "placement:usages"

RULES: Final = [
    operation(
        PROVIDER_USAGES,
        "Show what is used of a resource provider.",
        ("GET", "/resource_providers/{uuid}/usages"),
    ),
    operation(
        TOTAL_USAGES,
        "Show what a project, or a user of it, uses; its target is the project_id of the query.",
        ("GET", "/usages"),
        check=ADMIN_OR_PROJECT_READER_OR_SERVICE,
    ),
]
