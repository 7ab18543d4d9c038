"""Common parts of policy rules, and the function that defines the rule of an operation.

The names and defaults of rules are the same as in "Placement Policies" of the OpenStack Placement
documentation. So a policy file has the same effect in OpenStack Placement and in this service.
"""

from typing import Final

from oslo_policy import policy

ADMIN: Final = "rule:admin_api"
ADMIN_OR_SERVICE: Final = "rule:admin_or_service_api"
ADMIN_OR_PROJECT_READER_OR_SERVICE: Final = "rule:admin_or_project_reader_or_service_api"
SERVICE: Final = "rule:service_api"

_PROJECT: Final = ["project"]

_ADMIN_BEFORE_SERVICE: Final = policy.DeprecatedRule(
    name="rule:admin_api",
    check_str="role:admin",
    deprecated_reason="Operations of other services require the service role",
    deprecated_since="W",
)

RULES: Final = [
    policy.RuleDefault(
        "admin_api",
        "role:admin",
        description="An administrator.",
        scope_types=_PROJECT,
    ),
    policy.RuleDefault(
        "service_api",
        "role:service",
        description="Another service.",
        scope_types=_PROJECT,
        deprecated_rule=_ADMIN_BEFORE_SERVICE,
    ),
    policy.RuleDefault(
        "admin_or_service_api",
        "role:admin or role:service",
        description="Default of most operations: an administrator or another service.",
        scope_types=_PROJECT,
    ),
    policy.RuleDefault(
        "project_reader_api",
        "role:reader and project_id:%(project_id)s",
        description="A reader of the project that the request is about.",
    ),
    policy.RuleDefault(
        "admin_or_project_reader_or_service_api",
        "role:admin or rule:project_reader_api or role:service",
        description="Default of operations that show a project: an administrator, another service, or a"
        " reader of the project.",
        scope_types=_PROJECT,
    ),
]


def define_rule(
    name: str,
    description: str,
    *operations: tuple[str, str],
    check: str = ADMIN_OR_SERVICE,
    old_name: str | None = None,
) -> policy.DocumentedRuleDefault:
    """Return the policy rule for operations (pairs of method and path), for tokens with project scope.

    :param check: the default of the rule.
    :param old_name: the former name of the rule, which policy files can still use.
    """
    return policy.DocumentedRuleDefault(
        name=name,
        check_str=check,
        description=description,
        operations=[{"method": method, "path": path} for method, path in operations],
        scope_types=_PROJECT,
        deprecated_rule=None if old_name is None else _former_rule(old_name, check),
    )


def _former_rule(old_name: str, check: str) -> policy.DeprecatedRule:
    return policy.DeprecatedRule(
        name=old_name,
        check_str=check,
        deprecated_reason="The new name is that of the guarded operation",
        deprecated_since="0.1.0",
    )
