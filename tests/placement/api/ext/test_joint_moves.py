"""Moves of windows that hold amounts of several trees: of several hosts, or of a host and a sharing provider.

Other writes come between the choice of a move and its commit.
"""

import time
import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any

import pytest
from werkzeug.test import TestResponse

from placement.read_model.provider import SHARES
from placement.search.claims import window_room
from placement.search.claims.window_room import MovedPlaces
from tests.placement.api.ext.windows import HOUR, PATH, show
from tests.placement.builders import make_provider, provider_path, put_inventories, read_error
from tests.placement.moving_clock import advance_clock, iso
from tests.placement.running import Admin, application
from tests.placement.workers.window_tables import find_broken_promises

RACK, OTHER_RACK = (str(uuid.UUID(int=number)) for number in (1, 2))
STORED = "resources=VCPU:4,DISK_GB:4"


@pytest.fixture
def base() -> float:
    return time.time() + HOUR


@pytest.fixture(autouse=True)
def unlimited(monkeypatch: pytest.MonkeyPatch) -> None:
    """Searches for moves end by their other limits, however slow the machine is."""
    monkeypatch.setattr(window_room, "_HOSTS_SECONDS", 5.0)
    monkeypatch.setattr(window_room, "_SEARCH_SECONDS", 5.0)


def change(admin: Admin, provider: str, part: str, values: Sequence[str]) -> None:
    """Set the traits or aggregates of a provider."""
    body = {part: values, "resource_provider_generation": generation_of(admin, provider)}
    answer = admin("PUT", provider_path(provider, part), json=body)
    assert answer.status_code == 200, answer.text


def generation_of(admin: Admin, provider: str) -> int:
    generation: int = admin("GET", provider_path(provider)).json["generation"]
    return generation


def make_member(admin: Admin, name: str, *traits: str, **totals: Any) -> str:
    """Make a provider in the rack."""
    made = make_provider(admin, name, **totals)
    change(admin, made, "aggregates", [RACK])
    if traits:
        change(admin, made, "traits", traits)
    return made


def book(admin: Admin, base: float, **fields: Any) -> TestResponse:
    times = {"starts_at": iso(base), "expires_at": iso(base + HOUR)}
    return admin("POST", PATH, json={"project_id": "project", "user_id": "user", **times, **fields})


def booked(admin: Admin, base: float, **fields: Any) -> str:
    answer = book(admin, base, **fields)
    assert answer.status_code == 201, answer.text
    made: str = answer.json["reservation"]["uuid"]
    return made


def book_on(admin: Admin, base: float, host: str, others: Sequence[str], **fields: Any) -> str:
    """Book a window that may move, while the other hosts are full."""
    full = [booked(admin, base, query="resources=VCPU:8", allowed_hosts=[each]) for each in others]
    window = booked(admin, base, **fields)
    assert host in show(admin, window)["allocations"]
    for each in full:
        cancel(admin, each)
    return window


def cancel(admin: Admin, window: str) -> None:
    assert admin("DELETE", f"{PATH}/{window}").status_code == 204


def set_movable(admin: Admin, window: str, value: bool) -> None:
    body = {"generation": show(admin, window)["generation"], "movable": value}
    assert admin("PUT", f"{PATH}/{window}", json=body).status_code == 200


def maintain(admin: Admin, base: float, host: str) -> list[str]:
    """Book a maintenance; return the windows that move."""
    answer = book(admin, base, maintenance_of=host)
    assert answer.status_code == 201, answer.text
    moved: list[str] = answer.json["moved"]
    return moved


def amounts_of(admin: Admin, window: str) -> dict[str, dict[str, int]]:
    return {provider: held["resources"] for provider, held in show(admin, window)["allocations"].items()}


@pytest.fixture
def pool(admin: Admin) -> str:
    """A sharing provider of the rack."""
    return make_member(admin, "pool", SHARES, DISK_GB=8)


@pytest.fixture
def hosts(admin: Admin) -> list[str]:
    return [make_member(admin, name, VCPU=8) for name in "ab"]


@pytest.fixture
def halves(admin: Admin, base: float, pool: str, hosts: list[str]) -> list[str]:
    """A window on each host. Together they hold all storage of the pool."""
    first = book_on(admin, base, hosts[0], hosts[1:], query=STORED)
    beside = booked(admin, base, query="resources=VCPU:4", allowed_hosts=hosts[:1])
    second = booked(admin, base, query=STORED)
    cancel(admin, beside)
    assert amounts_of(admin, second) == {hosts[1]: {"VCPU": 4}, pool: {"DISK_GB": 4}}
    return [first, second]


@pytest.mark.parametrize("need", ["booking", "maintenance"])
def test_a_window_moves_and_keeps_its_shared_storage(
    admin: Admin, base: float, url: str, pool: str, hosts: list[str], halves: list[str], need: str
) -> None:
    if need == "booking":
        moved = book(admin, base, query="resources=VCPU:8").json["moved"]
    else:
        moved = maintain(admin, base, hosts[0])
    assert len(moved) == 1
    places = [amounts_of(admin, each) for each in halves]
    assert places[0] == places[1]
    assert places[0] in [{each: {"VCPU": 4}, pool: {"DISK_GB": 4}} for each in hosts]
    assert [show(admin, each)["degraded"] for each in halves] == [[], []]
    assert find_broken_promises(url) == []


def test_a_window_does_not_move_away_from_its_storage(
    admin: Admin, base: float, hosts: list[str], halves: list[str]
) -> None:
    change(admin, hosts[1], "aggregates", [OTHER_RACK])
    before = [show(admin, each) for each in halves]
    assert book(admin, base, query="resources=VCPU:8").status_code == 409
    assert [show(admin, each) for each in halves] == before


def test_shared_storage_moves_to_an_equivalent_pool(
    admin: Admin, base: float, url: str, pool: str, hosts: list[str]
) -> None:
    window = booked(admin, base, query=STORED)
    apart = booked(admin, base, query="resources_A=VCPU:1&resources_B=DISK_GB:1&group_policy=isolate")
    (host,) = amounts_of(admin, window).keys() - {pool}
    distant = make_member(admin, "distant", SHARES, DISK_GB=8)
    change(admin, distant, "aggregates", [OTHER_RACK])
    # another kind of storage, and storage without enough room
    make_member(admin, "fast", SHARES, "STORAGE_DISK_SSD", DISK_GB=8)
    make_member(admin, "small", SHARES, DISK_GB=3)
    assert maintain(admin, base, pool) == [apart]
    new = make_member(admin, "new", SHARES, DISK_GB=8)
    assert maintain(admin, base + HOUR / 2, pool) == [window]
    assert amounts_of(admin, window) == {host: {"VCPU": 4}, new: {"DISK_GB": 4}}
    assert find_broken_promises(url) == []


def test_a_window_on_isolated_pools_stays_isolated(
    admin: Admin, base: float, pool: str, hosts: list[str]
) -> None:
    second = make_member(admin, "second", SHARES, DISK_GB=8)
    query = "resources=VCPU:1&resources_A=DISK_GB:1&resources_B=DISK_GB:1&group_policy=isolate"
    window = booked(admin, base, query=query)
    assert maintain(admin, base, pool) == []
    third = make_member(admin, "third", SHARES, DISK_GB=8)
    assert maintain(admin, base + HOUR / 2, pool) == [window]
    assert {second, third} < amounts_of(admin, window).keys()


def test_a_booking_counts_windows_that_move_to_its_other_pool(
    admin: Admin, base: float, pool: str, hosts: list[str]
) -> None:
    second = make_member(admin, "second", SHARES, DISK_GB=8)
    window = booked(admin, base, query=STORED)
    before = show(admin, window)
    both = "resources_A=DISK_GB:{0}&resources_B=DISK_GB:{0}&group_policy=isolate"
    answer = book(admin, base, query=both.format(8))
    assert (answer.status_code, read_error(answer)[1]) == (409, "placement.ext.no_candidate")
    assert show(admin, window) == before
    # with less in each pool, the same window need not move
    assert book(admin, base, query=both.format(4)).json["moved"] == []
    assert {pool, second} & amounts_of(admin, window).keys()


def test_claims_that_together_exceed_the_largest_portion_move(admin: Admin, base: float, url: str) -> None:
    first, second = (make_member(admin, name, VCPU={"total": 8, "max_unit": 4}) for name in "ab")
    full = [booked(admin, base, query="resources=VCPU:4", allowed_hosts=[second]) for _ in range(2)]
    window = booked(admin, base, claims=[{"query": "resources=VCPU:4", "count": 2}])
    for each in full:
        cancel(admin, each)
    set_movable(admin, window, True)
    assert amounts_of(admin, window) == {first: {"VCPU": 8}}
    assert maintain(admin, base, first) == [window]
    assert amounts_of(admin, window) == {second: {"VCPU": 8}}
    assert find_broken_promises(url) == []


def test_a_move_does_not_count_against_the_limits_of_its_project(url: str, base: float) -> None:
    limits = {"max_project_reservations": 1, "max_project_amounts": {"VCPU": 8}}
    admin = Admin(application(url, reservations=limits))
    hosts = [make_member(admin, name, VCPU=8) for name in "abc"]
    owned = {"project_id": "full", "claims": [{"query": "resources=VCPU:4", "count": 2}]}
    window = booked(admin, base, **owned, different_hosts=True)
    set_movable(admin, window, True)
    free, *_ = {*hosts} - amounts_of(admin, window).keys()
    booked(admin, base, query="resources=VCPU:4", allowed_hosts=[free], project_id="other")
    assert book(admin, base, query="resources=VCPU:8", project_id="third").json["moved"] == [window]
    assert book(admin, base, query="resources=VCPU:8", project_id="third").status_code == 409
    assert set(amounts_of(admin, window)) > {free}


def act_before_commit(
    monkeypatch: pytest.MonkeyPatch, act: Callable[[MovedPlaces], None]
) -> list[MovedPlaces]:
    """Act once between the choice of a move for a booking and its commit; return all chosen moves."""
    chosen, choose = list[MovedPlaces](), window_room.place_by_moves

    def choose_and_act(*arguments: Any) -> MovedPlaces | None:
        found = choose(*arguments)
        if found is not None:
            chosen.append(found)
            if len(chosen) == 1:
                act(found)
        return found

    monkeypatch.setattr(window_room, "place_by_moves", choose_and_act)
    return chosen


def new_host(found: MovedPlaces) -> str:
    (move,) = found.moves
    (host,) = move.after.keys() - move.before.keys()
    return host


def disable_host(admin: Admin, found: MovedPlaces) -> None:
    change(admin, new_host(found), "traits", ["COMPUTE_STATUS_DISABLED"])


def change_rack(admin: Admin, found: MovedPlaces) -> None:
    change(admin, new_host(found), "aggregates", [OTHER_RACK])


def shrink_host(admin: Admin, found: MovedPlaces) -> None:
    host = new_host(found)
    put_inventories(admin, host, generation_of(admin, host), VCPU=7)


def fix_window(admin: Admin, found: MovedPlaces) -> None:
    set_movable(admin, found.moves[0].consumer, False)


def cancel_window(admin: Admin, found: MovedPlaces) -> None:
    cancel(admin, found.moves[0].consumer)


def shrink_window(admin: Admin, found: MovedPlaces) -> None:
    window = show(admin, found.moves[0].consumer)
    kept = {
        provider: {"resources": {name: used - 1 for name, used in held["resources"].items()}}
        for provider, held in window["allocations"].items()
    }
    body = {"generation": window["generation"], "allocations": kept}
    assert admin("PUT", f"{PATH}/{window['uuid']}", json=body).status_code == 200


def prolong_window(admin: Admin, found: MovedPlaces) -> None:
    (move,) = found.moves
    body = {
        "generation": show(admin, move.consumer)["generation"],
        "expires_at": iso(move.window.ends_at + HOUR),
    }
    assert admin("PUT", f"{PATH}/{move.consumer}", json=body).status_code == 200


# each with the status of the booking, and whether a window moves for it
CHANGES = [
    # the window of the disabled host moves in its place, and the booking accepts a disabled host
    (disable_host, 201, True),
    (change_rack, 409, False),
    (shrink_host, 409, False),
    (fix_window, 201, True),
    (cancel_window, 201, False),
    (shrink_window, 201, True),
    (prolong_window, 201, True),
]


@pytest.mark.parametrize(("act", "status", "moves"), CHANGES)
def test_a_change_after_the_choice_of_a_move_is_noticed(
    admin: Admin,
    base: float,
    url: str,
    pool: str,
    hosts: list[str],
    halves: list[str],
    monkeypatch: pytest.MonkeyPatch,
    act: Callable[[Admin, MovedPlaces], None],
    status: int,
    moves: bool,
) -> None:
    chosen = act_before_commit(monkeypatch, lambda found: act(admin, found))
    answer = book(admin, base, query="resources=VCPU:8")
    assert answer.status_code == status, answer.text
    assert chosen
    if status == 201:
        assert bool(answer.json["moved"]) == moves
    for each in halves:
        if act is not cancel_window or each != chosen[0].moves[0].consumer:
            (host,) = amounts_of(admin, each).keys() - {pool}
            assert host in hosts
    assert find_broken_promises(url) == []


def test_a_new_host_that_is_deleted_after_the_choice_of_a_move_is_noticed(
    admin: Admin, base: float, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in "ab":
        make_member(admin, name, VCPU=8)
    window = booked(admin, base, claims=[{"query": "resources=VCPU:4", "count": 2}], different_hosts=True)
    set_movable(admin, window, True)
    before = show(admin, window)
    # the booking does not fit on this host itself
    third = make_member(admin, "c", VCPU=4)

    def delete_host(found: MovedPlaces) -> None:
        assert new_host(found) == third
        assert admin("DELETE", provider_path(third)).status_code == 204

    chosen = act_before_commit(monkeypatch, delete_host)
    answer = book(admin, base, query="resources=VCPU:8")
    assert (answer.status_code, len(chosen)) == (409, 1)
    assert show(admin, window) == before
    assert find_broken_promises(url) == []


def test_a_window_that_begins_after_the_choice_of_its_move_stays(
    admin: Admin,
    base: float,
    url: str,
    halves: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = [amounts_of(admin, each) for each in halves]
    # the booking is for the last minutes of the windows, which begin before its commit
    chosen = act_before_commit(monkeypatch, lambda _: advance_clock(url, 1.5 * HOUR))
    times = {"starts_at": iso(base + 0.9 * HOUR), "expires_at": iso(base + HOUR)}
    answer = admin(
        "POST",
        PATH,
        json={"project_id": "project", "user_id": "user", "query": "resources=VCPU:8", **times},
    )
    assert (answer.status_code, len(chosen)) == (201, 1)
    assert [show(admin, each)["state"] for each in halves] == ["active", "active"]
    assert [amounts_of(admin, each) for each in halves] == before
    assert find_broken_promises(url) == []


def test_two_bookings_that_choose_the_same_move_get_places_of_their_own(
    url: str, base: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    admins = [Admin(application(url)) for _ in range(2)]
    admin = admins[0]
    hosts = [make_member(admin, name, VCPU=8) for name in "abc"]
    window = booked(admin, base, claims=[{"query": "resources=VCPU:4", "count": 2}], different_hosts=True)
    set_movable(admin, window, True)
    (free,) = {*hosts} - amounts_of(admin, window).keys()
    half = booked(admin, base, query="resources=VCPU:4", allowed_hosts=[free])
    both, chosen, choose = Barrier(2), list[MovedPlaces | None](), window_room.place_by_moves

    def choose_and_meet(*arguments: Any) -> MovedPlaces | None:
        found = choose(*arguments)
        chosen.append(found)
        if len(chosen) <= 2:
            both.wait(60)
        return found

    monkeypatch.setattr(window_room, "place_by_moves", choose_and_meet)
    with ThreadPoolExecutor(2) as threads:
        answers = list(threads.map(lambda each: book(each, base, query="resources=VCPU:8"), admins))
    assert sorted(each.status_code for each in answers) == [201, 409]
    assert all(each is not None and each.moves[0].consumer == window for each in chosen[:2])
    held = amounts_of(admin, window)
    assert (len(held), free in held) == (2, True)
    assert amounts_of(admin, half) == {free: {"VCPU": 4}}
    assert find_broken_promises(url) == []
