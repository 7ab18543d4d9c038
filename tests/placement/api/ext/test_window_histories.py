"""Random histories of windows and claims, compared with brute force over all hours.

The model knows the amount of each consumer in each hour, and the capacity, which an operator changes. A
write is accepted exactly if no hour gets more above the capacity. The used amount is that of the busiest hour
ahead. A window has what was promised to it, without what its claims use in an hour.
"""

import math
import re
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime

import pytest
from hypothesis import HealthCheck, given, note, settings
from hypothesis import strategies as st

from tests.databases import DatabaseServer
from tests.examples import examples
from tests.placement.builders import (
    make_provider,
    new_claim,
    post_claims,
    provider_path,
    put_allocation,
    put_inventories,
    read_error,
    read_usages,
)
from tests.placement.moving_clock import advance_clock, iso
from tests.placement.running import Admin, application
from tests.placement.workers.window_tables import find_broken_promises

PATH = "/ext/v1/reservations"
CAPACITY = 4
HOUR = 3600.0
HORIZON = 12

amounts = st.integers(1, CAPACITY)
steps = st.one_of(
    st.tuples(st.just("book"), amounts, st.integers(1, 4), st.integers(1, 4)),
    st.tuples(st.just("claim"), amounts, st.integers(1, 4), st.just(0)),
    st.tuples(st.just("hold"), amounts, st.just(0), st.just(0)),
    st.tuples(st.just("release"), st.integers(0, 9), st.just(0), st.just(0)),
    st.tuples(st.just("keep"), st.integers(0, 9), amounts, st.just(0)),
    st.tuples(st.just("move"), st.integers(0, 9), st.integers(1, 6), st.just(0)),
    st.tuples(st.just("draw"), st.integers(0, 9), amounts, st.integers(1, 4)),
    st.tuples(st.just("redraw"), st.integers(0, 9), amounts, st.integers(1, 4)),
    st.tuples(st.just("shrink"), st.integers(0, 9), amounts, st.just(0)),
    st.tuples(st.just("resize"), st.integers(1, 2 * CAPACITY), st.just(0), st.just(0)),
    st.tuples(st.just("wait"), st.integers(1, 2), st.just(0), st.just(0)),
)


@dataclass
class Guest:
    """A consumer: its amount in the hours from ``begin`` to ``end``; the kind says how it was made.

    The amount of a window includes that of its claims, which have the window as ``source``.
    """

    kind: str
    amount: int
    begin: float
    end: float
    source: str | None = None


@dataclass
class World:
    """The service beside the model of all hours; hour 0 is the present one."""

    admin: Admin
    url: str
    host: str
    # the present is in the middle of an hour, so that no request meets its border
    begun_at: float = field(default_factory=lambda: time.time() - HOUR / 2)
    guests: dict[str, Guest] = field(default_factory=dict)
    capacity: int = CAPACITY

    def fits(self, key: str, guest: Guest) -> bool:
        """Return whether no hour gets more above the capacity with this guest, instead of its former self."""
        before, after = amounts_by_hour(self.guests), amounts_by_hour({**self.guests, key: guest})
        return all(new <= max(self.capacity, old) for old, new in zip(before, after, strict=True))

    def held_by(self, key: str) -> int:
        """Return what a window holds now."""
        return self.guests[key].amount - sum(self.taken_from(key))

    def taken_from(self, key: str) -> list[int]:
        return [each.amount for each in self.guests.values() if each.source == key]

    def missing_of(self, key: str) -> int:
        """Return the part of what a window holds that it lacks in its busiest hour."""
        window = self.guests[key]
        used = amounts_by_hour(self.guests)[max(0, int(window.begin)) : int(window.end)]
        return max(0, min(self.held_by(key), max(used) - self.capacity))

    def time_of(self, hour: float) -> str:
        return iso(self.begun_at + hour * HOUR)

    def settle(self, key: str, status: int, guest: Guest, said: str) -> None:
        """Compare a status with the model, and add the guest to it if it was accepted."""
        accepted = status < 300
        assert accepted == self.fits(key, guest), (said, status, self.guests)
        if accepted:
            self.guests[key] = guest

    def generation_of(self, key: str) -> int:
        generation: int = self.admin("GET", f"/allocations/{key}").json["consumer_generation"]
        return generation

    def chosen(self, number: int, *kinds: str) -> tuple[str, Guest] | None:
        some = [(key, each) for key, each in self.guests.items() if each.kind in kinds]
        return some[number % len(some)] if some else None

    def book(self, amount: int, begin: int, length: int) -> None:
        key = str(uuid.uuid4())
        body = {"query": f"resources=VCPU:{amount}", "project_id": "project", "user_id": "user", "uuid": key}
        times = {"starts_at": self.time_of(begin), "expires_at": self.time_of(begin + length)}
        status = self.admin("POST", PATH, json=body | times).status_code
        self.settle(key, status, Guest("window", amount, begin, begin + length), said="book")

    def claim(self, amount: int, length: int, _: int) -> None:
        wanted = new_claim(f"resources=VCPU:{amount}")
        status = post_claims(self.admin, wanted, ends_at=self.time_of(length)).status_code
        self.settle(wanted["consumer_uuid"], status, Guest("timed", amount, 0, length), said="claim")

    def hold(self, amount: int, _: int, __: int) -> None:
        key = str(uuid.uuid4())
        status = put_allocation(self.admin, {self.host: {"VCPU": amount}}, key).status_code
        self.settle(key, status, Guest("guest", amount, 0, math.inf), said="hold")

    def release(self, number: int, _: int, __: int) -> None:
        if (one := self.chosen(number, "window", "timed", "guest")) is not None:
            assert self.admin("DELETE", f"/allocations/{one[0]}").status_code == 204
            del self.guests[one[0]]

    def keep(self, number: int, amount: int, _: int) -> None:
        """Have a guest stay without an end, with another amount."""
        if (one := self.chosen(number, "timed", "guest")) is not None:
            key = one[0]
            amounts = {self.host: {"VCPU": amount}}
            status = put_allocation(self.admin, amounts, key, self.generation_of(key)).status_code
            self.settle(key, status, Guest("guest", amount, 0, math.inf), said="keep")

    def move(self, number: int, end: int, _: int) -> None:
        """Change the end of a window."""
        if (one := self.chosen(number, "window")) is not None and end > max(0, one[1].begin):
            key, window = one
            shown = self.admin("GET", f"{PATH}/{key}").json["reservation"]
            body = {"generation": shown["generation"], "expires_at": self.time_of(end)}
            answer = self.admin("PUT", f"{PATH}/{key}", json=body)
            moved = Guest("window", window.amount, window.begin, end)
            self.settle(key, answer.status_code, moved, said="move")
            if answer.status_code == 409:
                latest = max(
                    hour
                    for hour in range(int(window.end), HORIZON)
                    if self.fits(key, Guest("window", window.amount, window.begin, hour))
                )
                said = re.search(r"may end at (.*)Z at the latest", read_error(answer)[2])
                assert said is not None
                moment = datetime.fromisoformat(said[1]).replace(tzinfo=UTC).timestamp()
                assert abs(moment - self.begun_at - latest * HOUR) < 1

    def draw(self, number: int, amount: int, length: int) -> None:
        """Claim from a window."""
        if (one := self.chosen(number, "window")) is None:
            return
        key, window = one
        wanted = new_claim(f"resources=VCPU:{amount}")
        fields = {"ends_at": self.time_of(length), "reservation": key}
        status = post_claims(self.admin, wanted, **fields).status_code
        may = window.begin <= 0 and length <= window.end and amount <= self.held_by(key)
        assert (status < 300) == may, ("draw", status, self.guests)
        if may:
            self.guests[wanted["consumer_uuid"]] = Guest("timed", amount, 0, length, key)

    def redraw(self, number: int, amount: int, length: int) -> None:
        """Repeat a claim from the same window, with another amount and end."""
        if (one := self.chosen(number, "timed")) is None or one[1].source not in self.guests:
            return
        key, source = one[0], one[1].source
        generation = self.generation_of(key)
        wanted = new_claim(f"resources=VCPU:{amount}", consumer_uuid=key, consumer_generation=generation)
        answer = post_claims(self.admin, wanted, ends_at=self.time_of(length), reservation=source)
        window = self.guests[source]
        may = length <= window.end and amount <= self.held_by(source) + one[1].amount
        assert (answer.status_code < 300) == may, ("redraw", answer.text, self.guests)
        if may:
            self.guests[key] = Guest("timed", amount, 0, length, source)

    def shrink(self, number: int, amount: int, _: int) -> None:
        """Give back a part of what a window holds."""
        if (one := self.chosen(number, "window")) is None or amount > self.held_by(one[0]):
            return
        key, window = one
        shown = self.admin("GET", f"{PATH}/{key}").json["reservation"]
        kept = {self.host: {"resources": {"VCPU": amount}}}
        answer = self.admin(
            "PUT", f"{PATH}/{key}", json={"generation": shown["generation"], "allocations": kept}
        )
        assert answer.status_code == 200, answer.text
        window.amount -= self.held_by(key) - amount

    def resize(self, capacity: int, _: int, __: int) -> None:
        generation = self.admin("GET", provider_path(self.host)).json["generation"]
        put_inventories(self.admin, self.host, generation, VCPU=capacity)
        self.capacity = capacity

    def wait(self, hours: int, _: int, __: int) -> None:
        advance_clock(self.url, hours * HOUR)
        for key, each in list(self.guests.items()):
            each.begin, each.end = each.begin - hours, each.end - hours
            if each.end <= 0:
                del self.guests[key]


def amounts_by_hour(guests: Mapping[str, Guest]) -> list[int]:
    """Return the used amount of each hour, from the present one on."""
    return [
        sum(
            each.amount
            for each in guests.values()
            # a claim uses a part of its window, as long as there is one
            if each.begin <= hour < each.end
            and not ((window := guests.get(each.source or "")) is not None and hour < window.end)
        )
        for hour in range(HORIZON + 1)
    ]


@pytest.fixture
def template(database_server: DatabaseServer, database_template: str) -> str:
    return database_template


@settings(
    max_examples=examples(60),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(history=st.lists(steps, min_size=3, max_size=14))
def test_a_write_is_accepted_exactly_if_no_hour_is_above_the_capacity(
    database_server: DatabaseServer, template: str, history: list[tuple[str, int, int, int]]
) -> None:
    url = database_server.clone(template)
    try:
        admin = Admin(application(url))
        world = World(admin, url, make_provider(admin, "cn", VCPU=CAPACITY))
        for kind, *numbers in history:
            getattr(world, kind)(*numbers)
            note(f"{kind} {numbers}: {world.guests}")
            assert read_usages(admin, world.host)["VCPU"] == max(amounts_by_hour(world.guests))
            for shown in admin("GET", PATH).json["reservations"]:
                missing = [cause["missing"] for cause in shown["degraded"]]
                assert sum(missing) == world.missing_of(shown["uuid"])
                for name, amount in (
                    ("allocations", world.held_by(shown["uuid"])),
                    ("claimed", sum(world.taken_from(shown["uuid"]))),
                ):
                    there = {world.host: {"resources": {"VCPU": amount}}} if amount else {}
                    assert shown[name] == there
            assert find_broken_promises(url, {world.host: 2 * CAPACITY}) == []
            shown_uuids = {each["uuid"] for each in admin("GET", PATH).json["reservations"]}
            assert shown_uuids == {key for key, each in world.guests.items() if each.kind == "window"}
    finally:
        database_server.drop_database(url)
