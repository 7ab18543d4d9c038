"""Tests of rules that match guests, against brute force, and as sections of a configuration."""

import fnmatch
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compute_agent import conf as agent_conf
from compute_agent.classification.resolution import parse_known_classes, parse_policy
from compute_agent.classification.rules import GuestFacts, first_match, make_rule, parse_rules
from compute_agent.model.guest import GuestIdentity
from compute_agent.model.guest_settings import MemoryType, ThreadPolicy
from compute_agent.model.messages import ConfigError

WORDS = st.sampled_from(["a", "ab", "b", "gold.small", "gold.big", "x-1"])
PATTERNS = st.sampled_from(["a", "a*", "?", "gold.*", "[ab]", "x-[0-9]", "*", "b*"])
KEYS = st.sampled_from(["k", "hw:policy"])
TEXTS = st.lists(PATTERNS, max_size=2)
PAIRS = st.lists(st.tuples(KEYS, PATTERNS | st.none()), max_size=3)

FACTS = st.builds(
    GuestFacts,
    driver=WORDS,
    name=WORDS,
    identity=st.builds(
        GuestIdentity,
        display_name=WORDS | st.just(""),
        flavor=WORDS | st.just(""),
        extra_specs=st.dictionaries(KEYS, WORDS),
        project_id=WORDS | st.just(""),
        project_name=WORDS | st.just(""),
        image_properties=st.dictionaries(KEYS, WORDS),
        cgroup=st.sampled_from(["", "/system.slice/a", "/ab"]),
    ),
    project_id=WORDS | st.just(""),
    consumer_type=WORDS | st.just(""),
    resource_classes=st.frozensets(WORDS),
    traits=st.frozensets(WORDS),
)
MATCHES = st.fixed_dictionaries(
    {},
    optional={
        **dict.fromkeys(("driver", "flavor", "project", "name", "consumer_type", "trait", "cgroup"), TEXTS),
        **dict.fromkeys(("extra_specs", "image_properties"), PAIRS),
    },
)


def words_of(match, facts):
    """The properties of a guest that a match concerns, computed independently of the tested code."""
    its = facts.identity
    return {
        "driver": [facts.driver],
        "flavor": [its.flavor],
        "project": [its.project_id, its.project_name, facts.project_id],
        "name": [facts.name, its.display_name],
        "consumer_type": [facts.consumer_type],
        "trait": list(facts.traits),
        "cgroup": [its.cgroup, its.cgroup.split("/")[-1]],
    }[match]


def judge(matches, facts):
    """Whether each match holds, by a test of each of its patterns."""
    for match, texts in matches.items():
        if match in ("extra_specs", "image_properties"):
            values = getattr(facts.identity, match)
            for key in {key for key, _ in texts}:
                patterns = ["*" if pattern is None else pattern for other, pattern in texts if other == key]
                if key not in values or not any(fnmatch.fnmatchcase(values[key], each) for each in patterns):
                    return False
        elif texts:
            words = [word for word in words_of(match, facts) if word]
            if not any(fnmatch.fnmatchcase(word, pattern) for word in words for pattern in texts):
                return False
    return True


def written(matches):
    """The matches in the form of a configuration file."""
    return {
        match: [
            text if isinstance(text, str) else text[0] if text[1] is None else f"{text[0]}={text[1]}"
            for text in texts
        ]
        for match, texts in matches.items()
    }


@given(MATCHES, FACTS)
def test_a_rule_matches_where_all_of_its_matches_do(matches, facts):
    assert make_rule("r", 0, written(matches), {}).matches_guest(facts) is judge(matches, facts)


@given(st.lists(MATCHES, max_size=4), FACTS)
def test_the_first_rule_that_matches_is_the_one_that_counts(several, facts):
    rules = [make_rule(str(number), number, written(each), {}) for number, each in enumerate(several)]
    found = first_match(rules, facts)
    matching = [rule for rule, each in zip(rules, several, strict=True) if judge(each, facts)]
    assert found == (matching[0] if matching else None)


def rules_of(conf):
    return parse_rules(conf, parse_known_classes(conf))


def test_sections_are_read_in_their_order(load):
    conf = load(
        "[guest_rule:late]\nmatch_name = *\nqos_class = BE\n"
        "[guest_rule:first]\norder = 1\nmatch_flavor = gold.*, big\n"
        "match_extra_specs = hw:cpu_policy=dedicated\n"
        "qos_class = LSR\npriority = -3\nmemory_type = dram\nspread = yes\nthread_policy = isolate\n"
        "[guest_rule:early]\nmatch_project = lab\npreserve = true\n"
    )
    rules = rules_of(conf)
    assert [rule.name for rule in rules] == ["first", "early", "late"]
    assert rules[0].settings == {
        "qos_class": "LSR",
        "priority": -3,
        "memory_type": MemoryType.DRAM,
        "spread": True,
        "thread_policy": ThreadPolicy.ISOLATE,
    }
    of_lab = GuestIdentity(project_name="lab")
    pinned = replace(of_lab, flavor="gold.small", extra_specs={"hw:cpu_policy": "dedicated"})
    assert first_match(rules, GuestFacts("libvirt", identity=pinned)).name == "first"
    assert first_match(rules, GuestFacts("libvirt", identity=of_lab)).name == "early"
    assert first_match(rules, GuestFacts("process", name="x")).name == "late"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("qos_class = BE", "the rule has no match_ option"),
        ("match_name = *\nqos_class = HP", "qos_class: there is no class 'HP'"),
        ("match_name = *\nblockio_class = HP", "blockio_class: there is no class of block I/O 'HP'"),
        ("match_name = *\ncpu_class = HP", "cpu_class: there is no class of CPUs 'HP'"),
        ("match_name = *\nresctrl = {", "resctrl = { cannot be used"),
        ("match_extra_specs = =x", "'=x' has no key"),
    ],
)
def test_a_section_that_cannot_be_meant_is_refused(load, text, words):
    with pytest.raises(ConfigError, match=rf"\[guest_rule:r\].*{words}"):
        rules_of(load(f"[guest_rule:r]\n{text}\n"))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[guest_rule:r]\nmatch_flavour = x\n", "match_flavour"),
        ("[guest_rule:r]\nmatch_name = *\nmemory_type = ddr\n", "memory_type"),
        ("[guest_rules]\n", "there is no such section"),
    ],
)
def test_misspelt_sections_options_and_values_are_refused_when_files_are_read(load, text, words):
    with pytest.raises(agent_conf.cfg.Error, match=words):
        load(text)


@pytest.mark.parametrize(
    ("option", "words"),
    [
        ("default_qos_class = HP", "default_qos_class: there is no class 'HP'"),
        ("flavor_settings = qos_class, colour", "flavor_settings: there is no setting colour"),
        ("label_settings = uuid", "label_settings: there is no setting uuid"),
        ("label_settings = qos_class=HP", "label_settings: there is no class 'HP'"),
        ("unit_settings = priority=high", "unit_settings: priority=high cannot be used"),
        ("image_settings = os_type", "image_settings: os_type is not a property with a setting"),
    ],
)
def test_options_of_guests_that_name_nothing_are_refused(load, option, words):
    with pytest.raises(ConfigError, match=words):
        parse_policy(load(f"[guests]\n{option}\n"))
