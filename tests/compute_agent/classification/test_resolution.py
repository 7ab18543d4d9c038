"""Tests of a guest's settings from several sources: which value is used, and messages about all other
values.
"""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from oslo_config import cfg

from compute_agent.classification.resolution import ClassificationPolicy, parse_policy, resolve_settings
from compute_agent.classification.rules import GuestFacts, KnownClasses, make_rule
from compute_agent.model.guest import GuestIdentity
from compute_agent.model.guest_settings import (
    DEFAULT_VALUES,
    SETTING_NAMES,
    EmulatorPolicy,
    IsolationLevel,
    MemoryType,
    SettingSource,
    ThreadPolicy,
    read_setting,
    setting_text,
)

KNOWN = KnownClasses(frozenset({"BE", "LS", "LSR"}), frozenset({"bulk"}), frozenset({"fast"}))
VALUES = {
    "qos_class": ["BE", "LS", "LSR"],
    "priority": [0, -3, 7],
    "resctrl": ["", "{}"],
    "blockio_class": ["", "bulk"],
    "cpu_class": ["", "fast"],
    "isolation": list(IsolationLevel),
    "memory_type": list(map(type(DEFAULT_VALUES["memory_type"]), ("any", "dram"))),
    "spread": [False, True],
    "thread_policy": list(ThreadPolicy),
    "emulator_policy": list(EmulatorPolicy),
    "preserve": [False, True],
}
LAYER = st.fixed_dictionaries({}, optional={name: st.sampled_from(VALUES[name]) for name in SETTING_NAMES})


def facts(specs=None, properties=None, **identity):
    identity |= {"extra_specs": specs or {}, "image_properties": properties or {}}
    return GuestFacts("libvirt", identity=GuestIdentity(**identity))


@given(LAYER, LAYER, LAYER, LAYER, LAYER, st.sampled_from(VALUES["qos_class"]))
def test_each_setting_is_that_of_its_strongest_source(by_hand, fleet, domain, flavor, rule, default):
    policy = ClassificationPolicy(
        (make_rule("r", 0, {"driver": ["libvirt"]}, rule),),
        default,
        {},
        known=KNOWN,
    )
    specs = {f"compute_agent:{name}": setting_text(value) for name, value in flavor.items()}
    manual = {SettingSource.BY_HAND: by_hand, SettingSource.FLEET: fleet}
    found = resolve_settings(policy, facts(specs), 3, domain, manual=manual)
    assert found.problems == ()
    assert (found.settings.vcpus, found.rule) == (3, "r")
    for name in SETTING_NAMES:
        for source, layer in (
            ("by hand", by_hand),
            ("fleet", fleet),
            ("domain", domain),
            ("flavor", flavor),
            ("rule r", rule),
            ("default", {**DEFAULT_VALUES, "qos_class": default}),
        ):
            if name in layer:
                assert (getattr(found.settings, name), found.sources[name]) == (layer[name], source)
                break


@given(st.sampled_from(SETTING_NAMES), st.data())
def test_a_value_is_read_from_its_own_text(name, data):
    value = data.draw(st.sampled_from(VALUES[name]))
    assert read_setting(name, setting_text(value)) == value


def test_extra_specs_that_are_not_trusted_misspelt_or_wrong_do_not_count_and_are_told():
    specs = {
        "compute_agent:preserve": "true",
        "compute_agent:colour": "blue",
        "compute_agent:priority": "high",
        "compute_agent:qos_class": "BE",
        "hw_rng:allowed": "True",
    }
    found = resolve_settings(ClassificationPolicy(known=KNOWN), facts(specs))
    assert (found.settings.preserve, found.settings.priority, found.settings.qos_class) == (False, 0, "BE")
    assert len(found.problems) == 3
    assert (
        "compute_agent:preserve has no effect, because [guests] flavor_settings does not list it"
        in found.problems[0]
    )
    assert "no setting compute_agent:colour" in found.problems[1]
    assert "compute_agent:priority = 'high' cannot be used (a whole number" in found.problems[2]


def test_misspelt_names_and_unknown_classes_of_flavors_and_images_are_told():
    specs = {"compute_agent:qosclass": "LSR", "compute_agent:qos_class": "LSX"}
    properties = {"compute_agent_presreve": "true", "compute_agent": "x"}
    found = resolve_settings(ClassificationPolicy(known=KNOWN), facts(specs, properties))
    assert [problem.partition("; there are")[0] for problem in found.problems] == [
        "flavor: there is no setting compute_agent:qosclass; did you mean compute_agent:qos_class?",
        "flavor: compute_agent:qos_class: there is no class 'LSX'",
        "image: there is no setting compute_agent_presreve; did you mean compute_agent_preserve?",
    ]


def test_a_class_that_is_not_there_is_told_and_protects_the_guest():
    found = resolve_settings(
        ClassificationPolicy(known=KNOWN), facts(), declared={"qos_class": "HP", "cpu_class": "slow"}
    )
    assert (found.settings.qos_class, found.settings.cpu_class) == ("HP", "")
    assert "qos_class (domain): there is no class 'HP'" in found.problems[0]
    assert "cpu_class (domain): there is no class of CPUs 'slow'" in found.problems[1]


@pytest.mark.parametrize(
    ("flavor", "image", "policy", "source", "is_problem"),
    [
        (None, "isolate", ThreadPolicy.ISOLATE, "image", False),
        ("prefer", "isolate", ThreadPolicy.PREFER, "flavor", False),
        ("require", "require", ThreadPolicy.REQUIRE, "flavor", False),
        ("require", "isolate", ThreadPolicy.REQUIRE, "flavor", True),
        ("require", None, ThreadPolicy.REQUIRE, "flavor", False),
        (None, None, ThreadPolicy.PREFER, "default", False),
        (None, "sideways", ThreadPolicy.PREFER, "default", True),
    ],
)
def test_thread_policies_of_flavor_and_image_meet_as_in_nova(flavor, image, policy, source, is_problem):
    specs = {} if flavor is None else {"hw:cpu_thread_policy": flavor}
    properties = {} if image is None else {"hw_cpu_thread_policy": image}
    found = resolve_settings(ClassificationPolicy(), facts(specs, properties))
    assert (found.settings.thread_policy, found.sources["thread_policy"]) == (policy, source)
    assert bool(found.problems) is is_problem


def test_image_properties_count_only_where_they_are_named():
    properties = {
        "compute_agent_qos_class": "BE",
        "hw_emulator_threads_policy": "isolate",
        "os_type": "linux",
    }
    found = resolve_settings(ClassificationPolicy(known=KNOWN), facts(properties=properties))
    assert (found.settings.qos_class, found.sources["emulator_policy"]) == ("LS", "image")
    assert found.problems == (
        "image: compute_agent_qos_class has no effect, because [guests] image_settings does not list it",
    )
    trusting = ClassificationPolicy(image_settings=frozenset({"compute_agent_qos_class"}), known=KNOWN)
    found = resolve_settings(trusting, facts(properties=properties))
    assert (found.settings.qos_class, found.settings.emulator_policy) == ("BE", EmulatorPolicy.SHARE)


def test_problems_of_one_guest_are_bounded():
    specs = {f"compute_agent:x{number}": "\x1b[2J" * 1000 for number in range(10_000)}
    problems = resolve_settings(ClassificationPolicy(), facts(specs)).problems
    assert len(problems) <= 20
    assert all(len(problem) < 300 and problem.isprintable() for problem in problems)


@pytest.mark.parametrize(
    ("specs", "by_rule", "told"),
    [
        ({"hw:cpu_thread_policy": "isolate"}, {}, []),
        ({}, {"thread_policy": ThreadPolicy.ISOLATE}, ["thread_policy = isolate (rule r)"]),
        ({}, {"emulator_policy": EmulatorPolicy.ISOLATE}, ["emulator_policy = isolate (rule r)"]),
        ({"compute_agent:spread": "true"}, {}, ["spread = true (flavor)"]),
        ({}, {"spread": True, "preserve": True}, []),
        ({}, {"qos_class": "BE", "memory_type": MemoryType.HBM}, []),
    ],
)
def test_settings_of_positions_that_nova_does_not_read_are_told(specs, by_rule, told):
    rules = (make_rule("r", 0, {"driver": ["libvirt"]}, by_rule),)
    found = resolve_settings(ClassificationPolicy(rules, follows=True), facts(specs))
    assert [problem.partition(" has no effect")[0] for problem in found.problems] == told
    assert all("in the flavor" in problem for problem in found.problems)
    assert resolve_settings(ClassificationPolicy(rules), facts(specs)).problems == ()


@pytest.mark.parametrize(("source", "option"), [("label", "label_settings"), ("unit", "unit_settings")])
def test_declared_settings_count_only_if_the_operator_lists_them(load, source, option):
    policy = parse_policy(load(f"[guests]\n{option} = qos_class=LS, qos_class = BE, priority"))
    declared = {"qos_class": "LSR", "priority": 3, "resctrl": "A", "isolation": IsolationLevel.ALONE}
    found = resolve_settings(policy, facts(), declared=declared, declared_by=SettingSource(source))
    assert (found.settings.qos_class, found.settings.priority, found.settings.resctrl) == ("LS", 3, "")
    assert found.sources["qos_class"] == "default"
    remedy = f"list it there, or remove it from the {source}"
    assert found.problems == (
        f"{source}: qos_class = LSR has no effect, because [guests] {option} lists qos_class only with BE,"
        f" LS: {remedy}",
        f"{source}: resctrl = A has no effect, because [guests] {option} does not list it: {remedy}",
        f"{source}: isolation = alone has no effect, because [guests] {option} does not list it: {remedy}",
    )
    found = resolve_settings(policy, facts(), declared={"qos_class": "BE"}, declared_by=SettingSource(source))
    assert (found.settings.qos_class, found.sources["qos_class"], found.problems) == ("BE", source, ())


@pytest.mark.parametrize("option", ["label_settings", "unit_settings", "flavor_settings"])
def test_a_listed_annotation_can_contain_commas(load, option):
    annotation = '{"LLC": {"schemata": {"range": [0, 25]}}, "MB": {"schemata": {"percent": 30}}}'
    policy = parse_policy(load(f"[guests]\n{option} = qos_class=LS, resctrl = {annotation}, priority"))
    (allowed,) = (one for one in policy.allowed.values() if one.option == option)
    assert allowed.values == {"qos_class": {"LS"}, "resctrl": {annotation}, "priority": None}
    assert allowed.explain_refusal("resctrl", annotation) == ""
    assert "only with" in allowed.explain_refusal("resctrl", "{}")


def test_a_list_with_a_brace_that_is_not_closed_is_refused(load):
    with pytest.raises(cfg.Error, match="is not closed"):
        load('[guests]\nlabel_settings = resctrl={"LLC": 1, priority')


def test_an_empty_list_allows_no_declared_setting_and_the_default_allows_all(load):
    declared = {"qos_class": "BE", "preserve": True}
    nothing = parse_policy(load("[guests]\nlabel_settings ="))
    found = resolve_settings(nothing, facts(), declared=declared, declared_by=SettingSource.LABEL)
    assert (found.settings.qos_class, len(found.problems)) == ("LS", 2)
    # The option is about labels only.
    found = resolve_settings(nothing, facts(), declared=declared, declared_by=SettingSource.DOMAIN)
    assert (found.settings.qos_class, found.problems) == ("BE", ())
    found = resolve_settings(
        parse_policy(load("")), facts(), declared=declared, declared_by=SettingSource.LABEL
    )
    assert (found.settings.qos_class, found.problems) == ("BE", ())


def test_flavors_choose_only_the_values_that_the_operator_lists(load):
    policy = parse_policy(load("[guests]\nflavor_settings = qos_class=BE, priority=1, priority"))
    found = resolve_settings(policy, facts({"compute_agent:qos_class": "LSR", "compute_agent:priority": "9"}))
    assert (found.settings.qos_class, found.settings.priority) == ("LS", 9)
    assert found.problems == (
        "flavor: compute_agent:qos_class has no effect, because [guests] flavor_settings lists qos_class only"
        " with BE",
    )


def test_a_guest_without_room_has_class_be_unless_it_is_preserved():
    waiting = replace(facts(), without_room=True)
    policy = ClassificationPolicy(waits_for_room=True)
    manual = {SettingSource.BY_HAND: {"qos_class": "LSR"}}
    found = resolve_settings(policy, waiting, manual=manual)
    assert (found.settings.qos_class, found.deferred_class) == ("BE", "LSR")
    assert found.sources["qos_class"] == "no room"
    for other, declared in ((policy, {"preserve": True}), (ClassificationPolicy(), {})):
        found = resolve_settings(other, waiting, declared=declared, manual=manual)
        assert (found.settings.qos_class, found.deferred_class) == ("LSR", "")
