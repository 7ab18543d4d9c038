"""Tests that the page of the fleet and the page of a host show promises to guests that the kernel does not
keep.
"""

import pytest

from placement_extras.console import fleet
from tests.placement.running import Admin
from tests.placement_extras.console import world
from tests.placement_extras.console.pages import read_answer


@pytest.fixture
def tell(app):
    """Let the agent of the host edge-1 report broken promises."""
    admin = Admin(app)
    yield lambda value: world.follow(admin, "edge-1", {fleet.BROKEN_PROMISES: value})
    world.follow(admin, "edge-1", {})


def test_broken_promises_are_seen_in_the_fleet_and_on_the_host(client, tell):
    uuid = world.uuid_of("edge-1")
    assert "0 hosts of 8" in read_answer(client, "", broken="1")
    assert "does not keep all promises" not in read_answer(client, f"providers/{uuid}")
    tell("2 cpus, 1 quiet")
    page = read_answer(client, "", broken="1")
    assert "1 host of 8" in page
    assert "edge-1 open broken promises: 2 cpus, 1 quiet" in page
    shown = read_answer(client, f"providers/{uuid}")
    assert "breaks promises to its guests: 2 cpus, 1 quiet." in shown


def test_a_number_is_no_broken_promise(client, tell):
    tell(3.0)
    assert "0 hosts of 8" in read_answer(client, "", broken="1")


def test_hostile_words_are_text(client, tell):
    tell("<b>x</b>")
    assert "broken promises: &lt;b&gt;x&lt;/b&gt;" in read_answer(client, "", name="edge-1")
