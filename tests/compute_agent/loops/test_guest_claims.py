"""Tests of claims for guests: time in a report, pauses after refusals, and guests that have just started."""

import os
import time
import uuid
from types import SimpleNamespace

import pytest

from compute_agent.events.event import EventRecorder
from compute_agent.loops import guest_claims
from compute_agent.loops.guest_claims import ASK_SECONDS, GuestClaims
from compute_agent.loops.note_files import ClaimStore
from compute_agent.model.guest import ConsumerAllocations, Guest
from compute_agent.report.answers import ConflictError
from compute_agent.report.guest_claims import ClaimNote
from compute_agent.report.history import ConsumerOwner
from tests.compute_agent.pipeline.fake_host import HOST_STATE

GONE, NEW = (str(uuid.UUID(int=number)) for number in (1, 99))


class SlowDriver:
    """A driver with an engine that takes some seconds for each answer."""

    def __init__(self):
        self.seconds, self.now = 2.0, 0.0
        self.asked, self.stopped = [], []
        self.gone = set()
        self.settle_seconds = 10.0

    def read_clock(self):
        return self.now

    def wanted_memory(self, guest):
        return 0

    def subject_key(self, guest):
        return guest.name

    def is_gone(self, key, guest_uuid):
        self.now += self.seconds
        self.asked.append(guest_uuid)
        return guest_uuid in self.gone

    def stop(self, guest, timeout):
        self.stopped.append(guest.uuid)


class ClaimClient:
    """A Placement in which each consumer holds the claim of its note. It can refuse further claims."""

    def __init__(self, driver):
        self.given_back, self.tried = [], []
        self.refuses = False
        self._driver = driver

    def get_allocations(self, guest_uuid):
        return ConsumerAllocations(guest_uuid, {HOST_STATE.tree.root.uuid: {}}, 1, "p", "u", "t")

    def set_allocations(self, record):
        assert record.resources == {}
        self.given_back.append((record.consumer, self._driver.now))

    def claim_place(self, consumer, query, root):
        self.tried.append(self._driver.now)
        if self.refuses:
            raise ConflictError("POST", "/ext/v1/claims", "no room", status=409)
        return {}


class ListedGuests:
    """A pipeline that has a list of guests, and ignores events."""

    host_state = HOST_STATE

    def __init__(self):
        self.views = []

    def guest_views(self):
        return self.views

    def submit(self, event):
        pass

    def start_guest(self, start=None):
        """Start a guest without an allocation. ``start`` is the start of its run in seconds since boot."""
        run = None if start is None else (1, start)
        guest = Guest(NEW, "podman", "web", os.getpid(), run=run)
        self.views = [SimpleNamespace(guest=guest, allocation={}, migration=None)]


@pytest.fixture
def driver():
    return SlowDriver()


@pytest.fixture
def client(driver):
    return ClaimClient(driver)


@pytest.fixture
def guests():
    return ListedGuests()


@pytest.fixture
def options():
    """The options in [guests]."""
    more = {"claim_project": "p", "claim_user": "u", "claim_dedicated": (), "stop_timeout": 1}
    return SimpleNamespace(claim=True, claim_grace=30.0, no_room="keep", **more)


@pytest.fixture
def claims(driver, guests, options, tmp_path):
    store = ClaimStore(tmp_path, "")
    notes = [
        ClaimNote(str(uuid.UUID(int=number)), f"c{number}", "podman", "", ConsumerOwner("p", "u", "t"), {})
        for number in range(1, 11)
    ]
    store.keep_notes({note.guest_uuid: note for note in notes})
    in_force = SimpleNamespace(current=SimpleNamespace(options=SimpleNamespace(guests=options)))
    return GuestClaims(in_force, guests, {"podman": driver}, store, EventRecorder(), driver.read_clock)


def test_a_slow_engine_delays_no_report_and_each_guest_has_its_turn(claims, driver, client):
    for _ in range(4):
        began = driver.now
        claims.settle_claims(client)
        assert driver.now - began <= ASK_SECONDS + driver.seconds
    assert len(set(driver.asked)) == len(claims.claimed_guests())
    assert driver.asked[:2] == driver.asked[10:12]


def test_a_fast_engine_is_asked_about_all_guests_in_each_report(claims, driver, client):
    driver.seconds = 0.0
    claims.settle_claims(client)
    claims.settle_claims(client)
    assert sorted(driver.asked) == sorted(2 * list(claims.claimed_guests()))


def test_the_time_of_grace_counts_from_the_first_answer(claims, driver, client):
    """Reports that did not ask about a guest do not start its time of grace again."""
    driver.gone = {GONE}
    while not client.given_back:
        claims.settle_claims(client)
    [(guest_uuid, moment)] = client.given_back
    assert guest_uuid == GONE
    assert 30.0 <= moment <= 30.0 + 2 * 10 * driver.seconds


@pytest.mark.parametrize(("start", "is_new"), [(4.0, False), (5.0, True)])
def test_only_a_run_that_began_after_the_first_claims_is_stopped_for_want_of_room(
    claims, driver, client, guests, options, monkeypatch, start, is_new
):
    """The main process of this run is younger than the run."""
    monkeypatch.setattr(time, "clock_gettime", lambda clock: 5.0)
    monkeypatch.setattr(guest_claims, "run_aside", lambda role, work, suffix: work())
    options.no_room, client.refuses = "stop", True
    driver.seconds = driver.settle_seconds = 0.0
    claims.settle_claims(client)
    guests.start_guest(start)
    claims.settle_claims(client)
    assert (driver.stopped == [NEW]) is is_new
    assert "no room" in claims.refusal_reasons()[NEW]


def test_a_guest_that_can_still_start_a_container_gets_its_claim_later(
    claims, driver, client, guests, monkeypatch
):
    now = time.clock_gettime(time.CLOCK_BOOTTIME)
    guests.start_guest(now - 4.0)
    driver.seconds = 0.0
    monkeypatch.setattr(time, "clock_gettime", lambda clock: now)
    claims.settle_claims(client)
    assert (client.tried, claims.settling_seconds) == ([], 6.0)
    now += 6.0
    claims.settle_claims(client)
    assert (client.tried, claims.settling_seconds) == ([0.0], None)


def test_a_refused_guest_is_tried_in_the_report_that_gives_another_claim_back(
    claims, driver, client, guests, options
):
    guests.start_guest()
    options.claim_grace, client.refuses = 5.0, True
    driver.seconds = driver.settle_seconds = 0.0
    for driver.now in (0.0, 10.0):
        claims.settle_claims(client)
    assert client.tried == [0.0]
    driver.gone = {GONE}
    for driver.now in (11.0, 16.0, 17.0, 75.0, 76.0):
        claims.settle_claims(client)
    assert client.given_back == [(GONE, 16.0)]
    # After the second refusal the pause is a minute.
    assert client.tried == [0.0, 16.0, 76.0]
