"""Make pictures of the README and of the site: ``python -m tests.doc.pictures`` writes into ``doc/_static``.

Most show pages of the console, in Chromium: the fleet, neighbours, and the calendar, also on a phone. One
shows a host with its guests, drawn by ``compute-agent topology show --svg``.
"""

import random
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Final

from compute_agent.drawing import host
from compute_agent.model.cpuset import CpuSets
from placement.db import migration
from tests.browser import chromium
from tests.compute_agent.inventory.machines import machine
from tests.placement.moving_clock import after
from tests.placement.running import Admin, application
from tests.placement_extras.console import world
from tests.placement_extras.console.browsing import served

STATIC: Final = Path(__file__).parents[2] / "doc/_static"
SEED: Final = 7
HOSTS: Final = 14


def fill_cloud(admin: Admin) -> None:
    """Hosts of two racks, from nearly empty to full."""
    draws = random.Random(SEED)
    for number in range(1, HOSTS + 1):
        name = f"rack{1 + (number > HOSTS // 2)}-{number:02}"
        tree = world.numa_host(name, disabled=number == 5)
        assert admin("POST", "/ext/v1/trees", json={"resource_providers": tree}).status_code < 300
        for node in range(2):
            numa = f"{name}_NUMA{node}"
            cpus = draws.randint(0, 24)
            held = {
                numa: {"PCPU": cpus, "MEMORY_MB": 4096 * cpus},
                f"{numa}_L3_0": {"LLC": max(1, cpus // 2)},
            }
            if cpus:
                world.claim(admin, f"guest-{name}-{node}", held)


def measure_cloud(admin: Admin) -> None:
    """Use of caches on these hosts, as their agents report it; one guest is limited for another one."""
    draws = random.Random(SEED)
    for number in range(1, HOSTS + 1):
        name = f"rack{1 + (number > HOSTS // 2)}-{number:02}"
        told: dict[str, str | float] = {"neighbour.measured_at": 1e9, "neighbour.valid_until": 4e9}
        for node in range(2):
            guest, traffic = world.uuid_of(f"guest-{name}-{node}"), draws.randint(200, 9000)
            told[f"neighbour.cache.{node}"] = (
                f"{traffic + draws.randint(10, 900)} MB/s of 12800, {draws.randint(40, 320) / 10} MiB of 32"
            )
            told[f"neighbour.guest.{node}"] = (
                f"{guest} {'LS' if node else 'BE'}: {traffic} MB/s, {draws.randint(10, 200) / 10} MiB"
            )
        if number in (3, 8):
            limited, victim = (world.uuid_of(f"guest-{name}-{node}") for node in range(2))
            told["neighbour.limit.0"] = f"{limited} memory_bandwidth: interference for {victim}"
        world.follow(admin, name, told)


def book_windows(admin: Admin) -> None:
    """Windows and claims that end of three projects on all hosts, within the next week."""
    draws = random.Random(SEED)
    for number in range(1, HOSTS + 1):
        name = f"rack{1 + (number > HOSTS // 2)}-{number:02}"
        for project in draws.sample(("web", "lab", "batch"), 2):
            begin = draws.randint(12, 120)
            times = {
                "starts_at": after(begin * 3600),
                "expires_at": after((begin + draws.randint(8, 40)) * 3600),
            }
            if draws.random() < 0.3:
                del times["starts_at"]
            # some windows do not fit beside the guests of their host
            body = {
                "query": f"resources=PCPU:{draws.randint(4, 16)}",
                "allowed_hosts": [world.uuid_of(name)],
                "project_id": project,
                "user_id": "ann",
                **times,
            }
            assert admin("POST", "/ext/v1/reservations", json=body).status_code in (201, 409)


def save_console(
    page_path: str, path: Path, *, whole: bool = False, width: int = 1280, booked: bool = False
) -> None:
    """Take a picture of a page of the console, of its first screen or of the ``whole`` page.

    :param width: the width of the window, in CSS pixels.
    :param booked: whether hosts have windows.
    """
    with tempfile.TemporaryDirectory() as folder:
        url = f"sqlite:///{folder}/placement.sqlite"
        migration.upgrade_schema(url)
        app = application(url, console={"enabled": True}, reservations={"max_project_amounts": "PCPU:64"})
        fill_cloud(Admin(app))
        measure_cloud(Admin(app))
        if booked:
            book_windows(Admin(app))
        with served(app) as base, chromium() as browser:
            page = browser.new_page(viewport={"width": width, "height": 720})
            page.goto(base + page_path)
            page.screenshot(path=path, full_page=whole)


def draw_host() -> str:
    """A host of two NUMA nodes with dedicated and shared CPUs, and five guests."""
    topology = replace(
        machine(packages=1, nodes=2, l3=2, cores=4, threads=2), vendor="GenuineIntel", model_name="Host"
    )
    cores = [core.cpus for core in topology.cores]
    shared = cores[0] | cores[1]
    sets = CpuSets(topology.online - shared, shared, shared)
    guests, start = {"batch": shared}, 2
    for name, size in (("router", 2), ("database", 4), ("analytics", 4), ("cache", 2)):
        guests[name] = frozenset[int]().union(*cores[start : start + size])
        start += size
    return host.draw_host(topology, sets, guests)


def main() -> None:
    """Write all pictures."""
    STATIC.joinpath("host.svg").write_text(draw_host())
    save_console("/", STATIC / "console.png")
    save_console("/neighbours?name=rack2-0", STATIC / "neighbours.png", whole=True)
    calendar = "/calendar?resource_class=PCPU"
    save_console(f"{calendar}&name=rack1", STATIC / "calendar.png", whole=True, booked=True)
    save_console(
        f"{calendar}&rows=projects", STATIC / "calendar-phone.png", whole=True, width=390, booked=True
    )


if __name__ == "__main__":
    main()
