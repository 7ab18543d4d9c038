"""Tests of the agent at the ends of claims, with a fake Placement, fake guests and a clock of their own."""

import logging
import threading
from dataclasses import replace
from types import SimpleNamespace
from unittest import mock

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from compute_agent.events.event import EventKind, EventRecorder
from compute_agent.loops import claim_ends, end_reader, note_files
from compute_agent.loops.claim_ends import ClaimEnds, EvictionWithdrawnError
from compute_agent.loops.guest_claims import GuestClaims
from compute_agent.loops.note_files import ENDS_FILE, ClaimStore, EndStore
from compute_agent.model.guest import ConsumerAllocations
from compute_agent.pipeline.events import AllocationsRead, GuestStopped
from compute_agent.report.answers import NotFoundError, PlacementError, UnavailableError
from compute_agent.report.claim_ends import END_NOTES, OnEnd, TimedClaim, TimedClaimList
from compute_agent.throttling.evictions import EvictionFailedError
from tests.compute_agent.builders import CalledPipeline, make_pipeline
from tests.compute_agent.pipeline.fake_host import HOST_STATE, FakeHost

WEB, DB = (f"3f1c9a5e-0000-4000-8000-00000000000{n}" for n in range(2))
EPOCH = 1_800_000_000.0
"""The time of the database at the start of a test."""


class FakePlacement:
    """The claims of a host by uuid, with the clock of the database."""

    def __init__(self, clock):
        self.clock = clock
        self.skew = EPOCH - clock()
        self.claims, self.permanent = {}, set()
        self.failure, self.has_list, self.reads, self.unread = None, True, 0, {}
        self.before_answer = lambda: None

    @property
    def now(self):
        return self.clock() + self.skew

    def lists_timed_claims(self):
        self._fail()
        return self.has_list

    def timed_claims(self, root):
        self.reads += 1
        self._fail()
        if not self.has_list:
            raise NotFoundError("GET", "/ext/v1/claims", "no such path")
        self.before_answer()
        assert root == "root"
        return TimedClaimList(self.now, dict(self.claims), self.unread)

    def get_allocations(self, uuid):
        self._fail()
        held = uuid in self.claims or uuid in self.permanent
        return ConsumerAllocations(uuid, {"node0": {"PCPU": 1}} if held else {})

    def _fail(self):
        if self.failure is not None:
            raise self.failure


class FakeEvictor:
    """Evictions that end when a test says so."""

    def __init__(self, check):
        self.begun, self.over, self.stops = [], {}, {}
        self.check = check

    def begin_eviction(self, guest, stop=None, grace=None):
        self.begun.append(guest)
        self.stops[guest] = stop
        self.check()

    def finished_evictions(self):
        over, self.over = self.over, {}
        return over


class EndingHost(FakeHost):
    """A host with guests that have claims that end."""

    def __init__(self, folder):
        super().__init__()
        self.folder, self.time, self.events = folder, 1000.0, []
        self.stopped, self.is_older, self.machine = [], False, ""
        self.placement = FakePlacement(lambda: self.time)
        guests = SimpleNamespace(end_notice=600.0)
        self.conf = SimpleNamespace(
            options=SimpleNamespace(guests=guests),
            settings=SimpleNamespace(evict_grace=60.0),
            client=self.placement,
        )
        self.take_over()
        self.boot()

    def check_eviction(self):
        """Check an eviction that begins. A test may replace it."""

    def new_pipeline(self, host_state=HOST_STATE):
        self.pipeline = make_pipeline(host_state, self.driver, self.metrics, self.save_state, CalledPipeline)

    def boot(self):
        """Begin with the notes of the last agent."""
        self.evictor, self.registry = FakeEvictor(self.check_eviction), CollectorRegistry()
        self.ends = ClaimEnds(
            SimpleNamespace(current=self.conf),
            self.pipeline,
            self.driver,
            EndStore(self.folder, self.machine),
            self.evictor,
            self.stopped.append,
            EventRecorder(self.events.append),
            self.registry,
            lambda: self.is_older,
            lambda: self.time,
        )
        # The thread of the object has ended, so the test runs the rounds.
        self.ends.stop()

    def claim(self, seconds, on_end=OnEnd.EVICT, uuid=WEB, generation=1):
        """Claim for a guest until some seconds from now."""
        self.placement.claims[uuid] = TimedClaim(generation, self.placement.now + seconds, on_end)

    def release(self, uuid=WEB):
        """Remove a claim, and have the agent read the allocation."""
        self.placement.claims.pop(uuid, None)
        self.handle(AllocationsRead({uuid: {}}, 2.0))

    def handle_end(self, uuid=WEB):
        """End a guest."""
        guest = self.driver.running[uuid]
        self.driver.end(guest)
        self.handle(GuestStopped(guest))

    def start(self, uuid=WEB):
        self.run(uuid, (0, 1, 0))

    def report(self):
        return self.ends.read_ends(self.placement)

    def go_on(self, seconds):
        """Let time pass, with the rounds that the thread would run."""
        until = self.time + seconds
        self.ends.run_round()
        while (pause := self.ends.next_pause()) < until - self.time:
            self.time += pause
            self.ends.run_round()
        self.time = until
        self.ends.run_round()

    def finish(self, error=None, uuid=WEB):
        self.evictor.over[uuid] = error

    def kinds(self):
        return [(event.kind, str(event.outcome)) for event in self.events]

    @property
    def overdue(self):
        return self.registry.get_sample_value("compute_agent_overdue_guests")


@pytest.fixture
def host(tmp_path):
    host = EndingHost(tmp_path)
    host.start()
    return host


class TestEvictions:
    def test_a_guest_is_asked_to_leave_before_its_end(self, host):
        host.claim(3600)
        host.report()
        host.go_on(3537.5)
        assert host.evictor.begun == []
        host.go_on(1)
        assert host.evictor.begun == [WEB]
        host.finish()
        host.handle_end()
        host.go_on(1)
        assert host.kinds() == [(EventKind.CLAIM, "done"), (EventKind.EVICT, "done")]

    def test_a_guest_is_stopped_once_while_it_leaves(self, host):
        host.claim(3600)
        host.report()
        host.go_on(3599)
        assert host.evictor.begun == [WEB]
        assert host.overdue == 0

    @pytest.mark.parametrize(("count", "said"), [(16, ""), (17, "60 s late"), (33, "120 s late")])
    def test_guests_that_wait_for_others_to_leave_are_announced(self, host, count, said, caplog):
        uuids = [WEB, *(f"3f1c9a5e-0000-4000-8000-{number:012}" for number in range(1, count))]
        for uuid in uuids[1:]:
            host.run(uuid, (0, 0, 1))
        for uuid in uuids:
            host.claim(3600, uuid=uuid)
        host.report()
        host.go_on(3590)
        assert host.evictor.begun == uuids
        assert caplog.text.count("at most 16 are stopped at the same time") == bool(said)
        assert said in caplog.text

    def test_the_grace_period_is_the_option(self, host):
        host.conf.settings.evict_grace = 600.0
        host.claim(3600)
        host.report()
        host.go_on(2999)
        assert host.evictor.begun == [WEB]

    @pytest.mark.parametrize("on_end", [OnEnd.NONE, OnEnd.NOTIFY])
    def test_guests_with_another_action_run_on_and_are_named(self, host, on_end, caplog):
        host.claim(3600, on_end)
        host.report()
        host.go_on(3601)
        host.release()
        host.report()
        host.go_on(3600)
        assert host.evictor.begun == []
        assert caplog.text.count("and the guest still runs") == 1
        assert host.overdue == 1
        (text,) = host.ends.overdue_guests().values()
        assert text.startswith("its claim ended at 2027-01-15T09:00:00Z; stop it")
        assert f"compute-agent guest evict {WEB}" in text

    def test_a_failed_eviction_is_repeated_after_a_pause_and_named(self, host, caplog):
        host.claim(100)
        host.report()
        host.go_on(50)
        for _ in range(3):
            host.finish(EvictionFailedError("it still runs after it was asked to stop"))
            host.go_on(700)
        assert host.evictor.begun == [WEB] * 4
        assert caplog.text.count("cannot be evicted at the end of its claim") == 1
        assert caplog.text.count("and the guest still runs") == 1
        (text,) = host.ends.overdue_guests().values()
        assert (
            "its eviction failed (it still runs after it was asked to stop), and the agent tries again"
            in text
        )

    def test_a_preserved_guest_is_not_evicted(self, host, monkeypatch):
        views = host.pipeline.guest_views()
        settings = replace(views[0].guest.settings, preserve=True)
        preserved = replace(views[0], guest=replace(views[0].guest, settings=settings))
        monkeypatch.setattr(host.pipeline, "guest_views", lambda: [preserved])
        host.claim(100)
        host.report()
        host.go_on(200)
        assert host.evictor.begun == []
        assert "--no-preserve" in host.ends.overdue_guests()[WEB]

    def test_a_guest_that_starts_late_is_evicted_too(self, host):
        host.handle_end()
        host.handle(AllocationsRead({}, 2.0, {WEB: {"node0": {"PCPU": 1}}}))
        host.claim(100)
        host.report()
        host.go_on(90)
        assert host.evictor.begun == []
        host.start()
        host.go_on(6)
        assert host.evictor.begun == [WEB]

    def test_all_guests_of_a_window_leave_together(self, host):
        host.start(DB)
        host.claim(100)
        host.claim(100, uuid=DB)
        host.report()
        host.go_on(40)
        assert sorted(host.evictor.begun) == [WEB, DB]


class TestNotices:
    @pytest.mark.parametrize("on_end", [OnEnd.NOTIFY, OnEnd.EVICT])
    def test_an_event_comes_before_the_end(self, host, on_end):
        host.claim(3600, on_end)
        host.report()
        host.go_on(2999)
        assert host.events == []
        host.go_on(2)
        (event,) = host.events
        assert (event.kind, event.guest) == (EventKind.CLAIM, WEB)
        assert f"The claim of guest {WEB} ends at 2027-01-15T09:00:00Z" in event.text

    def test_an_event_is_not_repeated_after_a_restart(self, host):
        host.claim(700, OnEnd.NOTIFY)
        host.report()
        host.go_on(200)
        host.boot()
        host.report()
        host.go_on(400)
        assert len(host.events) == 1

    def test_an_extended_claim_is_announced_again(self, host):
        host.claim(700, OnEnd.NOTIFY)
        host.report()
        host.go_on(200)
        host.claim(2000, OnEnd.NOTIFY, generation=2)
        host.report()
        host.go_on(1900)
        assert len(host.events) == 2

    def test_no_event_comes_before_the_end_if_the_option_is_zero(self, host):
        host.conf.options.guests.end_notice = 0.0
        host.claim(700, OnEnd.NOTIFY)
        host.report()
        host.go_on(699)
        assert host.events == []


class TestPlacementAway:
    def away(self, host):
        host.placement.failure = UnavailableError("GET", "/ext/v1/claims", "no answer")

    def test_the_last_known_end_applies(self, host):
        host.claim(3600)
        host.report()
        self.away(host)
        assert not host.report()
        host.go_on(3539)
        assert host.evictor.begun == [WEB]

    def test_a_request_that_hangs_does_not_delay_an_eviction(self, host, monkeypatch):
        monkeypatch.setattr(claim_ends, "READ_AHEAD", 1.05)
        host.claim(3600)
        host.report()
        hanging = threading.Event()
        host.placement.before_answer = lambda: hanging.wait(20)
        host.go_on(3539)
        assert host.evictor.begun == [WEB]
        hanging.set()

    def test_a_late_answer_to_an_earlier_request_changes_nothing(self, host):
        host.claim(3600)

        def extend():
            host.placement.before_answer = lambda: None
            host.time += 5
            host.placement.claims[WEB] = TimedClaim(2, EPOCH + 9000, OnEnd.EVICT)
            host.report()
            host.placement.claims[WEB] = TimedClaim(1, EPOCH + 3600, OnEnd.EVICT)

        host.placement.before_answer = extend
        host.report()
        host.go_on(4000)
        assert host.evictor.begun == []

    def test_after_a_restart_the_agent_waits_for_an_answer_and_warns(self, host, caplog):
        host.claim(3600)
        host.report()
        host.time += 4000
        host.boot()
        self.away(host)
        host.report()
        host.go_on(600)
        assert (host.evictor.begun, host.ends.overdue_guests()) == ([], {})
        assert (
            caplog.text.count(
                "have not been read since the start of the agent: GET /ext/v1/claims: no answer"
            )
            == 1
        )
        host.placement.failure = None
        host.placement.claims.clear()
        host.report()
        host.go_on(1)
        assert host.evictor.begun == [WEB]

    def test_a_refused_request_is_logged_once_and_fails_no_report(self, host, caplog):
        host.claim(3600)
        host.report()
        host.placement.failure = PlacementError("GET", "/ext/v1/claims", "no", status=400)
        host.placement.lists_timed_claims = lambda: True
        for _ in range(3):
            host.report()
        assert caplog.text.count("the last known ends apply") == 1
        host.go_on(3539)
        assert host.evictor.begun == [WEB]

    def test_a_host_that_is_not_in_placement_yet_is_no_error(self, host, caplog):
        host.placement.timed_claims = lambda root: (_ for _ in ()).throw(NotFoundError("GET", "", ""))
        host.report()
        assert caplog.messages == []


class TestChanges:
    def test_an_extension_after_the_last_report_is_noticed(self, host):
        host.claim(3600)
        host.report()
        host.go_on(3500)
        host.claim(3600, generation=2)
        host.go_on(3000)
        assert host.evictor.begun == []
        host.go_on(600)
        assert host.evictor.begun == [WEB]

    def test_a_shortened_claim_ends_earlier(self, host):
        host.claim(3600)
        host.report()
        host.claim(1000, generation=2)
        host.report()
        host.go_on(939)
        assert host.evictor.begun == [WEB]

    def test_an_end_in_the_past_evicts_at_once(self, host):
        host.claim(-100)
        host.report()
        host.go_on(0)
        assert host.evictor.begun == [WEB]

    def test_a_claim_that_became_permanent_evicts_nothing(self, host):
        host.claim(3600)
        host.report()
        host.placement.claims.clear()
        host.placement.permanent.add(WEB)
        host.report()
        host.go_on(4000)
        assert (host.evictor.begun, host.events, host.ends.is_needed()) == ([], [], False)

    def test_the_clock_of_the_host_does_not_matter(self, host):
        host.placement.skew += 7200
        host.claim(3600)
        host.report()
        host.go_on(3537)
        assert host.evictor.begun == []
        host.go_on(2)
        assert host.evictor.begun == [WEB]

    def test_a_change_of_the_clock_of_the_database_counts(self, host, caplog):
        host.claim(3600)
        host.report()
        host.placement.skew += 3000
        for _ in range(2):
            host.report()
        assert caplog.text.count("has changed by 3000 s since the last read") == 1
        host.go_on(539)
        assert host.evictor.begun == [WEB]

    def test_one_wrong_time_evicts_no_guest(self, host):
        host.claim(3600)
        host.report()
        for _ in range(3):
            host.placement.skew += 86400
            host.report()
            host.go_on(1)
            host.placement.skew -= 86400
            host.report()
        assert host.evictor.begun == []
        host.go_on(3600)
        assert host.evictor.begun == [WEB]

    def test_a_slow_answer_is_no_change_of_the_clock(self, host, caplog):
        host.claim(3600)
        host.report()

        def answer_slowly():
            host.time += 20

        host.placement.before_answer = answer_slowly
        host.report()
        assert "has changed by" not in caplog.text

    def test_a_claim_that_disappears_early_applies_until_its_end(self, host):
        host.claim(3600)
        host.report()
        host.release()
        host.report()
        host.go_on(3500)
        assert host.evictor.begun == []
        host.go_on(39)
        assert host.evictor.begun == [WEB]


class TestUnreadClaims:
    def test_a_claim_that_cannot_be_read_keeps_its_end_and_is_named_once(self, host, caplog):
        host.claim(3600)
        host.report()
        host.placement.claims.clear()
        host.placement.permanent.add(WEB)
        host.placement.unread = {WEB: "a claim has no 'ends_at'", DB: "no guest of this host"}
        for _ in range(2):
            host.report()
        assert caplog.text.count("a claim has no 'ends_at'") == 1
        assert DB not in caplog.text
        host.go_on(3539)
        assert host.evictor.begun == [WEB]

    def test_a_missing_root_is_named_if_there_are_notes(self, host, caplog):
        host.claim(3600)
        host.report()
        host.placement.failure = NotFoundError("GET", "/ext/v1/claims", "no such root")
        host.placement.lists_timed_claims = lambda: True
        assert not host.report()
        assert caplog.text.count("no such root") == 1
        host.go_on(3539)
        assert host.evictor.begun == [WEB]

    def test_a_refused_version_discards_no_time(self, host):
        host.claim(3600)
        host.report()
        host.placement.lists_timed_claims = lambda: False
        assert host.report()
        host.go_on(3539)
        assert host.evictor.begun == [WEB]

    def test_a_guest_that_gets_its_allocation_during_the_request_is_asked_for_again(self, host):
        def start():
            host.placement.before_answer = lambda: None
            host.start(DB)

        host.placement.before_answer = start
        host.report()
        host.claim(100, uuid=DB)
        host.report()
        host.go_on(50)
        assert host.evictor.begun == [DB]


class TestTurns:
    """The time between the begin of an eviction and the request to the guest."""

    @pytest.fixture
    def leaving(self, host):
        host.claim(100)
        host.report()
        host.go_on(39)
        assert host.evictor.begun == [WEB]
        return host

    def test_a_guest_is_stopped_at_its_turn(self, leaving):
        leaving.evictor.stops[WEB](WEB)
        assert leaving.stopped == [WEB]

    @pytest.mark.parametrize("seconds", [1, 100])
    def test_a_guest_with_an_extended_claim_is_not_stopped(self, leaving, seconds, caplog):
        leaving.time += seconds
        leaving.claim(3600, generation=2)
        if seconds == 1:
            leaving.report()
        with pytest.raises(EvictionWithdrawnError) as found:
            leaving.evictor.stops[WEB](WEB)
        leaving.finish(found.value)
        leaving.go_on(1)
        assert (leaving.stopped, leaving.ends.overdue_guests()) == ([], {})
        assert "cannot be evicted" not in caplog.text
        leaving.go_on(3538)
        assert leaving.evictor.begun == [WEB, WEB]

    def test_a_guest_that_waits_for_its_turn_is_named(self, leaving, caplog):
        leaving.go_on(62)
        assert "its eviction waits" in leaving.ends.overdue_guests()[WEB]
        assert (leaving.overdue, caplog.text.count("the guest still runs")) == (1, 0)
        leaving.go_on(60)
        assert caplog.text.count("the guest still runs: its eviction waits") == 1

    def test_a_driver_that_hangs_is_named(self, leaving, caplog):
        leaving.evictor.stops[WEB](WEB)
        leaving.go_on(122)
        assert caplog.text.count("the guest still runs: it is being evicted") == 1

    def test_each_attempt_reads_the_claims_before(self, leaving):
        leaving.finish(EvictionFailedError("it still runs"))
        leaving.go_on(30)
        leaving.claim(3600, generation=2)
        leaving.go_on(700)
        assert leaving.evictor.begun == [WEB]

    def test_a_guest_that_is_started_again_leaves_after_a_pause(self, leaving, caplog):
        leaving.finish()
        leaving.handle_end()
        leaving.go_on(1)
        leaving.start()
        leaving.go_on(50)
        assert leaving.evictor.begun == [WEB]
        assert caplog.text.count("and was started again") == 1
        leaving.go_on(10)
        assert leaving.evictor.begun == [WEB, WEB]

    def test_another_host_ignores_the_notes(self, leaving):
        leaving.machine = "a"
        leaving.boot()
        leaving.report()
        leaving.machine = "b"
        leaving.boot()
        assert not leaving.ends.is_needed()
        # The other host's note stays beside those of this host.
        leaving.report()
        notes = END_NOTES.parse((leaving.folder / ENDS_FILE).read_bytes())
        assert {one.machine for one in notes.values()} == {"b"}
        leaving.placement.claims.clear()
        leaving.report()
        leaving.machine = "a"
        leaving.boot()
        assert not leaving.ends.is_needed()


class TestOlderDatabase:
    def test_a_stricter_claim_waits_while_placement_has_an_older_copy(self, host):
        host.is_older = True
        host.claim(10)
        host.report()
        host.go_on(100)
        assert host.evictor.begun == []
        host.is_older = False
        host.report()
        host.go_on(1)
        assert host.evictor.begun == [WEB]

    def test_another_claim_ends_the_doubt(self, host):
        host.claim(3600, generation=5)
        host.report()
        host.claim(1000, generation=1)
        host.report()
        host.boot()
        host.claim(1000, generation=2)
        host.report()
        host.go_on(939)
        assert host.evictor.begun == [WEB]

    def test_a_lost_extension_evicts_no_guest_early(self, host, caplog):
        host.claim(1000)
        host.report()
        host.claim(3600, generation=2)
        host.report()
        host.claim(1000, generation=1)
        for _ in range(2):
            host.report()
        assert caplog.text.count("has an older copy of its database") == 1
        host.go_on(1100)
        assert host.evictor.begun == []
        host.release()
        host.report()
        host.go_on(2440)
        assert host.evictor.begun == [WEB]

    def test_a_healed_allocation_evicts_nothing(self, host):
        host.claim(3600)
        host.report()
        host.release()
        host.report()
        host.placement.permanent.add(WEB)
        host.report()
        host.go_on(4000)
        assert host.evictor.begun == []


class TestRestarts:
    def test_a_claim_that_was_extended_meanwhile_is_not_evicted(self, host):
        host.claim(100)
        host.report()
        host.time += 200
        host.claim(3600, generation=2)
        host.boot()
        host.report()
        host.go_on(100)
        assert host.evictor.begun == []

    def test_a_claim_that_ended_meanwhile_is_evicted(self, host):
        host.claim(100)
        host.report()
        host.time += 200
        host.release()
        host.boot()
        host.go_on(60)
        assert host.evictor.begun == []
        host.report()
        host.go_on(1)
        assert host.evictor.begun == [WEB]

    def test_a_consumer_with_an_allocation_again_is_not_evicted(self, host):
        host.claim(100)
        host.report()
        host.time += 200
        host.placement.claims.clear()
        host.placement.permanent.add(WEB)
        host.boot()
        host.report()
        host.go_on(100)
        assert host.evictor.begun == []

    def test_an_agent_that_ends_during_an_eviction_leaves_it_to_the_next_one(self, host):
        host.claim(100)
        host.report()
        host.go_on(50)
        assert host.evictor.begun == [WEB]
        host.boot()
        host.report()
        host.go_on(1)
        assert host.evictor.begun == [WEB]

    @pytest.mark.parametrize("content", [b"", b"{}", b'{"version": 1, "sha256": "", "data": []}', b"\xff"])
    def test_damaged_notes_are_put_aside_and_the_claims_are_read_again(self, host, content, caplog):
        host.claim(100)
        host.report()
        (host.folder / ENDS_FILE).write_bytes(content)
        host.boot()
        assert "has renamed it to" in caplog.text
        assert len(list(host.folder.glob(f"{ENDS_FILE}.damaged-*"))) == 1
        host.report()
        host.go_on(50)
        assert host.evictor.begun == [WEB]

    def test_a_full_disk_is_logged_once_and_the_agent_acts(self, host, monkeypatch, caplog):
        def fail(path, content):
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(note_files, "write_durably", fail)
        host.claim(100)
        host.report()
        host.claim(90, generation=2)
        host.report()
        assert caplog.text.count("cannot be written") == 1
        host.go_on(50)
        assert host.evictor.begun == [WEB]
        monkeypatch.undo()
        host.report()
        assert END_NOTES.parse((host.folder / ENDS_FILE).read_bytes())[WEB].claim.generation == 2

    def test_the_notes_of_guests_that_have_left_go(self, host):
        host.claim(100)
        host.report()
        host.handle_end()
        host.placement.claims.clear()
        host.report()
        assert END_NOTES.parse((host.folder / ENDS_FILE).read_bytes()).keys() == {WEB}
        host.report()
        assert END_NOTES.parse((host.folder / ENDS_FILE).read_bytes()) == {}
        assert not host.ends.is_needed()

    def test_the_notes_stay_until_the_running_guests_are_known(self, host, monkeypatch):
        host.claim(100)
        host.report()
        host.handle_end()
        host.placement.claims.clear()
        monkeypatch.setattr(CalledPipeline, "has_taken_over", False)
        for _ in range(3):
            host.report()
        assert END_NOTES.parse((host.folder / ENDS_FILE).read_bytes()).keys() == {WEB}


class TestServices:
    def test_a_service_without_the_list_is_named_once(self, host, caplog):
        caplog.set_level(logging.INFO)
        host.placement.has_list = False
        for _ in range(3):
            host.report()
        host.go_on(100)
        assert host.placement.reads == 0
        assert caplog.text.count("This Placement does not list claims that end") == 1

    def test_a_service_that_loses_the_list_evicts_nothing(self, host, caplog):
        host.claim(3600)
        host.report()
        host.placement.has_list = False
        host.report()
        host.go_on(4000)
        assert host.evictor.begun == []
        assert "This Placement does not list claims that end" in caplog.text

    def test_a_host_without_claims_that_end_asks_seldom(self, host):
        for _ in range(10):
            host.report()
            host.time += 60
        assert host.placement.reads == 2

    def test_a_new_guest_is_asked_for_at_once(self, host):
        host.report()
        host.start(DB)
        host.claim(100, uuid=DB)
        host.report()
        host.go_on(50)
        assert host.evictor.begun == [DB]

    def test_claims_of_other_guests_are_ignored(self, host):
        host.driver.create_guest(DB, "stranger", host.pipeline.guests()[0].settings, ())
        host.claim(10, uuid=DB)
        host.claim(10, uuid="not a uuid")
        host.report()
        host.go_on(100)
        assert host.evictor.begun == []
        assert not (host.folder / ENDS_FILE).exists()

    def test_a_guest_that_migrates_away_is_not_evicted(self, host, monkeypatch):
        host.claim(100)
        host.report()
        views = [replace(view, migration=object()) for view in host.pipeline.guest_views()]
        monkeypatch.setattr(host.pipeline, "guest_views", lambda: views)
        host.go_on(200)
        assert (host.evictor.begun, host.ends.overdue_guests()) == ([], {})


def test_a_guest_that_has_to_leave_is_named_as_a_guest_without_a_claim(host, tmp_path):
    """The agent that claims for guests does not claim for it."""
    host.handle(AllocationsRead({WEB: {}}, 2.0))
    options = SimpleNamespace(guests=SimpleNamespace(claim=True, claim_grace=10.0))
    (view,) = host.pipeline.guest_views()
    claims = GuestClaims(
        SimpleNamespace(current=SimpleNamespace(options=options)),
        host.pipeline,
        {view.guest.driver: object()},
        ClaimStore(tmp_path, ""),
        EventRecorder(host.events.append),
        lambda: host.time,
        lambda uuid: uuid == WEB,
    )
    for _ in range(3):
        claims.settle_claims(host.placement)
        host.time += 100
    assert claims.refusal_reasons() == {WEB: "it is evicted at the end of its former claim"}
    assert [event.outcome for event in host.events] == ["failed"]
    host.handle(AllocationsRead({WEB: {"node0": {"PCPU": 1}}}, 2.0))
    claims.settle_claims(host.placement)
    assert claims.refusal_reasons() == {}


STEPS = st.one_of(
    st.tuples(st.just("claim"), st.sampled_from((-50, 65, 130, 400)), st.sampled_from(OnEnd)),
    st.tuples(st.just("wait"), st.sampled_from((3, 60, 130))),
    st.tuples(st.sampled_from(["report", "away", "back", "restart", "permanent", "expire"])),
)


@settings(max_examples=40, deadline=None)
@example([("claim", 130, OnEnd.EVICT), ("report",), ("permanent",), ("wait", 130)])
@example([("claim", 130, OnEnd.EVICT), ("report",), ("claim", 400, OnEnd.EVICT), ("wait", 130)])
@example([("claim", 65, OnEnd.EVICT), ("report",), ("restart",), ("away",), ("wait", 130), ("back",)])
@given(st.lists(STEPS, min_size=4, max_size=14))
def test_histories_evict_no_guest_early_and_each_guest_in_time(tmp_path_factory, steps):
    """In a random history, each eviction is due by what Placement would answer, or by the last answer.

    A guest with an ended claim is evicted as soon as Placement answers.
    """
    with (
        # A claim of a guest that is known already is otherwise found after minutes.
        mock.patch.object(end_reader, "_LIST_SECONDS", 0.0),
        mock.patch.object(note_files, "write_durably", lambda path, content: path.write_bytes(content)),
    ):
        check_history(EndingHost(tmp_path_factory.mktemp("ends")), steps)


def check_history(host, steps):
    """Run a history, and check each eviction at its begin."""
    placement, known, generation, changed = host.placement, None, 0, host.time

    def is_due(claim):
        return (
            claim is not None
            and claim.on_end is OnEnd.EVICT
            and claim.ends_at - 62.0 <= placement.now + 0.001
        )

    def check_eviction():
        # The guest leaves and is started again at once.
        host.finish()
        # An answer is at most 5 seconds old if Placement answers.
        if placement.failure is None and host.time - changed > claim_ends.READ_AHEAD:
            present = placement.claims.get(WEB)
            assert is_due(present or known)
            assert present or WEB not in placement.permanent
        else:
            assert is_due(known) or is_due(placement.claims.get(WEB))

    def read():
        nonlocal known
        if host.report():
            known = placement.claims.get(WEB) or known

    host.check_eviction = check_eviction
    host.boot()
    host.start()
    for name, *arguments in steps:
        match name:
            case "claim":
                generation, changed = generation + 1, host.time
                placement.permanent.clear()
                host.claim(*arguments, generation=generation)
            case "wait":
                host.go_on(*arguments)
            case "report":
                read()
            case "away":
                placement.failure = UnavailableError("GET", "/ext/v1/claims", "no answer")
            case "back":
                placement.failure, changed = None, host.time
            case "restart":
                host.boot()
            case "permanent":
                changed = host.time
                placement.claims.clear()
                placement.permanent.add(WEB)
            case "expire" if WEB in placement.claims and placement.claims[WEB].ends_at <= placement.now:
                placement.claims.clear()
    placement.failure = None
    read()
    claim = placement.claims.get(WEB)
    begun = len(host.evictor.begun)
    # A guest that was started again leaves after a pause of at most ten minutes.
    pause = 600.0
    host.go_on(1 if claim is None else max(1.0, claim.ends_at - placement.now - 60) + pause)
    assert not is_due(claim) or len(host.evictor.begun) > begun
