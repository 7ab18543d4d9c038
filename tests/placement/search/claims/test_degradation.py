"""Causes of degraded reservations, compared with a look at each hour of their time."""

from hypothesis import given
from hypothesis import strategies as st

from placement.read_model.provider import DISABLED
from placement.search.claims.reserved_amounts import (
    DegradationCause,
    DegradationReason,
    PromisingProviders,
    find_causes,
)
from placement.store.allocations import Allocation
from placement.store.time_profile import TimedAmount, TimeWindow, needed_holds
from placement.store.time_skyline import make_skylines
from tests.placement.search.snapshots import Spec, build, name_to_uuid

HOST = name_to_uuid("host")
NODE = name_to_uuid("node")


def allocation(provider: str, used: int) -> Allocation:
    return Allocation("reservation", 1, provider, 1, "VCPU", used, 0.0)


@given(
    booked=st.lists(
        st.builds(
            lambda used, begin, length: TimedAmount(
                "reservation", HOST, "VCPU", used, TimeWindow(begin, begin + length), begin <= 0
            ),
            st.integers(1, 3),
            st.integers(0, 4),
            st.integers(1, 4),
        ),
        min_size=1,
        max_size=5,
    ),
    guests=st.integers(0, 3),
    total=st.integers(1, 8),
)
def test_the_missing_amount_is_that_of_the_busiest_hour(
    booked: list[TimedAmount], guests: int, total: int
) -> None:
    held = needed_holds(booked, 0.0)
    begun = sum(each.used for each in booked if each.has_begun)
    used = guests + begun + held.get((HOST, "VCPU"), 0)
    snapshot = build(Spec("host", inventories={"VCPU": total}, used={"VCPU": used}))
    providers = PromisingProviders.from_snapshot(snapshot, [HOST])
    own = booked[0]
    amounts = [allocation(HOST, own.used)]
    skylines = make_skylines(booked, held.items()) if providers.overfull_uuids(amounts) else {}
    hours = range(int(own.window.starts_at), int(own.window.ends_at))
    busiest = max(
        guests + sum(each.used for each in booked if each.window.starts_at <= hour < each.window.ends_at)
        for hour in hours
    )
    missing = min(own.used, busiest - total)
    expected = [DegradationCause(DegradationReason.CAPACITY, HOST, "VCPU", missing)] if missing > 0 else []
    assert find_causes(amounts, own.window, providers, skylines) == expected


def test_a_disabled_host_disables_its_tree_and_what_is_gone_is_named() -> None:
    snapshot = build(
        Spec("host", traits=[DISABLED]),
        Spec("node", parent="host", inventories={"VCPU": 4}),
        Spec("other", inventories={"LLC": 4}),
    )
    other, gone = name_to_uuid("other"), name_to_uuid("gone")
    providers = PromisingProviders.from_snapshot(snapshot, [NODE, other, gone])
    held = [allocation(each, 2) for each in (NODE, other, gone)]
    causes = find_causes(held, TimeWindow(0, 1), providers, {})
    assert [(each.reason, each.provider, each.missing) for each in causes] == [
        ("host_disabled", NODE, 2),
        ("inventory_missing", other, 2),
        ("provider_missing", gone, 2),
    ]
