"""Rules of ``/ext/v1``, what OpenStack Placement does not have."""

from typing import Final

from placement.policies.base import operation

CAPACITY: Final = "placement:ext:capacity"
CLAIM: Final = "placement:ext:claims:create"
EXPLAIN: Final = "placement:ext:explanations:list"

RULES: Final = [
    operation(CAPACITY, "Count how many guests of flavors fit.", ("POST", "/ext/v1/capacity")),
    operation(CLAIM, "Find candidates and claim them in one call.", ("POST", "/ext/v1/claims")),
    operation(
        EXPLAIN,
        "Explain why a request has the allocation candidates that it has, or none.",
        ("POST", "/ext/v1/explanations"),
    ),
]
