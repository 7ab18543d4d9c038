"""Tests of the picture of a host: each CPU is drawn once, in its place, and in the colour of its guest."""

import itertools
import xml.etree.ElementTree as ET
from dataclasses import replace

import pytest

from compute_agent.drawing.host import CpuConditions, draw_host, format_size, nest_boxes, tree_lines
from compute_agent.host.topology import CpuCache, HostTopology
from compute_agent.model.cpuset import CpuSets
from tests.compute_agent.inventory.machines import machine

SVG = "{http://www.w3.org/2000/svg}"
LARGE = machine(packages=2, nodes=4, l3=2, cores=8, threads=2, offline=frozenset({255}))

HOST = CpuSets(frozenset(), frozenset(), frozenset())
DEDICATED = CpuSets(frozenset(range(256)), frozenset(), frozenset())

Area = tuple[float, float, float, float]


def area(rectangle: ET.Element) -> Area:
    x, y, width, height = (float(rectangle.get(name, "")) for name in ("x", "y", "width", "height"))
    return x, y, x + width, y + height


def cells(picture: str) -> dict[int, ET.Element]:
    """The guest (or other group) of each CPU in the picture, by number of the CPU."""
    groups = ET.fromstring(picture).findall(f"{SVG}g")
    numbered = [(int(group.findtext(f"{SVG}text", "")), group) for group in groups]
    assert len({cpu for cpu, _ in numbered}) == len(numbered)
    return dict(numbered)


def fills(group: ET.Element) -> list[str]:
    return [rectangle.get("fill", "") for rectangle in group.findall(f"{SVG}rect")][:-1]


def frame(group: ET.Element) -> Area:
    return area(group.findall(f"{SVG}rect")[-1])


def texts(picture: str) -> list[str]:
    return [text.text or "" for text in ET.fromstring(picture).iter(f"{SVG}text")]


@pytest.mark.parametrize(
    "topology",
    [
        LARGE,
        machine(cores=1),
        machine(packages=2, nodes=2, cores=6, threads=4, l3_spans_nodes=True, more_nodes={8: 1 << 20}),
    ],
    ids=["255 CPUs", "one CPU", "sub-NUMA clusters"],
)
def test_every_online_cpu_has_a_place_inside_the_picture(topology: HostTopology) -> None:
    picture = draw_host(topology, HOST, {"a": topology.online})
    places = {cpu: frame(group) for cpu, group in cells(picture).items()}
    assert set(places) == topology.online
    for (left, top, right, bottom), other in itertools.combinations(places.values(), 2):
        assert right <= other[0] or other[2] <= left or bottom <= other[1] or other[3] <= top
    x, y, width, height = map(float, ET.fromstring(picture).get("viewBox", "").split())
    for left, top, right, bottom in places.values():
        assert x <= left
        assert y <= top
        assert right <= x + width
        assert bottom <= y + height


def test_large_host_fits_a_screen() -> None:
    root = ET.fromstring(draw_host(LARGE, HOST))
    width, height = float(root.get("width", "")), float(root.get("height", ""))
    assert width <= 1400
    assert 1 <= width / height <= 2.5


def test_zones_are_boxes_around_their_cpus_and_equal_zones_share_one() -> None:
    host, crossing = nest_boxes(machine(packages=2, nodes=2, cores=2, threads=2, more_nodes={9: 1 << 20}))
    assert crossing == []
    assert [box.lines[0] for box in host.children] == ["Package 0", "Package 1", "NUMA node 9, 1 GiB"]
    package = host.children[0]
    assert [box.lines for box in package.children] == [
        ["NUMA node 0, 8 GiB", "L3 0, 16 MiB"],
        ["NUMA node 1, 8 GiB", "L3 10, 16 MiB"],
    ]
    assert [box.cpus for box in package.children[1].children] == [{4, 5}, {6, 7}]


def test_a_zone_that_crosses_others_is_described_in_words() -> None:
    crossing = CpuCache(3, "unified", 5, None, None, frozenset({1, 2}))
    topology = replace(machine(packages=2, cores=2), caches=(crossing,))
    picture = draw_host(topology, HOST)
    assert "L3 5: CPUs 1-2" in texts(picture)
    assert set(cells(picture)) == {0, 1, 2, 3}


def test_a_cache_that_cuts_cores_is_described_and_the_cores_are_drawn() -> None:
    caches = tuple(
        CpuCache(3, "unified", n, None, None, frozenset(cpus)) for n, cpus in enumerate([{0, 2}, {1, 3}])
    )
    topology = replace(machine(cores=2, threads=2), caches=caches)
    assert [core.cpus for core in topology.cores] == [{0, 1}, {2, 3}]
    picture = draw_host(topology, HOST)
    assert {"L3 0: CPUs 0,2", "L3 1: CPUs 1,3"} <= set(texts(picture))
    assert set(cells(picture)) == {0, 1, 2, 3}
    lines = list(tree_lines(topology, HOST, None))
    assert lines[-2:] == ["L3 0: CPUs 0,2", "L3 1: CPUs 1,3"]


def test_guests_colour_their_cpus_and_are_listed_with_them() -> None:
    picture = draw_host(machine(cores=4), DEDICATED, {"db": frozenset({0, 1}), "web": frozenset({1})})
    by_cpu = cells(picture)
    ([db], [_, web]) = fills(by_cpu[0]), fills(by_cpu[1])
    assert db != web
    assert (fills(by_cpu[1]), fills(by_cpu[2])) == ([db, web], ["#ffffff"])
    assert by_cpu[1].findtext(f"{SVG}title") == "CPU 1, core 1 of package 0, dedicated: db, web"
    assert by_cpu[2].findtext(f"{SVG}title") == "CPU 2, core 2 of package 0, dedicated: free"
    assert {"db: 0-1", "web: 1"} <= set(texts(picture))


def test_frame_title_and_legend_show_the_role_of_a_cpu() -> None:
    sets = CpuSets(frozenset({1}), frozenset({2, 3}), frozenset())
    picture = draw_host(machine(cores=4), sets, {})
    by_cpu = cells(picture)
    looks = [
        (by_cpu[cpu].findall(f"{SVG}rect")[0].get("fill"), by_cpu[cpu].findall(f"{SVG}rect")[-1].attrib)
        for cpu in range(4)
    ]
    kinds = [(fill, frame.get("stroke-width"), frame.get("stroke-dasharray")) for fill, frame in looks]
    assert kinds[2] == kinds[3]
    assert len(set(kinds)) == 3
    assert by_cpu[0].findtext(f"{SVG}title") == "CPU 0, core 0 of package 0, host: no guest"
    assert {"dedicated: 1", "shared: 2-3", "host: 0"} <= set(texts(picture))


def test_title_and_description_are_there_for_screen_readers() -> None:
    root = ET.fromstring(draw_host(machine(cores=4), DEDICATED, {"web": frozenset({1})}))
    assert root.get("role") == "img"
    assert root.findtext(f"{SVG}title") == "unknown · 4 CPUs · 8 GiB"
    assert root.findtext(f"{SVG}desc") == "dedicated: 0-3. web: 1."


def test_names_of_guests_are_escaped() -> None:
    for name, shown in (("<b>&\"'</b>", "<b>&\"'</b>"), ("a\0\x1b", "a\ufffd\ufffd")):
        picture = draw_host(machine(cores=1), DEDICATED, {name: frozenset({0})})
        assert f"{shown}: 0" in texts(picture)
        assert cells(picture)[0].findtext(f"{SVG}title") == f"CPU 0, core 0 of package 0, dedicated: {shown}"


def test_offline_cpus_and_kinds_of_cores_are_shown() -> None:
    topology = machine(cores=2, threads=2, offline=frozenset({3}))
    hybrid = tuple(
        replace(core, kind=kind)
        for core, kind in zip(topology.cores, ("performance", "efficiency"), strict=True)
    )
    told = texts(draw_host(replace(topology, cores=hybrid), HOST))
    assert "Offline CPUs: 3" in told
    assert {"P", "E"} <= set(told)


def test_a_host_without_facts_is_an_empty_box() -> None:
    nothing = HostTopology((), (), (), (), (), (), frozenset())
    assert texts(draw_host(nothing, HOST)) == ["unknown · 0 CPUs"]


def test_colours_are_different_and_leave_the_numbers_legible() -> None:
    guests = {f"guest {cpu}": frozenset({cpu}) for cpu in range(64)}
    picture = draw_host(machine(cores=64), DEDICATED, guests)
    colours = [colour for group in cells(picture).values() for colour in fills(group)]
    assert len(set(colours)) == len(colours) == len(guests)
    for colour in colours:
        channels = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
        luminance = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
        assert (luminance + 0.05) / 0.05 >= 4.5, f"contrast of black on {colour}, WCAG AA"


@pytest.mark.parametrize(
    ("kib", "text"),
    [(512, "512 KiB"), (1024, "1 MiB"), (28160, "27.5 MiB"), (1047527424, "999 GiB"), (1 << 31, "2 TiB")],
)
def test_sizes_have_a_suitable_unit(kib: int, text: str) -> None:
    assert format_size(kib) == text


def test_levels_and_noise_of_cpus_are_shown():
    topology, sets = machine(cores=4), CpuSets(frozenset({2, 3}), frozenset({0, 1}), frozenset({0, 1}))
    conditions = CpuConditions({2: "quiet", 3: "quiet"}, {0: 5000.0, 2: 12.34, 3: 0.0})
    lines = list(tree_lines(topology, sets, {}, conditions))
    assert lines[-2:] == ["quiet: 2-3", "interruptions a second by CPU: 0 5000.0, 2 12.3, 3 0.0"]
    picture = draw_host(topology, sets, {}, conditions)
    assert "CPU 2, core 2 of package 0, dedicated: free; quiet; 12.3 interruptions a second" in picture
    assert picture.count('fill="#b3261e"') == 2
    assert draw_host(topology, sets, {}).count("b3261e") == 0
