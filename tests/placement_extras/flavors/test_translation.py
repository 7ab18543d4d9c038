"""Tests that flavors are translated as in records of Nova 34.0.0; ``make test-nova`` compares with Nova
itself.
"""

import re
from contextlib import nullcontext, suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from packaging.version import InvalidVersion, Version

from compute_agent.model.guest_settings import SETTING_NAMES
from placement.exceptions import InvalidRequest
from placement_extras.flavors.flavor import (
    INVALID_FLAVOR,
    MAX_CPUS,
    ImageProperties,
    NovaFlavor,
    PciAlias,
    TranslationRules,
    parse_cpus,
)
from placement_extras.flavors.guest import CHOICES, FLAGS, FREE, NUMBERS, check_comparisons
from placement_extras.flavors.translation import translate_flavor
from tests.examples import examples
from tests.placement_extras.flavors.answers import (
    AT_RANDOM,
    OF_UNIT_TESTS,
    REFUSED,
    judged,
    ours,
    recorded,
    translated,
)

RECORDED = recorded()
CHOSEN = [each for each in RECORDED if each["about"] not in (OF_UNIT_TESTS, AT_RANDOM)]


@pytest.mark.parametrize("case", CHOSEN, ids=[each["about"] for each in CHOSEN])
def test_a_flavor_is_translated_as_nova_does(case):
    assert ours(case) == judged(case["nova"])


@pytest.mark.parametrize("about", [OF_UNIT_TESTS, AT_RANDOM])
def test_many_flavors_are_translated_as_nova_does(about):
    cases = [each for each in RECORDED if each["about"] == about]
    assert len(cases) > 100
    assert 0.1 < sum(judged(each["nova"]) == REFUSED for each in cases) / len(cases) < 0.6
    assert [case for case in cases if ours(case) != judged(case["nova"])] == []


def test_a_refusal_is_one_sentence():
    for case in RECORDED:
        if judged(case["nova"]) == REFUSED:
            with pytest.raises(InvalidRequest) as caught:
                translated(case)
            assert caught.value.code == INVALID_FLAVOR
            assert re.fullmatch(r"No guest can have this flavor and image: .*[^.]\.", caught.value.detail)


def flavor(image=(), **specs):
    return NovaFlavor(
        4, 2048, extra_specs=tuple(specs.items()), image=ImageProperties(properties=tuple(image))
    )


_VERSIONS = st.from_regex(
    r"[v]?[0-9.!]{1,6}[-_.]?(a|rc|post|rev|dev|x)?[-_.]?[0-9]{0,2}(\+[a-zA-Z0-9.]{0,4})?"
)


@settings(max_examples=examples(200), deadline=None)
@given(st.sampled_from(("<", "<=", "==", "!=", ">=", ">", "=", "~=")), _VERSIONS | st.text(max_size=8))
def test_versions_are_those_of_pep_440(comparison: str, text: str) -> None:
    version = text.strip()
    try:
        right = bool(Version(version)) and comparison not in ("=", "~=")
    except InvalidVersion:
        right = False
    if "," in version or version[:1] in ("<", ">", "=", "!"):
        return
    given = f" {comparison} {version} "
    with nullcontext() if right else pytest.raises(ValueError, match=re.escape(given)):
        check_comparisons(given)


def test_equal_flavors_share_one_request_object():
    one, other = (
        translate_flavor(flavor(**{"hw:cpu_policy": "dedicated"}), TranslationRules()) for _ in range(2)
    )
    assert one.request is other.request


def test_a_flavor_has_a_fallback_only_with_the_option():
    pinned = flavor(**{"hw:cpu_policy": "dedicated", "hw:cpu_thread_policy": "isolate"})
    assert translate_flavor(pinned, TranslationRules()).fallback is None
    fallback = translate_flavor(pinned, TranslationRules(disable_fallback_pcpu_query=False)).fallback
    assert fallback is not None
    assert [(dict(each.resources), each.forbidden) for each in fallback.groups] == [
        ({"VCPU": 4, "MEMORY_MB": 2048}, frozenset())
    ]


GPU = PciAlias("gpu", "VGPU", frozenset({"CUSTOM_GOLD"}))


def test_pci_devices_are_groups_with_unused_suffixes():
    specs = {"pci_passthrough:alias": "gpu:2", "resources_PCI_0:CUSTOM_A": "1"}
    request = translate_flavor(flavor(**specs), TranslationRules(pci_aliases=(GPU,))).request
    assert {each.suffix: dict(each.resources) for each in request.groups if each.suffix} == {
        "_PCI_0": {"CUSTOM_A": 1},
        "_PCI_1": {"VGPU": 1},
        "_PCI_2": {"VGPU": 1},
    }
    assert request.group_policy == "none"


def test_too_many_pci_devices_are_refused():
    with pytest.raises(InvalidRequest, match="more than 256 devices"):
        translate_flavor(
            flavor(**{"pci_passthrough:alias": "gpu:999999999"}), TranslationRules(pci_aliases=(GPU,))
        )


def test_ignored_extra_specs_are_named():
    specs = {"resources:vgpu": "1", "resources:VGPU": "a", "trait:CUSTOM_A": "yes", "group_policy": "any"}
    assert translate_flavor(flavor(**specs), TranslationRules()).warnings == (
        "resources:vgpu names no resource class (did you mean VGPU?)",
        "resources:VGPU cannot be 'a', only a number from 0 on",
        "trait:CUSTOM_A cannot be 'yes', only required or forbidden",
        "group_policy cannot be 'any', only none or isolate",
    )


@pytest.mark.parametrize(
    ("specs", "image", "warnings"),
    [
        (
            {"hw:cpu_polic": "dedicated"},
            {},
            ["hw:cpu_polic is not an extra spec that Nova knows (did you mean hw:cpu_policy?)"],
        ),
        (
            {"hw_cpu_policy": "dedicated"},
            {},
            ["hw_cpu_policy is not an extra spec that Nova knows (did you mean hw:cpu_policy?)"],
        ),
        ({"quota:colour": "red"}, {}, ["quota:colour is not an extra spec that Nova knows"]),
        (
            {"compute_agent:qosclass": "LSR", "compute-agent:preserve": "true"},
            {},
            [
                "compute_agent:qosclass is not an extra spec that the agent knows (did you mean"
                " compute_agent:qos_class?)",
                "compute-agent:preserve is not an extra spec that the agent knows (did you mean"
                " compute_agent:preserve?)",
            ],
        ),
        (
            {"compute_agent:colour": "red"},
            {},
            ["compute_agent:colour is not an extra spec that the agent knows"],
        ),
        ({f"compute_agent:{name}": "" for name in SETTING_NAMES}, {}, []),
        ({"hw:numa_cpus.a": "1"}, {}, ["hw:numa_cpus.a is not an extra spec that Nova knows"]),
        (
            {},
            {"hw_disk_buss": "scsi"},
            ["hw_disk_buss is not an image property that Nova knows (did you mean hw_disk_bus?)"],
        ),
        (
            {},
            {"hw:disk_bus": "scsi"},
            ["hw:disk_bus is not an image property that Nova knows (did you mean hw_disk_bus?)"],
        ),
        (
            {},
            {"trait:CUSTOM_A": "forbidden"},
            ["the image property trait:CUSTOM_A cannot be 'forbidden', only required"],
        ),
        (
            {"hw:watchdog_action": "reset", "billing:weight": "2", "colour": "red"},
            {"os_distro": "debian"},
            [],
        ),
        (
            {
                "aggregate_instance_extra_specs:a:b": "1",
                "capabilities:cpu_info:arch": "x",
                "os:secure_boot": "optional",
            },
            {},
            [],
        ),
    ],
)
def test_names_without_an_effect_give_warnings(specs, image, warnings):
    assert translate_flavor(flavor(image.items(), **specs), TranslationRules()).warnings == tuple(warnings)


def test_warnings_of_a_flavor_are_bounded():
    warnings = translate_flavor(
        flavor(**{f"hw:{number}": "1" for number in range(100)}), TranslationRules()
    ).warnings
    assert (len(warnings), warnings[-1]) == (17, "84 more are not understood")


def test_names_that_nova_knows_give_no_warning():
    """The names come from Nova's own tests and from our cases."""
    said = [text for case in CHOSEN if ours(case) != REFUSED for text in translated(case).warnings]
    assert said == [
        "resources:VGPU cannot be 'many', only a number from 0 on",
        "resources:CUSTOM_A cannot be '-1', only a number from 0 on",
        "resources:vgpu names no resource class (did you mean VGPU?)",
        "resources:LLC names no resource class",
        "trait:CUSTOM_GOLD cannot be 'preferred', only required or forbidden",
        "the image property trait:CUSTOM_RUST cannot be 'forbidden', only required",
    ]


def test_own_classes_are_translated_like_standard_ones():
    specs = {"resources:LLC": "4", "resources_A:MBA": "10"}
    translation = translate_flavor(flavor(**specs), TranslationRules(own_classes=frozenset(("LLC", "MBA"))))
    assert translation.warnings == ()
    assert [dict(each.resources) for each in translation.request.groups] == [
        {"LLC": 4, "VCPU": 4, "MEMORY_MB": 2048},
        {"MBA": 10},
    ]


@pytest.mark.parametrize(
    ("specs", "image", "said"),
    [
        ({"hw:cpu_policy": "own"}, {}, "hw:cpu_policy cannot be 'own', only one of dedicated, mixed, shared"),
        ({"hw:numa_nodes": "3"}, {}, "4 CPUs and 2048 MiB cannot be divided into 3 nodes"),
        ({"hw:cpu_thread_policy": "isolate"}, {}, "needs dedicated or mixed CPUs"),
        ({}, {"hw_disk_bus": "floppy"}, "the image property hw_disk_bus cannot be 'floppy'"),
        (
            {"hw:numa_nodes": "2", "hw:numa_cpus.0": "0-1", "hw:numa_cpus.1": "2-3"},
            {"hw_numa_mem.0": "9" * 4300, "hw_numa_mem.1": "9" * 4300},
            "hw:numa_mem does not add up to the 2048 MiB of the flavor",
        ),
        ({"hw:tpm_version": "1.2"}, {"hw_tpm_version": "2.0"}, "'1.2', hw_tpm_version of the image '2.0'"),
        ({"resources1:VGPU": "1", "resources2:VGPU": "1"}, {}, "they need group_policy, none or isolate"),
        ({"trait1:CUSTOM_A": "required"}, {}, "the group 1 has traits, but no resources"),
        ({"pci_passthrough:alias": "a:1"}, {}, "there is no PCI alias 'a' in [flavors] pci_alias"),
    ],
)
def test_a_refusal_names_what_is_wrong(specs, image, said):
    with pytest.raises(InvalidRequest) as caught:
        translate_flavor(flavor(image.items(), **specs), TranslationRules())
    assert said in caught.value.detail


@pytest.mark.parametrize(
    ("text", "cpus"),
    [
        ("0-3,^2", {0, 1, 3}),
        (" 1 , ,3 - 4", {1, 3, 4}),
        ("^0,0-1", {1}),
        ("0,99999999999", {0, MAX_CPUS}),
        ("0-99999999999,^1-99999999999", {0}),
        ("", set()),
    ],
)
def test_a_list_of_cpus_is_parsed(text, cpus):
    assert parse_cpus(text) == sum(1 << cpu for cpu in cpus)


@pytest.mark.parametrize("text", ["a", "3-1", "-1", "1-", "^", "^^1", "1-2-3", "0x1"])
def test_an_invalid_list_of_cpus_is_refused(text):
    with pytest.raises(ValueError, match=r"invalid literal|3-1"):
        parse_cpus(text)


NAMES = [
    *(f"hw:{name.partition('_')[2]}" for name in (*CHOICES, *FLAGS, *NUMBERS, *FREE)),
    *(
        "hw:numa_cpus.0",
        "hw:numa_mem.0",
        "hw:cpu_dedicated_mask",
        "hw:cpu_realtime",
        "hw:pmem",
        "group_policy",
    ),
    *(
        "resources:VCPU",
        "resources1:PCPU",
        "trait:HW_CPU_HYPERTHREADING",
        "trait:",
        "resources:",
        "resources_:A",
    ),
]
PROPERTIES = [
    *CHOICES,
    *FLAGS,
    *NUMBERS,
    *FREE,
    "hw_numa_cpus.0",
    "hw_numa_mem.0",
    "trait:",
    "vmware_adaptertype",
]
VALUES = st.one_of(
    st.sampled_from([value for choice in CHOICES.values() for value in choice.values]),
    st.sampled_from(
        ["true", "1", "2", "-1", "0-1", "^0", "9" * 5000, "1" * 200 + "EB", "-.5b", "mixed", "isolate"]
    ),
    st.text(max_size=8),
)


@given(
    st.integers(1, MAX_CPUS),
    st.integers(0, 8192),
    st.dictionaries(st.sampled_from(NAMES), VALUES, max_size=6),
    st.dictionaries(st.sampled_from(PROPERTIES), VALUES, max_size=6),
    st.builds(TranslationRules, st.booleans(), st.booleans(), st.booleans()),
)
@settings(max_examples=examples(500), deadline=None)
def test_random_flavors_are_translated_or_refused(vcpus, ram, specs, properties, rules):
    asked = NovaFlavor(
        vcpus,
        ram,
        extra_specs=tuple(specs.items()),
        image=ImageProperties("raw", properties=tuple(properties.items())),
    )
    with suppress(InvalidRequest):
        check(translate_flavor(asked, rules).request)


def check(found):
    assert all(group.resources for group in found.groups)
    assert all(amount > 0 for group in found.groups for amount in group.resources.values())
    assert "COMPUTE_STATUS_DISABLED" in found.root_forbidden
