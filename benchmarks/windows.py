"""The cost of bookings at 10,000 hosts with 50 windows each: ``python -m benchmarks.windows``.

One worker answers over HTTP. A world with windows and one without have the same hosts. In the one without,
guests without an end hold the amounts that holds keep free for windows. So both worlds give the same
candidates. Before each answer a window is booked and deleted elsewhere, so that no answer is known already.
"""

import argparse
import random
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import sqlalchemy as sa

from benchmarks.decisions import format_percentiles
from benchmarks.http import RequestRefused, ServiceConnection
from benchmarks.machine_speed import ADDITIONS, addition_seconds
from benchmarks.servers import OurService, add_database_option, create_database_server
from benchmarks.world_loader import load_directly
from benchmarks.worlds import ProviderWorld, Tree, WorldProvider, inventory, random_uuid, uuid_of
from placement.db import migration, tables
from placement.db.database import ServiceDatabase, WriteTransaction
from placement.maintenance.heal import advance_sequence
from placement.store.time_profile import TimedAmount, TimeWindow, needed_holds
from placement.store.time_schedule import hold_uuid

HOUR: Final = 3600.0
DAY: Final = 24 * HOUR
_OWNER: Final = {"project_id": "project", "user_id": "user"}
_BATCH: Final = 2_000
_NUMA_SHARE: Final = 0.2
_DEVICE_SHARE: Final = 0.1
_DEVICES: Final = 4


def unlike_host(seed: int, number: int) -> Tree:
    """Return a host of random size; some have two NUMA nodes with dedicated CPUs, some have devices."""
    rng = random.Random(f"{seed}-{number}")
    name, disk = f"host-{number}", {"DISK_GB": inventory(rng.randrange(500, 8_000))}
    kind = rng.random()
    if kind >= _NUMA_SHARE:
        vcpus = rng.randrange(16, 129)
        own = {"VCPU": inventory(vcpus), "MEMORY_MB": inventory(1024 * rng.randrange(2, 9) * vcpus)}
        root = WorldProvider(name, None, {**own, **disk}, ("COMPUTE_NODE",))
        count = _DEVICES if kind >= 1 - _DEVICE_SHARE else 0
        devices = (
            WorldProvider(f"{name}-gpu{each}", root.uuid, {"PGPU": inventory(1)}) for each in range(count)
        )
        return [root, *devices]
    root = WorldProvider(name, None, disk, ("COMPUTE_NODE",))
    cpus = rng.randrange(16, 65)
    cells = {"PCPU": inventory(cpus), "MEMORY_MB": inventory(1024 * rng.randrange(4, 9) * cpus)}
    return [
        root,
        *(WorldProvider(f"{name}-numa{node}", root.uuid, cells, ("HW_NUMA_ROOT",)) for node in range(2)),
    ]


AmountsByProvider = Mapping[str, Mapping[str, int]]
"""Amounts by uuid of the provider and by resource class."""


def booked_windows(
    rng: random.Random, provider: WorldProvider, devices: Sequence[WorldProvider], count: int, now: float
) -> tuple[AmountsByProvider, list[tuple[TimeWindow, AmountsByProvider]]]:
    """Return the amounts of guests without an end on a provider, and windows with their amounts.

    The windows of a lane follow one another, and all lanes together fit beside the guests. On a host with
    devices, the windows of each lane also take one device.
    """
    cpus, memory = (int(provider.inventories[name]["total"]) for name in (_cpu_class(provider), "MEMORY_MB"))
    guests = rng.randrange(cpus // 2)
    lanes = rng.randrange(1, _DEVICES + 1)
    most = (cpus - guests) // lanes
    windows = []
    for lane in range(lanes):
        begin = now + rng.uniform(HOUR, DAY)
        device = {each.uuid: {"PGPU": 1} for each in devices[lane : lane + 1]}
        for _ in range(lane, count, lanes):
            end = begin + rng.uniform(HOUR, DAY)
            amount = rng.randrange(max(1, most // 2), most + 1)
            held = _amounts(provider, amount, memory * amount // cpus)
            windows.append((TimeWindow(begin, end), {**held, **device}))
            begin = end + rng.choice([0.0, rng.uniform(0, DAY / 2)])
    return _amounts(provider, guests, memory * guests // cpus), windows


def _cpu_class(provider: WorldProvider) -> str:
    return "VCPU" if "VCPU" in provider.inventories else "PCPU"


def _amounts(provider: WorldProvider, cpus: int, memory: int) -> AmountsByProvider:
    return {provider.uuid: {_cpu_class(provider): cpus, "MEMORY_MB": memory}} if cpus else {}


class _BookingRows:
    """Rows of consumers and of their allocations, in batches.

    :param ids: ids of providers by uuid and of resource classes by name, by table.
    """

    def __init__(self, tx: WriteTransaction, ids: Mapping[str, Mapping[str, int]]) -> None:
        self.tx = tx
        self.ids = ids
        self.count = 0
        self._rows: dict[str, list[dict[str, Any]]] = {}

    def add_consumer(
        self, consumer: str, kind: str, held: AmountsByProvider, window: TimeWindow | None
    ) -> None:
        """Add a consumer with its allocations, or a pending window with its planned ones."""
        self.count += 1
        self._add(
            tables.consumers,
            {"id": self.count, "uuid": consumer, "consumer_type": kind, "generation": 1, **_OWNER},
        )
        if window is not None:
            times = {"starts_at": window.starts_at, "expires_at": window.ends_at}
            self._add(tables.reservations, {"consumer_id": self.count, "claim_group": None, **times})
        for provider, amounts in held.items():
            for name, used in amounts.items():
                row = {
                    "consumer_id": self.count,
                    "provider_id": self.ids["resource_providers"][provider],
                    "resource_class_id": self.ids["resource_classes"][name],
                    "used": used,
                }
                self._add(tables.allocations if window is None else tables.planned_allocations, row)
        if self.count % _BATCH == 0:
            self.send()

    def _add(self, table: sa.Table, row: dict[str, Any]) -> None:
        times = {"updated_at": self.tx.now} if "updated_at" in table.c else {}
        self._rows.setdefault(table.name, []).append({**row, **times})

    def send(self) -> None:
        """Insert the rows; the consumers come first."""
        for table in (tables.consumers, tables.reservations, tables.allocations, tables.planned_allocations):
            if some := self._rows.pop(table.name, []):
                self.tx.conn.execute(sa.insert(table), some)


def book_directly(url: str, hosts: Sequence[Tree], count: int, seed: int, *, has_windows: bool) -> None:
    """Write guests, windows and their holds into a database that has the hosts."""
    database = ServiceDatabase(url)
    try:
        database.write(lambda tx: _write_bookings(tx, hosts, count, seed, has_windows=has_windows))
    finally:
        database.close()


def _write_bookings(
    tx: WriteTransaction, hosts: Sequence[Tree], count: int, seed: int, *, has_windows: bool
) -> None:
    ids = {
        table.name: {key: row_id for row_id, key in tx.conn.execute(sa.select(table.c.id, key_column))}
        for table, key_column in (
            (tables.resource_providers, tables.resource_providers.c.uuid),
            (tables.resource_classes, tables.resource_classes.c.name),
        )
    }
    rng, rows, now = random.Random(seed), _BookingRows(tx, ids), time.time()
    for tree in hosts:
        # the windows of a host with NUMA nodes are on its nodes
        cells = [each for each in tree if "MEMORY_MB" in each.inventories]
        devices = [each for each in tree if "PGPU" in each.inventories]
        for provider in cells:
            guests, windows = booked_windows(rng, provider, devices, count // len(cells), now)
            if guests:
                rows.add_consumer(random_uuid(rng), "INSTANCE", guests, None)
            some = [
                TimedAmount("", provider_uuid, name, used, window, has_begun=False)
                for window, held in windows
                for provider_uuid, amounts in held.items()
                for name, used in amounts.items()
            ]
            holds: dict[str, dict[str, int]] = {}
            for (provider_uuid, name), amount in needed_holds(some, now).items():
                holds.setdefault(provider_uuid, {})[name] = amount
            kind = tables.WINDOW_HOLD if has_windows else "INSTANCE"
            for provider_uuid, amounts in holds.items():
                rows.add_consumer(hold_uuid(provider_uuid), kind, {provider_uuid: amounts}, None)
            if has_windows:
                for window, held in windows:
                    rows.add_consumer(random_uuid(rng), tables.RESERVATION, held, window)
    rows.send()
    advance_sequence(tx.conn, tables.consumers)


def _format_time(seconds: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))


GROUPS: Final = "&".join(f"resources_{each}=PCPU:4,MEMORY_MB:4096" for each in "ABC") + "&group_policy=none"
DEVICES: Final = "&".join(f"resources_{each}=PGPU:1" for each in "AB") + "&group_policy=isolate"
SMALL: Final = "resources=VCPU:2,MEMORY_MB:4096,DISK_GB:10"


def availability_bodies(rng: random.Random, now: float) -> dict[str, Callable[[], dict[str, Any]]]:
    """Return functions by title. Each call makes another body of a request for the earliest windows."""

    def window_body(query: str, hours: float, **fields: Any) -> dict[str, Any]:
        return {"query": query, "duration": int(hours * HOUR), **fields}

    def claims_body(each: Mapping[str, Any], count: int, **fields: Any) -> dict[str, Any]:
        duration = int(rng.uniform(1, 48) * HOUR)
        return {"claims": [{**each, "count": count}], "duration": duration, **fields}

    def random_flavor(**extra_specs: str) -> dict[str, Any]:
        size = rng.randrange(1, 9)
        return {"vcpus": size, "ram": 2048 * size, "disk": 10, "extra_specs": extra_specs}

    def flavor_body(limit: int, **extra_specs: str) -> dict[str, Any]:
        duration = int(rng.uniform(1, 48) * HOUR)
        return {"flavor": random_flavor(**extra_specs), "duration": duration, "limit": limit}

    gpu = {"resources1:PGPU": "1"}

    def later_time() -> float:
        return now + rng.uniform(2 * DAY, 8 * DAY)

    def small_query() -> str:
        return f"resources=VCPU:{rng.randrange(1, 9)},MEMORY_MB:{1024 * rng.randrange(1, 17)},DISK_GB:10"

    def large_query() -> str:
        return f"resources=VCPU:{rng.randrange(80, 113)},MEMORY_MB:{1024 * rng.randrange(100, 201)}"

    return {
        "small, now": lambda: window_body(small_query(), rng.uniform(1, 48)),
        "small, from a day on": lambda: window_body(
            small_query(), rng.uniform(1, 48), not_before=_format_time(later_time())
        ),
        "large": lambda: window_body(large_query(), rng.uniform(1, 48)),
        "whole host for weeks": lambda: window_body(f"resources=VCPU:{rng.randrange(120, 129)}", 24 * 14),
        "three groups on NUMA nodes": lambda: window_body(GROUPS, rng.uniform(1, 48)),
        "topology, PCPU:40": lambda: window_body(
            "resources=PCPU:40", rng.uniform(1, 48), topology="best-effort"
        ),
        "near full, with a deadline": lambda: window_body(
            "resources=VCPU:126,MEMORY_MB:900000", 24, deadline=_format_time(now + 6 * DAY)
        ),
        "100 windows": lambda: window_body(large_query(), rng.uniform(1, 48), limit=100),
        "two devices of one host": lambda: window_body(f"{small_query()}&{DEVICES}", rng.uniform(1, 48)),
        "flavor": lambda: flavor_body(5),
        "flavor with pinned CPUs": lambda: flavor_body(5, **{"hw:cpu_policy": "dedicated"}),
        "flavor with a device": lambda: flavor_body(5, **gpu),
        "20 windows of a flavor with a device": lambda: flavor_body(20, **gpu),
        "4 claims on one host or several": lambda: claims_body({"query": large_query()}, 4),
        "16 claims on different hosts": lambda: claims_body(
            {"query": small_query()}, 16, different_hosts=True
        ),
        "8 flavors with a device": lambda: claims_body({"flavor": random_flavor(**gpu)}, 8),
    }


SentRequest = Callable[[ServiceConnection], object]


@dataclass(frozen=True, slots=True)
class _WindowSide:
    """A service with one of the worlds."""

    name: str
    service: OurService

    def measure_requests(
        self, title: str, make: Callable[[], SentRequest], count: int, before: SentRequest | None = None
    ) -> None:
        """Print the CPU time of the worker and the elapsed time of some requests, with refusals apart.

        ``before`` runs before each of the requests.
        """
        answered, refused = list[tuple[float, float]](), list[tuple[float, float]]()
        with ServiceConnection(self.service.port) as connection:
            for _ in range(count):
                deed, times = make(), answered
                if before is not None:
                    before(connection)
                began, cpu = time.perf_counter(), self.service.cpu_seconds()
                try:
                    deed(connection)
                except RequestRefused:
                    times = refused
                elapsed = (time.perf_counter() - began) * 1000
                times.append(((self.service.cpu_seconds() - cpu) * 1000, elapsed))
        self._print_times(title, answered)
        if refused:
            self._print_times(f"{title}, {len(refused)} refused", refused)

    def _print_times(self, title: str, times: Sequence[tuple[float, float]]) -> None:
        if times:
            work, clock = (format_percentiles(list(each)) for each in zip(*times, strict=True))
            speed = f"additions {addition_seconds():.2f} s"
            print(f"{self.name:10} {title:42} {work} ms of CPU, {clock} by the clock; {speed}", flush=True)

    def await_windows(self) -> None:
        """Wait until the worker has read the windows that existed at its start."""
        before, now = -1.0, self.service.cpu_seconds()
        while now > before + 0.02:
            time.sleep(0.5)
            before, now = now, self.service.cpu_seconds()
        # threads that have ended count here
        (worker,) = self.service.worker_processes()
        print(f"{self.name:10} {'CPU time of the start':28} {sum(worker.cpu_times()[:2]):7.2f} s", flush=True)

    def print_memory(self, title: str) -> float:
        """Print and return the memory of the worker, in MB."""
        (worker,) = self.service.worker_processes()
        used = worker.memory_info().rss / 1e6
        print(f"{self.name:10} {title:28} {used:7.0f} MB", flush=True)
        return used


class _RequestMaker:
    """Makes requests of clients to a world with some hosts."""

    def __init__(self, seed: int, hosts: int) -> None:
        self._rng = random.Random(seed)
        self._hosts = hosts

    def find_windows(self, body: Mapping[str, Any]) -> SentRequest:
        """Ask for the earliest windows."""
        return lambda connection: connection.expect_success("POST", "/ext/v1/availability", body)

    def book_window(self, *, named: bool, kept: bool = True) -> SentRequest:
        """Book a small window on a named host or on any, and delete it again if it is not kept."""
        begin = time.time() + self._rng.uniform(2 * DAY, 20 * DAY)
        times = {"starts_at": _format_time(begin), "expires_at": _format_time(begin + 3 * HOUR)}
        reservation = random_uuid(self._rng)
        body: dict[str, Any] = {"uuid": reservation, "query": SMALL, **times, **_OWNER}
        if named:
            body["allowed_hosts"] = [uuid_of(f"host-{self._rng.randrange(self._hosts)}")]

        def send(connection: ServiceConnection) -> None:
            connection.expect_success("POST", "/ext/v1/reservations", body)
            if not kept:
                connection.expect_success("DELETE", f"/ext/v1/reservations/{reservation}")

        return send

    def come_and_go(self, connection: ServiceConnection) -> None:
        """Book a window on a host that has room, and delete it, so that the next answer follows a change."""
        for _ in range(20):
            with suppress(RequestRefused):
                self.book_window(named=True, kept=False)(connection)
                return

    def ask_candidates(self) -> SentRequest:
        """Ask for candidates."""
        query = f"resources=VCPU:{self._rng.randrange(1, 9)},MEMORY_MB:{1024 * self._rng.randrange(1, 17)}"
        return lambda connection: connection.expect_success(
            "GET", f"/allocation_candidates?{query}&limit=100"
        )

    def claim_guest(self) -> SentRequest:
        """Claim a small guest without an end."""
        claim = {"consumer_uuid": random_uuid(self._rng), "consumer_generation": None, "query": SMALL}
        body = {"claims": [{**claim, **_OWNER, "consumer_type": "INSTANCE"}]}
        return lambda connection: connection.expect_success("POST", "/ext/v1/claims", body)


def _is_answered(deed: SentRequest, connection: ServiceConnection) -> bool:
    with suppress(RequestRefused):
        deed(connection)
        return True
    return False


def _measure_windows(side: _WindowSide, deeds: _RequestMaker, rng: random.Random, count: int) -> None:
    with ServiceConnection(side.service.port) as connection:
        find, began = deeds.find_windows({"query": SMALL, "duration": 3600}), time.perf_counter()
        # a worker that still reads the windows refuses to answer
        while not _is_answered(find, connection):
            time.sleep(1)
        print(f"{side.name:10} the first find takes {time.perf_counter() - began:.2f} s", flush=True)
    side.print_memory("memory after the first find")
    for title, make in availability_bodies(rng, time.time()).items():
        side.measure_requests(
            f"find: {title}", lambda make=make: deeds.find_windows(make()), count, deeds.come_and_go
        )
    side.measure_requests("book on any host", lambda: deeds.book_window(named=False), count)
    side.measure_requests("book on a named host", lambda: deeds.book_window(named=True), count)
    side.print_memory("memory at the end")


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print."""
    top = argparse.ArgumentParser(prog="python -m benchmarks.windows", description=__doc__)
    add_database_option(top, "sqlite")
    top.add_argument("--hosts", type=int, default=10_000, help="number of hosts; default: %(default)s")
    top.add_argument(
        "--windows", type=int, default=50, help="number of windows of each host; default: %(default)s"
    )
    top.add_argument(
        "--count", type=int, default=40, help="number of requests of each kind; default: %(default)s"
    )
    top.add_argument(
        "--seed", type=int, default=random.randrange(1000), help="seed of the generator; default: random"
    )
    top.add_argument(
        "--no-finds", action="store_true", help="measure only requests of clients without bookings"
    )
    options = top.parse_args(arguments)
    server = create_database_server(options.database)
    print(f"seed {options.seed}; {ADDITIONS:,} additions take {addition_seconds():.2f} s")
    world = ProviderWorld("unlike", options.hosts, lambda number: unlike_host(options.seed, number))
    with server, tempfile.TemporaryDirectory(prefix="placement-windows-") as folder, ExitStack() as stack:
        sides = []
        for name, has_windows in (("windows", True), ("none", False)):
            began, url = time.perf_counter(), server.fresh_database()
            migration.upgrade_schema(url)
            load_directly(url, world, options.hosts)
            trees = [world.tree(number) for number in range(options.hosts)]
            book_directly(url, trees, options.windows, options.seed, has_windows=has_windows)
            print(f"{name:10} written in {time.perf_counter() - began:.0f} s", flush=True)
            sides.append(
                _WindowSide(name, stack.enter_context(OurService(url, Path(folder), workers=1, threads=4)))
            )
        for side in sides:
            side.await_windows()
        deeds = _RequestMaker(options.seed, options.hosts)
        for _ in range(2):
            # in turns, so that a disturbance of the machine affects both sides
            for side in sides:
                side.measure_requests("candidates", deeds.ask_candidates, options.count)
            for side in sides:
                side.measure_requests("claim", deeds.claim_guest, options.count)
        with_windows, without = (side.print_memory("memory before the first find") for side in sides)
        print(f"the windows in the read model take {with_windows - without:.0f} MB", flush=True)
        if not options.no_finds:
            _measure_windows(sides[0], deeds, random.Random(options.seed), options.count)
    return 0


if __name__ == "__main__":
    sys.exit(main())
