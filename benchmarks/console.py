"""The cost of each page of the console in a browser at many hosts, by the measures of Lighthouse.

    python -m benchmarks.console                        # 10,000 hosts, minutes; needs Debian's chromium
    python -m benchmarks.console --hosts 1000 --repeats 3
    python -m benchmarks.console --pages fleet neighbours

The program controls Chromium by the DevTools protocol, each time with an empty cache. First and largest
contentful paint, total blocking time (the time above 50 ms of each task after the first paint) and cumulative
layout shift are those of https://web.dev/articles/vitals. Bytes are counted on the wire. The column "slow" is
Lighthouse's phone: 150 ms to the server and back, 1.6 Mbit/s, and a processor a fourth as fast. The column
"CPU" is the service's CPU time for a page, in milliseconds. Unlike the others it does not depend on other
work of the machine.
"""

import argparse
import statistics
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import sqlalchemy as sa

from benchmarks.http import ServiceConnection
from benchmarks.servers import MeasuredService, OurService
from benchmarks.world_loader import load_directly
from benchmarks.worlds import WORLDS, uuid_of
from placement.db import tables
from placement.db.database import ServiceDatabase, WriteTransaction
from tests.browser import PROGRAM, chromium

MAX_CPU_MS: Final = 200
MAX_BYTES: Final = 150_000

_WORLD: Final = WORLDS["numa"]
_GUESTS: Final = 24
_OTHERS: Final = 200
_SLOW: Final = {"offline": False, "latency": 150, "downloadThroughput": 204_800, "uploadThroughput": 96_000}
_SLOW_CPU: Final = 4
_BLOCKING_MS: Final = 50

_OBSERVE: Final = """
window.seen = {paint: 0, largest: 0, shift: 0, tasks: []};
const watch = (type, take) => new PerformanceObserver(list => list.getEntries().forEach(take)).observe(
    {type, buffered: true});
watch('paint', each => { if (each.name === 'first-contentful-paint') seen.paint = each.startTime; });
watch('largest-contentful-paint', each => { seen.largest = each.startTime; });
watch('layout-shift', each => { if (!each.hadRecentInput) seen.shift += each.value; });
watch('longtask', each => { seen.tasks.push([each.startTime, each.duration]); });
"""
_READ: Final = """() => new Promise(done => requestAnimationFrame(() => setTimeout(() => {
    done(seen);
}, 100)))"""


@dataclass(frozen=True, slots=True)
class PageView:
    """One view of a page: milliseconds, the layout shift as a number, and bytes on the wire."""

    paint: float
    largest: float
    blocking: float
    shift: float
    size: int


class WithConsole(OurService):
    """The service, with its console."""

    def _write_config(self) -> None:
        super()._write_config()
        with self._config_path.open("a") as config:
            config.write("[console]\nenabled = true\n")


def page_addresses() -> Mapping[str, str]:
    """Return the paths of the pages, by name."""
    host = uuid_of("numa-1")
    return {
        "fleet": "/",
        "fleet, filtered and ordered": "/?resource_class=PCPU&trait=CUSTOM_RESCTRL_L3_CAT&order=used",
        "fleet, the last page": "/?page=1000000",
        "host": f"/providers/{host}",
        "candidates of a query": "/candidates?query=resources%3DPCPU:4,MEMORY_MB:8192",
        "candidates of a flavor": "/candidates?vcpus=4&ram=8192&disk=10",
        "calendar": "/calendar?resource_class=PCPU",
        "calendar of aggregates": "/calendar?resource_class=PCPU&rows=aggregates&days=84",
        "calendar of projects": "/calendar?resource_class=PCPU&rows=projects&days=84",
        "capacity": "/capacity?flavors=small%3Dresources%3DPCPU:4,MEMORY_MB:8192",
        "names": "/names?all=1",
        "neighbours": "/neighbours",
        "settings": "/settings",
        "consumer": f"/consumers/{uuid_of('guest-1')}",
        "project": "/project",
    }


def main(arguments: Sequence[str]) -> int:
    """Measure and print a table; return 1 if a page is slower or larger than its limit."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--hosts", type=int, default=10_000)
    parser.add_argument("--repeats", type=int, default=5, help="views of each page; the table shows medians")
    parser.add_argument(
        "--pages", nargs="+", choices=page_addresses(), default=list(page_addresses()), metavar="PAGE"
    )
    options = parser.parse_args(arguments)
    if PROGRAM is None:
        print("needs Chromium: Debian's package chromium", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory() as folder:
        url = f"sqlite:///{folder}/placement.sqlite"
        service = WithConsole(url, Path(folder), workers=1, threads=4)
        with service:
            service.stop()
            load_directly(url, _WORLD, options.hosts)
            _write_attributes(url, options.hosts)
            service.start()
            _place_guests(service.port, options.hosts)
            return _measure_pages(service, options.repeats, options.pages)


def _measure_pages(service: MeasuredService, repeats: int, pages: Sequence[str]) -> int:
    base = f"http://127.0.0.1:{service.port}/console"
    too_much = []
    print(
        f"{'page':28} {'CPU':>5} {'FCP':>6} {'LCP':>6} {'TBT':>5} {'CLS':>6} {'kB':>6}"
        f" {'slow FCP':>9} {'LCP':>5} {'TBT':>5}"
    )
    with chromium() as browser:
        for name, address in page_addresses().items():
            if name not in pages:
                continue
            view_page(browser, base + address)  # fills the caches that last until the next change
            began = service.cpu_seconds()
            fast = _median_view([view_page(browser, base + address) for _ in range(repeats)])
            cpu = 1000 * (service.cpu_seconds() - began) / repeats
            slow = _median_view(
                [view_page(browser, base + address, slow=True) for _ in range(max(1, repeats // 2))]
            )
            print(
                f"{name:28} {cpu:5.0f} {fast.paint:6.0f} {fast.largest:6.0f} {fast.blocking:5.0f}"
                f" {fast.shift:6.3f} {fast.size / 1000:6.1f}"
                f" {slow.paint:9.0f} {slow.largest:5.0f} {slow.blocking:5.0f}",
                flush=True,
            )
            if cpu > MAX_CPU_MS or fast.size > MAX_BYTES:
                too_much.append(name)
    if too_much:
        print(f"above {MAX_CPU_MS} ms of CPU, or larger than {MAX_BYTES // 1000} kB: {', '.join(too_much)}")
    return bool(too_much)


def view_page(browser: Any, address: str, *, slow: bool = False) -> PageView:
    """View a page with an empty cache."""
    context = browser.new_context(viewport={"width": 1440, "height": 900})
    try:
        page = context.new_page()
        devtools = context.new_cdp_session(page)
        sizes: list[int] = []
        devtools.on("Network.loadingFinished", lambda event: sizes.append(int(event["encodedDataLength"])))
        devtools.send("Network.enable")
        if slow:
            devtools.send("Network.emulateNetworkConditions", _SLOW)
            devtools.send("Emulation.setCPUThrottlingRate", {"rate": _SLOW_CPU})
        page.add_init_script(_OBSERVE)
        answer = page.goto(address, wait_until="networkidle")
        if answer.status != 200:
            raise RuntimeError(f"{address} answers {answer.status}")
        seen = page.evaluate(_READ)
        blocking = sum(
            max(0.0, took - _BLOCKING_MS) for began, took in seen["tasks"] if began + took > seen["paint"]
        )
        return PageView(seen["paint"], seen["largest"], blocking, seen["shift"], sum(sizes))
    finally:
        context.close()


def _median_view(looks: Sequence[PageView]) -> PageView:
    def median_field(name: str) -> Any:
        return statistics.median(getattr(each, name) for each in looks)

    paint, largest, blocking, shift = (
        median_field(name) for name in ("paint", "largest", "blocking", "shift")
    )
    return PageView(paint, largest, blocking, shift, int(median_field("size")))


def _write_attributes(url: str, hosts: int) -> None:
    """Write attributes of all hosts: their settings, and the use of two caches and of six guests.

    One of 100 hosts does not follow its settings, breaks promises and has a limited guest.
    """

    def write_attributes(tx: WriteTransaction) -> None:
        uuids = {uuid_of(f"numa-{number}"): number for number in range(hosts)}
        rows = []
        for each in tx.conn.execute(
            sa.select(tables.resource_providers.c.id, tables.resource_providers.c.uuid)
        ):
            number = uuids.get(each.uuid)
            if number is not None:
                told: dict[str, str | float] = {
                    "fleet.group": f"rack-{number % 40}",
                    "fleet.generation": 7.0,
                    "neighbour.measured_at": 1e9,
                    "neighbour.valid_until": 4e9,
                }
                for cache in range(2):
                    told[f"neighbour.cache.{cache}"] = f"{1000 + number} MB/s of 25600, 20.5 MiB of 32"
                for guest in range(6):
                    text = f"{uuid_of(f'guest-{number}-{guest}')} BE: {number + guest}.5 MB/s, 3.5 MiB"
                    told[f"neighbour.guest.{guest}"] = text
                if number % 100 == 0:
                    limited, victim = uuid_of(f"guest-{number}-0"), uuid_of(f"guest-{number}-1")
                    told["neighbour.limit.0"] = f"{limited} memory_bandwidth: interference for {victim}"
                    told["agent.broken_promises"] = "2 cpus, 1 quiet"
                    told["fleet.trouble"] = "the revision generation 8 is not taken up: CPU 99 is not there"
                rows += [_attribute_row(each.id, name, value) for name, value in told.items()]
        tx.conn.execute(sa.insert(tables.provider_attributes), rows)

    database = ServiceDatabase(url)
    try:
        database.write(write_attributes)
    finally:
        database.close()


def _attribute_row(provider: int, name: str, value: str | float) -> dict[str, Any]:
    is_text = isinstance(value, str)
    return {
        "provider_id": provider,
        "name": name,
        "text": value if is_text else None,
        "number": None if is_text else value,
    }


def _place_guests(port: int, hosts: int) -> None:
    """Place guests on one host, as many as a page draws, and one guest on each of some other hosts."""
    with ServiceConnection(port) as connection:
        for number in range(min(_GUESTS + _OTHERS, hosts)):
            host = "numa-1" if number < _GUESTS else f"numa-{number}"
            body = {
                "allocations": {uuid_of(f"{host}-numa{number % 2}"): {"resources": {"PCPU": 1, "VCPU": 2}}},
                "project_id": "admin",
                "user_id": "user",
                "consumer_generation": None,
                "consumer_type": "INSTANCE",
            }
            connection.expect_success("PUT", f"/allocations/{uuid_of(f'guest-{number}')}", body)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
