"""Who may do what: every rule of the service, a module per resource as in OpenStack Placement.

A module names its rules in constants and gives their defaults in ``RULES``.
"""

from oslo_policy import policy

from placement import extensions
from placement.policies import (
    aggregate,
    allocation,
    allocation_candidate,
    base,
    ext,
    inventory,
    reshaper,
    resource_class,
    resource_provider,
    trait,
    usage,
)


def list_rules() -> list[policy.RuleDefault]:
    """All rules with their defaults, for the sample generator (``oslo.policy.policies``)."""
    modules = (
        base,
        resource_provider,
        resource_class,
        inventory,
        aggregate,
        usage,
        trait,
        allocation,
        allocation_candidate,
        reshaper,
        ext,
    )
    core = [rule for module in modules for rule in module.RULES]
    return core + [rule for rules in extensions.registered_objects("rules").values() for rule in rules]
