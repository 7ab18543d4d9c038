"""Tests that classes and annotations with the same effect share one group, which leaves CLOSIDs for
guests.
"""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compute_agent.classes.guest_classes import DEFAULT_CLASSES
from compute_agent.resctrl.bandwidth import choose_codec
from compute_agent.resctrl.groups import DEFAULT_GROUP, ControlGroup, ResctrlGroups, read_groups
from compute_agent.resctrl.layout import build_layout
from compute_agent.resctrl.mount import read_platform
from compute_agent.resctrl.resolution import GuestDemand, resolve_groups, share_groups
from compute_agent.resctrl.schemata import Schemata
from compute_agent.resctrl.share_spec import ShareSpec, WayRange
from tests.compute_agent.resctrl import fake

HALF, ALSO_HALF, CAPPED = ShareSpec(WayRange(0, 50)), ShareSpec(WayRange(0, 50), mb=100), ShareSpec(mb=50)


@pytest.fixture(scope="module")
def hosts(tmp_path_factory):
    """A host of each kind, with its groups."""
    made = {}
    for name, machine, gbps in (
        ("intel", replace(fake.INTEL, closids=4, mb_closids=4), None),
        ("roomy", fake.INTEL, None),
        ("mbps", fake.INTEL_MBPS, 20),
        ("amd", fake.AMD, None),
        ("amd with a limit", fake.AMD, 100),
        ("arm", fake.ARM, None),
    ):
        files = fake.FakeResctrl.of(machine, tmp_path_factory.mktemp(name.replace(" ", "-")) / "tree")
        platform, present = read_platform(files, machine.cpuinfo), read_groups(files)
        made[name] = build_layout(platform, choose_codec(platform, gbps), present, "ours.", 2), present
    return made


def test_four_closids_are_enough_for_two_guests_with_exclusive_ways(hosts):
    host, present = hosts["intel"]
    cache = host.platform.l3.ids[0]
    found = resolve_groups(
        host, DEFAULT_CLASSES, [GuestDemand(name, "LS", {cache: 4}) for name in "ab"], present
    )
    assert found.refused == {}
    assert found.groups.keys() == {DEFAULT_GROUP, "ours.class.BE", "ours.guest.a", "ours.guest.b"}
    one, two = (found.groups[f"ours.guest.{name}"].exclusive[cache] for name in "ab")
    assert (len(one), len(two), bool(one & two)) == (4, 4, False)


@pytest.mark.parametrize(
    ("host", "classes", "groups"),
    [
        ("intel", {"A": ShareSpec(WayRange(0, 100), mb=100), "B": ShareSpec()}, {"A": "", "B": ""}),
        (
            "intel",
            {"A": HALF, "B": ShareSpec(WayRange(0, 50), mb=100)},
            {"A": "ours.class.A", "B": "ours.class.A"},
        ),
        ("intel", {"A": CAPPED, "B": CAPPED}, {"A": "ours.class.A", "B": "ours.class.A"}),
        ("mbps", {"A": CAPPED, "B": CAPPED}, {"A": "ours.class.A", "B": "ours.class.B"}),
        (
            "amd",
            {"A": CAPPED, "B": CAPPED, "C": ShareSpec()},
            {"A": "ours.class.A", "B": "ours.class.B", "C": ""},
        ),
        (
            "amd with a limit",
            {"A": ShareSpec(), "B": ShareSpec()},
            {"A": "ours.class.A", "B": "ours.class.A"},
        ),
        ("arm", {"A": HALF, "B": ShareSpec()}, {"A": "ours.class.A", "B": ""}),
    ],
)
def test_equal_classes_share_a_group_unless_they_would_share_a_cap(hosts, host, classes, groups):
    assert share_groups(*(hosts[host][0], classes, hosts[host][1])).by_class == groups


def test_no_class_uses_a_capped_default_group(hosts):
    host, present = hosts["intel"]
    default = present.default_group
    capped = default.schemata.updated_with(Schemata({"MB": {host.platform.mb.ids[0]: 50}}))
    present = ResctrlGroups({**present.groups, DEFAULT_GROUP: replace(default, schemata=capped)})
    assert share_groups(host, DEFAULT_CLASSES, present).by_class == {
        "LSR": "ours.class.LSR",
        "LS": "ours.class.LSR",
        "BE": "ours.class.BE",
    }


def test_an_annotation_with_the_effect_of_a_class_needs_no_group(hosts):
    host, present = hosts["intel"]
    demands = [
        GuestDemand("a", "LS", share=DEFAULT_CLASSES["BE"]),
        GuestDemand("b", "BE", share=ShareSpec(WayRange(0, 100))),
        GuestDemand("c", "BE", share=ShareSpec(WayRange(0, 40))),
    ]
    found = resolve_groups(host, DEFAULT_CLASSES, demands, present)
    assert found.membership["a"] == "ours.class.BE"
    assert found.membership["b"] == DEFAULT_GROUP
    assert found.membership["c"].startswith("ours.wish.")


def test_the_old_group_of_a_class_is_removed_when_the_class_shares_another(hosts):
    host, present = hosts["intel"]
    full = present.default_group.schemata
    groups = {**present.groups, "ours.class.LS": ControlGroup("ours.class.LS", full)}
    found = resolve_groups(host, DEFAULT_CLASSES, [GuestDemand("a", "LS")], ResctrlGroups(groups))
    assert "ours.class.LS" not in found.groups
    assert found.membership == {"a": DEFAULT_GROUP}


wishes = st.builds(
    ShareSpec,
    st.sampled_from([None, WayRange(0, 100), WayRange(0, 50), WayRange(20, 80)]),
    st.just({}),
    st.sampled_from([None, 100, 50]),
)


@settings(deadline=None, max_examples=60)
@given(st.lists(wishes, min_size=1, max_size=3), st.integers(0, 5), st.sampled_from(["roomy", "amd", "arm"]))
def test_a_shared_group_has_the_schemata_of_a_separate_one(hosts, shares, ways, name):
    host, present = hosts[name]
    cache = host.platform.l3.ids[0]
    classes = {f"C{number}": wish for number, wish in enumerate(shares)}
    demands = [GuestDemand("guest", ways={cache: ways})]
    together = resolve_groups(host, classes, demands, present)
    assert not any("taken" in reason for reasons in together.refused.values() for reason in reasons)
    group_of = share_groups(host, classes, present).by_class
    for one, wish in classes.items():
        alone = resolve_groups(host, {one: wish}, demands, present)
        own = alone.groups[share_groups(host, {one: wish}, present).by_class[one]].schemata
        shown = together.groups[group_of[one]].schemata
        for resource, domain, value in own:
            assert shown.get_value(resource, domain) in (value, None)
