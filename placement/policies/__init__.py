"""The rules of the service for oslo.policy: names, defaults, and decisions.

Modules
    - ``base`` has the parts of all other rules, such as "an administrator or a service".
    - ``rest`` has the rules of the resources of OpenStack Placement, ``ext`` those of ``/ext/v1``. Each
      module names its rules in constants, and has their defaults in ``RULES``.
    - ``enforcer`` decides by these defaults and the operator's files.

The order of calls
    The service makes one :class:`~placement.policies.enforcer.PolicyEnforcer` when it starts. A handler names
    its rule, and the API calls :meth:`~placement.policies.enforcer.PolicyEnforcer.authorize` before the
    handler runs. oslo.policy's tools call :func:`list_rules` and
    :func:`~placement.policies.enforcer.get_enforcer` by entry points.

Imports
    The API and the extras import it. The package imports the options and ``extensions``: extensions register
    rules of their own.
"""

from oslo_policy import policy

from placement import extensions
from placement.policies import base, ext, rest


def list_rules() -> list[policy.RuleDefault]:
    """Return all rules with their defaults, for the generator of samples (``oslo.policy.policies``)."""
    return [*base.RULES, *rest.RULES, *ext.RULES] + [
        rule for rules in extensions.registered_objects("rules").values() for rule in rules
    ]
