"""Tests that the page of the fleet shows the same numbers as a slow and simple count."""

from hypothesis import given
from hypothesis import strategies as st

from placement.read_model.provider import DISABLED, Inventory, Provider
from placement.read_model.snapshot import ModelSnapshot
from placement_extras.console import app, fleet
from placement_extras.console.fleet import HostCondition, HostFilter
from tests.placement_extras.console.providers import provider

CLASSES = ("PCPU", "VCPU", "MEMORY_MB", "DISK_GB", "CUSTOM_A")


def inventory(total: int) -> Inventory:
    return Inventory(total, 0, 1, max(1, total), 1, 1.0)


@st.composite
def providers(draw) -> list[Provider]:
    found: list[Provider] = []
    for host in range(draw(st.integers(0, 6))):
        root = len(found) + 1
        for part in range(draw(st.integers(1, 3))):
            totals = draw(st.dictionaries(st.sampled_from(CLASSES), st.integers(0, 8), max_size=4))
            used = {name: draw(st.integers(0, total)) for name, total in totals.items()}
            traits = draw(st.sets(st.sampled_from([DISABLED, "CUSTOM_X", "HW_NUMA_ROOT"]), max_size=2))
            number = len(found) + 1
            found.append(
                provider(
                    number,
                    root=root,
                    name=f"cn{host}" if part == 0 else f"cn{host}_{part}",
                    inventories={name: inventory(total) for name, total in totals.items()},
                    used=used,
                    traits=frozenset(traits),
                    aggregates=frozenset(draw(st.sets(st.sampled_from(["a", "b"]), max_size=1))),
                )
            )
    return found


WANTED = st.builds(
    HostFilter,
    name=st.sampled_from(["", "cn1", "CN", "x"]),
    resource_class=st.sampled_from(["", *CLASSES, "CUSTOM_NOBODY"]),
    trait=st.sampled_from(["", DISABLED, "CUSTOM_X", "CUSTOM_NOBODY"]),
    aggregate=st.sampled_from(["", "a", "c"]),
    state=st.sampled_from([None, *HostCondition]),
    order=st.sampled_from(["name", "free", "used"]),
    page=st.integers(1, 3),
)


def judge_state(tree: list[Provider]) -> HostCondition:
    if DISABLED in tree[0].traits:
        return HostCondition.DISABLED
    has = {name for each in tree for name in each.inventories}
    left = {name for each in tree for name in each.inventories if each.free(name) > 0}
    if (
        "MEMORY_MB" in has
        and has & {"PCPU", "VCPU"}
        and not ("MEMORY_MB" in left and left & {"PCPU", "VCPU"})
    ):
        return HostCondition.FULL
    return HostCondition.OPEN


@given(providers(), WANTED)
def test_the_fleet_is_what_counting_one_by_one_finds(found: list[Provider], wanted: HostFilter):
    trees = [[each for each in found if each.root_id == root.id] for root in found if root.parent_id is None]
    passing = [
        tree
        for tree in trees
        if (not wanted.name or wanted.name.lower() in tree[0].name)
        and (not wanted.resource_class or any(wanted.resource_class in each.inventories for each in tree))
        and (not wanted.trait or any(wanted.trait in each.traits for each in tree))
        and (not wanted.aggregate or any(wanted.aggregate in each.aggregates for each in tree))
    ]
    if wanted.state is not None:
        passing = [tree for tree in passing if judge_state(tree) is wanted.state]

    shown = fleet.make_page(ModelSnapshot(found), wanted)

    assert shown.hosts == len(trees)
    assert shown.passing.total == len(passing)
    for total in shown.totals:
        name = total.resource_class
        mine = [
            (judge_state(tree), each.inventories[name].capacity, each.used[name])
            for tree in passing
            for each in tree
            if name in each.inventories
        ]
        assert total.capacity == sum(capacity for _, capacity, _ in mine)
        assert total.used == sum(used for _, _, used in mine)
        for state, amount in (
            (HostCondition.OPEN, total.free),
            (HostCondition.FULL, total.stranded),
            (HostCondition.DISABLED, total.disabled),
        ):
            assert amount == sum(capacity - used for each, capacity, used in mine if each is state)
        assert total.used + total.free + total.stranded + total.disabled == total.capacity
    assert {each.root.id for each in shown.passing.rows} == {tree[0].id for tree in passing}
    assert {total.resource_class for total in shown.totals} == {
        name for tree in passing for each in tree for name in each.inventories
    }


@given(providers(), WANTED)
def test_rows_come_in_the_order_that_is_asked_for(found: list[Provider], wanted: HostFilter):
    rows = fleet.make_page(ModelSnapshot(found), wanted).passing.rows
    name = wanted.resource_class
    if wanted.order == "name" or not name:
        assert [each.root.name for each in rows] == sorted(each.root.name for each in rows)
    elif wanted.order == "free" and rows:
        free = [each.amounts[name].free for each in rows]
        assert free == sorted(free, reverse=True)


def test_names_are_in_the_order_in_which_people_count():
    names = ["cn10", "cn2", "CN1", "cn2-10", "cn2-9", "", "7", "a"]
    assert sorted(names, key=fleet.natural_order) == ["", "7", "a", "CN1", "cn2", "cn2-9", "cn2-10", "cn10"]


def test_pages_go_on_where_the_last_one_ended():
    hosts = [provider(n) for n in range(1, 121)]
    snapshot = ModelSnapshot(hosts)
    pages = [fleet.make_page(snapshot, HostFilter(page=page)) for page in (1, 2, 3, 4)]
    assert [each.root.id for page in pages[:3] for each in page.passing.rows] == list(range(1, 121))
    assert [page.passing.pages for page in pages] == [3, 3, 3, 3]
    assert pages[3] == pages[2]


def test_amounts_are_in_the_unit_in_which_they_are_short():
    assert app.format_quantity(1536, "MEMORY_MB") == "1.5\N{NO-BREAK SPACE}GiB"
    assert app.format_quantity(512, "MEMORY_MB") == "512\N{NO-BREAK SPACE}MiB"
    assert app.format_quantity(2048, "DISK_GB") == "2\N{NO-BREAK SPACE}TiB"
    assert app.format_quantity(12345, "VCPU") == "12\N{NARROW NO-BREAK SPACE}345"
    assert app.format_quantity(0, "DISK_GB") == "0"


@given(st.integers(0, 2**53), st.integers(0, 2**53))
def test_a_percentage_is_0_and_100_only_where_nothing_and_all_is_meant(part: int, whole: int):
    shown = app.whole_percent(part, whole)
    assert 0 <= shown <= 100
    if whole:
        assert (shown == 0) == (part == 0)
        assert (shown == 100) == (part >= whole)
    assert 0 <= float(app.bar_width(part, whole)) <= 100
