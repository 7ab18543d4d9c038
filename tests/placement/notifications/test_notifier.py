"""Tests of the notifier: each event at least once and in order, also after failures and kills."""

import json
import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from placement.db.clock import server_time
from placement.db.database import ServiceDatabase
from placement.exceptions import Conflict, InvalidRequest
from placement.maintenance import sync
from placement.notifications.notifier import (
    MAX_PAUSE,
    OVERLAP,
    EventNotifier,
    NotifierPosition,
    PositionFile,
    advance_position,
    pause_after,
)
from placement.notifications.webhook import DeliveryFailed
from tests.placement.api.ext.windows import HOUR, PATH, booked
from tests.placement.builders import make_provider, new_claim, post_claims
from tests.placement.moving_clock import after
from tests.placement.running import Admin, application


class KilledNotifier(BaseException):
    """Ends a notifier at any place, as a kill does."""


class Receiver:
    """A webhook that fails or kills its notifier as the test says."""

    def __init__(self) -> None:
        self.documents: list[dict[str, Any]] = []
        self.pauses: list[float] = []
        self.lines: list[str] = []
        self.decide: Callable[[], None] = lambda: None
        self.after_delivery: Callable[[], None] = lambda: None

    def post(self, document: Mapping[str, Any]) -> None:
        self.decide()
        self.documents.append(json.loads(json.dumps(document)))
        self.after_delivery()

    @property
    def ids(self) -> list[str]:
        return [each["id"] for each in self.documents]

    @property
    def kinds(self) -> list[str]:
        return [each["kind"] for each in self.documents]


@pytest.fixture
def admin(sqlite_url: str) -> Admin:
    return Admin(application(sqlite_url))


@pytest.fixture
def database(sqlite_url: str, admin: Admin) -> Iterator[ServiceDatabase]:
    with sync.open_database(sqlite_url) as opened:
        yield opened


@pytest.fixture
def receiver() -> Receiver:
    return Receiver()


@pytest.fixture
def notifier(database: ServiceDatabase, receiver: Receiver, tmp_path: Path) -> EventNotifier:
    file = PositionFile(tmp_path / "position.json")
    return EventNotifier(
        database, file, receiver.post, receiver.pauses.append, receiver.lines.append, notice=600
    )


class MovedClock:
    """The clock of the database as the notifier reads it; the ids of events have the times of the tables."""

    def __init__(self) -> None:
        self.passed = 0.0

    def read_time(self, conn: sa.Connection) -> float:
        return server_time(conn) + self.passed


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> MovedClock:
    moved = MovedClock()
    monkeypatch.setattr("placement.notifications.notifier.server_time", moved.read_time)
    return moved


def test_a_new_file_begins_at_the_present(
    admin: Admin, clock: MovedClock, notifier: EventNotifier, receiver: Receiver
) -> None:
    make_provider(admin, "cn", VCPU=8)
    booked(admin, 1, 1, 2)
    clock.passed += 3 * HOUR
    assert notifier.run_round()
    assert notifier.run_round()
    assert receiver.documents == []


def test_events_are_delivered_once_and_in_order(
    admin: Admin, clock: MovedClock, notifier: EventNotifier, receiver: Receiver
) -> None:
    make_provider(admin, "cn", VCPU=8)
    notifier.run_round()
    window = booked(admin, 1, 1, 2)
    one = new_claim("resources=VCPU:1")
    assert post_claims(admin, one, ends_at=after(1.5 * HOUR), on_end="evict").status_code == 201
    clock.passed += 3 * HOUR
    for _ in range(3):
        assert notifier.run_round()
    assert receiver.kinds == [
        "reservation.starts_soon",
        "reservation.started",
        "claim.ends_soon",
        "claim.ended",
        "reservation.ends_soon",
        "reservation.ended",
    ]
    assert receiver.documents[0]["consumer_uuid"] == window


def test_an_event_is_tried_again_until_the_webhook_accepts_it(
    admin: Admin, notifier: EventNotifier, receiver: Receiver
) -> None:
    make_provider(admin, "cn", VCPU=8)
    notifier.run_round()
    assert admin("DELETE", f"{PATH}/{booked(admin, 1, 1, 2)}").status_code == 204
    failures = iter([True] * 8)

    def decide() -> None:
        if next(failures, False):
            raise DeliveryFailed("it answered with status 500")

    receiver.decide = decide
    assert notifier.run_round()
    assert receiver.kinds == ["reservation.cancelled"]
    assert receiver.pauses == [1, 2, 4, 8, 16, 32, 60, 60]
    assert "it answered with status 500; the next attempt is in 1 seconds." in receiver.lines[0]
    assert max(map(pause_after, range(1, 10_000))) == MAX_PAUSE


def test_a_limited_number_of_attempts_keeps_the_event_for_the_next_call(
    admin: Admin, database: ServiceDatabase, receiver: Receiver, notifier: EventNotifier
) -> None:
    make_provider(admin, "cn", VCPU=8)
    notifier.run_round()
    for _ in range(2):
        assert admin("DELETE", f"{PATH}/{booked(admin, 1, 1, 2)}").status_code == 204
    once = EventNotifier(
        database, notifier.file, receiver.post, receiver.pauses.append, receiver.lines.append, 600, 2
    )

    def refuse_second() -> None:
        if receiver.documents:
            raise DeliveryFailed("no")

    receiver.decide = refuse_second
    with pytest.raises(DeliveryFailed, match="was not delivered: no"):
        once.run_round()
    assert len(receiver.documents) == 1
    receiver.decide = lambda: None
    assert once.run_round()
    assert len(set(receiver.ids)) == len(receiver.ids) == 2


@pytest.mark.parametrize(("seed", "page"), [(0, 500), (1, 1), (2, 3)])
def test_a_killed_notifier_repeats_at_most_one_event_and_loses_none(
    admin: Admin,
    clock: MovedClock,
    notifier: EventNotifier,
    receiver: Receiver,
    seed: int,
    page: int,
) -> None:
    notifier = replace(notifier, page_size=page)
    rng = random.Random(seed)
    make_provider(admin, "cn", VCPU=80)
    notifier.run_round()
    for _ in range(4):
        booked(admin, 1, rng.uniform(0.1, 1), rng.uniform(1.1, 2))
    kills = 0

    def kill() -> None:
        nonlocal kills
        if rng.random() < 0.3:
            kills += 1
            raise KilledNotifier

    def round_until_done() -> None:
        while True:
            try:
                notifier.run_round()
            except KilledNotifier:
                continue
            return

    # a kill after the delivery and before its record repeats the event; the record in "finally" does not
    # know the delivery
    receiver.decide, receiver.after_delivery = kill, kill
    for _ in range(6):
        clock.passed += 0.5 * HOUR
        round_until_done()
    assert len(set(receiver.ids)) == 16
    assert len(receiver.ids) <= 16 + kills
    instants = {each["id"]: each["time"] for each in receiver.documents}
    first = [instants[each] for each in dict.fromkeys(receiver.ids)]
    assert first == sorted(first)


def test_an_event_that_becomes_visible_late_is_delivered_and_others_are_not_repeated(
    admin: Admin, notifier: EventNotifier, receiver: Receiver
) -> None:
    make_provider(admin, "cn", VCPU=8)
    notifier.run_round()
    assert admin("DELETE", f"{PATH}/{booked(admin, 1, 1, 2)}").status_code == 204
    assert notifier.run_round()
    assert admin("DELETE", f"{PATH}/{booked(admin, 1, 1, 2)}").status_code == 204
    # as if the transaction became visible after a round that has read a later time
    position = notifier.file.read()
    assert position is not None
    notifier.file.write(NotifierPosition(position.time + OVERLAP / 2, position.recent))
    assert notifier.run_round()
    assert receiver.kinds == ["reservation.cancelled"] * 2
    assert len(set(receiver.ids)) == 2


def test_a_notifier_that_was_down_for_weeks_reads_in_parts(
    clock: MovedClock, notifier: EventNotifier
) -> None:
    notifier.run_round()
    clock.passed += 20 * 86_400.0
    assert [notifier.run_round() for _ in range(3)] == [False, False, True]


def test_a_long_round_keeps_only_the_events_that_it_reads_again(
    admin: Admin,
    clock: MovedClock,
    notifier: EventNotifier,
    receiver: Receiver,
) -> None:
    make_provider(admin, "cn", VCPU=80)
    notifier = replace(notifier, page_size=2)
    notifier.run_round()
    for number in range(5):
        booked(admin, 1, number + 1, number + 1.5)
    clock.passed += 9 * HOUR
    sizes: list[int] = []

    def note_size() -> None:
        position = notifier.file.read()
        assert position is not None
        sizes.append(len(position.recent))

    receiver.after_delivery = note_size
    assert notifier.run_round()
    assert len(set(receiver.ids)) == len(receiver.ids) == 20
    # one page, and the last event of the page before
    assert max(sizes) <= 3


def test_recent_events_are_those_that_a_round_reads_again() -> None:
    position = advance_position(NotifierPosition(0, {"old": 939.9, "new": 940.0}), 1000)
    assert position == NotifierPosition(1000, {"new": 940.0})


def test_only_one_notifier_uses_a_file(tmp_path: Path) -> None:
    file = PositionFile(tmp_path / "position.json")
    with file.hold_lock(), pytest.raises(Conflict, match="Another notifier uses"), file.hold_lock():
        pass
    with file.hold_lock():
        pass


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{",
        "[]",
        '{"version": 2, "position": 1, "recent": {}}',
        '{"version": 1, "recent": {}}',
        '{"version": 1, "position": NaN, "recent": {}}',
        '{"version": 1, "position": 1, "recent": {"a": "b"}}',
        '{"version": 1, "position": true, "recent": {}}',
        "[" * 100_000,
    ],
)
def test_a_wrong_file_is_refused_with_the_remedy(tmp_path: Path, content: str) -> None:
    path = tmp_path / "position.json"
    path.write_text(content)
    with pytest.raises(InvalidRequest, match="Restore it; or remove it"):
        PositionFile(path).read()


def test_a_file_that_cannot_be_written_is_refused_with_the_remedy(tmp_path: Path) -> None:
    file = PositionFile(tmp_path / "missing" / "position.json")
    with pytest.raises(InvalidRequest, match="Give a file in a folder"):
        file.write(NotifierPosition(1.0))
    with pytest.raises(InvalidRequest, match="Give a file in a folder"), file.hold_lock():
        pass


def test_a_write_replaces_the_whole_file(tmp_path: Path) -> None:
    file = PositionFile(tmp_path / "position.json")
    assert file.read() is None
    for position in (NotifierPosition(1.5, {"a": 1.25}), NotifierPosition(2.0)):
        file.write(position)
        assert file.read() == position
    assert [each.name for each in tmp_path.iterdir()] == ["position.json"]
