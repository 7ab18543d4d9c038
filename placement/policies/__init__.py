"""The policy rules of the service (oslo.policy): names, defaults, and decisions.

Modules
    - ``base`` has the common parts of rules, such as "an administrator or a service".
    - ``rest`` has the rules for the resources of OpenStack Placement, and ``ext`` has the rules for
      ``/ext/v1``. In ``rest`` and ``ext``, constants have the names of the rules, and ``RULES`` has their
      defaults.
    - ``enforcer`` decides with these defaults and the operator's policy files.

The order of calls
    The service makes one :class:`~placement.policies.enforcer.PolicyEnforcer` when it starts. Most handlers
    are registered with a rule, and the API calls
    :meth:`~placement.policies.enforcer.PolicyEnforcer.authorize` before the handler runs. The other handlers
    call this method themselves. The tools of oslo.policy find :func:`list_rules` and
    :func:`~placement.policies.enforcer.get_enforcer` by entry points.

Imports
    The API and the extras import this package. This package imports the options, and it imports
    ``extensions`` because extensions register rules.
"""

from oslo_policy import policy

from placement import extensions
from placement.policies import base, ext, rest


def list_rules() -> list[policy.RuleDefault]:
    """Return all rules with their defaults, also for oslo.policy's tools (``oslo.policy.policies``)."""
    return [*base.RULES, *rest.RULES, *ext.RULES] + [
        rule for rules in extensions.registered_objects("rules").values() for rule in rules
    ]
