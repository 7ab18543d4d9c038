"""Guests of Nova have their class after all that Nova does to them, and what acts on classes acts on them."""

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.openstack.doors import AGENT_PROGRAM, LAB, RULES, DoorStory, door_table, walk
from tests.openstack.ground import Ground
from tests.openstack.two_hosts import TwoHosts, host_agent, two_hosts

pytestmark = [pytest.mark.slow, pytest.mark.openstack]


@pytest.fixture(scope="module")
def all_hosts(openstack: Ground) -> Iterator[TwoHosts]:
    openstack.keystone.identity.user(LAB)
    with two_hosts(openstack) as made:
        yield made


@pytest.fixture
def there(all_hosts: TwoHosts) -> Iterator[TwoHosts]:
    """The cloud without guests."""
    yield all_hosts
    all_hosts.servers.delete_all()


def test_guests_have_their_class_after_each_door(there: TwoHosts, capsys: pytest.CaptureFixture[str]) -> None:
    with ExitStack() as stack:
        agents = {
            name: stack.enter_context(host_agent(there.ground, host, RULES, AGENT_PROGRAM))
            for name, host in there.hosts.items()
        }
        story = DoorStory(there, agents)
        try:
            for row in walk(story):
                with capsys.disabled():
                    print(f"\n{row.door}: {dict(row.classes)}", end="", flush=True)
        finally:
            with capsys.disabled():
                print(f"\n\n{door_table(story.rows)}\n")
