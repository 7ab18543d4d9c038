"""Tests of plans from the existing groups to the wanted groups, which are safe at each step."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compute_agent.classes.guest_classes import DEFAULT_CLASSES
from compute_agent.resctrl.bandwidth import ArmCodec, IntelCodec
from compute_agent.resctrl.groups import DEFAULT_GROUP, ControlGroup, ResctrlGroups
from compute_agent.resctrl.layout import ResctrlLayout, build_layout, cache_mask
from compute_agent.resctrl.plan import CreateGroup, RemoveGroup, WriteSchemata, make_plan
from compute_agent.resctrl.platform import BandwidthControl, CacheControl, CpuVendor, ResctrlPlatform
from compute_agent.resctrl.resolution import GuestDemand, resolve_groups
from compute_agent.resctrl.schemata import MaskRules, Schemata, WayMask, parse_schemata
from compute_agent.resctrl.share_spec import ShareSpec, WayRange
from tests.examples import examples

CLASSES = {"LS": DEFAULT_CLASSES["LS"], "BE": DEFAULT_CLASSES["BE"]}
SHARED_WAYS = 2


def platform(ways=12, sparse=False, min_bits=1, cdp=False, closids=16):
    names = ("L3CODE", "L3DATA") if cdp else ("L3",)
    rules = MaskRules(WayMask.from_range(0, ways), min_bits, sparse)
    l3 = CacheControl(names, (0, 5), rules, WayMask(), closids)
    return ResctrlPlatform(
        CpuVendor.INTEL, l3, mb=BandwidthControl((0, 5), 10, 10, closids, {0: 100, 5: 100})
    )


def fresh(on):
    full = on.l3.rules.all_ways.bits
    lines = {name: dict.fromkeys(on.l3.ids, full) for name in on.l3.resources}
    return ResctrlGroups(
        {DEFAULT_GROUP: ControlGroup(DEFAULT_GROUP, Schemata({**lines, "MB": {0: 100, 5: 100}}))}
    )


def wanted(on, present, demands, classes=CLASSES):
    host = build_layout(on, IntelCodec(on.mb), present, "ours.", SHARED_WAYS)
    return host, resolve_groups(host, classes, demands, present)


def play(on, present, steps, look=lambda groups: None):
    """The groups after the steps, checked as by the kernel. `look` is called with the groups after
    each step.
    """
    groups = {name: group.schemata for name, group in present.groups.items()}
    for step in steps:
        if isinstance(step, RemoveGroup):
            assert step.group != DEFAULT_GROUP
            del groups[step.group]
        elif isinstance(step, CreateGroup):
            assert step.group not in groups
            assert len(groups) < on.max_groups
            groups[step.group] = fresh(on).default_group.schemata.updated_with(step.schemata)
        else:
            groups[step.group] = groups[step.group].updated_with(step.schemata)
        for schemata in groups.values():
            for name, _, value in schemata:
                assert name == "MB" or on.l3.rules.find_fault(WayMask(value)) is None
        look(groups)
    return ResctrlGroups({name: ControlGroup(name, schemata) for name, schemata in groups.items()})


def sync(on, present, demands, classes=CLASSES):
    host, resolution = wanted(on, present, demands, classes)
    return play(on, present, make_plan(host, present, resolution).steps)


def text(step):
    values = " ".join(str(step.schemata).split()) if not isinstance(step, RemoveGroup) else ""
    return f"{type(step).__name__} {step.group.removeprefix('ours.') or 'default'} {values}".strip()


def test_other_groups_give_up_ways_before_a_guest_gets_them():
    on = platform()
    present = sync(on, fresh(on), [])
    host, resolution = wanted(on, present, [GuestDemand("a", "BE", {5: 4}, {5: 30})])
    assert [text(step) for step in make_plan(host, present, resolution).steps] == [
        "WriteSchemata default L3:5=ff0",
        "WriteSchemata class.BE L3:5=70",
        "CreateGroup guest.a L3:0=f;5=f MB:0=100;5=30",
    ]


def test_ways_are_opened_after_their_guest_has_ended():
    on = platform()
    present = sync(on, sync(on, fresh(on), []), [GuestDemand("a", "BE", {5: 4})])
    host, resolution = wanted(on, present, [])
    assert [text(step) for step in make_plan(host, present, resolution).steps] == [
        "RemoveGroup guest.a",
        "WriteSchemata default L3:5=fff",
        "WriteSchemata class.BE L3:5=f",
    ]


def test_bandwidth_is_cut_at_the_beginning_and_raised_at_the_end():
    on = platform()
    present = sync(on, fresh(on), [GuestDemand("a", bandwidth={0: 30, 5: 30})])
    host, resolution = wanted(on, present, [GuestDemand("a", bandwidth={0: 50, 5: 20}, ways={0: 3})])
    assert [text(step) for step in make_plan(host, present, resolution).steps] == [
        "WriteSchemata default L3:0=ff8",
        "WriteSchemata class.BE L3:0=38",
        "WriteSchemata guest.a MB:5=20",
        "WriteSchemata guest.a L3:0=7",
        "WriteSchemata guest.a MB:0=50",
    ]


def test_orphans_are_removed_and_foreign_groups_stay():
    on = platform()
    start = fresh(on)
    other = ControlGroup("other", start.default_group.schemata)
    groups = {**start.groups, "ours.guest.x": ControlGroup("ours.guest.x", other.schemata), "other": other}
    host, resolution = wanted(on, ResctrlGroups(groups), [GuestDemand("a", ways={0: 2})], {})
    plan = make_plan(host, ResctrlGroups(groups), resolution)
    assert plan.steps[0] == RemoveGroup("ours.guest.x")
    assert "other" not in [step.group for step in plan.steps]
    assert [(one.foreign, one.group, one.cache) for one in plan.conflicts] == [("other", "ours.guest.a", 0)]


def test_the_default_group_is_never_removed_nor_its_bandwidth_changed():
    on = platform()
    start = fresh(on)
    host, resolution = wanted(on, start, [GuestDemand("a", ways={0: 2})])
    for step in make_plan(host, start, resolution).steps:
        if step.group == DEFAULT_GROUP:
            assert isinstance(step, WriteSchemata)
            assert "MB" not in step.schemata.lines


@pytest.mark.parametrize(("engine", "steps"), [(ArmCodec, 0), (IntelCodec, 1)])
def test_a_bandwidth_rounded_by_the_kernel_is_not_written_again(engine, steps):
    on = platform()
    on = replace(on, mb=replace(on.mb, minimum=1, granularity=1))
    groups = {
        **fresh(on).groups,
        "ours.guest.a": ControlGroup("ours.guest.a", parse_schemata("L3:0=fff;5=fff\nMB:0=40;5=100\n")),
    }
    host = build_layout(on, engine(on.mb), ResctrlGroups(groups), "ours.", SHARED_WAYS)
    resolution = resolve_groups(host, {}, [GuestDemand("a", bandwidth={0: 41})], ResctrlGroups(groups))
    assert len(make_plan(host, ResctrlGroups(groups), resolution).steps) == steps


def test_missing_domains_are_not_written():
    on = platform()
    start = ResctrlGroups(
        {DEFAULT_GROUP: ControlGroup(DEFAULT_GROUP, parse_schemata("L3:0=fff\nMB:0=100\n"))}
    )
    host, resolution = wanted(on, start, [GuestDemand("a", ways={0: 2})])
    for step in make_plan(host, start, resolution).steps:
        assert {domain for _, domain, _ in step.schemata} == {0}


@pytest.mark.parametrize("cdp", [False, True])
def test_a_change_by_another_program_is_repaired(cdp):
    on = platform(cdp=cdp)
    demands = [GuestDemand("a", "BE", {5: 4}, {5: 30})]
    present = sync(on, fresh(on), demands)
    groups = dict(present.groups)
    full = fresh(on).default_group.schemata
    groups["ours.class.LS"] = ControlGroup("ours.class.LS", full)
    if cdp:
        data = Schemata({"L3DATA": {5: 0xF0}})
        groups["ours.class.BE"] = ControlGroup(
            "ours.class.BE", groups["ours.class.BE"].schemata.updated_with(data)
        )
    repaired = sync(on, ResctrlGroups(groups), demands)
    assert repaired == present


@st.composite
def demand_lists(draw):
    found = []
    for name in draw(st.lists(st.sampled_from("abcdefg"), unique=True, max_size=6)):
        ways = {cache: draw(st.integers(0, 4)) for cache in (0, 5)}
        bandwidth = {cache: draw(st.sampled_from([0, 30, 60])) for cache in (0, 5)}
        wish = draw(st.sampled_from([ShareSpec(), ShareSpec(WayRange(20, 80)), ShareSpec(mb=40)]))
        found.append(GuestDemand(name, draw(st.sampled_from(["", "LS", "BE"])), ways, bandwidth, wish))
    return found


WORLDS = st.builds(
    platform,
    ways=st.integers(6, 16),
    sparse=st.booleans(),
    min_bits=st.integers(1, 2),
    cdp=st.booleans(),
    closids=st.integers(1, 12),
)
OTHER_CLASSES = {
    "LS": ShareSpec(WayRange(40, 90), {5: WayRange(0, 20)}, 70),
    "BE": ShareSpec(WayRange(60, 100)),
}


@given(WORLDS, st.lists(demand_lists(), min_size=2, max_size=4), st.data())
@settings(max_examples=examples(300), deadline=None)
def test_no_step_of_a_plan_opens_exclusive_ways(on, rounds, data):
    present = fresh(on)
    exclusive = {}
    for demands in rounds:
        classes = data.draw(st.sampled_from([CLASSES, OTHER_CLASSES, {}]))
        host, resolution = wanted(on, present, demands, classes)
        plan = make_plan(host, present, resolution)
        promised = promises(resolution, exclusive)
        exclusive = {name: group.exclusive for name, group in resolution.groups.items()}
        before = [intruders(on, present_groups(present), promised)]

        def look(groups, before=before, promised=promised):
            now = intruders(on, groups, promised)
            assert now <= before[0], "an overlap that was not there before"
            before[0] = now

        present = play(on, present, plan.steps, look)
        assert intruders(on, present_groups(present), promised) == set()
        for name, group in resolution.groups.items():
            assert not group.schemata.changes_from(present.groups[name].schemata)
        assert set(present.groups) == set(resolution.groups)
        # no step is left, and no mask would move again
        host, again = wanted(on, present, demands, classes)
        assert make_plan(host, present, again).steps == ()
        assert again.moves == {}


def present_groups(present):
    return {name: group.schemata for name, group in present.groups.items()}


def promises(resolution, exclusive):
    """The ways that are exclusive to each group before, during or after the moves, by group and cache."""
    promised = {}
    for name, group in resolution.groups.items():
        for cache, mask in group.exclusive.items():
            promised[name, cache] = mask | exclusive.get(name, {}).get(cache, WayMask())
    for cache, moves in resolution.moves.items():
        for move in moves:
            promised[move.owner, cache] = promised[move.owner, cache] | move.after
    return promised


def intruders(on, groups, promised):
    """The exclusive ways that another group can also fill, as tuples of owner, other group, cache and way."""
    found = set()
    for (name, cache), mask in promised.items():
        own = cache_mask(on, groups[name], cache) & mask if name in groups else WayMask()
        for other, schemata in groups.items():
            if other != name:
                found |= {(name, other, cache, way) for way in own & cache_mask(on, schemata, cache)}
    return found


def test_a_host_without_controls_needs_no_plan():
    nothing = ResctrlPlatform(CpuVendor.INTEL)
    present = ResctrlGroups({DEFAULT_GROUP: ControlGroup(DEFAULT_GROUP, Schemata())})
    host = ResctrlLayout(nothing, None, {}, "ours.")
    resolution = resolve_groups(host, DEFAULT_CLASSES, [GuestDemand("a", "LS", {0: 1}, {0: 10})], present)
    assert resolution.membership == {"a": DEFAULT_GROUP}
    assert make_plan(host, present, resolution).steps == ()
