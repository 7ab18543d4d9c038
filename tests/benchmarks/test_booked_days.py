"""The simulated days count what hosts hold, and this service keeps its promises in them."""

import random
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from benchmarks.booked_days import (
    HOUR,
    CloudDays,
    CloudDemand,
    DemandKind,
    FencedHosts,
    HostDemands,
    MovedService,
    ReservedRoom,
    make_demands,
)

_TIMES = st.tuples(st.integers(0, 12), st.integers(1, 6), st.integers(1, 4))


def booking(name: str, begin: int, end: int, cpus: int) -> CloudDemand:
    return CloudDemand(name, DemandKind.BOOKING, 0, begin, end, cpus)


@given(st.lists(_TIMES, max_size=6), st.integers(0, 12), st.integers(1, 6))
def test_the_peak_of_a_host_is_the_largest_sum_at_any_instant(
    times: list[tuple[int, int, int]], begin: int, length: int
) -> None:
    host = HostDemands(16)
    for number, (at, lasts, cpus) in enumerate(times):
        host.served[str(number)] = booking(str(number), at, at + lasts, cpus)
    assert host.peak_use(begin, begin + length) == max(
        host.used_at(at) for at in range(begin, begin + length)
    )
    later = [each for each in host.served.values() if each.begin > begin]
    sums = [sum(e.cpus for e in later if e.begin <= at < e.end) for at in range(begin, 20)]
    assert host.promised_after(begin) == max(sums)


def test_blazars_algorithm_takes_the_first_host_that_is_free_in_the_whole_time(tmp_path: Path) -> None:
    hosts = {"a": 8, "b": 8}
    blazar = FencedHosts(MovedService(tmp_path, hosts, frozenset(hosts)), "Blazar", hosts)
    asked = [booking("1", 2, 6, 8), booking("2", 6, 9, 8), booking("3", 5, 7, 4), booking("4", 0, 9, 8)]
    assert [blazar.book_room(each) for each in asked] == ["a", "a", "b", None]


def test_windows_lend_their_room_and_no_promise_is_broken(tmp_path: Path) -> None:
    hosts, seconds, rng = {"a": 16, "b": 32}, 12 * HOUR, random.Random(5)
    hours = 48 * 12.0
    demands = [
        each
        for kind, share in zip(DemandKind, (0.4, 0.3, 0.2, 0.9), strict=True)
        for each in make_demands(rng, kind, seconds, share * hours)
    ]
    results = {}
    for holds_at_once in (False, True):
        folder = tmp_path / str(holds_at_once)
        folder.mkdir()
        method = ReservedRoom(MovedService(folder, hosts), holds_at_once=holds_at_once)
        results[method.name] = CloudDays(method, hosts, seconds).run(demands)
    windows, held = results.values()
    assert (windows.broken, held.broken) == (0, 0)
    assert windows.promised
    assert windows.lent > held.lent == 0
    assert windows.used > held.used
    assert windows.preempted > 0
    assert 0 < windows.served[DemandKind.PREEMPTIBLE] < windows.asked[DemandKind.PREEMPTIBLE]
