"""The policy rules of the service (oslo.policy): names, defaults, and decisions.

Modules
    - ``base`` has common parts of rules, such as "an administrator or a service".
    - ``rest`` has the rules for the resources of OpenStack Placement, ``ext`` the rules for ``/ext/v1``. In
      each of these modules, constants have the names of rules, and ``RULES`` has their defaults.
    - ``enforcer`` decides by these defaults and the operator's policy files.

The order of calls
    The service makes one :class:`~placement.policies.enforcer.PolicyEnforcer` when it starts. A handler names
    its rule, and the API calls :meth:`~placement.policies.enforcer.PolicyEnforcer.authorize` before the
    handler runs. oslo.policy's tools call :func:`list_rules` and
    :func:`~placement.policies.enforcer.get_enforcer` by entry points.

Imports
    The API and the extras import this package. The package imports the options, and ``extensions``, because
    extensions register rules.
"""

from oslo_policy import policy

from placement import extensions
from placement.policies import base, ext, rest


def list_rules() -> list[policy.RuleDefault]:
    """Return all rules with their defaults, for the generator of samples (``oslo.policy.policies``)."""
    return [*base.RULES, *rest.RULES, *ext.RULES] + [
        rule for rules in extensions.registered_objects("rules").values() for rule in rules
    ]
