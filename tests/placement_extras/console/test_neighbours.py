"""Tests of the page about neighbours: caches, the guests with the largest use, limited guests and broken
promises.
"""

from http import HTTPStatus

import pytest

from placement.read_model.snapshot import ModelSnapshot
from placement_extras.console import neighbours
from placement_extras.console.fleet import HostResults
from placement_extras.console.neighbours import (
    LimitedLever,
    MeasuredLoad,
    NeighbourOrder,
    make_page,
    read_usage,
)
from tests.placement_extras.console import world
from tests.placement_extras.console.pages import READER, read_answer, read_page
from tests.placement_extras.console.providers import provider

NOW = 1_700_000_100.0
TIMES = {"neighbour.measured_at": NOW - 100, "neighbour.valid_until": NOW + 1700}
ONE, TWO = (f"00000000-0000-4000-8000-{number:012}" for number in (1, 2))


def usage_of(attributes):
    return read_usage(ModelSnapshot([provider(1, TIMES | attributes)]).whole_trees()[1])


@pytest.mark.parametrize(
    ("text", "load"),
    [
        ("1250 MB/s of 25600, 12.5 MiB of 32", MeasuredLoad(1250, 25600, 12.5, 32)),
        ("1250.3 MB/s, 12 MiB", MeasuredLoad(1250.3, None, 12, None)),
        ("0 MiB of 16", MeasuredLoad(None, None, 0, 16)),
        ("7 MB/s", MeasuredLoad(7)),
    ],
)
def test_the_use_of_a_cache_is_read_as_agents_write_it(text, load):
    (cache,) = usage_of({"neighbour.cache.3": text}).caches
    assert (cache.cache, cache.load) == ("3", load)
    (guest,) = usage_of({"neighbour.guest.0": f"{ONE} BE: {text}"}).guests
    assert (guest.consumer, guest.qos_class, guest.load) == (ONE, "BE", load)


def test_limits_are_read_as_agents_write_them():
    text = f"{TWO} cpu_quota: by hand; memory_bandwidth: interference for {ONE} {TWO}; cpu_weight: watermarks"
    (limited,) = usage_of({"neighbour.limit.0": text}).limits
    assert limited.consumer == TWO
    assert limited.levers == (
        LimitedLever("cpu_quota", "by hand", ()),
        LimitedLever("memory_bandwidth", "interference", (ONE, TWO)),
        LimitedLever("cpu_weight", "watermarks", ()),
    )


@pytest.mark.parametrize(
    "attributes",
    [
        {"neighbour.cache.0": 5.0},
        {"neighbour.cache.0": "<b>"},
        {"neighbour.cache.0": f"{'9' * 200} MB/s"},
        {"neighbour.cache.0": "nan MB/s, -1 MiB"},
        {"neighbour.guest.0": "BE: 5 MB/s", "neighbour.guest.1": f"{ONE}"},
        {"neighbour.guest.0": "5 MB/s"},
        {"neighbour.valid_until": "soon", "neighbour.limit.0": f"{ONE} ; ; <b>", "neighbour.limit.1": ONE},
    ],
)
def test_values_of_other_forms_are_ignored(attributes):
    found = usage_of(attributes)
    assert (found.caches, found.guests) == ((), ())
    assert [one.levers for one in found.limits] in ([], [()])


def cloud(count, guests=6):
    """Hosts with cache use. The number of a host determines how much its caches and guests use."""
    hosts = []
    for number in range(1, count + 1):
        used = {
            f"neighbour.guest.{guest}": (
                f"00000000-0000-4000-8000-{number:06}{guest:06} BE: {number}.{guest} MB/s, {guest + 1} MiB"
            )
            for guest in range(guests)
        }
        caches = {
            f"neighbour.cache.{cache}": f"{number * 10 + cache} MB/s, {99 - cache} MiB" for cache in (0, 1)
        }
        hosts.append(provider(number, TIMES | used | caches))
    return ModelSnapshot(hosts)


def test_the_page_has_the_largest_caches_and_guests_of_the_cloud():
    page = make_page(cloud(100), HostResults(read_usage), NOW)
    assert (page.hosts, page.outdated, page.caches.total, page.caches.pages) == (100, 0, 200, 5)
    assert [one.load.bandwidth for one in page.caches.rows[:3]] == [1001, 1000, 991]
    assert [one.load.bandwidth for one in page.by_bandwidth] == [
        *(100.5, 100.4, 100.3, 100.2, 100.1, 100.0),
        *(99.5, 99.4, 99.3, 99.2),
    ]
    assert {one.load.occupancy for one in page.by_cache} == {6}
    assert page.bandwidth == sum(number * 20 + 1 for number in range(1, 101))
    by_cache = make_page(cloud(3), HostResults(read_usage), NOW, order=NeighbourOrder.CACHE)
    assert [one.cache for one in by_cache.caches.rows] == ["0", "0", "0", "1", "1", "1"]
    by_host = make_page(cloud(11), HostResults(read_usage), NOW, order=NeighbourOrder.HOST)
    assert [one.root.name for one in by_host.caches.rows[:4]] == ["cn1", "cn1", "cn2", "cn2"]


def test_outdated_values_do_not_count():
    page = make_page(cloud(3), HostResults(read_usage), NOW + 2000)
    assert (page.hosts, page.outdated, page.caches.rows, page.by_cache) == (0, 3, (), ())


def test_a_host_is_read_again_only_after_a_change():
    read = []

    def counting(tree):
        read.append(tree.root.name)
        return read_usage(tree)

    snapshot, census = cloud(3), HostResults(counting)
    for _ in range(2):
        assert make_page(snapshot, census, NOW).hosts == 3
    assert len(read) == 3
    snapshot = snapshot.copy()
    snapshot.put(provider(2, TIMES | {"neighbour.cache.0": "1 MB/s"}))
    assert make_page(snapshot, census, NOW, name="CN2").caches.rows[0].load == MeasuredLoad(1)
    assert read[3:] == ["cn2"]


def test_the_page_names_guests_limits_and_broken_promises(client):
    page = read_answer(client, "neighbours")
    guest, victim = world.uuid_of("guest-2"), world.uuid_of("guest-1")
    assert "1 host with values: 19.2 GB/s to memory, 51.5 MiB of L3 caches" in page
    assert "compute-1 0 18.3 GB/s of 25.6 GB/s 21.5 MiB of 32 MiB" in page
    assert f"{guest} BE 17.9 GB/s 9 MiB compute-1" in page
    assert f"{guest} cpu_quota by watermarks the host compute-1" in page
    assert f"{guest} memory_bandwidth by interference {victim} compute-1" in page
    nothing = read_answer(client, "neighbours", name="edge", order="host", page="7")
    assert "0 hosts with values" in nothing
    assert "No host has current values" in nothing
    assert "No host breaks a promise" in nothing


def test_values_of_a_silent_agent_are_outdated(client, tell):
    tell("edge-1", {**world.NEIGHBOURS, "neighbour.valid_until": 1.7e9})
    assert "The values of 1 host are outdated" in read_answer(client, "neighbours", name="edge")


def test_hosts_with_broken_promises_are_listed_in_part(client, tell, monkeypatch):
    tell("edge-1", {"agent.broken_promises": "2 cpus, <1> quiet"})
    assert "edge-1 2 cpus, &lt;1&gt; quiet" in read_answer(client, "neighbours")
    assert "All 1 host" not in read_answer(client, "neighbours")
    monkeypatch.setattr(neighbours, "_MAX_BROKEN", 0)
    page = make_page(
        ModelSnapshot([provider(1, {"agent.broken_promises": "1 cpus"})]), HostResults(read_usage), NOW
    )
    assert (page.broken, page.all_broken) == ((), 1)


def test_a_reader_of_a_project_does_not_see_the_page(client):
    assert client.get("/console/neighbours", headers=READER).status_code == HTTPStatus.FORBIDDEN
    assert "Neighbours" not in read_page(client, "/console/project", headers=READER)
