"""Tests of separate masks for code and data, and of masks of L2 caches."""

from dataclasses import replace

import pytest

from compute_agent.classes.guest_classes import DEFAULT_CLASSES, parse_classes
from compute_agent.resctrl import apply
from compute_agent.resctrl.bandwidth import choose_codec
from compute_agent.resctrl.groups import ControlGroup, ResctrlGroups, read_groups, read_schemata
from compute_agent.resctrl.layout import build_layout
from compute_agent.resctrl.mount import read_platform
from compute_agent.resctrl.plan import make_plan
from compute_agent.resctrl.resolution import GuestDemand, resolve_groups
from compute_agent.resctrl.share_spec import ShareSpec, WayRange
from tests.compute_agent.builders import load_text
from tests.compute_agent.resctrl import fake

CODE, DATA = WayRange(0, 25), WayRange(50, 100)


class SchemataTree:
    """A mount on which plans are carried out."""

    def __init__(self, files, cpuinfo=""):
        self.files = files
        self.platform = read_platform(files, cpuinfo)
        self.engine = choose_codec(self.platform)

    def sync(self, classes, demands=()):
        """Apply demands; check that all groups have the resolved values, and that no step is left."""
        for left in (True, False):
            present = read_groups(self.files)
            host = build_layout(self.platform, self.engine, present, "ours.", 2)
            resolution = resolve_groups(host, classes, demands, present)
            plan = make_plan(host, present, resolution)
            assert left or plan.steps == ()
            assert apply.apply_plan(self.files, plan.steps, self.engine) == {}
        return resolution

    def masks(self, group, *resources):
        shown = read_schemata(self.files, group)
        return {name: {f"{mask:x}" for mask in shown.lines[name].values()} for name in resources}


@pytest.fixture
def cdp(tmp_path):
    return SchemataTree(fake.FakeResctrl.of(fake.INTEL_CDP, tmp_path / "tree"), fake.INTEL_CDP.cpuinfo)


def test_code_and_data_have_masks_of_their_own(cdp):
    found = cdp.sync({"A": ShareSpec(code=CODE, data=DATA), "B": ShareSpec(WayRange(0, 50), code=CODE)})
    assert cdp.masks("ours.class.A", "L3CODE", "L3DATA") == {"L3CODE": {"f"}, "L3DATA": {"ff00"}}
    assert cdp.masks("ours.class.B", "L3CODE", "L3DATA") == {"L3CODE": {"f"}, "L3DATA": {"ff"}}
    assert found.refused == {}


def test_separate_masks_stay_when_a_guest_comes_and_ends(cdp):
    classes = {"A": ShareSpec(code=CODE, data=DATA)}
    cdp.sync(classes)
    cdp.sync(classes, [GuestDemand("a", "A", {0: 8, 1: 8})])
    own = cdp.masks("ours.guest.a", "L3CODE", "L3DATA")
    assert own["L3CODE"] == own["L3DATA"] == {"ff"}
    assert cdp.masks("ours.class.A", "L3CODE", "L3DATA") == {"L3CODE": {"300"}, "L3DATA": {"f000"}}
    cdp.sync(classes)
    assert cdp.masks("ours.class.A", "L3CODE", "L3DATA") == {"L3CODE": {"f"}, "L3DATA": {"ff00"}}


def test_no_step_lets_another_group_into_exclusive_ways(cdp, monkeypatch):
    classes = {"A": ShareSpec(code=CODE, data=DATA)}
    cdp.sync(classes)
    write, seen = cdp.files.write_file, []

    def look(path, text):
        write(path, text)
        groups = read_groups(cdp.files).groups
        own = groups.get("ours.guest.a")
        if own is not None and own.schemata.get_value("L3CODE", 0) == 0xFF:
            seen.append(path)
            for name in ("L3CODE", "L3DATA"):
                assert not groups["ours.class.A"].schemata.get_value(name, 0) & 0xFF

    monkeypatch.setattr(cdp.files, "write_file", look)
    cdp.sync(classes, [GuestDemand("a", "A", {0: 8})])
    assert seen


def test_an_annotation_takes_precedence_over_the_code_range_of_a_class(cdp):
    classes = {"A": ShareSpec(code=CODE, data=DATA)}
    found = cdp.sync(classes, [GuestDemand("a", "A", share=ShareSpec(WayRange(0, 50)))])
    assert cdp.masks(found.membership["a"], "L3CODE", "L3DATA") == {"L3CODE": {"ff"}, "L3DATA": {"ff"}}


def test_without_cdp_the_common_range_applies_with_a_reason(tmp_path):
    tree = SchemataTree(fake.FakeResctrl.of(fake.INTEL, tmp_path / "tree"), fake.INTEL.cpuinfo)
    found = tree.sync({"A": ShareSpec(WayRange(0, 50), code=CODE, l2=CODE)})
    assert tree.masks("ours.class.A", "L3") == {"L3": {"ff"}}
    assert found.refused["ours.class.A"] == (
        "code and data have separate masks only with the mount option cdp",
        "this host cannot control L2 caches",
    )


@pytest.mark.parametrize(("archive", "resources"), [("l2l3mb", ("L2",)), ("l2cdp", ("L2CODE", "L2DATA"))])
def test_l2_caches_are_divided_and_given_back(captured, archive, resources):
    tree = captured(archive)
    all_ways = tree.platform.l2.rules.all_ways
    half = ShareSpec(WayRange(0, 50) if tree.platform.l3 else None, l2=WayRange(0, 50))
    default = tree.present.default_group
    present = ResctrlGroups({"": default})

    def after(classes):
        """Apply a resolution, check that no step is left, and return the groups."""
        host = tree.host()
        resolution = resolve_groups(host, classes, (), present)
        schemata = {
            name: default.schemata.updated_with(one.schemata) for name, one in resolution.groups.items()
        }
        found = ResctrlGroups({name: ControlGroup(name, values) for name, values in schemata.items()})
        assert make_plan(host, found, resolve_groups(host, classes, (), found)).steps == ()
        return found

    present = after({"A": half, "B": half})
    assert set(present.groups) == {"", "ours.class.A"}
    for name, mask in (("", all_ways), ("ours.class.A", all_ways.percent_range(0, 50))):
        for resource in resources:
            assert set(present.groups[name].schemata.lines[resource].values()) == {mask.bits}
    if tree.platform.l3:
        present = after({"A": replace(half, l2=None)})
        for resource in resources:
            assert set(present.groups["ours.class.A"].schemata.lines[resource].values()) == {all_ways.bits}


def test_code_data_and_l2_are_options_of_a_class(tmp_path):
    conf = load_text(
        tmp_path, "[qos_class:BE]\nllc_code_range = 0-25\nllc_data_range = 50-100\nl2_range = 0-50\n"
    )
    found = parse_classes(conf).share_specs["BE"]
    assert (found.code, found.data, found.l2) == (CODE, DATA, WayRange(0, 50))
    assert found.llc == DEFAULT_CLASSES["BE"].llc
