"""Random histories of windows and claims, compared with brute force over all hours.

The model knows the amount of each consumer in each hour, and the capacity, which an operator changes. A
write is accepted exactly if no hour gets more above the capacity. The used amount is that of the busiest hour
ahead.
"""

import math
import re
import time
import uuid
from collections.abc import Iterable
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
    st.tuples(st.just("resize"), st.integers(1, 2 * CAPACITY), st.just(0), st.just(0)),
    st.tuples(st.just("wait"), st.integers(1, 2), st.just(0), st.just(0)),
)


@dataclass
class Guest:
    """A consumer: its amount in the hours from ``begin`` to ``end``; the kind says how it was made."""

    kind: str
    amount: int
    begin: float
    end: float


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

    def fits(self, without: str | None, *more: Guest) -> bool:
        """Return whether no hour gets more above the capacity with other guests instead of one."""
        present = [each for key, each in self.guests.items() if key != without]
        before, after = amounts_by_hour(self.guests.values()), amounts_by_hour([*present, *more])
        return all(new <= max(self.capacity, old) for old, new in zip(before, after, strict=True))

    def missing_of(self, window: Guest) -> int:
        """Return the amount that a window lacks in its busiest hour."""
        used = amounts_by_hour(self.guests.values())[max(0, int(window.begin)) : int(window.end)]
        return max(0, min(window.amount, max(used) - self.capacity))

    def time_of(self, hour: float) -> str:
        return iso(self.begun_at + hour * HOUR)

    def settle(self, key: str, status: int, *good: Guest, without: str | None = None, said: str) -> None:
        """Compare a status with the model, and add the guest to it if it was accepted."""
        accepted = status < 300
        assert accepted == self.fits(without, *good), (said, status, self.guests)
        if accepted:
            for each in good:
                self.guests[key] = each

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
            self.settle(key, status, Guest("guest", amount, 0, math.inf), without=key, said="keep")

    def move(self, number: int, end: int, _: int) -> None:
        """Change the end of a window."""
        if (one := self.chosen(number, "window")) is not None and end > max(0, one[1].begin):
            key, window = one
            shown = self.admin("GET", f"{PATH}/{key}").json["reservation"]
            body = {"generation": shown["generation"], "expires_at": self.time_of(end)}
            answer = self.admin("PUT", f"{PATH}/{key}", json=body)
            moved = Guest("window", window.amount, window.begin, end)
            self.settle(key, answer.status_code, moved, without=key, said="move")
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
        may = window.begin <= 0 and length <= window.end and amount <= window.amount
        assert (status < 300) == may, ("draw", status, self.guests)
        if may:
            self.guests[wanted["consumer_uuid"]] = Guest("timed", amount, 0, length)
            window.amount -= amount
            if not window.amount:
                del self.guests[key]

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


def amounts_by_hour(guests: Iterable[Guest]) -> list[int]:
    """Return the used amount of each hour, from the present one on."""
    every = list(guests)
    return [
        sum(each.amount for each in every if each.begin <= hour < each.end) for hour in range(HORIZON + 1)
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
            assert read_usages(admin, world.host)["VCPU"] == max(amounts_by_hour(world.guests.values()))
            for shown in admin("GET", PATH).json["reservations"]:
                missing = [cause["missing"] for cause in shown["degraded"]]
                assert sum(missing) == world.missing_of(world.guests[shown["uuid"]])
    finally:
        database_server.drop_database(url)
