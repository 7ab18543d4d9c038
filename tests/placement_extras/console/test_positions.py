"""Tests of the CPUs and cache ways of guests on a host's page, drawn as agents report them, for any reported
text.
"""

from hypothesis import given
from hypothesis import strategies as st

from placement_extras.console import host
from tests.placement_extras.console import world
from tests.placement_extras.console.pages import read_page
from tests.placement_extras.console.providers import provider


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
