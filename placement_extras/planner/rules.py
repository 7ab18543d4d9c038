"""Policy rules of the planner; apart, as tools that list rules load no handler."""

from typing import Final

from placement.policies.base import define_rule

CAPACITY: Final = "placement:ext:capacity:count"

RULES: Final = [
    define_rule(
        CAPACITY,
        "Count how many guests of flavors fit.",
        ("POST", "/ext/v1/capacity"),
        old_name="placement:ext:capacity",
    ),
]
