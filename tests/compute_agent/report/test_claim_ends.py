"""Tests of the decisions at the ends of claims, and of their notes."""

import contextlib
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compute_agent import kept_json
from compute_agent.report.answers import NotFoundError, PlacementError
from compute_agent.report.claim_ends import (
    END_NOTES,
    MARGIN,
    DatabaseClock,
    EndNote,
    EndRules,
    EndStage,
    EndStep,
    OnEnd,
    TimedClaim,
    TimedClaimList,
    due_steps,
    follow_clock,
    merge_list,
    needs_read,
    next_time,
    parse_action,
    parse_time,
    time_text,
)
from compute_agent.report.client import PlacementClient

WEB, DB, CACHE = (f"3f1c9a5e-0000-4000-8000-00000000000{n}" for n in range(3))
UUIDS = (WEB, DB, CACHE)
RULES = EndRules(notice=600, grace=60)
CLAIMS = st.builds(TimedClaim, st.integers(1, 4), st.integers(0, 40).map(float), st.sampled_from(OnEnd))
NOTES = st.dictionaries(
    st.sampled_from(UUIDS), st.tuples(CLAIMS, st.sampled_from(EndStage), st.booleans()), max_size=3
).map(lambda found: {uuid: EndNote(uuid, "a", *parts) for uuid, parts in found.items()})
LISTS = st.builds(
    TimedClaimList, st.integers(0, 40).map(float), st.dictionaries(st.sampled_from(UUIDS), CLAIMS)
)
SETS = st.frozensets(st.sampled_from(UUIDS))


def note(ends_at=1000.0, on_end=OnEnd.EVICT, generation=1, **fields):
    return EndNote(WEB, "web", TimedClaim(generation, ends_at, on_end), **fields)


def merge(before, claims, seen=(WEB,), present=(WEB,), holding=()):
    """The notes of a guest after a list."""
    notes = {} if before is None else {WEB: before}
    listed = TimedClaimList(0.0, {} if claims is None else {WEB: claims})
    return merge_list(notes, listed, dict.fromkeys(seen, "web"), present, holding).get(WEB)


class TestMerge:
    def test_a_claim_of_a_guest_of_this_host_is_noted(self):
        assert merge(None, note().claim) == note()

    def test_claims_of_guests_that_the_agent_has_not_seen_are_ignored(self):
        assert merge(None, note().claim, seen=()) is None

    def test_an_extended_claim_has_its_new_end_and_a_new_notice(self):
        before = note(stage=EndStage.SOON)
        assert merge(before, TimedClaim(2, 5000.0, OnEnd.EVICT)) == note(5000.0, generation=2)

    def test_a_claim_that_was_written_again_with_the_same_end_keeps_its_notice(self):
        before = note(stage=EndStage.SOON)
        assert merge(before, TimedClaim(2, 1000.0, OnEnd.EVICT)) == replace(
            before, claim=TimedClaim(2, 1000.0, OnEnd.EVICT)
        )

    def test_a_shortened_claim_has_its_new_end(self):
        assert merge(note(), TimedClaim(2, 500.0, OnEnd.NOTIFY)) == note(500.0, OnEnd.NOTIFY, 2)

    def test_an_earlier_end_of_an_older_generation_is_not_believed(self):
        before = note(5000.0, generation=3)
        assert merge(before, TimedClaim(2, 1000.0, OnEnd.EVICT)) == replace(before, doubted=2)

    def test_a_stronger_action_of_an_older_generation_is_not_believed(self):
        before = note(on_end=OnEnd.NOTIFY, generation=3)
        assert merge(before, TimedClaim(2, 5000.0, OnEnd.EVICT)) == replace(before, doubted=2)

    def test_a_rising_generation_after_doubt_is_believed(self):
        doubtful = note(5000.0, generation=5, doubted=1)
        assert merge(doubtful, TimedClaim(1, 1000.0, OnEnd.EVICT)) == doubtful
        assert merge(doubtful, TimedClaim(2, 1000.0, OnEnd.EVICT)) == note(generation=2)
        assert merge(doubtful, None) == doubtful

    def test_an_older_copy_makes_no_note_stricter(self):
        listed = TimedClaimList(0.0, {WEB: TimedClaim(9, 500.0, OnEnd.EVICT)})
        assert merge_list({}, listed, {WEB: "web"}, (WEB,), (), is_older=True) == {}
        found = merge_list({WEB: note()}, listed, {WEB: "web"}, (WEB,), (), is_older=True)
        assert found == {WEB: note(doubted=9)}

    def test_a_claim_that_cannot_be_read_keeps_its_note(self):
        listed = TimedClaimList(0.0, {}, {WEB: "wrong", DB: "wrong"})
        assert merge_list({WEB: note()}, listed, {WEB: "web", DB: "db"}, (), ()) == {WEB: note()}

    def test_a_later_end_of_an_older_generation_is_believed(self):
        assert merge(note(generation=3), TimedClaim(2, 5000.0, OnEnd.EVICT)) == note(5000.0, generation=2)

    def test_a_guest_without_its_claim_and_without_an_allocation_keeps_its_note(self):
        assert merge(note(), None) == note()

    def test_an_allocation_without_an_end_ends_the_note(self):
        assert merge(note(), None, holding=(WEB,)) is None

    def test_the_note_of_a_guest_that_has_left_ends(self):
        absent = merge(note(), None, present=())
        assert absent == note(is_absent=True)
        assert merge(absent, None, present=()) is None

    def test_a_guest_that_starts_again_keeps_its_note(self):
        assert merge(note(is_absent=True), None) == note()

    def test_the_claim_of_a_guest_that_has_not_started_is_kept(self):
        assert merge(note(), note().claim, present=()) == note()

    @given(NOTES, LISTS, SETS, SETS, SETS)
    def test_only_seen_guests_get_notes_and_no_end_comes_from_an_older_generation(
        self, notes, listed, seen, present, holding
    ):
        found = merge_list(notes, listed, dict.fromkeys(seen, "b"), present, holding)
        assert found.keys() <= notes.keys() | (seen & listed.claims.keys())
        for uuid in (seen | notes.keys()) & listed.claims.keys():
            assert uuid in found
        for uuid, merged in found.items():
            claim, before = listed.claims.get(uuid), notes.get(uuid)
            assert merged.is_absent == (claim is None and uuid not in present)
            if before is not None and claim is not None and claim.generation < before.claim.generation:
                assert merged.claim in (claim, before.claim)
                assert merged.claim.ends_at >= before.claim.ends_at
                assert merged.claim.on_end is before.claim.on_end or merged.claim.on_end is not OnEnd.EVICT
            elif claim is not None:
                assert merged.claim == claim
            else:
                assert merged.claim == before.claim
                assert uuid not in holding
                assert uuid in present or not before.is_absent

    @given(NOTES, LISTS, SETS, SETS)
    def test_a_second_read_of_the_same_list_changes_nothing(self, notes, listed, seen, present):
        names = dict.fromkeys(seen, "b")
        once = merge_list(notes, listed, names, present, ())
        twice = merge_list(once, listed, names, present, ())
        assert twice == {uuid: one for uuid, one in once.items() if not one.is_absent}


class TestSteps:
    @pytest.mark.parametrize(
        ("now", "steps"),
        [
            (399.9, []),
            (400.0, [EndStep.NOTICE]),
            (937.9, [EndStep.NOTICE]),
            (938.0, [EndStep.NOTICE, EndStep.EVICT]),
            (1000.0, [EndStep.EVICT, EndStep.OVER]),
        ],
    )
    def test_a_guest_is_warned_and_stopped_in_time_for_its_end(self, now, steps):
        assert due_steps(note(), RULES, now, can_evict=True) == steps

    @pytest.mark.parametrize("on_end", [OnEnd.NONE, OnEnd.NOTIFY])
    def test_guests_without_evict_are_never_stopped(self, on_end):
        assert due_steps(note(on_end=on_end), RULES, 2000.0, can_evict=True) == [EndStep.OVER]

    def test_an_end_without_an_action_is_not_announced(self):
        assert due_steps(note(on_end=OnEnd.NONE), RULES, 900.0, can_evict=True) == []

    def test_each_event_is_recorded_once(self):
        assert due_steps(note(stage=EndStage.SOON), RULES, 900.0, can_evict=True) == []
        assert due_steps(note(stage=EndStage.OVER), RULES, 2000.0, can_evict=False) == []

    @given(
        ends_at=st.integers(0, 2000),
        on_end=st.sampled_from(OnEnd),
        now=st.integers(0, 2000),
        notice=st.integers(0, 300),
        grace=st.integers(0, 300),
    )
    def test_rounds_at_the_next_times_find_all_steps_when_they_are_due(
        self, ends_at, on_end, now, notice, grace
    ):
        rules, claim = EndRules(notice, grace), note(float(ends_at), on_end)
        found, time = {}, float(now)
        while time is not None:
            for step in due_steps(claim, rules, time, can_evict=True):
                found.setdefault(step, time)
            time = next_time([claim], rules, time, 5.0)
        expected = {EndStep.OVER: max(now, ends_at)}
        before = max(notice, grace + MARGIN) if notice and on_end is OnEnd.EVICT else notice
        if on_end is not OnEnd.NONE and max(now, ends_at - before) < ends_at:
            expected[EndStep.NOTICE] = max(now, ends_at - before)
        if on_end is OnEnd.EVICT:
            expected[EndStep.EVICT] = max(now, ends_at - grace - MARGIN)
        assert found == expected

    @pytest.mark.parametrize(
        ("now", "last", "is_needed"),
        [
            (933.9, 900.0, False),
            (934.0, 900.0, True),
            (934.0, 932.9, True),
            (934.0, 933.0, False),
            (938.0, 933.0, False),
            (2000.0, 1994.9, True),
            (2000.0, 1995.0, False),
        ],
    )
    def test_the_claims_are_read_before_each_attempt(self, now, last, is_needed):
        assert needs_read([note()], RULES, now, last, 4.0, 5.0) is is_needed
        assert not needs_read([note(on_end=OnEnd.NOTIFY)], RULES, now, last, 4.0, 5.0)

    @pytest.mark.parametrize(("now", "steps"), [(1159.9, []), (1160.0, [EndStep.OVER])])
    def test_a_guest_that_leaves_too_slowly_is_named(self, now, steps):
        assert due_steps(note(), RULES, now, can_evict=False, leaving_since=1100.0) == steps

    def test_the_notice_comes_before_the_eviction(self):
        assert EndRules(600, 3600).notice_time(note(10000.0)) == 10000 - 3600 - MARGIN
        assert EndRules(600, 3600).notice_time(note(10000.0, OnEnd.NOTIFY)) == 9400
        assert EndRules(0, 3600).notice_time(note(10000.0)) == 10000


class TestClock:
    @pytest.mark.parametrize(
        ("clock", "reading", "after"),
        [
            (None, (100, 101), DatabaseClock(101)),
            (DatabaseClock(101), (80, 101), DatabaseClock(101)),
            (DatabaseClock(101), (111, 131), DatabaseClock(131)),
            (DatabaseClock(101), (112, 132), DatabaseClock(101, 132)),
            (DatabaseClock(101), (10, 11), DatabaseClock(11)),
            (DatabaseClock(101, 9000), (100, 101), DatabaseClock(101)),
            (DatabaseClock(101, 9000), (8999, 9001), DatabaseClock(9001)),
            (DatabaseClock(101, 9000), (9999, 9999), DatabaseClock(101, 9999)),
        ],
    )
    def test_a_jump_forward_needs_a_second_read(self, clock, reading, after):
        assert follow_clock(clock, *reading) == after


class TestFile:
    @pytest.mark.parametrize(("maker", "writer"), [("a", "b"), ("a", ""), ("", "a")])
    def test_notes_keep_the_host_that_made_them(self, maker, writer):
        (found,) = END_NOTES.parse(END_NOTES.dump([note(machine=maker)], writer)).values()
        assert found == note(machine="a")

    @given(NOTES)
    def test_notes_survive_the_file(self, notes):
        wanted = {uuid: replace(one, is_absent=False) for uuid, one in notes.items()}
        assert END_NOTES.parse(END_NOTES.dump(notes.values())) == wanted

    @given(st.binary(max_size=200))
    def test_any_content_is_read_or_refused(self, content):
        with contextlib.suppress(ValueError):
            END_NOTES.parse(content)

    @given(NOTES.filter(bool), st.data())
    def test_damage_is_noticed(self, notes, data):
        content = bytearray(END_NOTES.dump(notes.values()))
        at = data.draw(st.integers(0, len(content) - 1))
        content[at] ^= data.draw(st.integers(1, 255))
        with contextlib.suppress(ValueError):
            assert END_NOTES.parse(bytes(content)) == {
                uuid: replace(one, is_absent=False) for uuid, one in notes.items()
            }

    @pytest.mark.parametrize("change", [{"uuid": "web"}, {"ends_at": -1}, {"on_end": "x"}, {"stage": 1}])
    def test_wrong_values_are_refused(self, change):
        row = {
            "uuid": WEB,
            "name": "web",
            "generation": 1,
            "ends_at": 1.0,
            "on_end": "evict",
            "stage": "quiet",
        }
        good, bad = (kept_json.dump(1, kept_json.checked_content([one])) for one in (row, {**row, **change}))
        assert END_NOTES.parse(good)
        with pytest.raises(ValueError, match=r"not|unhash|valid"):
            END_NOTES.parse(bad)


class TestAnswers:
    """Answers to the request for the claims that end."""

    ROOT = "3f1c9a5e-0000-4000-8000-0000000000ff"

    def client(self, monkeypatch, *answers):
        client, paths = PlacementClient(None), []

        def answer(method, url, *arguments, **options):
            paths.append(url)
            found = answers[min(len(paths), len(answers)) - 1]
            if isinstance(found, Exception):
                raise found
            return found

        monkeypatch.setattr(client, "send_request", answer)
        return client, paths

    def row(self, **fields):
        return {
            "consumer_uuid": WEB,
            "consumer_generation": 3,
            "ends_at": "2026-11-28T12:00:00Z",
            "on_end": "evict",
            **fields,
        }

    def test_times_are_seconds_of_the_database(self, monkeypatch):
        answer = {"now": "2026-11-28T11:00:00.5Z", "claims": [self.row()]}
        client, paths = self.client(monkeypatch, answer)
        found = client.timed_claims(self.ROOT)
        assert paths == [f"/ext/v1/claims?root={self.ROOT}"]
        assert found.claims == {WEB: TimedClaim(3, parse_time("2026-11-28T12:00:00Z"), OnEnd.EVICT)}
        assert found.claims[WEB].ends_at - found.now == 3599.5

    def test_all_pages_are_read_with_the_markers_of_their_links(self, monkeypatch):
        links = [{"rel": "next", "href": "http://elsewhere/ext/v1/claims?root=x&marker=1.5_a%26b"}]
        first = {"now": "2026-11-28T11:00:00Z", "claims": [self.row()], "links": links}
        last = {"now": "2026-11-28T11:00:09Z", "claims": [self.row(consumer_uuid=DB)]}
        client, paths = self.client(monkeypatch, first, last)
        found = client.timed_claims(self.ROOT)
        assert found.claims.keys() == {WEB, DB}
        assert time_text(found.now) == "2026-11-28T11:00:00Z"
        assert paths[1] == f"/ext/v1/claims?root={self.ROOT}&marker=1.5_a%26b"

    def test_a_list_without_end_is_refused(self, monkeypatch):
        links = [{"rel": "next", "href": "/ext/v1/claims?marker=1_a"}]
        client, paths = self.client(
            monkeypatch, {"now": "2026-11-28T11:00:00Z", "claims": [], "links": links}
        )
        with pytest.raises(PlacementError, match="more than 16 pages"):
            client.timed_claims(self.ROOT)
        assert len(paths) == 16

    @pytest.mark.parametrize("text", ["", "soon", "2026-11-28T12:00:00", "1969-12-31T23:59:59Z"])
    def test_a_wrong_time_is_an_invalid_answer(self, monkeypatch, text):
        client, _ = self.client(monkeypatch, {"now": text, "claims": []})
        with pytest.raises(PlacementError, match="the answer is invalid"):
            client.timed_claims(self.ROOT)

    @pytest.mark.parametrize("text", ["", "soon", "2026-11-28T12:00:00", None, 7])
    def test_a_wrong_claim_does_not_affect_the_others(self, monkeypatch, text):
        rows = [self.row(ends_at=text), self.row(consumer_uuid=DB), {"consumer_uuid": CACHE}]
        client, _ = self.client(monkeypatch, {"now": "2026-11-28T11:00:00Z", "claims": rows})
        found = client.timed_claims(self.ROOT)
        assert (found.claims.keys(), found.unread.keys()) == ({DB}, {WEB, CACHE})

    @pytest.mark.parametrize("text", ["9999-12-31T23:59:59Z", "9999-12-31T23:59:59.9-14:00"])
    def test_an_end_in_the_far_future_is_read(self, text):
        assert time_text(parse_time(text)) == "9999-12-31T23:59:59Z"

    def test_a_missing_root_is_reported_as_missing(self, monkeypatch):
        client, _ = self.client(monkeypatch, NotFoundError("GET", "/ext/v1/claims", "no such provider"))
        with pytest.raises(NotFoundError):
            client.timed_claims(self.ROOT)

    def test_an_unknown_action_stops_nothing(self):
        assert [parse_action(one) for one in ("none", "notify", "evict", "EVICT", "delete")] == [
            OnEnd.NONE,
            OnEnd.NOTIFY,
            OnEnd.EVICT,
            OnEnd.NOTIFY,
            OnEnd.NOTIFY,
        ]
