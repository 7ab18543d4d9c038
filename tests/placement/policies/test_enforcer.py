"""Tests of the operator's policy files, and of their effect on decisions."""

import logging
import os

import pytest
from oslo_policy import policy

from placement.api.context import RequestContext
from placement.conf import new_config
from placement.exceptions import Forbidden
from placement.policies import enforcer as module
from placement.policies.enforcer import PolicyEnforcer

LIST = "placement:resource_providers:list"
SHOW = "placement:resource_providers:show"
USAGES = "placement:usages"


@pytest.fixture
def clock(monkeypatch):
    """A clock that advances only when the test says so."""

    class Clock:
        now = 1000.0

        def monotonic(self):
            return self.now

    clock = Clock()
    monkeypatch.setattr(module, "time", clock)
    return clock


@pytest.fixture
def conf(tmp_path):
    file = tmp_path / "placement.conf"
    file.write_text("[oslo_policy]\npolicy_file = policy.yaml\n")
    return new_config(config_files=[str(file)])


def write(path, text, version):
    """Write a file. Each version gets another time of change."""
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    os.utime(path, (1_600_000_000 + version, 1_600_000_000 + version))


def allowed(enforcer, rule, target=None, **caller):
    try:
        enforcer.authorize(RequestContext(**caller), rule, target)
    except Forbidden:
        return False
    return True


def test_a_refusal_says_which_rule_it_is(conf):
    with pytest.raises(Forbidden) as raised:
        PolicyEnforcer(conf).authorize(RequestContext(roles=["member"]), LIST)
    assert raised.value.detail == f"Policy does not allow {LIST} to be performed."


def test_a_rule_that_does_not_exist_is_an_error_and_no_permission(conf):
    with pytest.raises(policy.PolicyNotRegistered):
        PolicyEnforcer(conf).authorize(RequestContext(roles=["admin"]), "placement:unknown")


def test_the_operators_file_is_found_beside_the_configuration_and_counts(conf, tmp_path):
    write(tmp_path / "policy.yaml", f'"{LIST}": "role:auditor"\n', 1)
    enforcer = PolicyEnforcer(conf)
    assert allowed(enforcer, LIST, roles=["auditor"])
    assert not allowed(enforcer, LIST, roles=["admin"])
    assert allowed(enforcer, SHOW, roles=["admin"])


def test_a_json_file_of_old_counts_too(tmp_path):
    (tmp_path / "policy.json").write_text(f'{{"{LIST}": "@"}}')
    conf = new_config(config_files=[])
    conf.set_override("policy_file", str(tmp_path / "policy.json"), group="oslo_policy")
    assert allowed(PolicyEnforcer(conf), LIST, roles=[])


def test_a_file_in_a_policy_folder_counts_more_than_the_policy_file(conf, tmp_path):
    write(tmp_path / "policy.yaml", f'"{LIST}": "role:a"\n"{SHOW}": "role:a"\n', 1)
    write(tmp_path / "policy.d" / "b.yaml", f'"{LIST}": "role:b"\n', 1)
    enforcer = PolicyEnforcer(conf)
    assert not allowed(enforcer, LIST, roles=["a"])
    assert allowed(enforcer, LIST, roles=["b"])
    assert allowed(enforcer, SHOW, roles=["a"])


def test_a_rule_may_redefine_what_others_are_made_of(conf, tmp_path):
    write(tmp_path / "policy.yaml", '"admin_or_service_api": "role:operator"\n', 1)
    enforcer = PolicyEnforcer(conf)
    assert allowed(enforcer, LIST, roles=["operator"])
    assert not allowed(enforcer, LIST, roles=["admin"])


def test_a_rule_may_compare_the_caller_with_the_target(conf, tmp_path):
    write(tmp_path / "policy.yaml", f'"{LIST}": "user_id:%(user_id)s"\n', 1)
    enforcer = PolicyEnforcer(conf)
    assert allowed(enforcer, LIST, {"user_id": "a"}, user_id="a")
    assert not allowed(enforcer, LIST, {"user_id": "b"}, user_id="a")
    assert not allowed(enforcer, LIST, {}, user_id="a")


def test_without_a_target_the_callers_own_project_and_user_are_meant(conf):
    enforcer = PolicyEnforcer(conf)
    assert allowed(enforcer, USAGES, roles=["reader"], project_id="p")
    assert not allowed(enforcer, USAGES, {"project_id": "q"}, roles=["reader"], project_id="p")


def test_a_decision_for_one_caller_is_none_for_another(conf):
    enforcer = PolicyEnforcer(conf)
    for _ in range(2):
        assert allowed(enforcer, LIST, roles=["admin"], user_id="a")
        assert not allowed(enforcer, LIST, roles=["reader"], user_id="a")
        assert not allowed(enforcer, LIST, roles=["admin"], user_id="a", system_scope="all")
        assert allowed(enforcer, USAGES, {"project_id": "p"}, roles=["reader"], project_id="p")
        assert not allowed(enforcer, USAGES, {"project_id": "p"}, roles=["reader"], project_id="q")
        assert not allowed(enforcer, USAGES, {"project_id": "q"}, roles=["reader"], project_id="p")


def test_a_changed_file_counts_after_a_second_at_most(conf, tmp_path, clock):
    write(tmp_path / "policy.yaml", f'"{LIST}": "role:a"\n', 1)
    enforcer = PolicyEnforcer(conf)
    assert not allowed(enforcer, LIST, roles=["b"])
    write(tmp_path / "policy.yaml", f'"{LIST}": "role:b"\n', 2)
    clock.now += 1.0
    assert allowed(enforcer, LIST, roles=["b"])
    assert not allowed(enforcer, LIST, roles=["a"])


def test_a_file_that_appears_or_goes_counts(conf, tmp_path, clock):
    enforcer = PolicyEnforcer(conf)
    assert allowed(enforcer, LIST, roles=["admin"])
    write(tmp_path / "policy.d" / "a.yaml", f'"{LIST}": "!"\n', 1)
    clock.now += 1.0
    assert not allowed(enforcer, LIST, roles=["admin"])
    (tmp_path / "policy.d" / "a.yaml").unlink()
    clock.now += 1.0
    assert allowed(enforcer, LIST, roles=["admin"])


def test_a_policy_file_that_is_absent_for_a_moment_stays_in_force(conf, tmp_path, clock, caplog):
    file = tmp_path / "policy.yaml"
    write(file, f'"{LIST}": "!"\n', 1)
    enforcer = PolicyEnforcer(conf)
    file.unlink()
    for _ in range(59):
        clock.now += 1.0
        assert not allowed(enforcer, LIST, roles=["admin"])
    assert caplog.text.count(f"The policy file {file} is missing or empty") == 1
    write(file, f'"{LIST}": "role:b"\n', 2)
    clock.now += 1.0
    assert allowed(enforcer, LIST, roles=["b"])
    file.unlink()
    for _ in range(60):
        clock.now += 1.0
        decision = allowed(enforcer, LIST, roles=["admin"])
    assert decision


def test_a_policy_file_that_is_empty_for_a_moment_stays_in_force(conf, tmp_path, clock, caplog):
    file = tmp_path / "policy.yaml"
    write(file, f'"{LIST}": "!"\n', 1)
    enforcer = PolicyEnforcer(conf)
    write(file, "", 2)  # as programs do that are about to write it again
    clock.now += 1.0
    assert not allowed(enforcer, LIST, roles=["admin"])
    file.unlink()
    clock.now += 1.0
    assert not allowed(enforcer, LIST, roles=["admin"])
    write(file, "", 3)
    for _ in range(58):
        clock.now += 1.0
        decision = allowed(enforcer, LIST, roles=["admin"])
    assert decision  # a file that stays empty is meant to be empty
    assert caplog.text.count(f"The policy file {file} is missing or empty") == 1


@pytest.mark.parametrize("broken", ["{", '"placement', "- a\n- b\n", "just words\n"])
def test_a_file_broken_by_a_change_leaves_the_rules_in_force(conf, tmp_path, clock, caplog, broken):
    write(tmp_path / "policy.yaml", f'"{LIST}": "role:a"\n', 1)
    write(tmp_path / "policy.d" / "b.yaml", f'"{SHOW}": "role:b"\n', 1)
    enforcer = PolicyEnforcer(conf)
    write(tmp_path / "policy.d" / "b.yaml", broken, 2)
    clock.now += 1.0
    with caplog.at_level(logging.ERROR):
        assert allowed(enforcer, SHOW, roles=["b"])
    assert "earlier rules stay in force" in caplog.text
    assert allowed(enforcer, LIST, roles=["a"])
    assert not allowed(enforcer, SHOW, roles=["admin"])


def test_a_file_that_is_broken_from_the_start_stops_the_service(conf, tmp_path):
    write(tmp_path / "policy.yaml", "{", 1)
    with pytest.raises(ValueError, match=r"policy\.yaml cannot be used"):
        PolicyEnforcer(conf)


def test_an_empty_policy_file_changes_nothing(conf, tmp_path):
    write(tmp_path / "policy.yaml", "# nothing\n", 1)
    assert allowed(PolicyEnforcer(conf), LIST, roles=["admin"])


def test_a_check_that_depends_on_more_than_the_caller_is_asked_every_time(conf, tmp_path):
    class Tossed(policy.Check):
        tosses = iter([True, False, True])

        def __call__(self, target, creds, enforcer, current_rule=None):
            return next(self.tosses)

    policy.register("tossed", Tossed)
    write(tmp_path / "policy.yaml", f'"{LIST}": "role:a and not tossed:coin"\n', 1)
    enforcer = PolicyEnforcer(conf)
    assert [allowed(enforcer, LIST, roles=["a"]) for _ in range(3)] == [False, True, False]


def test_decisions_of_checks_that_depend_on_the_caller_alone_are_remembered(conf, monkeypatch):
    enforcer = PolicyEnforcer(conf)
    assert allowed(enforcer, LIST, roles=["admin"])
    monkeypatch.setattr(policy.Enforcer, "authorize", None)
    assert allowed(enforcer, LIST, roles=["admin"])


@pytest.mark.parametrize(
    ("name", "old_name"),
    [
        ("placement:ext:explanations:explain", "placement:ext:explanations:list"),
        ("placement:ext:capacity:count", "placement:ext:capacity"),
        ("placement:ext:reservations:show", "placement:ext:reservations:list"),
    ],
)
def test_a_rule_under_its_former_name_counts_and_the_log_says_so(conf, tmp_path, caplog, name, old_name):
    write(tmp_path / "policy.yaml", f'"{old_name}": "role:auditor"\n', 1)
    enforcer = PolicyEnforcer(conf)
    assert allowed(enforcer, name, roles=["auditor"])
    assert not allowed(enforcer, name, roles=["admin"])
    assert f"The policy files set the rule {name} under its former name {old_name}" in caplog.text


def test_a_rule_under_both_names_goes_by_its_own(conf, tmp_path, caplog):
    rules = '"placement:ext:capacity": "role:auditor"\n"placement:ext:capacity:count": "role:planner"\n'
    write(tmp_path / "policy.yaml", rules, 1)
    enforcer = PolicyEnforcer(conf)
    assert allowed(enforcer, "placement:ext:capacity:count", roles=["planner"])
    assert not allowed(enforcer, "placement:ext:capacity:count", roles=["auditor"])
    assert "former name" not in caplog.text
