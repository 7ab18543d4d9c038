"""The feed of time events: against a simple model over random histories, and its pages, limits and rights."""

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, cast

import pytest
import sqlalchemy as sa

from placement.store.time_events import EventInterval, EventPosition, TimeEventKind, list_events
from tests.placement.api.ext.windows import HOUR, PATH, booked, show
from tests.placement.builders import make_provider, new_claim, post_claims, read_error
from tests.placement.moving_clock import advance_clock, after, iso
from tests.placement.running import Admin
from tests.placement.sql import execute_sql, read_scalar

EVENTS = "/ext/v1/time_events"
NOTICE = 900


@pytest.fixture
def host(admin: Admin) -> str:
    return make_provider(admin, "cn", VCPU=80)


def feed(admin: Admin, begin: float, end: float | None = None, more: str = "") -> dict[str, Any]:
    """Return the answer for the events from some seconds from now until some seconds from now."""
    until = "" if end is None else f"&until={after(end)}"
    answer = admin("GET", f"{EVENTS}?since={after(begin)}{until}{more}")
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json
    return found


def kinds(answer: dict[str, Any]) -> list[tuple[str, str]]:
    """Return kind and consumer of each event."""
    return [(each["kind"], each["consumer_uuid"]) for each in answer["events"]]


def test_a_window_has_its_events_from_its_booking_on(admin: Admin, url: str, host: str) -> None:
    window = booked(admin, 1, 1, 2, on_end="notify")
    shown = show(admin, window)
    answer = feed(admin, -HOUR, 3 * HOUR, f"&notice={NOTICE}")
    assert kinds(answer) == [
        ("reservation.starts_soon", window),
        ("reservation.started", window),
        ("reservation.ends_soon", window),
        ("reservation.ended", window),
    ]
    started = answer["events"][1]
    assert started == {
        "id": started["id"],
        "kind": "reservation.started",
        "time": shown["starts_at"],
        "consumer_uuid": window,
        "consumer_type": "RESERVATION",
        "project_id": "project",
        "starts_at": shown["starts_at"],
        "ends_at": shown["expires_at"],
        "on_end": "notify",
        "root_provider_uuids": [host],
    }
    # the same event has the same id in each answer
    assert feed(admin, -2 * HOUR, 3 * HOUR, f"&notice={NOTICE}")["events"] == answer["events"]
    # without until, only what has happened
    assert feed(admin, -HOUR, None, f"&notice={NOTICE}")["events"] == []
    advance_clock(url, 1.5 * HOUR)
    assert [kind for kind, _ in kinds(feed(admin, -2 * HOUR, None, f"&notice={NOTICE}"))] == [
        "reservation.starts_soon",
        "reservation.started",
    ]


def test_events_are_in_half_open_intervals(admin: Admin, url: str, host: str) -> None:
    window = booked(admin, 1, 1, 2)
    start = show(admin, window)["starts_at"]
    before = admin("GET", f"{EVENTS}?since={after(0)}&until={start}&notice=0").json
    assert before["events"] == []
    assert before["until"] == start
    behind = admin("GET", f"{EVENTS}?since={start}&until={after(1.5 * HOUR)}&notice=0").json
    assert kinds(behind) == [("reservation.started", window)]


def test_margins_do_not_count(admin: Admin, url: str, host: str) -> None:
    window = booked(admin, 1, 2, 3, lead_time=3600, cleaning_time=1800)
    shown = show(admin, window)
    events = feed(admin, 0, 5 * HOUR, "&notice=0")["events"]
    assert [each["time"] for each in events] == [shown["starts_at"], shown["expires_at"]]


def test_a_window_that_is_deleted_is_cancelled_or_ended(admin: Admin, url: str, host: str) -> None:
    cancelled, ended = booked(admin, 1, 1, 3), booked(admin, 1, 0.2, 3)
    assert admin("DELETE", f"{PATH}/{cancelled}").status_code == 204
    assert kinds(feed(admin, -60, 60, "&notice=0")) == [("reservation.cancelled", cancelled)]
    advance_clock(url, HOUR)
    assert admin("DELETE", f"{PATH}/{ended}").status_code == 204
    assert kinds(feed(admin, -1.5 * HOUR, 4 * HOUR, "&notice=0")) == [
        ("reservation.cancelled", cancelled),
        ("reservation.started", ended),
        ("reservation.ended", ended),
    ]


def test_a_window_with_a_new_end_is_announced_again(admin: Admin, url: str, host: str) -> None:
    window = booked(admin, 1, 0, 1)
    advance_clock(url, 0.9 * HOUR)
    answer = feed(admin, -0.5 * HOUR, None, f"&notice={NOTICE}")
    (soon,) = (each for each in answer["events"] if each["kind"] == "reservation.ends_soon")
    body = {"generation": show(admin, window)["generation"], "expires_in": HOUR}
    assert admin("PUT", f"{PATH}/{window}", json=body).status_code == 200
    following = admin("GET", f"{EVENTS}?since={answer['until']}&until={after(2 * HOUR)}&notice={NOTICE}").json
    assert [kind for kind, _ in kinds(following)] == ["reservation.ends_soon", "reservation.ended"]
    assert following["events"][0]["id"] != soon["id"]
    # a shorter time than the notice: the event comes with the change
    body = {"generation": show(admin, window)["generation"], "expires_in": 60}
    since = after(-1)
    assert admin("PUT", f"{PATH}/{window}", json=body).status_code == 200
    following = admin("GET", f"{EVENTS}?since={since}&until={after(60.5)}&notice={NOTICE}").json
    assert [kind for kind, _ in kinds(following)] == ["reservation.ends_soon", "reservation.ended"]
    assert following["events"][0]["time"] >= since


def test_a_window_that_begins_at_once_has_started_with_its_booking(admin: Admin, url: str, host: str) -> None:
    since = after(-0.001)
    window = booked(admin, 1, -0.01, 1)
    answer = admin("GET", f"{EVENTS}?since={since}&until={after(HOUR / 2)}").json
    # the announcement of the end comes with the booking, too
    assert sorted(kinds(answer)) == [("reservation.ends_soon", window), ("reservation.started", window)]


def test_claims_have_events_if_something_happens_at_their_end(admin: Admin, url: str, host: str) -> None:
    claims = {}
    for action in ("none", "notify", "evict"):
        one = new_claim("resources=VCPU:1", consumer_type="VM")
        assert post_claims(admin, one, ends_at=after(HOUR), on_end=action).status_code == 201
        claims[action] = one["consumer_uuid"]
    expected = {("claim.ended", claims["notify"]), ("claim.ended", claims["evict"])}
    assert set(kinds(feed(admin, 0, 2 * HOUR, "&notice=0"))) == expected
    before = feed(admin, -60, 2 * HOUR)["events"]
    assert {each["consumer_type"] for each in before} == {"VM"}
    advance_clock(url, 1.5 * HOUR)
    # not released yet
    assert set(kinds(feed(admin, -2 * HOUR, None, "&notice=0"))) == expected
    assert admin("GET", f"/allocations/{claims['evict']}").json["allocations"] == {}
    assert admin("GET", PATH).status_code == 200
    assert read_scalar(url, "SELECT COUNT(*) FROM claim_expiries") == 0
    assert set(kinds(feed(admin, -2 * HOUR, None, "&notice=0"))) == expected
    advanced = feed(admin, -2 * HOUR)["events"]
    assert [each["kind"] for each in advanced].count("claim.ends_soon") == 2
    # another claim of the same consumer replaces the memory of its earlier one, and old ones are forgotten
    execute_sql(url, f"UPDATE ended_claims SET ends_at = ends_at - {8 * 86400.0} WHERE on_end = 'notify'")
    again = new_claim("resources=VCPU:1") | {"consumer_uuid": claims["evict"]}
    assert post_claims(admin, again, ends_at=after(HOUR), on_end="evict").status_code == 201
    advance_clock(url, 1.5 * HOUR)
    assert admin("GET", PATH).status_code == 200
    assert read_scalar(url, "SELECT COUNT(*) FROM ended_claims") == 1


def test_events_name_the_hosts_of_present_claims_and_windows(admin: Admin, url: str, host: str) -> None:
    make_provider(admin, "node", parent=host, VCPU=8, MEMORY_MB=8)
    other = make_provider(admin, "other", VCPU=80)
    one = new_claim("resources=MEMORY_MB:1&resources1=VCPU:1", allowed_hosts=[host])
    assert post_claims(admin, one, ends_at=after(HOUR), on_end="evict").status_code == 201
    several = [{"query": "resources=VCPU:60", "count": 2}]
    times = {"starts_at": after(2 * HOUR), "expires_at": after(3 * HOUR)}
    body = {"claims": several, "project_id": "project", "user_id": "user", **times}
    window = admin("POST", PATH, json=body).json["reservation"]["uuid"]

    def places(begin: float, end: float) -> dict[str, list[str]]:
        events = feed(admin, begin, end, "&notice=0")["events"]
        return {each["consumer_uuid"]: each["root_provider_uuids"] for each in events}

    assert places(0, 2.5 * HOUR) == {one["consumer_uuid"]: [host], window: sorted([host, other])}
    advance_clock(url, 1.5 * HOUR)
    assert admin("GET", PATH).status_code == 200
    # a claim that is over has been at its host, even if its consumer has gone to another host since
    assert places(-2 * HOUR, HOUR) == {one["consumer_uuid"]: [host], window: sorted([host, other])}
    again = new_claim("resources=VCPU:1", allowed_hosts=[other]) | {"consumer_uuid": one["consumer_uuid"]}
    assert post_claims(admin, again).status_code == 201
    assert places(-2 * HOUR, HOUR) == {one["consumer_uuid"]: [host], window: sorted([host, other])}
    # a worker of the release before keeps no hosts
    execute_sql(url, "UPDATE ended_claims SET roots = NULL")
    assert places(-2 * HOUR, HOUR) == {one["consumer_uuid"]: [], window: sorted([host, other])}
    advance_clock(url, 2 * HOUR)
    assert admin("GET", PATH).status_code == 200
    assert places(-3 * HOUR, 0)[window] == []


def test_a_claim_that_is_deleted_or_written_again_does_not_end(admin: Admin, url: str, host: str) -> None:
    one, other = new_claim("resources=VCPU:1"), new_claim("resources=VCPU:1")
    assert post_claims(admin, one, other, ends_at=after(HOUR), on_end="evict").status_code == 201
    assert admin("DELETE", f"/allocations/{one['consumer_uuid']}").status_code == 204
    assert post_claims(admin, {**other, "consumer_generation": 1}).status_code == 201
    advance_clock(url, 1.5 * HOUR)
    assert feed(admin, -2 * HOUR)["events"] == []


def test_a_claim_that_goes_in_its_cleaning_time_has_ended(admin: Admin, url: str, host: str) -> None:
    window = booked(admin, 4, 1, 3, cleaning_time=3600, on_end="evict")
    advance_clock(url, 1.5 * HOUR)
    claims = [{**new_claim("resources=VCPU:1"), "project_id": "project"} for _ in range(4)]
    assert post_claims(admin, *claims, reservation=window, ends_at=after(HOUR)).status_code == 201
    early, deleted, emptied, replaced = (each["consumer_uuid"] for each in claims)
    assert admin("DELETE", f"/allocations/{early}").status_code == 204
    advance_clock(url, 1.5 * HOUR)
    expected = {("claim.ended", each) for each in (deleted, emptied, replaced)}
    before = feed(admin, -1.9 * HOUR, None, "&notice=0")
    assert set(kinds(before)) >= expected
    assert admin("DELETE", f"/allocations/{deleted}").status_code == 204
    for uuid, allocations in ((emptied, {}), (replaced, {host: {"resources": {"VCPU": 2}}})):
        body = {**admin("GET", f"/allocations/{uuid}").json, "allocations": allocations}
        assert admin("PUT", f"/allocations/{uuid}", json=body).status_code == 204
    now = feed(admin, -1.9 * HOUR, None, "&notice=0")["events"]
    assert [each["id"] for each in now] == [each["id"] for each in before["events"]]
    # the release of other claims does not repeat them
    advance_clock(url, HOUR)
    assert admin("GET", PATH).status_code == 200
    assert {each for each in kinds(feed(admin, -2.9 * HOUR)) if each[0] == "claim.ended"} == expected


class RecordingConnection:
    """A connection that answers nothing, and keeps the values of each statement."""

    def __init__(self) -> None:
        self.values: list[dict[str, Any]] = []

    def execute(self, query: object, values: dict[str, Any]) -> list[Any]:
        self.values.append(values)
        return []


def test_a_further_page_does_not_read_the_events_before_it() -> None:
    interval = EventInterval(100.0, 200.0, 60.0)
    for instant, since in ((150.0, 150.0), (90.0, 100.0)):
        connection = RecordingConnection()
        after_event = EventPosition(instant, TimeEventKind.STARTED, "a")
        assert list_events(cast(sa.Connection, connection), interval, after_event, 10) == []
        assert {each["since"] for each in connection.values} == {since}


def test_pages_have_each_event_once(admin: Admin, url: str, host: str) -> None:
    begin, end = after(HOUR), after(2 * HOUR)
    for _ in range(3):
        booked(admin, 1, 1, 2, starts_at=begin, expires_at=end)
    post = [new_claim("resources=VCPU:1") for _ in range(3)]
    assert post_claims(admin, *post, ends_at=end, on_end="notify").status_code == 201
    whole = feed(admin, -60, 3 * HOUR)
    assert len(whole["events"]) == 3 * 4 + 3 * 2
    for limit in (1, 2, 5):
        answer, found = feed(admin, -60, 3 * HOUR, f"&limit={limit}&project_id=project"), []
        while True:
            found += answer["events"]
            assert len(answer["events"]) <= limit
            if "links" not in answer:
                break
            answer = admin("GET", answer["links"][0]["href"]).json
        assert found == whole["events"]


def test_wrong_queries_are_refused(admin: Admin, host: str) -> None:
    assert admin("GET", EVENTS).status_code == 400
    for wrong in (
        "since=yesterday",
        f"since={after(0)}&until={after(-60)}",
        f"since={after(0)}&notice=604801",
        f"since={after(0)}&notice=-1",
        f"since={after(0)}&marker=1_claim.ended",
        f"since={after(0)}&marker=1_claim.began_{'0' * 36}",
        f"since={after(0)}&limit=0",
        "since=2026-02-30T00:00:00Z",
    ):
        assert admin("GET", f"{EVENTS}?{wrong}").status_code == 400, wrong
    long = admin("GET", f"{EVENTS}?since={after(0)}&until={after(8 * 86400)}")
    assert "An interval has at most 7 days: give an until of at most" in read_error(long)[2]
    # the clock of a server that took over may be behind
    ahead = admin("GET", f"{EVENTS}?since={iso(4_000_000_000)}").json
    assert (ahead["events"], ahead["until"]) == ([], iso(4_000_000_000))


def test_members_of_a_project_see_its_events(admin: Admin, url: str, host: str) -> None:
    own = booked(admin, 1, 1, 2, project_id="theirs")
    booked(admin, 1, 1, 2)
    member = {"X-Auth-Token": "ann:theirs", "X-Roles": "reader"}
    path = f"{EVENTS}?since={after(0)}&until={after(3 * HOUR)}&notice=0"
    assert {uuid for _, uuid in kinds(admin("GET", path, headers=member).json)} == {own}
    assert admin("GET", f"{path}&project_id=project", headers=member).status_code == 403
    assert {uuid for _, uuid in kinds(admin("GET", f"{path}&project_id=theirs").json)} == {own}


@dataclass
class ModelWindow:
    """A booking of the model; times are offsets from the start of the test on the moved clock."""

    uuid: str
    booked: float
    start: float
    end: float
    end_set: float
    deleted: float | None = None

    def events(self, notice: float) -> list[tuple[float, str, str]]:
        found = []
        gone = float("inf") if self.deleted is None else self.deleted
        if gone < self.start:
            return [(gone, "reservation.cancelled", self.uuid)]
        if (soon := max(self.start - notice, self.booked)) < self.start:
            found.append((soon, "reservation.starts_soon", self.uuid))
        found.append((max(self.start, self.booked), "reservation.started", self.uuid))
        if self.deleted is None and (soon := max(self.end - notice, self.end_set)) < self.end:
            found.append((soon, "reservation.ends_soon", self.uuid))
        found.append((min(gone, self.end), "reservation.ended", self.uuid))
        return found


@dataclass
class ModelClaim:
    """A claim of the model; ``gone`` is the time of a deletion before its end."""

    uuid: str
    booked: float
    end: float
    action: str
    gone: float | None = None

    def events(self, notice: float) -> list[tuple[float, str, str]]:
        if self.action == "none" or self.gone is not None:
            return []
        found = [(self.end, "claim.ended", self.uuid)]
        if (soon := max(self.end - notice, self.booked)) < self.end:
            found.append((soon, "claim.ends_soon", self.uuid))
        return found


@dataclass
class ModelWorld:
    """Random bookings, claims, changes and deletions, with a clock that the test moves."""

    admin: Admin
    url: str
    rng: random.Random
    passed: float = 0.0
    windows: list[ModelWindow] = field(default_factory=list)
    claims: list[ModelClaim] = field(default_factory=list)

    def step(self) -> None:
        actions: list[Callable[[], None]] = [self.book, self.claim, self.wait, self.delete, self.extend]
        self.rng.choice(actions)()

    def book(self) -> None:
        start = self.rng.randrange(600, 7200)
        end = start + self.rng.randrange(600, 7200)
        margins = {"lead_time": self.rng.choice((0, 300)), "cleaning_time": self.rng.choice((0, 300))}
        at = after(start), after(end)
        uuid = booked(self.admin, 1, 0, 1, starts_at=at[0], expires_at=at[1], **margins)
        now = self.passed
        self.windows.append(ModelWindow(uuid, now, now + start, now + end, now))

    def claim(self) -> None:
        end, action = self.rng.randrange(600, 7200), self.rng.choice(("none", "notify", "evict"))
        one = new_claim("resources=VCPU:1")
        answer = post_claims(self.admin, one, ends_at=after(end), on_end=action)
        assert answer.status_code == 201, answer.text
        self.claims.append(ModelClaim(one["consumer_uuid"], self.passed, self.passed + end, action))

    def wait(self) -> None:
        seconds = self.rng.randrange(100, 3000)
        advance_clock(self.url, seconds)
        self.passed += seconds

    def delete(self) -> None:
        windows = [each for each in self.windows if each.deleted is None and self.passed < each.end]
        claims = [each for each in self.claims if each.gone is None and self.passed < each.end]
        if windows and self.rng.random() < 0.5:
            window = self.rng.choice(windows)
            assert self.admin("DELETE", f"{PATH}/{window.uuid}").status_code == 204
            window.deleted = self.passed
        elif claims:
            claim = self.rng.choice(claims)
            assert self.admin("DELETE", f"/allocations/{claim.uuid}").status_code == 204
            claim.gone = self.passed

    def extend(self) -> None:
        windows = [each for each in self.windows if each.deleted is None and self.passed < each.end]
        if not windows:
            return
        window = self.rng.choice(windows)
        end = max(self.passed, window.start) - self.passed + self.rng.randrange(600, 7200)
        body = {"generation": show(self.admin, window.uuid)["generation"], "expires_at": after(end)}
        answer = self.admin("PUT", f"{PATH}/{window.uuid}", json=body)
        assert answer.status_code == 200, answer.text
        window.end, window.end_set = self.passed + end, self.passed

    def expected(self, since: float, until: float) -> list[tuple[float, str, str]]:
        bookings: list[ModelWindow | ModelClaim] = [*self.windows, *self.claims]
        found = [event for each in bookings for event in each.events(NOTICE)]
        return sorted(each for each in found if since <= each[0] < until)


@pytest.mark.parametrize("seed", range(4))
def test_the_feed_is_that_of_a_simple_model(admin: Admin, url: str, host: str, seed: int) -> None:
    rng = random.Random(seed)
    world = ModelWorld(admin, url, rng)
    for _ in range(25):
        world.step()
        # from two seconds before an instant of the model on, so that real time does not matter
        begin, end = sorted(rng.sample(range(-9000, 9000, 50), 2))
        answer = feed(admin, begin - 25.5, end - 25.5, f"&notice={NOTICE}")
        found = sorted((each["kind"], each["consumer_uuid"]) for each in answer["events"])
        expected = world.expected(world.passed + begin - 25.5, world.passed + end - 25.5)
        certain = {
            (kind, uuid)
            for instant, kind, uuid in expected
            if world.passed + begin - 15 <= instant < world.passed + end - 35
        }
        possible = {
            (kind, uuid)
            for instant, kind, uuid in world.expected(world.passed + begin - 35, world.passed + end - 15)
        }
        assert certain <= set(found) <= possible
        assert len(found) == len(set(found))
    assert {kind for _, kind, _ in world.expected(-1e9, 1e9)} <= set(TimeEventKind)


def test_following_answers_miss_no_event_of_earlier_writes(admin: Admin, url: str, host: str) -> None:
    """A reader that gives each until as its next since sees each event that the tables have at the end."""
    rng = random.Random(7)
    world = ModelWorld(admin, url, rng)
    seen: set[str] = set()
    offset = -1.0
    for _ in range(40):
        world.step()
        answer = feed(admin, offset - world.passed, None, f"&notice={NOTICE}")
        seen |= {each["kind"] + each["consumer_uuid"] for each in answer["events"]}
        # one second back, because the test measures time by another clock than the database
        offset = world.passed - 1.0
    whole = feed(admin, -world.passed - 60, None, f"&notice={NOTICE}")["events"]
    assert whole
    assert {each["kind"] + each["consumer_uuid"] for each in whole} <= seen
