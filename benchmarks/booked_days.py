"""Two weeks of a cloud with bookings, simulated for three ways to book: ``python -m benchmarks.booked_days``.

The program makes random bookings and guests from each seed. Each way to book gets the same bookings, guests
and hosts: windows of this service, reservations of this service that hold their room from the booking on, and
Blazar's algorithm. For Blazar's algorithm a part of the hosts is only for bookings. The service runs in this
process on SQLite, and the simulation moves its clock. ``booked_days.md`` describes the results.
"""

import argparse
import json
import math
import random
import statistics
import tempfile
import time
from collections import defaultdict
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

from placement.db import migration
from tests.placement.builders import make_provider, new_claim, post_claims, provider_path
from tests.placement.moving_clock import advance_clock, iso
from tests.placement.running import Admin, application
from tests.placement.workers.window_tables import find_broken_promises

TICK: Final = 900
"""Seconds between two instants at which something happens."""
HOUR: Final = 3600
DAY: Final = 24 * HOUR
MIN_DURATION: Final = HOUR
"""Seconds for which each preemptible guest keeps its room, unless the guest is shorter."""
_SIZES: Final = (16, 32, 32, 64)
"""VCPU of the hosts, in turn."""
_FENCE: Final = "CUSTOM_FOR_BOOKINGS"
"""The trait of the hosts that only bookings may use."""


class DemandKind(StrEnum):
    """Kinds of demand: a booking for a later time, and three kinds of guests that start immediately.

    The service learns the end of a guest, does not learn it, or chooses it.
    """

    BOOKING = "bookings"
    WITH_END = "guests with an end"
    WITHOUT_END = "guests without an end"
    PREEMPTIBLE = "preemptible guests"


@dataclass(frozen=True)
class CloudDemand:
    """A demand of a user for VCPUs of one host. Times are in seconds."""

    name: str
    kind: DemandKind
    asked_at: int
    begin: int
    end: int
    cpus: int

    @property
    def min_duration(self) -> int:
        """Return the seconds for which a preemptible guest keeps its room."""
        return min(MIN_DURATION, (self.end - self.begin) // 2)

    def vcpu_hours(self, seconds: int) -> float:
        """Return the VCPU-hours inside a simulation of some seconds."""
        return (min(self.end, seconds) - min(self.begin, seconds)) / HOUR * self.cpus


@dataclass
class HostDemands:
    """The capacity of one host, and the demands that it serves now or later."""

    cpus: int
    served: dict[str, CloudDemand] = field(default_factory=dict)

    def used_at(self, now: int) -> int:
        """Return the sum of VCPUs at an instant."""
        return sum(each.cpus for each in self.served.values() if each.begin <= now < each.end)

    def peak_use(self, begin: int, end: float) -> int:
        """Return the largest sum in an interval, over the demands that begin in it or before."""
        inside = [each for each in self.served.values() if each.begin < end and begin < each.end]
        instants = {begin, *(each.begin for each in inside if each.begin > begin)}
        return max(sum(e.cpus for e in inside if e.begin <= instant < e.end) for instant in instants)

    def promised_after(self, now: int) -> int:
        """Return the largest sum of the demands that begin after an instant."""
        later = {name: each for name, each in self.served.items() if each.begin > now}
        return HostDemands(self.cpus, later).peak_use(now, float("inf"))


class MovedService:
    """This service on a database of its own, with a clock that the simulation moves."""

    def __init__(self, folder: Path, hosts: dict[str, int], fenced: frozenset[str] = frozenset()) -> None:
        self.url = f"sqlite:///{folder / 'placement.db'}"
        migration.upgrade_schema(self.url)
        self.admin = Admin(application(self.url))
        self.admin("PUT", f"/traits/{_FENCE}")
        self.names = {make_provider(self.admin, name, VCPU=cpus): name for name, cpus in hosts.items()}
        for provider, name in self.names.items():
            if name in fenced:
                body = {"resource_provider_generation": 1, "traits": [_FENCE]}
                self.admin("PUT", provider_path(provider, "traits"), json=body)
        self._began, self._skipped = time.time(), 0.0

    def _simulated_time(self) -> float:
        return time.time() - self._began + self._skipped

    def pass_until(self, instant: int) -> None:
        """Move the clock to an instant, unless the program itself has taken longer."""
        # whole seconds, so that stored times keep the milliseconds that answers show
        missing = math.ceil(instant - self._simulated_time())
        if missing > 0:
            advance_clock(self.url, missing)
            self._skipped += missing

    def format_time(self, instant: float) -> str:
        """Return a simulated time in the format of the API."""
        return iso(time.time() + instant - self._simulated_time())

    def post_request(self, path: str, body: dict[str, Any]) -> dict[str, Any] | None:
        """Send a request; return the answer, or None if there is no room."""
        answer = self.admin("POST", path, json=body)
        assert answer.status_code in {201, 409}, answer.text
        return None if answer.status_code == 409 else json.loads(answer.data)

    def tick_of(self, text: str) -> int:
        """Return the simulated time of a text in an answer, in whole ticks."""
        instant = datetime.fromisoformat(text).timestamp() - time.time() + self._simulated_time()
        return TICK * round(instant / TICK)

    def host_of(self, allocations: dict[str, Any]) -> str:
        """Return the name of the only host of some allocations."""
        (provider,) = allocations
        return self.names[provider]


class BookingMethod:
    """A way to book: this class serves guests, each subclass serves bookings."""

    name = ""

    def __init__(self, service: MovedService, guest_query: str = "") -> None:
        self.service = service
        self._guest_query = guest_query
        self._consumers: dict[str, str] = {}
        #: the ends of guests that the service has chosen since the last call of ``take_ends``
        self._ends: dict[str, int] = {}

    def start(self, guest: CloudDemand) -> str | None:
        """Claim the resources of a guest; return the name of its host, or None if there is no room."""
        fields: dict[str, Any] = {}
        if guest.kind is not DemandKind.WITHOUT_END:
            fields["ends_at"] = self.service.format_time(guest.end)
        if guest.kind is DemandKind.PREEMPTIBLE:
            fields["preemptible"] = {"min_duration": guest.min_duration}
        claim = new_claim(f"resources=VCPU:{guest.cpus}{self._guest_query}")
        answer = post_claims(self.service.admin, claim, **fields)
        if answer.status_code == 409:
            return None
        assert answer.status_code == 201, answer.text
        self._consumers[guest.name] = claim["consumer_uuid"]
        (made,) = json.loads(answer.data)["claims"]
        if guest.kind is DemandKind.PREEMPTIBLE:
            self._ends[guest.name] = self.service.tick_of(made["ends_at"])
        return self.service.host_of(made["allocations"])

    def take_ends(self) -> dict[str, int]:
        """Return the ends that the service has chosen for preemptible guests since the last call, by name."""
        found, self._ends = self._ends, {}
        return found

    def _note_preempted(self, consumers: list[str]) -> None:
        names = {consumer: name for name, consumer in self._consumers.items()} if consumers else {}
        for each in consumers:
            shown = json.loads(self.service.admin("GET", f"/ext/v1/claims/{each}").data)["claim"]
            self._ends[names[each]] = self.service.tick_of(shown["ends_at"])

    def stop(self, guest: CloudDemand) -> None:
        """Release the resources of a guest, unless the service does so at an end that it knows."""
        consumer = self._consumers.pop(guest.name)
        if guest.kind is DemandKind.WITHOUT_END:
            self.service.admin("DELETE", f"/allocations/{consumer}")

    def book_room(self, booking: CloudDemand) -> str | None:
        """Reserve the resources of a booking; return the name of its host, or None if there is no room."""
        raise NotImplementedError

    def begin_booking(self, booking: CloudDemand) -> bool:
        """Use a whole booking; return whether its room was free."""
        raise NotImplementedError


class ReservedRoom(BookingMethod):
    """Bookings as reservations of this service: windows, or reservations that hold their room immediately."""

    def __init__(self, service: MovedService, *, holds_at_once: bool) -> None:
        super().__init__(service)
        self.name = "held from the booking on" if holds_at_once else "windows"
        self._holds_at_once = holds_at_once
        self._reservations: dict[str, str] = {}

    def book_room(self, booking: CloudDemand) -> str | None:
        times = {"expires_at": self.service.format_time(booking.end)}
        if not self._holds_at_once:
            times["starts_at"] = self.service.format_time(booking.begin)
        owner = {"project_id": "project", "user_id": "user"}
        body = {"query": f"resources=VCPU:{booking.cpus}", **owner, **times}
        answer = self.service.post_request("/ext/v1/reservations", body)
        if answer is None:
            return None
        self._note_preempted(answer["preempted"])
        made = answer["reservation"]
        self._reservations[booking.name] = made["uuid"]
        return self.service.host_of(made["allocations"])

    def begin_booking(self, booking: CloudDemand) -> bool:
        uuid = self._reservations[booking.name]
        # the moved clock has changed the times since the booking
        shown = json.loads(self.service.admin("GET", f"/ext/v1/reservations/{uuid}").data)["reservation"]
        claim = new_claim(f"resources=VCPU:{booking.cpus}")
        body = {"claims": [claim], "reservation": uuid, "ends_at": shown["expires_at"]}
        return self.service.post_request("/ext/v1/claims", body) is not None


class FencedHosts(BookingMethod):
    """Blazar's algorithm: a booking gets the first of its hosts that is free for the whole time.

    Blazar sweeps the amounts of each host between begin and end, in the order of its database. Its default
    cleaning time is 0. Guests get the other hosts.
    """

    def __init__(self, service: MovedService, name: str, hosts: dict[str, int]) -> None:
        super().__init__(service, f"&required=!{_FENCE}")
        self.name = name
        self._hosts = {each: HostDemands(cpus) for each, cpus in hosts.items()}

    def book_room(self, booking: CloudDemand) -> str | None:
        for name, host in self._hosts.items():
            if host.peak_use(booking.begin, booking.end) + booking.cpus <= host.cpus:
                host.served[booking.name] = booking
                return name
        return None

    def begin_booking(self, booking: CloudDemand) -> bool:
        return True


@dataclass
class DaysResult:
    """Sums of VCPU-hours over the simulated time: demands by kind, and the whole cloud."""

    capacity: float = 0.0
    used: float = 0.0
    promised: float = 0.0
    lent: float = 0.0
    broken: int = 0
    asked: dict[DemandKind, float] = field(default_factory=lambda: defaultdict(float))
    served: dict[DemandKind, float] = field(default_factory=lambda: defaultdict(float))
    #: number of preemptible guests that a later booking has ended early
    preempted: int = 0

    def served_shares(self) -> list[float]:
        """Return the served share of each kind, the used share of the cloud, and the lent share."""
        kinds = [self.served[kind] / self.asked[kind] if self.asked[kind] else 0.0 for kind in DemandKind]
        return [*kinds, self.used / self.capacity, self.lent / self.promised]


class CloudDays:
    """The simulation of one method. Demands arrive, begin and end, tick by tick."""

    def __init__(self, method: BookingMethod, hosts: dict[str, int], seconds: int) -> None:
        self.result = DaysResult()
        self._method, self._seconds = method, seconds
        self._hosts = {name: HostDemands(cpus) for name, cpus in hosts.items()}
        self._places: dict[str, str] = {}
        self._kept: dict[str, int] = {}
        self._begins = defaultdict[int, list[CloudDemand]](list)
        self._ends = defaultdict[int, list[str]](list)

    def run(self, demands: list[CloudDemand]) -> DaysResult:
        """Simulate the whole time."""
        arrivals = defaultdict[int, list[CloudDemand]](list)
        for each in demands:
            arrivals[each.asked_at].append(each)
        for now in range(0, self._seconds, TICK):
            # the clock passes the instant, so that the service has released the claims that end then
            self._method.service.pass_until(now + 1)
            for name in self._ends.pop(now, ()):
                self._end_demand(name, now)
            for begun in self._begins.pop(now, ()):
                self.result.broken += not self._method.begin_booking(begun)
            for asked in arrivals[now]:
                self._handle_demand(asked)
            self._count_use(now)
            if now % DAY == 0:
                self.result.broken += len(find_broken_promises(self._method.service.url))
        return self.result

    def _handle_demand(self, demand: CloudDemand) -> None:
        is_booking = demand.kind is DemandKind.BOOKING
        self.result.asked[demand.kind] += demand.vcpu_hours(self._seconds)
        place = self._method.book_room(demand) if is_booking else self._method.start(demand)
        if place is None:
            return
        self._hosts[place].served[demand.name] = demand
        self._kept[demand.name] = demand.min_duration
        self._places[demand.name] = place
        self._ends[demand.end].append(demand.name)
        if is_booking:
            self._begins[demand.begin].append(demand)
        for name, end in self._method.take_ends().items():
            served = self._hosts[self._places[name]].served
            self.result.preempted += name != demand.name
            # a guest that ends before its promised duration
            self.result.broken += end < served[name].begin + self._kept[name]
            served[name] = replace(served[name], end=end)
            self._ends[end].append(name)

    def _end_demand(self, name: str, now: int) -> None:
        place = self._places.get(name)
        # the service may have chosen an earlier end for a preemptible guest
        if place is None or self._hosts[place].served[name].end > now:
            return
        del self._places[name]
        demand = self._hosts[place].served.pop(name)
        if demand.kind is not DemandKind.BOOKING:
            self._method.stop(demand)

    def _count_use(self, now: int) -> None:
        for host in self._hosts.values():
            used, promised = host.used_at(now), host.promised_after(now)
            for each in host.served.values():
                if each.begin <= now < each.end:
                    self.result.served[each.kind] += each.cpus * TICK / HOUR
            self.result.capacity += host.cpus * TICK / HOUR
            self.result.used += used * TICK / HOUR
            self.result.promised += promised * TICK / HOUR
            # room that a hold from the booking on would have kept free
            self.result.lent += max(0, used + promised - host.cpus) * TICK / HOUR


def make_demands(rng: random.Random, kind: DemandKind, seconds: int, hours: float) -> list[CloudDemand]:
    """Return random demands with a given sum of VCPU-hours inside the simulated time.

    Bookings begin two days ahead on average, and take 4 to 32 VCPU for a median of 13 hours. Guests take 1 to
    8 VCPU for a median of 8 hours; one of 20 takes two days or more.
    """
    is_booking = kind is DemandKind.BOOKING
    made, missing = list[CloudDemand](), hours
    while missing > 0:
        begin = asked_at = TICK * rng.randrange(seconds // TICK)
        if is_booking:
            begin += TICK * (1 + round(rng.expovariate(TICK / (2 * DAY))))
        length = rng.lognormvariate(2.6, 0.7) if is_booking else rng.lognormvariate(2.08, 1.1)
        end = begin + TICK * max(1, round(length * HOUR / TICK))
        cpus = rng.choice((4, 8, 16, 32) if is_booking else (1, 2, 2, 4, 4, 8))
        made.append(CloudDemand(f"{kind} {len(made)}", kind, asked_at, begin, end, cpus))
        missing -= made[-1].vcpu_hours(seconds)
    return made


METHODS: Final = ("windows", "held from the booking on", "Blazar, 25% of hosts", "Blazar, 50% of hosts")


def main() -> None:
    """Simulate and print."""
    top = argparse.ArgumentParser(prog="python -m benchmarks.booked_days", description=__doc__)
    top.add_argument("--hosts", type=int, default=32, help="a multiple of 16; default: %(default)s")
    top.add_argument("--days", type=int, default=14, help="simulated days; default: %(default)s")
    top.add_argument("--booked", type=float, default=0.25, help="share of the cloud; default: %(default)s")
    top.add_argument("--guests", type=float, default=0.9, help="share of the cloud; default: %(default)s")
    top.add_argument("--with-end", type=float, default=0.5, help="share of the guests; default: %(default)s")
    top.add_argument(
        "--preemptible", type=float, default=0.2, help="share of the cloud; default: %(default)s"
    )
    top.add_argument("--seed", type=int, default=1, help="the first seed; default: %(default)s")
    top.add_argument("--seeds", type=int, default=5, help="number of seeds; default: %(default)s")
    top.add_argument("--method", choices=METHODS, action="append", help="ways to book; default: all")
    options = top.parse_args()
    hosts = {f"h{each:03}": _SIZES[each % 4] for each in range(options.hosts)}
    seconds = options.days * DAY
    hours = sum(hosts.values()) * seconds / HOUR
    shares = {
        DemandKind.BOOKING: options.booked,
        DemandKind.WITH_END: options.guests * options.with_end,
        DemandKind.WITHOUT_END: options.guests * (1 - options.with_end),
        DemandKind.PREEMPTIBLE: options.preemptible,
    }
    results: dict[str, list[DaysResult]] = {name: [] for name in options.method or METHODS}
    for seed in range(options.seed, options.seed + options.seeds):
        rng = random.Random(seed)
        demands = [
            each for kind, share in shares.items() for each in make_demands(rng, kind, seconds, share * hours)
        ]
        print(f"seed {seed}: {len(hosts)} hosts, {sum(hosts.values())} VCPU, {len(demands)} demands")
        _print_head()
        for name, found in results.items():
            with tempfile.TemporaryDirectory() as folder:
                method = _make_method(METHODS.index(name), Path(folder), hosts)
                found.append(CloudDays(method, hosts, seconds).run(demands))
            _print_rows(name, found[-1:])
    print(f"the medians of {options.seeds} seeds, with the least and the largest value")
    _print_head()
    for name, found in results.items():
        _print_rows(name, found)


def _print_head() -> None:
    columns = [*DemandKind, "cloud used", "lent part of promises", "promised ahead", "preempted", "broken"]
    print(f"| method | {' | '.join(columns)} |")
    print("| --- |" + " --- |" * len(columns), flush=True)


def _print_rows(name: str, results: list[DaysResult]) -> None:
    """Print a row with the shares of one result, or with the medians of several ones."""
    texts = []
    for values in zip(*(each.served_shares() for each in results), strict=True):
        span = f" ({min(values):.1%}-{max(values):.1%})" if len(values) > 1 else ""
        texts.append(f"{statistics.median(values):.1%}{span}")
    promised = statistics.median(each.promised for each in results)
    preempted = statistics.median(each.preempted for each in results)
    broken = sum(each.broken for each in results)
    print(f"| {name} | {' | '.join(texts)} | {promised:,.0f} | {preempted:.0f} | {broken} |", flush=True)


def _make_method(number: int, folder: Path, hosts: dict[str, int]) -> BookingMethod:
    if number < 2:
        return ReservedRoom(MovedService(folder, hosts), holds_at_once=number == 1)
    share = (number - 1) / 4
    # blocks of four hosts have all sizes
    fenced = {name: cpus for each, (name, cpus) in enumerate(hosts.items()) if each // 4 % 4 < share * 4}
    return FencedHosts(
        MovedService(folder, hosts, frozenset(fenced)), f"Blazar, {share:.0%} of hosts", fenced
    )


if __name__ == "__main__":
    main()
