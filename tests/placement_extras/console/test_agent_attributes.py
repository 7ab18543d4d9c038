"""Tests of what pages show from attributes that agents write: heartbeats, broken promises, and the CPUs and
cache ways of guests.
"""

import time

from hypothesis import given
from hypothesis import strategies as st

from placement_extras.console import fleet, host
from tests.placement_extras.console import world
from tests.placement_extras.console.pages import read_answer, read_page
from tests.placement_extras.console.providers import provider


def report(tell, name, ago, lasts):
    """Announce the time of an agent's report, and the seconds until the next one is due."""
    reported = time.time() - ago
    tell(name, {fleet.REPORTED_AT: reported, fleet.REPORT_DUE: reported + lasts})


def test_a_silent_agent_is_seen_in_the_fleet_and_on_its_host(client, tell):
    uuid = world.uuid_of("edge-1")
    assert "agent reported no time" in read_answer(client, f"providers/{uuid}")
    report(tell, "edge-1", 60, 1800)
    assert "edge-1 open" in read_answer(client, "", name="edge-1")
    assert "is silent" not in read_answer(client, f"providers/{uuid}")
    report(tell, "edge-1", 3600, 1800)
    silent = read_answer(client, "", state="silent")
    assert "1 host of 8" in silent
    assert "edge-1 silent" in silent
    page = read_answer(client, f"providers/{uuid}")
    assert "edge-1 silent" in page
    assert "The agent of this host is silent: it should have reported by" in page
    stamp = time.strftime("%Y-%m-%d", time.gmtime(time.time() - 3600))
    assert f"agent reported {stamp}" in page


def test_a_disabled_host_with_a_silent_agent_is_disabled(client, tell):
    report(tell, "compute-9_NUMA0", 3600, 1800)
    assert "compute-9 5 providers, 2 NUMA nodes disabled" in read_answer(client, "", name="compute-9")
    assert "The agent of this host is silent" in read_answer(
        client, f"providers/{world.uuid_of('compute-9')}"
    )


def test_a_heartbeat_that_is_no_time_is_ignored(client, tell):
    report(tell, "edge-1", 60, 1800)
    tell("edge-1", {fleet.REPORTED_AT: 1.0, fleet.REPORT_DUE: "soon"})
    assert "edge-1 open" in read_answer(client, "", name="edge-1")


def test_broken_promises_are_seen_in_the_fleet_and_on_the_host(client, tell):
    uuid = world.uuid_of("edge-1")
    assert "0 hosts of 8" in read_answer(client, "", broken="1")
    assert "does not keep all promises" not in read_answer(client, f"providers/{uuid}")
    tell("edge-1", {fleet.BROKEN_PROMISES: "2 cpus, 1 quiet"})
    page = read_answer(client, "", broken="1")
    assert "1 host of 8" in page
    assert "edge-1 open broken promises: 2 cpus, 1 quiet" in page
    shown = read_answer(client, f"providers/{uuid}")
    assert "breaks promises to its guests: 2 cpus, 1 quiet." in shown


def test_a_number_is_no_broken_promise(client, tell):
    tell("edge-1", {fleet.BROKEN_PROMISES: 3.0})
    assert "0 hosts of 8" in read_answer(client, "", broken="1")


def test_hostile_words_are_text(client, tell):
    tell("edge-1", {fleet.BROKEN_PROMISES: "<b>x</b>"})
    assert "broken promises: &lt;b&gt;x&lt;/b&gt;" in read_answer(client, "", name="edge-1")


def test_a_host_shows_cpus_ways_and_watermarks_that_its_agent_reports(client):
    address = f"/console/providers/{world.uuid_of('compute-1')}"
    text = read_page(client, address)
    assert "1: CPUs 4-7,28-31 ways of L3 0" in text
    assert f"{world.uuid_of('nobody')} : CPUs 8" in text
    assert "busy cpu_usage: throttle_down 90 %" in text
    markup = client.get(address).text
    assert 'aria-label="Ways 0-3 of the 15 of L3 0"' in markup
    assert '<rect class="g1" x="93.333%" width="6.667%" height="24"/>' in markup
    assert "amounts, not positions" not in markup
    other = client.get(f"/console/providers/{world.uuid_of('compute-9')}").text
    assert "amounts, not positions" in other


@given(st.text(alphabet="cpus L30129;:,-of x", max_size=60) | st.text(), st.integers(1, 70))
def test_whatever_a_host_says_is_drawn_within_its_bounds_or_not_at_all(text, total):
    told = {"position.a": text, "position.b": f"cpus 1; L3 0: {text} of {total}", "position.c": 5.0}
    found = host.agent_positions([provider(1, told)], [])
    assert found is not None
    for place in found.places:
        for cache in place.caches:
            assert 0 < cache.total <= 64
            for start, width in cache.pieces:
                assert start >= 0
                assert width > 0
                assert start + width <= 100.0001


def test_a_host_that_says_nothing_has_no_positions():
    assert host.agent_positions([provider(1, {"fleet.group": "edge"})], []) is None


def test_a_host_with_very_many_watermarks_and_guests_shows_some():
    told = {f"{kind}.{number:03}": "x" for kind in ("watermark", "position") for number in range(128)}
    found = host.agent_positions([provider(1, told)], [])
    assert found is not None
    assert (len(found.places), len(found.watermarks)) == (100, 100)
