"""Tests of the time that reports spend on claims of guests that do not run."""

import os
import time
import uuid
from types import SimpleNamespace

import pytest

from compute_agent.loops.guest_claims import ASK_SECONDS, GuestClaims
from compute_agent.loops.note_files import ClaimStore
from compute_agent.model.guest import ConsumerAllocations, Guest
from compute_agent.report.guest_claims import ClaimNote
from compute_agent.report.history import ConsumerOwner


class SlowDriver:
    """A driver with an engine that takes some seconds for each answer."""

    def __init__(self):
        self.seconds, self.now = 2.0, 0.0
        self.asked = []
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


class ClaimClient:
    """A Placement in which each consumer holds the claim of its note."""

    def __init__(self):
        self.given_back = []

    def get_allocations(self, guest_uuid):
        return ConsumerAllocations(guest_uuid, {"host": {}}, 1, "p", "u", "t")

    def set_allocations(self, record):
        assert record.resources == {}
        self.given_back.append(record.consumer)


@pytest.fixture
def driver():
    return SlowDriver()


@pytest.fixture
def claims(driver, tmp_path):
    store = ClaimStore(tmp_path, "")
    notes = [
        ClaimNote(str(uuid.UUID(int=number)), f"c{number}", "podman", "", ConsumerOwner("p", "u", "t"), {})
        for number in range(1, 11)
    ]
    store.keep_notes({note.guest_uuid: note for note in notes})
    options = SimpleNamespace(guests=SimpleNamespace(claim=False, claim_grace=30.0))
    return GuestClaims(
        SimpleNamespace(current=SimpleNamespace(options=options)),
        SimpleNamespace(guest_views=list),
        {"podman": driver},
        store,
        None,
        driver.read_clock,
    )


def test_a_slow_engine_delays_no_report_and_each_guest_has_its_turn(claims, driver):
    for _ in range(4):
        began = driver.now
        claims.settle_claims(None)
        assert driver.now - began <= ASK_SECONDS + driver.seconds
    assert len(set(driver.asked)) == len(claims.claimed_guests())
    assert driver.asked[:2] == driver.asked[10:12]


def test_a_fast_engine_is_asked_about_all_guests_in_each_report(claims, driver):
    driver.seconds = 0.0
    claims.settle_claims(None)
    claims.settle_claims(None)
    assert sorted(driver.asked) == sorted(2 * list(claims.claimed_guests()))


def test_the_time_of_grace_counts_from_the_first_answer(claims, driver):
    """Reports that did not ask about a guest do not start its time of grace again."""
    given_back = []
    claims._give_back = lambda client, note: given_back.append((driver.now, note.guest_uuid))
    driver.gone = {driver_uuid := str(uuid.UUID(int=1))}
    while not given_back:
        claims.settle_claims(None)
    (moment, guest_uuid), *_ = given_back
    assert guest_uuid == driver_uuid
    assert 30.0 <= moment <= 30.0 + 2 * 10 * driver.seconds


@pytest.mark.parametrize(("start", "is_new"), [(4.0, False), (5.0, True)])
def test_a_run_that_is_older_than_the_first_claims_has_not_just_started(claims, start, is_new):
    """The main process of this run is younger than the run."""
    claims._since = 5.0
    guest = Guest(str(uuid.UUID(int=1)), "systemd", "db.service", os.getpid(), run=(1, start))
    assert claims._has_just_started(guest) is is_new


def test_a_guest_that_can_still_start_a_container_gets_its_claim_later(claims, driver, monkeypatch):
    now, tried = time.clock_gettime(time.CLOCK_BOOTTIME), []
    guest = Guest(str(uuid.UUID(int=99)), "podman", "web.service", os.getpid(), run=(1, now - 4.0))
    view = SimpleNamespace(guest=guest, allocation={}, migration=None)
    claims._pipeline.guest_views = lambda: [view]
    vars(claims._in_force.current.options.guests).update(
        claim=True, claim_project="p", claim_user="u", claim_dedicated=()
    )
    claims._hold_allocation = lambda client, view, note, known: tried.append(note.name)
    monkeypatch.setattr(time, "clock_gettime", lambda clock: now)
    claims.settle_claims(None)
    assert (tried, claims.settling_seconds) == ([], 6.0)
    now += 6.0
    claims.settle_claims(None)
    assert (tried, claims.settling_seconds) == (["web.service"], None)


def test_a_refused_guest_is_tried_in_the_report_that_gives_another_claim_back(claims, driver):
    gone, tried, client = str(uuid.UUID(int=1)), [], ClaimClient()
    guest = Guest(str(uuid.UUID(int=99)), "podman", "web", os.getpid())
    view = SimpleNamespace(guest=guest, allocation={}, migration=None)
    claims._pipeline.guest_views = lambda: [view]
    claims._pipeline.host_state = SimpleNamespace(own_part=lambda held: held)
    claims._recorder = SimpleNamespace(
        record_done=lambda *words, **more: None, record_event=lambda *words, **more: None
    )
    vars(claims._in_force.current.options.guests).update(
        claim=True, claim_grace=5.0, claim_project="p", claim_user="u", claim_dedicated=()
    )

    def refuse(client, view, note, known):
        tried.append(driver.now)
        claims._note_refusal(view, "no room")

    claims._hold_allocation = refuse
    driver.seconds = driver.settle_seconds = 0.0
    for driver.now in (0.0, 10.0):
        claims.settle_claims(client)
    assert tried == [0.0]
    driver.gone = {gone}
    for driver.now in (11.0, 16.0, 17.0, 75.0, 76.0):
        claims.settle_claims(client)
    assert client.given_back == [gone]
    # After the second refusal the pause is a minute.
    assert tried == [0.0, 16.0, 76.0]
