"""Tests of evictions: the agent stops a guest, notices its end, and deletes its allocation on this host."""

import threading
from contextlib import nullcontext
from dataclasses import replace

import pytest

from compute_agent.model.messages import DriverError
from compute_agent.report.answers import ConflictError
from compute_agent.report.plan import to_api
from compute_agent.throttling.evictions import EvictionFailedError
from tests.compute_agent.builders import hold_resources, hold_untyped, release_resources
from tests.compute_agent.loops.overload import HELD, NODE, Overload
from tests.waits import wait_for

DISK = "33333333-0000-4000-8000-000000000001"
GUEST = "22222222-0000-4000-8000-000000000001"
SECONDS = 20


@pytest.fixture
def host(tmp_path, client):
    """A host with its provider, and a provider of shared disk, in Placement. The guest runs and holds
    resources of the two providers.
    """
    for uuid, name, inventory in ((NODE, "h", HELD), (DISK, "disk", {"DISK_GB": HELD["VCPU"]})):
        generation = client.create_provider(uuid, name, None).generation
        client.set_inventories(uuid, {rc: to_api(one) for rc, one in inventory.items()}, generation)
    with Overload(tmp_path, client) as host:
        host.run(GUEST, 1.0)
        hold_resources(client, GUEST, {NODE: {"VCPU": 2}, DISK: {"DISK_GB": 10}})
        yield host


def evictions(host):
    return host.evictions


def held(client):
    return client.get_allocations(GUEST).resources


def test_a_guest_is_stopped_and_known_to_be_gone(host):
    evictions(host).stop_guest(GUEST)
    assert host.driver.running == {}
    assert host.pipeline.guest_views() == []
    evictions(host).stop_guest(GUEST)  # repeating it is not an error


def test_allocations_on_other_hosts_stay(host, client):
    evictions(host).stop_guest(GUEST)
    evictions(host).give_back(GUEST)
    left = client.get_allocations(GUEST)
    assert left.resources == {DISK: {"DISK_GB": 10}}
    assert (left.project_id, left.user_id, left.consumer_type) == ("project", "user", "INSTANCE")


def test_where_nothing_is_left_the_consumer_goes(host, client, live_placement):
    hold_resources(client, GUEST, {NODE: {"VCPU": 2}})
    evictions(host).stop_guest(GUEST)
    evictions(host).give_back(GUEST)
    assert held(client) == {}
    live_placement.writes()
    evictions(host).give_back(GUEST)  # repeating it is not an error, and changes nothing
    assert live_placement.writes() == []


def test_a_guest_that_has_moved_keeps_what_it_holds_there(host, client, live_placement):
    hold_resources(client, GUEST, {DISK: {"DISK_GB": 10}})
    evictions(host).stop_guest(GUEST)
    live_placement.writes()
    evictions(host).give_back(GUEST)
    assert live_placement.writes() == []


def test_a_consumer_without_a_type_can_be_written_back(host, client):
    release_resources(client, GUEST)
    hold_untyped(client, GUEST, {NODE: {"VCPU": 2}, DISK: {"DISK_GB": 10}})
    assert client.get_allocations(GUEST).consumer_type == "unknown"
    evictions(host).stop_guest(GUEST)
    evictions(host).give_back(GUEST)
    assert held(client) == {DISK: {"DISK_GB": 10}}


def test_a_concurrent_change_of_the_claim_is_respected(host, client, monkeypatch):
    evictions(host).stop_guest(GUEST)
    write, interfered = client.set_allocations, []

    def interfere(record):
        if not interfered:
            interfered.append(True)
            hold_resources(client, GUEST, {NODE: {"VCPU": 2}, DISK: {"DISK_GB": 20}})
            with pytest.raises(ConflictError):
                write(record)
            raise ConflictError("PUT", "/allocations", "concurrent update", status=409)
        write(record)

    monkeypatch.setattr(client, "set_allocations", interfere)
    evictions(host).give_back(GUEST)
    assert held(client) == {DISK: {"DISK_GB": 20}}


def test_an_absent_placement_is_waited_for(host, client, live_placement, caplog):
    evictions(host).stop_guest(GUEST)
    live_placement.stop()
    thread = threading.Thread(target=evictions(host).give_back, args=(GUEST,))
    thread.start()
    wait_for(lambda: "is not removed yet" in caplog.text)
    live_placement.start()
    thread.join(SECONDS)
    assert held(client) == {DISK: {"DISK_GB": 10}}
    assert caplog.text.count("is not removed yet") == 1


def test_an_agent_that_ends_waits_for_nothing(host, live_placement):
    evictions(host).stop_guest(GUEST)
    live_placement.stop()
    evictions(host).end_waiting()
    with pytest.raises(EvictionFailedError, match="the agent ends"):
        evictions(host).give_back(GUEST)
    live_placement.start()


def test_a_guest_that_was_started_again_keeps_its_allocation(host, client, live_placement, caplog):
    evictions(host).stop_guest(GUEST)
    live_placement.stop()
    thread = threading.Thread(target=evictions(host).give_back, args=(GUEST,))
    thread.start()
    wait_for(lambda: "is not removed yet" in caplog.text)
    host.run(GUEST, 1.0)
    thread.join(SECONDS)
    live_placement.start()
    assert held(client) == {NODE: {"VCPU": 2}, DISK: {"DISK_GB": 10}}


def test_a_reload_that_removes_the_command_does_not_disturb_an_eviction_under_way(host, client, monkeypatch):
    leaving = evictions(host)
    called, usual = [], replace(leaving._settings, evict_grace=0.1, evict_command=None)
    chosen = replace(usual, evict_command=called.append)
    # Each read of the settings is followed by a reload that removes the command.
    reads = iter([chosen])
    monkeypatch.setattr(
        type(leaving), "_settings", property(lambda self: next(reads, usual), lambda self, value: None), False
    )
    with pytest.raises(EvictionFailedError, match="it still runs"):
        leaving.stop_guest(GUEST)
    assert called == [GUEST]


def test_a_command_that_leaves_the_guest_where_it_is_has_failed(host, tmp_path):
    host.reload("[qos]\nevict_grace = 0.2\nevict_command = true")
    with pytest.raises(EvictionFailedError, match="it still runs"):
        evictions(host).stop_guest(GUEST)


@pytest.mark.parametrize(("runs", "has_left"), [((1, 1), False), ((1, 2), True)])
def test_another_main_process_of_the_same_run_is_no_end(host, monkeypatch, runs, has_left):
    before, now = (
        replace(host.driver.running[GUEST], pid=pid, run=(run, 0.0)) for pid, run in enumerate(runs, 1000)
    )
    monkeypatch.setattr(host.driver, "stop", lambda guest, timeout: host.driver.running.update({GUEST: now}))
    host.driver.running[GUEST] = before
    host.reload("[qos]\nevict_grace = 0.2")
    with nullcontext() if has_left else pytest.raises(EvictionFailedError, match="it still runs"):
        evictions(host).stop_guest(GUEST)


def test_a_driver_that_cannot_stop_it_is_heard(host, monkeypatch):
    def fail(guest, timeout):
        raise DriverError("libvirtd is away")

    monkeypatch.setattr(host.driver, "stop", fail)
    with pytest.raises(DriverError, match="libvirtd is away"):
        evictions(host).stop_guest(GUEST)


def test_a_guest_that_ended_while_its_end_failed_has_left(host, client, monkeypatch):
    """Otherwise the allocation of the guest would stay in Placement."""

    def fail(guest, timeout):
        host.driver.end(guest)
        raise DriverError("libvirtd went away")

    monkeypatch.setattr(host.driver, "stop", fail)
    evictions(host).stop_guest(GUEST)
    evictions(host).give_back(GUEST)
    assert held(client) == {DISK: {"DISK_GB": 10}}


def test_while_placement_is_away_further_guests_are_stopped(host, client, live_placement):
    """The number of evictions that wait for Placement does not matter."""
    guests = [f"22222222-0000-4000-8000-0000000001{number:02}" for number in range(12)]
    for guest in guests:
        host.run(guest, 1.0)
    live_placement.stop()
    ended = {}
    for guest in guests:
        host.evictor.begin_eviction(guest)
    wait_for(lambda: host.driver.running.keys() == {GUEST})
    live_placement.start()
    wait_for(lambda: ended.update(host.evictor.finished_evictions()) or ended.keys() == set(guests))
    assert set(ended.values()) == {None}
