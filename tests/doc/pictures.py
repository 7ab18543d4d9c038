"""Make the pictures of the README: ``python -m tests.doc.pictures`` writes into ``doc/_static``.

One shows the console's page of a fleet, in Chromium. The other shows a host with its guests, drawn by
``compute-agent topology show --svg``.
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


def save_console(path: Path) -> None:
    """Take a picture of the console's first page of this cloud."""
    with tempfile.TemporaryDirectory() as folder:
        url = f"sqlite:///{folder}/placement.sqlite"
        migration.upgrade_schema(url)
        app = application(url, console={"enabled": True})
        fill_cloud(Admin(app))
        with served(app) as base, chromium() as browser:
            page = browser.new_page(viewport={"width": 1280, "height": 720})
            page.goto(base + "/")
            page.screenshot(path=path)


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
    """Write both pictures."""
    STATIC.joinpath("host.svg").write_text(draw_host())
    save_console(STATIC / "console.png")


if __name__ == "__main__":
    main()
