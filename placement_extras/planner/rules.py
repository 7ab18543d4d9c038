"""Policy rules of the planner; apart, as tools that list rules load no handler."""

from typing import Final

from placement.policies.base import operation

CAPACITY: Final = "placement:ext:capacity:count"

RULES: Final = [
    operation(
        CAPACITY,
        "Count how many guests of flavors fit.",
        ("POST", "/ext/v1/capacity"),
        old_name="placement:ext:capacity",
    ),
]
