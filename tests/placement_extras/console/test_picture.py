"""Tests of the picture of consumers: each part is drawn once, in its place."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from placement.read_model.provider import Inventory
from placement_extras.console import host
from placement_extras.console.host import ConsumerHolding, InventoryStock, ProviderNodeView
from tests.placement_extras.console import world
from tests.placement_extras.console.pages import read_page
from tests.placement_extras.console.providers import provider


def node(
    number: int, stocks: dict[str, tuple[int, int]], children: tuple[ProviderNodeView, ...] = ()
) -> ProviderNodeView:
    made = tuple(
        InventoryStock(name, Inventory(total, 0, 1, max(1, total), 1, 1.0), used)
        for name, (total, used) in stocks.items()
    )
    return ProviderNodeView(provider(number), made, (), (), children)


def held(consumer: str, *amounts: tuple[int, str, int]) -> ConsumerHolding:
    return ConsumerHolding(
        consumer, None, "p", tuple((provider(number), name, used) for number, name, used in amounts)
    )


def test_each_consumer_has_its_part_and_unused_inventories_are_left_away():
    root = node(1, {"DISK_GB": (100, 0)}, (node(2, {"PCPU": (24, 12), "LLC": (15, 3)}),))
    drawn = host.draw_picture(root, [held("a", (2, "PCPU", 6), (2, "LLC", 3)), held("b", (2, "PCPU", 6))])
    cpus, cache = drawn.lanes
    assert (cpus.resource_class, cpus.capacity, cpus.used, cpus.units) == ("PCPU", 24, 12, 24)
    assert [(part.number, part.start, part.width) for part in cpus.parts] == [(1, 0, 25), (2, 25, 25)]
    assert [(part.number, part.amount, part.start) for part in cache.parts] == [(1, 3, 0)]
    assert cache.parts[0].width == pytest.approx(20)


@given(
    st.integers(0, 50),
    st.lists(st.integers(1, 20), min_size=1, max_size=host.MAX_LANES * 2),
    st.integers(0, 9),
)
def test_parts_stand_side_by_side_within_the_bar(total, amounts, by_others):
    used = sum(amounts) + by_others
    drawn = host.draw_picture(
        node(1, {"VCPU": (total, used)}), [held(str(n), (1, "VCPU", each)) for n, each in enumerate(amounts)]
    )
    (lane,) = drawn.lanes
    assert sum(part.amount for part in lane.parts) == used
    end = 0.0
    for part in lane.parts:
        assert part.start == pytest.approx(end)
        assert 0 <= part.colour <= host.COLOURS
        assert (part.colour == 0) == (part.number == 0)
        end = part.start + part.width
    assert end <= 100 + 1e-6
    assert end == pytest.approx(100 * used / max(total, used))


def test_there_are_no_more_bars_than_a_page_has_room_for():
    many = node(1, {}, tuple(node(n, {"PCPU": (4, 1)}) for n in range(2, 102)))
    drawn = host.draw_picture(many, [held("a", *((n, "PCPU", 1) for n in range(2, 102)))])
    assert (len(drawn.lanes), drawn.left_out) == (host.MAX_LANES, 100 - host.MAX_LANES)


def test_there_are_no_more_parts_than_a_page_has_room_for():
    many = node(1, {}, tuple(node(n, {"VCPU": (100, 100)}) for n in range(2, 42)))
    guests = [held(str(guest), *((n, "VCPU", 1) for n in range(2, 42))) for guest in range(100)]
    drawn = host.draw_picture(many, guests)
    assert sum(len(lane.parts) for lane in drawn.lanes) <= host.MAX_PARTS + 41
    assert len(drawn.lanes) + drawn.left_out == 40


def test_the_page_of_a_host_draws_it(client):
    host = world.uuid_of("compute-1")
    page = client.get(f"/console/providers/{host}").text
    assert f"8 PCPU: 1, {world.uuid_of('guest-1')}</title>" in page
    assert 'aria-label="LLC of compute-1_NUMA0_L3_0: 4 of 14 held"' in page
    assert "style=" not in page
    assert "Shares of the consumers in each inventory" in read_page(client, f"/console/providers/{host}")
