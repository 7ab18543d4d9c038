"""The policy rules of the planner, in a module that the console and tools import without the planner."""

from typing import Final

from placement.policies.base import define_rule

CAPACITY: Final = "placement:ext:capacity:count"

RULES: Final = [
    define_rule(
        CAPACITY,
        "Count the guests of flavors that fit.",
        ("POST", "/ext/v1/capacity"),
        old_name="placement:ext:capacity",
    ),
]
