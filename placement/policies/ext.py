"""Rules of ``/ext/v1``, what OpenStack Placement does not have."""

from typing import Final

from placement.policies.base import operation

CLAIM: Final = "placement:ext:claims:create"
EXPLAIN: Final = "placement:ext:explanations:list"

RULES: Final = [
    operation(CLAIM, "Find candidates and claim them in one call.", ("POST", "/ext/v1/claims")),
    operation(
        EXPLAIN,
        "Explain why a request has the allocation candidates that it has, or none.",
        ("POST", "/ext/v1/explanations"),
    ),
]
