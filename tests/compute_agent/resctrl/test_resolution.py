"""Tests of resolving configuration and guests to exact schemata, on trees captured from real machines."""

import re
from dataclasses import replace

import pytest

from compute_agent.classes.guest_classes import DEFAULT_CLASSES, parse_annotation
from compute_agent.resctrl.bandwidth import BandwidthRate, choose_codec
from compute_agent.resctrl.groups import DEFAULT_GROUP, ControlGroup, ResctrlGroups, read_groups
from compute_agent.resctrl.layout import ResctrlLayout, build_layout
from compute_agent.resctrl.mount import read_platform
from compute_agent.resctrl.platform import BandwidthControl, CacheControl, CpuVendor, ResctrlPlatform
from compute_agent.resctrl.resolution import GuestDemand, resolve_groups
from compute_agent.resctrl.schemata import MaskRules, WayMask, parse_schemata
from compute_agent.resctrl.share_spec import ShareSpec, WayRange
from tests.compute_agent.resctrl import fake

PREFIX = "goresctrl."
"""The prefix of two of the four groups in the archive `full`."""

ANNOTATION = parse_annotation(
    """{"LLC": {"schemata": {"range": [20, 80]}, "schemataPerCache": [{"cacheid": 0, "range": [20, 50]}]},
        "MB": {"schemata": {"percent": 20}, "schemataPerCache": [{"cacheid": 1, "percent": 40}]}}"""
)
RANGE = ShareSpec(WayRange(20, 80))
BE = {"BE": DEFAULT_CLASSES["BE"]}
OVERRIDES = {"BE": ShareSpec(WayRange(0, 30), {0: WayRange(10, 50)}, 50, {0: 15})}

SCENARIOS = {
    "defaults": (DEFAULT_CLASSES, []),
    "allocation": (BE, [GuestDemand("a", "BE", {0: 4}, {0: 30})]),
    "annotation": (BE, [GuestDemand("a", "BE", share=ANNOTATION)]),
    "equal annotations": (BE, [GuestDemand("a", "BE", share=RANGE), GuestDemand("b", "BE", share=RANGE)]),
    "bandwidth only": (BE, [GuestDemand("a", "", {}, {0: 25})]),
    "all together": (
        OVERRIDES,
        [
            GuestDemand("a", "BE", {0: 3}),
            GuestDemand("b", "BE", {0: 2}, {0: 45}, RANGE),
            GuestDemand("c", "BE"),
        ],
    ),
}

TABLE = [
    (
        "full",
        "defaults",
        {
            "": "L3:0=fffff;1=fffff;2=fffff;3=fffff",
            "class.BE": "L3:0=3f;1=3f;2=3f;3=3f MB:0=100;1=100;2=100;3=100",
        },
        {},
        {},
    ),
    (
        "full",
        "allocation",
        {
            "": "L3:0=ffff0;1=fffff;2=fffff;3=fffff",
            "class.BE": "L3:0=1f0;1=3f;2=3f;3=3f MB:0=100;1=100;2=100;3=100",
            "guest.a": "L3:0=f;1=3f;2=3f;3=3f MB:0=30;1=100;2=100;3=100",
        },
        {"a": "guest.a"},
        {},
    ),
    (
        "full",
        "annotation",
        {
            "": "L3:0=fffff;1=fffff;2=fffff;3=fffff",
            "class.BE": "L3:0=3f;1=3f;2=3f;3=3f MB:0=100;1=100;2=100;3=100",
            "wish": "L3:0=3f0;1=fff0;2=fff0;3=fff0 MB:0=20;1=40;2=20;3=20",
        },
        {"a": "wish"},
        {},
    ),
    (
        "full",
        "equal annotations",
        {
            "": "L3:0=fffff;1=fffff;2=fffff;3=fffff",
            "class.BE": "L3:0=3f;1=3f;2=3f;3=3f MB:0=100;1=100;2=100;3=100",
            "wish": "L3:0=fff0;1=fff0;2=fff0;3=fff0 MB:0=100;1=100;2=100;3=100",
        },
        {"a": "wish", "b": "wish"},
        {},
    ),
    (
        "full",
        "bandwidth only",
        {
            "": "L3:0=fffff;1=fffff;2=fffff;3=fffff",
            "class.BE": "L3:0=3f;1=3f;2=3f;3=3f MB:0=100;1=100;2=100;3=100",
            "guest.a": "L3:0=fffff;1=fffff;2=fffff;3=fffff MB:0=30;1=100;2=100;3=100",
        },
        {"a": "guest.a"},
        {},
    ),
    (
        "full",
        "all together",
        {
            "": "L3:0=fffe0;1=fffff;2=fffff;3=fffff",
            "class.BE": "L3:0=1fc0;1=3f;2=3f;3=3f MB:0=20;1=50;2=50;3=50",
            "guest.a": "L3:0=7;1=3f;2=3f;3=3f MB:0=20;1=50;2=50;3=50",
            "guest.b": "L3:0=18;1=fff0;2=fff0;3=fff0 MB:0=50;1=50;2=50;3=50",
        },
        {"a": "guest.a", "b": "guest.b", "c": "class.BE"},
        {},
    ),
    (
        "l2l3mb",
        "defaults",
        {
            "": "L3:0=fffff;1=fffff",
            "class.BE": "L3:0=3f;1=3f MB:0=100;1=100",
        },
        {},
        {},
    ),
    (
        "l2l3mb",
        "allocation",
        {
            "": "L3:0=fffe0;1=fffff",
            "class.BE": "L3:0=3e0;1=3f MB:0=100;1=100",
            "guest.a": "L3:0=1e;1=3f MB:0=30;1=100",
        },
        {"a": "guest.a"},
        {},
    ),
    (
        "l2l3mb",
        "annotation",
        {
            "": "L3:0=fffff;1=fffff",
            "class.BE": "L3:0=3f;1=3f MB:0=100;1=100",
            "wish": "L3:0=3f0;1=fff0 MB:0=20;1=40",
        },
        {"a": "wish"},
        {},
    ),
    (
        "l2l3mb",
        "equal annotations",
        {
            "": "L3:0=fffff;1=fffff",
            "class.BE": "L3:0=3f;1=3f MB:0=100;1=100",
            "wish": "L3:0=fff0;1=fff0 MB:0=100;1=100",
        },
        {"a": "wish", "b": "wish"},
        {},
    ),
    (
        "l2l3mb",
        "bandwidth only",
        {
            "": "L3:0=fffff;1=fffff",
            "class.BE": "L3:0=3f;1=3f MB:0=100;1=100",
            "guest.a": "L3:0=fffff;1=fffff MB:0=30;1=100",
        },
        {"a": "guest.a"},
        {},
    ),
    (
        "l2l3mb",
        "all together",
        {
            "": "L3:0=fffc0;1=fffff",
            "class.BE": "L3:0=1f80;1=3f MB:0=20;1=50",
            "guest.a": "L3:0=e;1=3f MB:0=20;1=50",
            "guest.b": "L3:0=30;1=fff0 MB:0=50;1=50",
        },
        {"a": "guest.a", "b": "guest.b", "c": "class.BE"},
        {},
    ),
    (
        "l2cdp",
        "defaults",
        {
            "": "L3:0=fff",
            "class.BE": "L3:0=f",
        },
        {},
        {},
    ),
    (
        "l2cdp",
        "allocation",
        {
            "": "L3:0=ff0",
            "class.BE": "L3:0=70",
            "guest.a": "L3:0=f",
        },
        {"a": "guest.a"},
        {"a": ["this host cannot control the bandwidth of L3 cache 0"]},
    ),
    (
        "l2cdp",
        "annotation",
        {
            "": "L3:0=fff",
            "class.BE": "L3:0=f",
        },
        {"a": "class.BE"},
        {"a": ["this host cannot control MB"]},
    ),
    (
        "l2cdp",
        "equal annotations",
        {
            "": "L3:0=fff",
            "class.BE": "L3:0=f",
            "wish": "L3:0=3fc",
        },
        {"a": "wish", "b": "wish"},
        {},
    ),
    (
        "l2cdp",
        "bandwidth only",
        {
            "": "L3:0=fff",
            "class.BE": "L3:0=f",
        },
        {"a": ""},
        {"a": ["this host cannot control the bandwidth of L3 cache 0"]},
    ),
    (
        "l2cdp",
        "all together",
        {
            "": "L3:0=fe0",
            "class.BE": "L3:0=1e0",
            "guest.a": "L3:0=7",
            "guest.b": "L3:0=18",
        },
        {"a": "guest.a", "b": "guest.b", "c": "class.BE"},
        {"b": ["this host cannot control the bandwidth of L3 cache 0"]},
    ),
    (
        "nol3",
        "defaults",
        {
            "": "",
        },
        {},
        {},
    ),
    (
        "nol3",
        "allocation",
        {
            "": "",
            "guest.a": "MB:0=30;1=100;2=100;3=100",
        },
        {"a": "guest.a"},
        {"a": ["L3 cache 0 has no ways to allocate"]},
    ),
    (
        "nol3",
        "annotation",
        {
            "": "",
        },
        {"a": ""},
        {"a": ["this host cannot control LLC"]},
    ),
    (
        "nol3",
        "equal annotations",
        {
            "": "",
        },
        {"a": "", "b": ""},
        {"a": ["this host cannot control LLC"], "b": ["this host cannot control LLC"]},
    ),
    (
        "nol3",
        "bandwidth only",
        {
            "": "",
            "guest.a": "MB:0=30;1=100;2=100;3=100",
        },
        {"a": "guest.a"},
        {},
    ),
    (
        "nol3",
        "all together",
        {
            "": "",
            "class.BE": "MB:0=20;1=50;2=50;3=50",
            "guest.b": "MB:0=50;1=50;2=50;3=50",
        },
        {"a": "class.BE", "b": "guest.b", "c": "class.BE"},
        {
            "a": ["L3 cache 0 has no ways to allocate"],
            "b": ["this host cannot control LLC", "L3 cache 0 has no ways to allocate"],
        },
    ),
    (
        "nomb",
        "defaults",
        {
            "": "L3:0=fffff;1=fffff;2=fffff;3=fffff",
            "class.BE": "L3:0=3f;1=3f;2=3f;3=3f",
        },
        {},
        {},
    ),
    (
        "nomb",
        "allocation",
        {
            "": "L3:0=ffff0;1=fffff;2=fffff;3=fffff",
            "class.BE": "L3:0=1f0;1=3f;2=3f;3=3f",
            "guest.a": "L3:0=f;1=3f;2=3f;3=3f",
        },
        {"a": "guest.a"},
        {"a": ["this host cannot control the bandwidth of L3 cache 0"]},
    ),
    (
        "nomb",
        "annotation",
        {
            "": "L3:0=fffff;1=fffff;2=fffff;3=fffff",
            "class.BE": "L3:0=3f;1=3f;2=3f;3=3f",
        },
        {"a": "class.BE"},
        {"a": ["this host cannot control MB"]},
    ),
    (
        "nomb",
        "equal annotations",
        {
            "": "L3:0=fffff;1=fffff;2=fffff;3=fffff",
            "class.BE": "L3:0=3f;1=3f;2=3f;3=3f",
            "wish": "L3:0=fff0;1=fff0;2=fff0;3=fff0",
        },
        {"a": "wish", "b": "wish"},
        {},
    ),
    (
        "nomb",
        "bandwidth only",
        {
            "": "L3:0=fffff;1=fffff;2=fffff;3=fffff",
            "class.BE": "L3:0=3f;1=3f;2=3f;3=3f",
        },
        {"a": ""},
        {"a": ["this host cannot control the bandwidth of L3 cache 0"]},
    ),
    (
        "nomb",
        "all together",
        {
            "": "L3:0=fffe0;1=fffff;2=fffff;3=fffff",
            "class.BE": "L3:0=1fc0;1=3f;2=3f;3=3f",
            "guest.a": "L3:0=7;1=3f;2=3f;3=3f",
            "guest.b": "L3:0=18;1=fff0;2=fff0;3=fff0",
        },
        {"a": "guest.a", "b": "guest.b", "c": "class.BE"},
        {"b": ["this host cannot control the bandwidth of L3 cache 0"]},
    ),
]


@pytest.mark.parametrize(("archive", "scenario", "groups", "membership", "refused"), TABLE)
def test_configuration_becomes_exact_schemata(captured, archive, scenario, groups, membership, refused):
    tree = captured(archive)
    classes, demands = SCENARIOS[scenario]
    found = resolve_groups(tree.host(prefix=PREFIX), classes, demands, tree.present)

    def label(group):
        return re.sub(r"^wish\.[0-9a-f]{16}$", "wish", group.removeprefix(PREFIX))

    assert {
        label(name): " ".join(str(group.schemata).split()) for name, group in found.groups.items()
    } == groups
    assert {guest: label(group) for guest, group in found.membership.items()} == membership
    assert {name: list(reasons) for name, reasons in found.refused.items()} == refused


def world(machine, tmp_path, gbps=None, shared_ways=2):
    files = fake.FakeResctrl.of(machine, tmp_path / "tree")
    platform = read_platform(files, machine.cpuinfo)
    present = read_groups(files)
    return build_layout(platform, choose_codec(platform, gbps), present, "ours.", shared_ways), present


@pytest.mark.parametrize(
    ("machine", "gbps", "guest", "default"),
    [
        (fake.INTEL, None, "L3:0=ffff;1=f MB:0=100;1=30", "L3:0=ffff;1=fff0"),
        (fake.INTEL_CDP, None, "L3CODE:0=ffff;1=f L3DATA:0=ffff;1=f MB:0=100;1=30", None),
        (fake.INTEL_MBPS, 20, "L3:0=ffff;1=f MB:0=19080;1=5730", "L3:0=ffff;1=fff0"),
        (fake.AMD, None, "L3:0=ffff;1=f MB:0=2048;1=615", "L3:0=ffff;1=fff0"),
        (fake.AMD, 100, "L3:0=ffff;1=f MB:0=800;1=240", "L3:0=ffff;1=fff0"),
    ],
)
def test_a_percent_means_the_same_on_each_kind_of_machine(machine, gbps, guest, default, tmp_path):
    host, present = world(machine, tmp_path, gbps)
    found = resolve_groups(host, {}, [GuestDemand("a", ways={1: 4}, bandwidth={1: 30})], present)
    assert " ".join(str(found.groups["ours.guest.a"].schemata).split()) == guest
    if default:
        assert str(found.groups[DEFAULT_GROUP].schemata).strip() == default
    assert not found.refused


RATE = BandwidthRate(4000)


@pytest.mark.parametrize(
    ("machine", "gbps", "of_class", "of_guest", "refused"),
    [
        (fake.AMD, None, "MB:0=32;1=2048", "MB:0=2048;1=64", {}),
        (fake.AMD, 4, "MB:0=32;1=32", "MB:0=32;1=64", {}),
        (fake.INTEL_MBPS, None, "MB:0=3820;1=4294967295", "MB:0=4294967295;1=7630", {}),
        (fake.INTEL, None, "MB:0=100;1=100", None, {"ours.class.BE": 4000, "a": 8000}),
    ],
)
def test_a_rate_is_a_cap_where_the_hardware_has_absolute_values(
    machine, gbps, of_class, of_guest, refused, tmp_path
):
    host, present = world(machine, tmp_path, gbps)
    classes = {"LS": ShareSpec(mb=100), "BE": ShareSpec(WayRange(0, 30), mb=100, mb_per_cache={0: RATE})}
    guest = GuestDemand("a", "LS", share=ShareSpec(mb_per_cache={1: BandwidthRate(8000)}))
    found = resolve_groups(host, classes, [guest], present)
    lines = {name: str(group.schemata).splitlines()[-1] for name, group in found.groups.items()}
    assert lines["ours.class.BE"] == of_class
    assert lines.get("ours.guest.a") == of_guest
    assert {name: int(why.split()[0]) for name, (why,) in found.refused.items()} == refused


def test_a_limit_in_percent_applies_only_below_the_rate_of_the_class(tmp_path):
    host, present = world(fake.AMD, tmp_path, 20)
    classes = {"BE": ShareSpec(mb=RATE)}
    # A rate of 4 GB/s is 20 % of 20 GB/s.
    demands = [GuestDemand(str(limit), "BE", bandwidth_limits={0: limit}) for limit in (19, 20)]
    found = resolve_groups(host, classes, demands, present)
    assert found.membership == {"19": "ours.guest.19", "20": "ours.class.BE"}
    assert str(found.groups["ours.guest.19"].schemata).splitlines()[-1] == "MB:0=31;1=32"


def test_arm_has_ids_of_its_own_and_takes_holes(tmp_path):
    host, present = world(fake.ARM, tmp_path)
    found = resolve_groups(host, BE, [GuestDemand("a", "BE", ways={17: 4}, bandwidth={17: 33})], present)
    assert str(found.groups["ours.guest.a"].schemata) == "L3:1=f;17=f\nMB:1=100;17=33\n"
    assert str(found.groups["ours.class.BE"].schemata) == "L3:1=f;17=70\nMB:1=100;17=100\n"


def test_mb_domains_with_other_ids_are_matched_by_rank():
    l3 = CacheControl(("L3",), (3, 8), MaskRules(WayMask(0xFF)), WayMask(), 8)
    platform = ResctrlPlatform(CpuVendor.ARM, l3, mb=BandwidthControl((0, 1), 1, 1, 8, {0: 100, 1: 100}))
    assert [platform.mb_domain(cache) for cache in (3, 8, 1, 5)] == [0, 1, 1, None]
    uneven = ResctrlPlatform(CpuVendor.ARM, l3, mb=BandwidthControl((0, 1, 2), 1, 1, 8))
    assert uneven.mb_domain(3) is None
    present = ResctrlGroups(
        {DEFAULT_GROUP: ControlGroup(DEFAULT_GROUP, parse_schemata("L3:3=ff;8=ff\nMB:0=100;1=100\n"))}
    )
    host = build_layout(platform, choose_codec(platform), present, "ours.", 1)
    found = resolve_groups(host, {}, [GuestDemand("a", bandwidth={8: 40})], present)
    assert str(found.groups["ours.guest.a"].schemata) == "L3:3=ff;8=ff\nMB:0=100;1=40\n"


def test_masks_may_have_64_ways():
    l3 = CacheControl(("L3",), (0,), MaskRules(WayMask(2**64 - 1)), WayMask(), 8)
    platform = ResctrlPlatform(CpuVendor.ARM, l3)
    present = ResctrlGroups({DEFAULT_GROUP: ControlGroup(DEFAULT_GROUP, parse_schemata("L3:0=" + "f" * 16))})
    host = build_layout(platform, None, present, "ours.", 4)
    found = resolve_groups(host, BE, [GuestDemand("a", ways={0: 40})], present)
    assert str(found.groups["ours.guest.a"].schemata) == "L3:0=ffffffffff\n"
    assert str(found.groups["ours.class.BE"].schemata) == "L3:0=ff0000000000\n"


def test_the_first_applicable_rule_counts_for_each_domain(tmp_path):
    host, present = world(fake.INTEL, tmp_path)
    classes = {"BE": ShareSpec(WayRange(0, 50), mb=40)}
    wish = ShareSpec(llc_per_cache={0: WayRange(50, 100), 1: WayRange(50, 100)}, mb_per_cache={1: 70})
    found = resolve_groups(host, classes, [GuestDemand("a", "BE", {0: 2}, {}, wish)], present)
    # cache 0: allocation and the bandwidth of the class; cache 1: annotation
    assert str(found.groups["ours.guest.a"].schemata) == "L3:0=3;1=ff00\nMB:0=40;1=70\n"


def test_guests_with_equal_annotations_have_separate_groups_where_groups_share_a_cap(tmp_path):
    host, present = world(fake.AMD, tmp_path)
    capped, uncapped = ShareSpec(mb=30), ShareSpec(WayRange(0, 50), mb=100)
    demands = [GuestDemand("a", share=capped), GuestDemand("b", share=capped)]
    demands += [GuestDemand("c", share=uncapped), GuestDemand("d", share=uncapped)]
    demands += [
        GuestDemand("e", share=ShareSpec(mb=99)),
        GuestDemand("f", share=ShareSpec(mb_per_cache={1: 99})),
    ]
    membership = resolve_groups(host, {}, demands, present).membership
    assert (membership["e"], membership["f"]) == ("ours.guest.e", "ours.guest.f")
    assert membership["a"] == "ours.guest.a"
    assert membership["b"] == "ours.guest.b"
    assert membership["c"] == membership["d"] == host.share_group(uncapped)


def test_equal_annotations_over_different_classes_are_different_rules(tmp_path):
    host, present = world(fake.INTEL, tmp_path)
    wish = ShareSpec(WayRange(0, 50))
    classes = {"BE": ShareSpec(mb=40), "LS": ShareSpec(mb=100)}
    found = resolve_groups(
        host, classes, [GuestDemand("a", "BE", share=wish), GuestDemand("b", "LS", share=wish)], present
    )
    assert found.membership["a"] != found.membership["b"]


def present_with(present, *names):
    groups = dict(present.groups)
    for name in names:
        groups[name] = ControlGroup(name, present.default_group.schemata)
    return ResctrlGroups(groups)


def test_classes_then_allocations_then_priorities_take_precedence_when_groups_run_out(tmp_path):
    host, present = world(fake.INTEL, tmp_path)  # eight groups, of which one is the default
    present = present_with(present, "somebody", "another", "a third", "ours.guest.z")
    demands = [
        GuestDemand("a", "BE", bandwidth={0: 50}, priority=1),
        GuestDemand("b", "BE", bandwidth={0: 50}, priority=5),
        GuestDemand("c", "BE", bandwidth={0: 50}),
        GuestDemand("x", "BE", share=ShareSpec(mb=50), priority=9),
        GuestDemand("z", "BE", bandwidth={0: 50}),
    ]
    found = resolve_groups(host, DEFAULT_CLASSES, demands, present)
    assert found.refused == {
        "c": ("all 8 resctrl groups are taken",),
        "x": ("all 8 resctrl groups are taken",),
    }
    assert found.membership == {
        "a": "ours.guest.a",
        "b": "ours.guest.b",
        "c": "ours.class.BE",
        "x": "ours.class.BE",
        "z": "ours.guest.z",  # is there already
    }
    assert len(found.groups) == 5


@pytest.mark.parametrize(("priority", "served"), [(-1, "a"), (0, "a"), (1, "z")])
def test_a_guest_without_priority_has_priority_0(priority, served, tmp_path):
    host, present = world(fake.INTEL, tmp_path)
    demands = [GuestDemand("a", bandwidth={0: 50}), GuestDemand("z", bandwidth={0: 50}, priority=priority)]
    found = resolve_groups(host, {}, demands, present, max_groups=2)
    assert found.membership == {"a": DEFAULT_GROUP, "z": DEFAULT_GROUP} | {served: f"ours.guest.{served}"}


def test_guests_of_a_class_without_a_group_are_in_the_default_group_with_a_reason(tmp_path):
    host, present = world(fake.INTEL, tmp_path)
    classes = {"BE": ShareSpec(mb=50), "LS": ShareSpec(mb=80)}
    found = resolve_groups(
        host, classes, [GuestDemand("a", "BE"), GuestDemand("b", "LS")], present, max_groups=2
    )
    assert found.groups.keys() == {DEFAULT_GROUP, "ours.class.BE"}
    assert found.membership == {"a": "ours.class.BE", "b": DEFAULT_GROUP}
    assert found.refused["ours.class.LS"] == ("all 2 resctrl groups are taken",)
    assert "ours.class.BE" not in found.refused
    assert resolve_groups(host, classes, [], present, max_groups=3).refused == {}


@pytest.mark.parametrize(
    ("rmids", "admitted"), [(4, 0), (5, 1), (6, 2), (128, 2)], ids=["none left", "one", "two", "many"]
)
def test_rmids_limit_the_number_of_groups_as_well(rmids, admitted, tmp_path):
    """The default group, another group and each of its two monitoring groups use an RMID."""
    host, present = world(replace(fake.INTEL, rmids=rmids), tmp_path)
    others = ControlGroup("somebody", present.default_group.schemata, monitoring_groups=("x", "y"))
    present = ResctrlGroups({**present.groups, "somebody": others})
    found = resolve_groups(host, {"BE": ShareSpec(mb=50), "LS": ShareSpec(mb=80)}, [], present)
    classes = ["ours.class.BE", "ours.class.LS"]
    assert sorted(found.groups.keys() - {DEFAULT_GROUP}) == classes[:admitted]
    assert sorted(found.refused) == classes[admitted:]


def test_a_guest_in_a_class_that_does_not_exist_is_in_the_default_group(tmp_path):
    host, present = world(fake.INTEL, tmp_path)
    found = resolve_groups(host, BE, [GuestDemand("a", "GOLD"), GuestDemand("b")], present)
    assert found.membership == {"a": DEFAULT_GROUP, "b": DEFAULT_GROUP}
    assert found.refused == {"a": ("there is no QoS class GOLD",)}


def test_an_allocation_that_does_not_fit_is_refused_and_the_next_rule_applies(tmp_path):
    host, present = world(fake.INTEL, tmp_path)
    demands = [
        GuestDemand("a", "BE", {0: 12}),
        GuestDemand("b", "BE", {0: 3}),
        GuestDemand("c", "BE", {7: 1}),
    ]
    found = resolve_groups(host, BE, demands, present)
    assert found.refused == {
        "b": ("L3 cache 0: 3 exclusive ways do not fit: 2 of 14 are left",),
        "c": ("L3 cache 7 has no ways to allocate",),
    }
    assert found.membership == {"a": "ours.guest.a", "b": "ours.guest.b", "c": "ours.class.BE"}
    shared = found.groups["ours.class.BE"].schemata
    assert found.groups["ours.guest.b"].schemata.get_value("L3", 0) == shared.get_value("L3", 0)


def test_no_ways_on_one_cache_allow_ways_on_another(tmp_path):
    host, present = world(fake.INTEL, tmp_path)
    demand = GuestDemand("a", "BE", ways={0: 0, 7: 0, 1: 3}, bandwidth={0: 0, 7: 0, 1: 30})
    found = resolve_groups(host, BE, [demand], present)
    assert found.refused == {}
    schemata = found.groups["ours.guest.a"].schemata
    assert bin(schemata.get_value("L3", 1)).count("1") == 3
    assert schemata.get_value("MB", 1) == 30


def test_a_limit_cuts_allocations_and_shares(tmp_path):
    host, present = world(fake.INTEL, tmp_path)
    demand = GuestDemand("a", "BE", ways={0: 4}, bandwidth={0: 60})
    demand = replace(demand, way_limits={0: 2, 1: 3}, bandwidth_limits={0: 40, 1: 1})
    found = resolve_groups(host, {"BE": ShareSpec(mb=80)}, [demand], present)
    schemata = found.groups["ours.guest.a"].schemata
    assert [bin(schemata.get_value("L3", cache)).count("1") for cache in (0, 1)] == [2, 3]
    assert [schemata.get_value("MB", cache) for cache in (0, 1)] == [40, 10]  # no less than the processor can
    assert found.refused == {}


@pytest.mark.parametrize(("limit", "percent"), [(79, 79), (80, 80), (81, 80), (100, 80)])
def test_a_limit_above_the_share_changes_nothing(limit, percent, tmp_path):
    host, present = world(fake.INTEL, tmp_path)
    demand = GuestDemand(
        "a", "BE", ways={0: 2}, bandwidth={0: 30}, way_limits={0: 9}, bandwidth_limits={0: 90, 1: limit}
    )
    found = resolve_groups(host, {"BE": ShareSpec(mb=80)}, [demand], present)
    schemata = found.groups["ours.guest.a"].schemata
    assert [schemata.get_value("MB", cache) for cache in (0, 1)] == [30, -(-percent // 10) * 10]
    assert bin(schemata.get_value("L3", 0)).count("1") == 2


def test_a_limit_of_a_missing_cache_is_refused_and_others_apply(tmp_path):
    host, present = world(fake.INTEL, tmp_path)
    demand = GuestDemand(
        "a", "BE", bandwidth={1: 60}, way_limits={7: 1, 1: 3}, bandwidth_limits={7: 10, 1: 40}
    )
    found = resolve_groups(host, BE, [demand], present)
    assert found.refused == {
        "a": (
            "this host cannot control the ways of L3 cache 7",
            "this host cannot control the bandwidth of L3 cache 7",
        )
    }
    schemata = found.groups["ours.guest.a"].schemata
    assert (bin(schemata.get_value("L3", 1)).count("1"), schemata.get_value("MB", 1)) == (3, 40)


def test_a_percent_of_an_unknown_bandwidth_is_refused(tmp_path):
    host, present = world(fake.INTEL_MBPS, tmp_path)
    classes = {"BE": ShareSpec(mb=50), "LS": ShareSpec(mb=100)}
    demands = [GuestDemand("a", "BE", bandwidth={0: 30}), GuestDemand("b", "LS", share=ShareSpec(mb=20))]
    found = resolve_groups(host, classes, demands, present)
    assert set(found.refused) == {"ours.class.BE", "a", "b"}
    assert all("memory_bandwidth_gbps" in reason for (reason,) in found.refused.values())
    assert found.membership == {"a": DEFAULT_GROUP, "b": DEFAULT_GROUP}  # no bandwidth can be capped
    assert found.groups.keys() == {DEFAULT_GROUP}


def test_existing_groups_keep_their_masks(tmp_path):
    host, present = world(fake.INTEL, tmp_path)
    groups = {
        **present.groups,
        "ours.guest.a": ControlGroup("ours.guest.a", parse_schemata("L3:0=f0;1=ffff\nMB:0=100;1=100\n")),
    }
    found = resolve_groups(
        host, {}, [GuestDemand("a", ways={0: 4}), GuestDemand("b", ways={0: 6})], ResctrlGroups(groups)
    )
    assert found.groups["ours.guest.a"].exclusive == {0: WayMask(0xF0)}
    assert found.groups["ours.guest.b"].exclusive == {0: WayMask(0x3F00)}
    assert [move.owner for move in found.moves[0]] == ["ours.guest.b"]


@pytest.mark.parametrize("prefix", ["", "a/b", "a\n"])
def test_an_invalid_prefix_of_group_names_is_refused(prefix):
    with pytest.raises(ValueError, match="cannot begin the names of groups"):
        ResctrlLayout(ResctrlPlatform(CpuVendor.INTEL), None, {}, prefix)
