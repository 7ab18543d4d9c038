"""Tests of the default policy rules: which roles may call which operations."""

import pytest

from placement.api.context import RequestContext
from placement.conf import new_config
from placement.exceptions import Forbidden
from placement.policies import list_rules
from placement.policies.enforcer import PolicyEnforcer

ADMIN_OR_SERVICE = [
    "placement:allocation_candidates:list",
    "placement:allocations:delete",
    "placement:allocations:list",
    "placement:allocations:manage",
    "placement:allocations:update",
    "placement:ext:capacity:count",
    "placement:ext:changes:list",
    "placement:ext:claims:create",
    "placement:ext:claims:list",
    "placement:ext:claims:show",
    "placement:ext:claims:update",
    "placement:ext:availability:find",
    "placement:ext:explanations:explain",
    "placement:ext:resource_providers:attributes:list",
    "placement:ext:resource_providers:attributes:update",
    "placement:ext:reservations:create",
    "placement:ext:reservations:delete",
    "placement:ext:reservations:update",
    "placement:ext:trees:show",
    "placement:ext:trees:update",
    "placement:resource_classes:create",
    "placement:resource_classes:delete",
    "placement:resource_classes:list",
    "placement:resource_classes:show",
    "placement:resource_classes:update",
    "placement:resource_providers:aggregates:list",
    "placement:resource_providers:aggregates:update",
    "placement:resource_providers:allocations:list",
    "placement:resource_providers:create",
    "placement:resource_providers:delete",
    "placement:resource_providers:inventories:create",
    "placement:resource_providers:inventories:delete",
    "placement:resource_providers:inventories:list",
    "placement:resource_providers:inventories:show",
    "placement:resource_providers:inventories:update",
    "placement:resource_providers:list",
    "placement:resource_providers:show",
    "placement:resource_providers:traits:delete",
    "placement:resource_providers:traits:list",
    "placement:resource_providers:traits:update",
    "placement:resource_providers:update",
    "placement:resource_providers:usages",
    "placement:traits:delete",
    "placement:traits:list",
    "placement:traits:show",
    "placement:traits:update",
]
RESHAPE = "placement:reshaper:reshape"
MAINTENANCE = "placement:ext:reservations:create:maintenance"
FOR_READERS = [
    "placement:ext:reservation_calendar:show",
    "placement:ext:reservations:list",
    "placement:ext:reservations:show",
    "placement:ext:time_events:list",
    "placement:usages",
]
FOR_MEMBERS = ["placement:ext:reservation_calendar:create", "placement:ext:reservation_calendar:delete"]

OURS, THEIRS = "0f1c", "77ab"
CALLERS = {
    "admin": {"roles": ["admin"], "project_id": THEIRS},
    "admin as keystone sends it": {"roles": ["admin", "member", "reader"], "project_id": OURS},
    "service": {"roles": ["service"], "project_id": THEIRS},
    "member": {"roles": ["member", "reader"], "project_id": OURS},
    "reader": {"roles": ["reader"], "project_id": OURS},
    "reader of another project": {"roles": ["reader"], "project_id": THEIRS},
    "member without reader": {"roles": ["member"], "project_id": OURS},
    "nobody": {"roles": [], "project_id": OURS},
    "system admin": {"roles": ["admin", "member", "reader"], "system_scope": "all"},
    "system reader": {"roles": ["reader"], "system_scope": "all"},
    "domain admin": {"roles": ["admin"], "domain_id": "default"},
}
ADMINS_AND_SERVICES = {"admin", "admin as keystone sends it", "service"}


@pytest.fixture(scope="module")
def enforcer():
    return PolicyEnforcer(new_config(config_files=[]))


def allowed(enforcer, rule, caller, target=None):
    try:
        enforcer.authorize(RequestContext(**CALLERS[caller]), rule, target)
    except Forbidden:
        return False
    return True


@pytest.mark.parametrize("rule", ADMIN_OR_SERVICE)
@pytest.mark.parametrize("caller", CALLERS)
def test_most_operations_are_for_admins_and_services_of_any_project(enforcer, rule, caller):
    assert allowed(enforcer, rule, caller) == (caller in ADMINS_AND_SERVICES)


@pytest.mark.parametrize("caller", CALLERS)
def test_only_services_reshape(enforcer, caller):
    assert allowed(enforcer, RESHAPE, caller) == (caller == "service")


@pytest.mark.parametrize("caller", CALLERS)
def test_only_admins_take_hosts_away(enforcer, caller):
    assert allowed(enforcer, MAINTENANCE, caller) == (caller in ADMINS_AND_SERVICES - {"service"})


@pytest.mark.parametrize("rule", FOR_READERS)
@pytest.mark.parametrize("caller", CALLERS)
def test_readers_see_what_is_of_their_own_project(enforcer, rule, caller):
    assert allowed(enforcer, rule, caller, {"project_id": OURS}) == (
        caller in ADMINS_AND_SERVICES | {"member", "reader"}
    )


@pytest.mark.parametrize("rule", FOR_MEMBERS)
@pytest.mark.parametrize("caller", CALLERS)
def test_members_publish_what_is_of_their_own_project(enforcer, rule, caller):
    assert allowed(enforcer, rule, caller, {"project_id": OURS}) == (
        caller in ADMINS_AND_SERVICES | {"member", "member without reader"}
    )


def test_without_new_defaults_admins_reshape_too():
    conf = new_config(config_files=[])
    conf.set_override("enforce_new_defaults", False, group="oslo_policy")
    enforcer = PolicyEnforcer(conf)
    assert [caller for caller in CALLERS if allowed(enforcer, RESHAPE, caller)] == [
        "admin",
        "admin as keystone sends it",
        "service",
    ]


def test_every_operation_has_a_rule_and_every_rule_is_tested_here():
    names = [rule.name for rule in list_rules() if rule.name.startswith("placement:")]
    assert sorted(names) == sorted([*ADMIN_OR_SERVICE, RESHAPE, MAINTENANCE, *FOR_READERS, *FOR_MEMBERS])


def test_rules_that_others_are_made_of_keep_their_names():
    assert [rule.name for rule in list_rules() if not rule.name.startswith("placement:")] == [
        "admin_api",
        "service_api",
        "admin_or_service_api",
        "project_reader_api",
        "admin_or_project_reader_or_service_api",
    ]
