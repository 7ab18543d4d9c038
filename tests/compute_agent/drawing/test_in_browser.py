"""Tests of pictures in the browser Chromium: no text overlaps another text or leaves the picture."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from compute_agent.drawing.host import draw_host
from compute_agent.host.reader import read_topology
from compute_agent.host.topology import HostTopology
from compute_agent.model.cpuset import CpuSets
from compute_agent.monitoring.history import TimeSpan, plot_samples
from compute_agent.monitoring.samples import StoredSample
from tests.browser import chromium, looking, needs_browser
from tests.compute_agent.host.captured import ARCHIVES, unpack
from tests.compute_agent.inventory.machines import machine

PICTURES = Path(__file__).parents[3] / "build" / "pictures"
"""The folder of the screenshots, to be looked at."""
OVERLAPS = """() => {
    const whole = document.documentElement.getBoundingClientRect(), wrong = [];
    const texts = [...document.querySelectorAll('text')];
    const boxes = texts.map(each => [each.textContent, each.getBoundingClientRect()]);
    boxes.sort((one, other) => one[1].top - other[1].top);
    boxes.forEach(([words, box], index) => {
        if (box.left < 0 || box.top < 0 || box.right > whole.width + 1 || box.bottom > whole.height + 1)
            wrong.push(words + ' is beside the picture');
        for (const [others, other] of boxes.slice(index + 1)) {
            if (other.top >= box.bottom - 2) break;
            if (other.left < box.right - 1 && box.left < other.right - 1 && box.top < other.bottom - 2)
                wrong.push(words + ' is on ' + others);
        }
    });
    return wrong;
}"""

pytestmark = [pytest.mark.slow, needs_browser]


@pytest.fixture(scope="module")
def wrong() -> Iterator[Callable[[str, str], list[str]]]:
    """The faulty texts of a picture. A screenshot is kept."""
    PICTURES.mkdir(parents=True, exist_ok=True)
    with chromium() as browser, looking(browser) as page:

        def look(name: str, picture: str) -> list[str]:
            file = PICTURES / f"{name}.svg"
            file.write_text(picture)
            page.goto(file.as_uri())
            box = page.evaluate(
                "() => ['width', 'height'].map(each => document.documentElement[each].baseVal.value)"
            )
            page.set_viewport_size({"width": int(box[0]) + 1, "height": int(box[1]) + 1})
            page.screenshot(path=PICTURES / f"{name}.png")
            found: list[str] = page.evaluate(OVERLAPS)
            return found

        yield look


def busy(topology: HostTopology) -> tuple[CpuSets, dict[str, frozenset[int]]]:
    """A host on which each of three groups has a third of the CPUs, and guests have long names."""
    cpus = sorted(topology.online)
    third = len(cpus) // 3
    dedicated, shared = frozenset(cpus[third : 2 * third]), frozenset(cpus[2 * third :])
    guests = {
        f"instance-{n:08x} mit einem recht langen Namen": frozenset(sorted(dedicated)[n::5]) for n in range(5)
    }
    return CpuSets(dedicated, shared, shared), guests


@pytest.mark.parametrize("archive", ARCHIVES, ids=lambda archive: archive.name.partition(".")[0])
def test_captured_machines(archive: Path, tmp_path: Path, wrong: Callable[[str, str], list[str]]) -> None:
    topology = read_topology(unpack(archive, tmp_path))
    assert wrong(f"host-{archive.name.partition('.')[0]}", draw_host(topology, *busy(topology))) == []


@pytest.mark.parametrize(
    "topology",
    [
        machine(packages=2, nodes=4, l3=2, cores=8, threads=2, offline=frozenset({255})),
        machine(packages=4, nodes=4, l3=4, cores=8, threads=2),
        machine(cores=1),
    ],
    ids=["255", "1024", "1"],
)
def test_machines_of_many_cpus_and_of_one(
    topology: HostTopology, wrong: Callable[[str, str], list[str]]
) -> None:
    assert wrong(f"host-of-{len(topology.online)}", draw_host(topology, *busy(topology))) == []


@pytest.mark.parametrize("caches", [1, 40])
def test_curves(caches: int, wrong: Callable[[str, str], list[str]]) -> None:
    now = time.time() // 3600 * 3600
    samples = [
        StoredSample(
            now + 60 * n, "one", "web-" + "w" * 60, "LS", cache, n << 20, 1e9 + n, 2e9 + 1e7 * n, 1.5
        )
        for n in range(60)
        for cache in range(caches)
    ]
    assert wrong(f"curves-{caches}", plot_samples(samples, TimeSpan(now, now + 3600))) == []
