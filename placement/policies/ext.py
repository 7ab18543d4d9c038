"""Rules of ``/ext/v1``, what OpenStack Placement does not have."""

from typing import Final

from placement.policies.base import operation

EXPLAIN: Final = "placement:ext:explanations:list"

RULES: Final = [
    operation(
        EXPLAIN,
        "Explain why a request has the allocation candidates that it has, or none.",
        ("POST", "/ext/v1/explanations"),
    )
]
