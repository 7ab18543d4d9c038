"""Windows that have not begun move to hosts that are alike, so that further bookings have room."""

import time
import uuid
from collections.abc import Callable, Sequence
from itertools import combinations
from typing import Any, Never

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from werkzeug.test import TestResponse

from placement.api.ext import reservations
from placement.db.database import WriteTransaction
from placement.exceptions import Unavailable
from placement.search.budget import BudgetExhausted
from placement.search.claims import window_room
from placement.store.time_profile import TimeWindow
from placement.store.window_room import WindowMove
from tests.databases import DatabaseServer
from tests.examples import examples
from tests.placement.api.ext.windows import HOUR, PATH, book, booked, show
from tests.placement.builders import make_provider, provider_path
from tests.placement.moving_clock import advance_clock, iso
from tests.placement.running import Admin, application
from tests.placement.workers.window_tables import read_books


def host_of(admin: Admin, reservation: str) -> str:
    (host,) = show(admin, reservation)["allocations"]
    return str(host)


@pytest.fixture
def base() -> float:
    return time.time() + HOUR


@pytest.fixture(autouse=True)
def unlimited(monkeypatch: pytest.MonkeyPatch) -> None:
    """Searches for moves end by their other limits, however slow the machine is."""
    monkeypatch.setattr(window_room, "_HOSTS_SECONDS", 5.0)
    monkeypatch.setattr(window_room, "_SEARCH_SECONDS", 5.0)


def hours(base: float, begin: float, end: float) -> dict[str, str]:
    return {"starts_at": iso(base + begin * HOUR), "expires_at": iso(base + end * HOUR)}


@pytest.fixture
def halves(admin: Admin, base: float) -> list[str]:
    """Two alike hosts of 8 VCPU, of which windows hold a half each; the windows."""
    hosts = [make_provider(admin, name, VCPU=8) for name in "ab"]
    return halve(admin, base, hosts)


def halve(admin: Admin, base: float, hosts: Sequence[str], **fields: Any) -> list[str]:
    found = []
    for host in hosts:
        # all other hosts are full for a moment, so that the window lands here without naming its host
        full = [
            booked(admin, 8, 0, 0, **hours(base, 1, 2), allowed_hosts=[each])
            for each in hosts
            if each not in {host, *(host_of(admin, one) for one in found)}
        ]
        half = [
            booked(admin, 4, 0, 0, **hours(base, 1, 2), allowed_hosts=[each])
            for each in {host_of(admin, one) for one in found}
        ]
        found.append(booked(admin, 4, 0, 0, **hours(base, 1, 2), **fields))
        assert host_of(admin, found[-1]) == host
        for each in full + half:
            assert admin("DELETE", f"{PATH}/{each}").status_code == 204
    return found


def test_a_window_moves_to_a_host_that_is_alike_if_a_booking_needs_its_room(
    admin: Admin, halves: list[str], base: float
) -> None:
    before = {each: show(admin, each) for each in halves}
    answer = book(admin, 8, 0, 0, **hours(base, 1, 2)).json
    new = answer["reservation"]["uuid"]
    after_moves = {each: show(admin, each) for each in halves}
    (stayed,) = {host_of(admin, each) for each in halves}
    assert host_of(admin, new) != stayed
    (moved,) = [each for each in halves if after_moves[each]["allocations"] != before[each]["allocations"]]
    assert answer["moved"] == [moved]
    assert after_moves[moved]["generation"] == before[moved]["generation"] + 1
    same = ("starts_at", "expires_at", "state", "degraded", "movable", "project_id")
    for each in halves:
        assert [after_moves[each][name] for name in same] == [before[each][name] for name in same]
    assert book(admin, 1, 0, 0, **hours(base, 1, 2)).status_code == 409


def test_a_window_that_may_not_move_stays(admin: Admin, base: float) -> None:
    hosts = [make_provider(admin, name, VCPU=8) for name in "ab"]
    assert not any(show(admin, each)["movable"] for each in halve(admin, base, hosts, movable=False))
    assert book(admin, 8, 0, 0, **hours(base, 1, 2)).status_code == 409


def set_movable(admin: Admin, window: str, value: bool) -> TestResponse:
    body = {"generation": show(admin, window)["generation"], "movable": value}
    return admin("PUT", f"{PATH}/{window}", json=body)


@pytest.mark.parametrize("booking", ["movable", "fixed", "names hosts"])
def test_a_change_decides_whether_a_window_moves(admin: Admin, base: float, booking: str) -> None:
    hosts, other = [make_provider(admin, name, VCPU=8) for name in "ab"], make_provider(admin, "c")
    fields = {"fixed": {"movable": False}, "names hosts": {"excluded_hosts": [other]}}.get(booking, {})
    windows = halve(admin, base, hosts, **fields)
    for value in (False, True):
        for each in windows:
            before = show(admin, each)
            answer = set_movable(admin, each, value)
            expected = before | {"movable": value, "generation": before["generation"] + 1}
            assert (answer.status_code, answer.json["reservation"]) == (200, expected)
            assert show(admin, each) == expected
        assert book(admin, 8, 0, 0, **hours(base, 1, 2)).status_code == (201 if value else 409)


def test_only_a_window_can_be_movable(admin: Admin, base: float) -> None:
    host = make_provider(admin, "a", VCPU=8)
    owner = {"project_id": "project", "user_id": "user"}
    times = hours(base, 1, 2)
    for body in (
        {"query": "resources=VCPU:4", "expires_in": 60},
        {"maintenance_of": host, **times},
    ):
        window = admin("POST", PATH, json={**body, **owner}).json["reservation"]["uuid"]
        answer = set_movable(admin, window, True)
        assert (answer.status_code, "Only a reservation with starts_at" in answer.text) == (400, True)
        assert show(admin, window)["generation"] == 1
        assert set_movable(admin, window, False).json["reservation"]["movable"] is False
    for wrong in (None, 1, "true"):
        body = {"generation": 2, "movable": wrong}
        assert admin("PUT", f"{PATH}/{window}", json=body).status_code == 400


@pytest.mark.parametrize("need", ["booking", "maintenance"])
def test_a_window_on_several_hosts_moves_from_one_of_them_to_a_further_host(
    admin: Admin, base: float, url: str, need: str
) -> None:
    hosts = {make_provider(admin, name, VCPU=8) for name in "ab"}
    body = {"claims": [{"query": "resources=VCPU:4", "count": 2}], "different_hosts": True}
    body |= {"project_id": "project", "user_id": "user", **hours(base, 1, 2)}
    window = admin("POST", PATH, json=body).json["reservation"]["uuid"]
    assert set_movable(admin, window, True).status_code == 200
    before = show(admin, window)
    assert book(admin, 8, 0, 0, **hours(base, 1, 2)).status_code == 409
    assert show(admin, window) == before
    further = make_provider(admin, "c", VCPU=4, MEMORY_MB=8)
    assert book(admin, 8, 0, 0, **hours(base, 1, 2)).status_code == 409
    assert admin("DELETE", f"/resource_providers/{further}").status_code == 204
    further = make_provider(admin, "d", VCPU=8)
    full = booked(admin, 4, 0, 0, **hours(base, 1, 2), allowed_hosts=[further])
    if need == "booking":
        assert book(admin, 8, 0, 0, **hours(base, 1, 2)).json["moved"] == [window]
    else:
        maintain(admin, next(iter(hosts)), base, 1, 2)
    after_move = show(admin, window)
    assert (after_move["generation"], after_move["degraded"]) == (before["generation"] + 1, [])
    stayed = hosts & after_move["allocations"].keys()
    assert after_move["allocations"] == {each: {"resources": {"VCPU": 4}} for each in (*stayed, further)}
    assert (len(stayed), host_of(admin, full)) == (1, further)
    assert read_books(url).wrong == []


@pytest.mark.parametrize("pinned", ["in_tree", "excluded_hosts", "allowed_hosts"])
def test_a_window_that_names_hosts_stays(admin: Admin, base: float, pinned: str) -> None:
    hosts = [make_provider(admin, name, VCPU=8) for name in "ab"]
    for host, other in zip(hosts, reversed(hosts), strict=True):
        fields: dict[str, Any] = {
            "in_tree": {"query": f"resources=VCPU:4&in_tree={host}"},
            "excluded_hosts": {"excluded_hosts": [other]},
            "allowed_hosts": {"allowed_hosts": [host]},
        }[pinned]
        found = booked(admin, 4, 0, 0, **{**hours(base, 1, 2), **fields})
        assert (host_of(admin, found), show(admin, found)["movable"]) == (host, False)
    assert book(admin, 8, 0, 0, **hours(base, 1, 2)).status_code == 409


def test_a_window_does_not_move_to_an_unlike_host(admin: Admin, halves: list[str], base: float) -> None:
    set_traits(admin, host_of(admin, halves[0]), "CUSTOM_FAST")
    assert book(admin, 8, 0, 0, **hours(base, 1, 2)).status_code == 409


def set_traits(admin: Admin, host: str, *names: str) -> None:
    for each in names:
        if each.startswith("CUSTOM_"):
            assert admin("PUT", f"/traits/{each}").status_code in (201, 204)
    path = provider_path(host, "traits")
    generation = admin("GET", path).json["resource_provider_generation"]
    body = {"traits": names, "resource_provider_generation": generation}
    assert admin("PUT", path, json=body).status_code == 200


@pytest.mark.parametrize("marks", [(), ("CUSTOM_HOST_DISABLED",), ("CUSTOM_WATERMARK_REACHED",)])
def test_windows_leave_a_disabled_host_and_do_not_move_to_another_one(
    admin: Admin, base: float, marks: Sequence[str]
) -> None:
    first, second, third = (make_provider(admin, name, VCPU=8) for name in "abc")
    full = [booked(admin, 8, 0, 0, **hours(base, 1, 2), allowed_hosts=[each]) for each in (second, third)]
    window = booked(admin, 8, 0, 0, **hours(base, 1, 2))
    assert host_of(admin, window) == first
    for each in full:
        assert admin("DELETE", f"{PATH}/{each}").status_code == 204
    for each in (first, second):
        set_traits(admin, each, "COMPUTE_STATUS_DISABLED", *marks)
    maintain(admin, first, base, 1, 2)
    assert (host_of(admin, window), show(admin, window)["degraded"]) == (third, [])
    # all other hosts are disabled, so the window stays
    maintain(admin, third, base, 1, 2)
    assert host_of(admin, window) == third


def report_host(admin: Admin, name: str, reported_at: float) -> list[str]:
    """Write a host with two NUMA nodes as its agent reports it; return its uuids, the root first."""
    root, *nodes = uuids = [str(uuid.uuid4()) for _ in range(3)]
    place: dict[str, Any] = {"generation": None, "aggregates": []}
    body: list[dict[str, Any]] = [
        {
            **place,
            "uuid": root,
            "name": name,
            "parent_provider_uuid": None,
            "inventories": {},
            "traits": ["COMPUTE_NODE"],
            "attributes": {"agent.reported_at": reported_at, "neighbour.cpu": iso(reported_at)},
        }
    ]
    for number, each in enumerate(nodes):
        attributes = {f"numa_distance.{other}": 10.0 if other == each else 21.0 for other in nodes}
        body.append(
            {
                **place,
                "uuid": each,
                "name": f"{name}_{number}",
                "parent_provider_uuid": root,
                "inventories": {"PCPU": {"total": 8}},
                "traits": ["HW_NUMA_ROOT"],
                "attributes": attributes | {f"position.{uuid.uuid4()}": reported_at},
            }
        )
    answer = admin("POST", "/ext/v1/trees", json={"resource_providers": body})
    assert answer.status_code == 200, answer.text
    return uuids


def test_a_window_moves_between_hosts_with_different_measurements(admin: Admin, base: float) -> None:
    first, second = (report_host(admin, name, time.time() + at) for at, name in enumerate("ab"))
    fields = {**hours(base, 1, 2), "query": "resources=PCPU:8"}
    full = [booked(admin, 0, 0, 0, **fields, allowed_hosts=[second[0]]) for _ in range(2)]
    windows = [booked(admin, 0, 0, 0, **fields) for _ in range(2)]
    before = {host_of(admin, each): each for each in windows}
    assert before.keys() == {*first[1:]}
    for each in full:
        assert admin("DELETE", f"{PATH}/{each}").status_code == 204
    maintain(admin, first[0], base, 1, 2)
    # each window is on the node with the same number
    assert [host_of(admin, before[node]) for node in first[1:]] == second[1:]


def test_a_window_that_has_begun_stays(admin: Admin, halves: list[str], base: float, url: str) -> None:
    advance_clock(url, base - time.time() + 1.5 * HOUR)
    later = {"starts_at": iso(time.time() + 60), "expires_at": iso(time.time() + 0.4 * HOUR)}
    assert {show(admin, each)["state"] for each in halves} == {"active"}
    assert book(admin, 8, 0, 0, **later).status_code == 409


def test_several_windows_of_a_host_move_together(admin: Admin, base: float) -> None:
    host, *others = (make_provider(admin, name, VCPU=8) for name in "abc")
    full = [booked(admin, 8, 0, 0, **hours(base, 1, 2), allowed_hosts=[each]) for each in others]
    small = [booked(admin, 2, 0, 0, **hours(base, 1, 2)) for _ in range(2)]
    assert {host_of(admin, each) for each in small} == {host}
    for each, other in zip(full, others, strict=True):
        assert admin("DELETE", f"{PATH}/{each}").status_code == 204
        booked(admin, 6, 0, 0, **hours(base, 1, 2), allowed_hosts=[other])
    new = book(admin, 8, 0, 0, **hours(base, 1, 2)).json
    assert (host_of(admin, new["reservation"]["uuid"]), new["moved"]) == (host, sorted(small))
    assert {host_of(admin, each) for each in small} == set(others)
    assert book(admin, 1, 0, 0, **hours(base, 5, 6)).json["moved"] == []


def maintain(admin: Admin, host: str, base: float, begin: float, end: float) -> dict[str, Any]:
    body = {"maintenance_of": host, "project_id": "ops", "user_id": "eve", **hours(base, begin, end)}
    answer = admin("POST", PATH, json=body)
    assert answer.status_code == 201, answer.text
    made: dict[str, Any] = answer.json["reservation"]
    return made


def test_a_maintenance_moves_the_windows_that_may_move(admin: Admin, base: float, url: str) -> None:
    first, second = (make_provider(admin, name, VCPU=8) for name in "ab")
    full = booked(admin, 8, 0, 0, **hours(base, 1, 4), allowed_hosts=[second])
    movable = [booked(admin, 2, 0, 0, **hours(base, 1 + number, 2 + number)) for number in range(2)]
    large, later = booked(admin, 4, 0, 0, **hours(base, 1, 2)), booked(admin, 8, 0, 0, **hours(base, 3, 4))
    fixed = booked(admin, 2, 0, 0, **hours(base, 1, 2), movable=False)
    windows = [*movable, large, later, fixed]
    assert {host_of(admin, each) for each in windows} == {first}
    assert admin("DELETE", f"{PATH}/{full}").status_code == 204
    # the other host has room for one of the two windows that begin at once, and the larger one gets it
    booked(admin, 4, 0, 0, **hours(base, 0, 2), allowed_hosts=[second])
    before = {each: show(admin, each) for each in windows}
    maintenance = maintain(admin, first, base, 1.5, 3)
    found = {each: show(admin, each) for each in windows}
    assert [each for each in windows if host_of(admin, each) == second] == [movable[1], large]
    for each in windows:
        has_moved = each in (movable[1], large)
        assert found[each]["generation"] == before[each]["generation"] + has_moved
        assert bool(found[each]["degraded"]) == (each in (movable[0], fixed))
        assert found[each]["starts_at"] == before[each]["starts_at"]
    assert {each["reason"] for each in found[fixed]["degraded"]} == {"capacity_exceeded"}
    assert [each["missing"] for each in maintenance["degraded"]] == [4]
    assert read_books(url).wrong == []


def book_on_one_of_two(admin: Admin, base: float, amount: int) -> tuple[str, str]:
    """Make two equivalent hosts, and book a window; return the window and its host."""
    for name in "ab":
        make_provider(admin, name, VCPU=8)
    window = booked(admin, amount, 0, 0, **hours(base, 1, 2))
    return window, host_of(admin, window)


def test_a_maintenance_is_booked_even_if_no_window_can_move(
    admin: Admin, base: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    window, host = book_on_one_of_two(admin, base, 2)

    def changed_meanwhile(*_: object) -> None:
        return None

    monkeypatch.setattr("placement.store.window_room.moved_claims", changed_meanwhile)
    maintenance = maintain(admin, host, base, 1, 2)
    assert maintenance["degraded"]
    assert (host_of(admin, window), bool(show(admin, window)["degraded"])) == (host, True)


def before_moves(monkeypatch: pytest.MonkeyPatch, act: Callable[[str], None], times: int = 1) -> list[str]:
    """Call ``act`` with the chosen new host before the moves for a maintenance; return the chosen hosts."""
    find, chosen = window_room._find_departures, list[str]()

    def slow_find(*arguments: Any) -> Sequence[WindowMove]:
        moves = find(*arguments)
        for each in moves[: times - len(chosen)]:
            chosen.extend(each.after)
            act(chosen[-1])
        return moves

    monkeypatch.setattr(window_room, "_find_departures", slow_find)
    return chosen


def fix(admin: Admin, maintenance: str) -> dict[str, Any]:
    """Send a change of a maintenance that only repeats the moves; return the answer."""
    answer = set_movable(admin, maintenance, False)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json
    return found


@pytest.mark.parametrize("error", [RuntimeError, Unavailable, BudgetExhausted])
def test_an_error_of_the_moves_does_not_refuse_a_booked_maintenance(
    admin: Admin,
    base: float,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    error: type[Exception],
) -> None:
    for name in "ab":
        make_provider(admin, name, VCPU=8)
    windows = [booked(admin, amount, 0, 0, **hours(base, 1, 2)) for amount in (4, 2)]
    (host,) = {host_of(admin, each) for each in windows}
    write, written = window_room.write_move, list[str]()

    def write_first(tx: WriteTransaction, move: WindowMove) -> bool:
        if written:
            raise error
        written.append(move.consumer)
        return write(tx, move)

    monkeypatch.setattr(window_room, "write_move", write_first)
    times = {"maintenance_of": host, "project_id": "ops", "user_id": "eve", **hours(base, 1, 2)}
    made = admin("POST", PATH, json=times)
    assert (made.status_code, made.json["moved"]) == (201, windows[:1])
    assert made.json["reservation"]["degraded"]
    assert "Any PUT of the maintenance moves them" in caplog.text
    monkeypatch.setattr(window_room, "write_move", write)
    answer = fix(admin, made.json["reservation"]["uuid"])
    assert (answer["moved"], answer["reservation"]["degraded"]) == (windows[1:], [])


def test_a_change_of_a_maintenance_repeats_moves_that_a_stopped_worker_has_not_made(
    admin: Admin, base: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    window, host = book_on_one_of_two(admin, base, 4)

    def stop(*_: object) -> Never:
        raise KeyboardInterrupt

    monkeypatch.setattr(reservations, "move_away", stop)
    maintenance = str(uuid.uuid4())
    body = {"maintenance_of": host, "project_id": "ops", "user_id": "eve", **hours(base, 1, 2)}
    with pytest.raises(KeyboardInterrupt):
        admin("POST", PATH, json=body | {"uuid": maintenance})
    monkeypatch.setattr(reservations, "move_away", window_room.move_away)
    assert show(admin, window)["degraded"]
    assert fix(admin, maintenance)["moved"] == [window]
    assert (host_of(admin, window) != host, show(admin, window)["degraded"]) == (True, [])
    assert fix(admin, maintenance)["moved"] == []


def disable(admin: Admin, host: str) -> None:
    set_traits(admin, host, "COMPUTE_STATUS_DISABLED")


def change_trait(admin: Admin, host: str) -> None:
    set_traits(admin, host, "CUSTOM_FAST")


def change_aggregate(admin: Admin, host: str) -> None:
    path = provider_path(host, "aggregates")
    body = {"aggregates": [str(uuid.uuid4())], "resource_provider_generation": 1}
    assert admin("PUT", path, json=body).status_code == 200


def delete(admin: Admin, host: str) -> None:
    assert admin("DELETE", provider_path(host)).status_code == 204


@pytest.mark.parametrize("change", [disable, change_trait, change_aggregate, delete])
@pytest.mark.parametrize("others", [0, 1])
def test_a_window_does_not_move_to_a_host_that_changes_meanwhile(
    admin: Admin,
    base: float,
    monkeypatch: pytest.MonkeyPatch,
    change: Callable[[Admin, str], None],
    others: int,
) -> None:
    hosts = {make_provider(admin, name, VCPU=8) for name in "abc"[: 2 + others]}
    window = booked(admin, 2, 0, 0, **hours(base, 1, 2))
    host = host_of(admin, window)
    changed = before_moves(monkeypatch, lambda chosen: change(admin, chosen))
    maintain(admin, host, base, 1, 2)
    (left,) = hosts - {host, *changed} if others else {host}
    assert (len(changed), host_of(admin, window)) == (1, left)


TIMES = [(begin, end) for begin, end in combinations(range(4), 2)]
STEPS = st.lists(st.tuples(st.integers(1, 4), st.sampled_from(TIMES)), min_size=4, max_size=9)


@settings(
    max_examples=examples(15),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(steps=STEPS)
def test_a_booking_is_refused_only_if_no_single_move_makes_room(
    database_server: DatabaseServer, database_template: str, steps: list[tuple[int, tuple[int, int]]]
) -> None:
    url = database_server.clone(database_template)
    try:
        check_steps(Admin(application(url)), steps)
    finally:
        database_server.drop_database(url)


def check_steps(admin: Admin, steps: list[tuple[int, tuple[int, int]]]) -> None:
    base = time.time() + HOUR
    hosts = [make_provider(admin, name, VCPU=4) for name in "abc"]
    known: dict[str, tuple[int, TimeWindow]] = {}
    for amount, (begin, end) in steps:
        answer = book(admin, amount, 0, 0, **hours(base, begin, end))
        places = {each: host_of(admin, each) for each in known}
        if answer.status_code == 409:
            assert not any_single_move_helps(hosts, known, places, amount, TimeWindow(begin, end))
            continue
        assert answer.status_code == 201, answer.text
        new = answer.json["reservation"]["uuid"]
        known[new] = amount, TimeWindow(begin, end)
        for each, (held, window) in known.items():
            shown = show(admin, each)
            ((host, held_there),) = shown["allocations"].items()
            places[each] = host
            assert held_there == {"resources": {"VCPU": held}}
            assert shown["starts_at"] == hours(base, window.starts_at, window.ends_at)["starts_at"]
        assert all(used_at(known, places, host, hour) <= 4 for host in hosts for hour in range(4))


def used_at(known: dict[str, tuple[int, TimeWindow]], places: dict[str, str], host: str, hour: float) -> int:
    return sum(
        amount
        for each, (amount, window) in known.items()
        if places[each] == host and window.starts_at <= hour < window.ends_at
    )


def any_single_move_helps(
    hosts: Sequence[str],
    known: dict[str, tuple[int, TimeWindow]],
    places: dict[str, str],
    amount: int,
    window: TimeWindow,
) -> bool:
    def has_room(where: dict[str, str], host: str, wanted: int, time: TimeWindow) -> bool:
        instants = range(int(time.starts_at), int(time.ends_at))
        return all(used_at(known, where, host, hour) + wanted <= 4 for hour in instants)

    for moving, (held, its_time) in known.items():
        without = {**places, moving: ""}
        if not has_room(without, places[moving], amount, window):
            continue
        if any(has_room(without, host, held, its_time) for host in hosts if host != places[moving]):
            return True
    return any(has_room(places, host, amount, window) for host in hosts)
