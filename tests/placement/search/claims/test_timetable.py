"""A timetable that follows the writes of two workers, compared with one that is read again."""

import math
import random
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from functools import partialmethod
from threading import Thread
from typing import Any, Final

import pytest

from placement.db.buckets import bucket_of
from placement.db.database import ServiceDatabase
from placement.exceptions import Unavailable
from placement.read_model.feed import ReadModel
from placement.search.budget import SearchBudget
from placement.search.claims.availability import skylines_in
from placement.search.claims.host_rooms import HostTimes, TimedSearch
from placement.search.claims.timetable import WindowTimetable
from placement.store import due_changes, time_schedule
from placement.store.time_schedule import read_schedule
from placement.store.time_skyline import make_skylines
from tests.examples import examples
from tests.placement.builders import (
    OWNER,
    make_provider,
    new_claim,
    post_claims,
    provider_path,
    put_allocation,
    put_inventories,
)
from tests.placement.moving_clock import advance_clock, after, iso
from tests.placement.running import Admin, application
from tests.placement.search.claims.timed_worlds import make_wanted

PATH: Final = "/ext/v1/reservations"
HOUR: Final = 3600.0


@dataclass
class History:
    """Random writes by workers that share a database."""

    url: str
    rng: random.Random
    workers: list[Admin]
    hosts: list[str] = field(default_factory=list)
    consumers: list[str] = field(default_factory=list)
    #: of the last hour of a window or claim, so that some times are equal
    begun_at: float = field(default_factory=lambda: time.time() - HOUR / 2)

    def step(self) -> str:
        """Let one of the workers write something, which the service may refuse; return what it was."""
        deeds: list[Callable[[Admin], object]] = [self.book, self.book, self.claim, self.hold, self.release]
        deeds += [self.release, self.move, self.resize, self.wait, self.add_host, self.drop_host]
        deed = self.rng.choice(deeds)
        deed(self.rng.choice(self.workers))
        return deed.__name__

    def book(self, admin: Admin) -> None:
        begin = self.rng.randint(0, 5)
        times = {"starts_at": self.time_of(begin), "expires_at": self.time_of(begin + self.rng.randint(1, 4))}
        body: dict[str, Any] = {"uuid": self.new_consumer(), "query": self.query(), **times, **OWNER}
        body.pop("consumer_type", None)
        if self.rng.random() < 0.5:
            body["allowed_hosts"] = [self.rng.choice(self.hosts)]
        assert admin("POST", PATH, json=body).status_code in (201, 400, 409)

    def claim(self, admin: Admin) -> None:
        """Claim until a time, by a new consumer or by one that may have amounts."""
        wanted = new_claim(self.query())
        if self.consumers and self.rng.random() < 0.3:
            wanted["consumer_uuid"] = self.rng.choice(self.consumers)
            shown = admin("GET", f"/allocations/{wanted['consumer_uuid']}").json
            wanted["consumer_generation"] = shown.get("consumer_generation")
        self.consumers.append(wanted["consumer_uuid"])
        ends_at = self.time_of(self.rng.randint(1, 5))
        assert post_claims(admin, wanted, ends_at=ends_at).status_code in (201, 409)

    def hold(self, admin: Admin) -> None:
        amounts = {self.rng.choice(self.hosts): {"VCPU": self.rng.randint(1, 2)}}
        assert put_allocation(admin, amounts, self.new_consumer()).status_code in (204, 409)

    def release(self, admin: Admin) -> None:
        if self.consumers:
            consumer = self.rng.choice(self.consumers)
            path = self.rng.choice([f"{PATH}/{consumer}", f"/allocations/{consumer}"])
            assert admin("DELETE", path).status_code in (204, 404)

    def move(self, admin: Admin) -> None:
        if found := admin("GET", PATH).json["reservations"]:
            one = self.rng.choice(found)
            end = {"generation": one["generation"], "expires_at": self.time_of(self.rng.randint(1, 8))}
            assert admin("PUT", f"{PATH}/{one['uuid']}", json=end).status_code in (200, 400, 404, 409)

    def resize(self, admin: Admin) -> None:
        host = self.rng.choice(self.hosts)
        generation = admin("GET", provider_path(host)).json["generation"]
        put_inventories(admin, host, generation, VCPU=self.rng.randint(3, 6), DISK_GB=9)

    def wait(self, _: Admin) -> None:
        advance_clock(self.url, HOUR)

    def add_host(self, admin: Admin) -> None:
        self.hosts.append(make_provider(admin, f"cn{uuid.uuid4()}", VCPU=4, DISK_GB=9))

    def drop_host(self, admin: Admin) -> None:
        if len(self.hosts) > 2:
            host = self.rng.choice(self.hosts)
            if admin("DELETE", provider_path(host)).status_code == 204:
                self.hosts.remove(host)

    def new_consumer(self) -> str:
        self.consumers.append(str(uuid.uuid4()))
        return self.consumers[-1]

    def query(self) -> str:
        return f"resources=VCPU:{self.rng.randint(1, 3)}" + self.rng.choice(["", ",DISK_GB:1"])

    def time_of(self, hour: float) -> str:
        return iso(self.begun_at + hour * HOUR)


@contextmanager
def kept_timetable(url: str) -> Iterator[tuple[ServiceDatabase, WindowTimetable]]:
    """Return a timetable of a worker of its own."""
    with closing(ServiceDatabase(url)) as database:
        yield database, WindowTimetable(ReadModel(database, 1, due_changes.give_back_expired), database)


def check_equal(database: ServiceDatabase, timetable: WindowTimetable, said: object) -> None:
    """Compare a timetable with the database."""
    with timetable.fresh_view() as timed, database.read() as conn:
        view, skylines = timed.view, timed.skylines
        schedule = read_schedule(conn)
        fresh = skylines_in(view.snapshot, make_skylines(schedule.amounts, schedule.holds))
        assert skylines == fresh, said
        # the hold of a provider is a part of its usage
        for provider_id, here in skylines.items():
            for name, skyline in here.items():
                assert skyline.counted <= view.snapshot.providers[provider_id].used.get(name, 0), said
        # searches add rooms to the skylines, and these rooms must follow the writes, too
        for query in ("resources=VCPU:1", "resources=VCPU:3,DISK_GB:1"):
            kept, new = (
                HostTimes(
                    TimedSearch(view.snapshot, each, SearchBudget(), random.Random(0)),
                    make_wanted(query),
                    HOUR,
                )
                for each in (skylines, fresh)
            )
            for root in view.snapshot.roots():
                starts = [each.first_start(root, schedule.now, math.inf) for each in (kept, new)]
                assert starts[0] == starts[1], said


@pytest.mark.parametrize("seed", range(examples(20)))
def test_a_timetable_that_follows_writes_equals_one_that_is_read_again(database_url: str, seed: int) -> None:
    workers = [Admin(application(database_url)) for _ in range(2)]
    history = History(database_url, random.Random(seed), workers)
    for _ in range(3):
        history.add_host(workers[0])
    with kept_timetable(database_url) as (database, timetable):
        done = []
        for _ in range(40):
            done.append(history.step())
            # several writes may lie between two looks
            if history.rng.random() < 0.7:
                check_equal(database, timetable, (seed, done))


def test_readers_at_once_see_the_writes_before_their_views(database_url: str) -> None:
    admin = Admin(application(database_url))
    history = History(database_url, random.Random(1), [admin])
    for _ in range(4):
        history.add_host(admin)
    failed: list[BaseException] = []
    with kept_timetable(database_url) as (database, timetable):

        def look() -> None:
            try:
                for _ in range(30):
                    with timetable.fresh_view() as timed:
                        assert timed.skylines.keys() <= timed.view.snapshot.providers.keys()
            except BaseException as error:
                failed.append(error)

        readers = [Thread(target=look) for _ in range(3)]
        for each in readers:
            each.start()
        for _ in range(30):
            history.step()
        for each in readers:
            each.join()
        assert not failed
        check_equal(database, timetable, "after all")


def test_another_worker_sees_the_end_of_a_window_that_needed_no_hold(database_url: str) -> None:
    admin = Admin(application(database_url))
    host = make_provider(admin, "cn", VCPU=8)
    ends_at = iso(time.time() + HOUR)
    assert post_claims(admin, new_claim("resources=VCPU:4"), ends_at=ends_at).status_code == 201
    body = {"query": "resources=VCPU:3", "starts_at": ends_at, "uuid": str(uuid.uuid4())}
    body["expires_at"] = iso(time.time() + 2 * HOUR)
    owner = {"project_id": "project", "user_id": "user"}
    assert admin("POST", PATH, json={**body, **owner}).status_code == 201
    with kept_timetable(database_url) as (database, timetable):
        with timetable.fresh_view() as timed:
            ((skyline,),) = (here.values() for here in timed.skylines.values())
            assert list(skyline.sums) == [4, 3, 0]
        assert admin("GET", provider_path(host, "usages")).json["usages"] == {"VCPU": 4}
        assert admin("DELETE", f"{PATH}/{body['uuid']}").status_code == 204
        check_equal(database, timetable, "cancelled")


def booking(begin: float) -> dict[str, Any]:
    """Return the body of a reservation of 8 VCPU for an hour that begins some hours from now."""
    times = {"starts_at": after(begin * HOUR), "expires_at": after((begin + 1) * HOUR)}
    return {"query": "resources=VCPU:8", "project_id": "project", "user_id": "user", **times}


@pytest.mark.parametrize("is_named", [True, False])
def test_a_window_that_another_worker_books_meanwhile_hides_no_free_hour(
    database_url: str, monkeypatch: pytest.MonkeyPatch, is_named: bool
) -> None:
    admin, other = Admin(application(database_url)), Admin(application(database_url))
    host = make_provider(admin, "cn", VCPU=8)
    named = {"allowed_hosts": [host]} if is_named else {}
    days = [48, 24]

    def interrupted(*args: Any, **keywords: Any) -> time_schedule.TimeSchedule:
        found = read_schedule(*args, **keywords)
        if days and is_asking:
            is_asking.clear()
            assert other("POST", PATH, json=booking(days.pop())).status_code == 201
            is_asking.append(True)
        return found

    is_asking = [True]
    monkeypatch.setattr("placement.search.claims.timetable.read_schedule", interrupted)
    answer = admin("POST", PATH, json={**booking(1), **named})
    assert answer.status_code == 201, answer.text
    days.append(72)
    body = {"query": "resources=VCPU:8", "duration": 600, "deadline": after(HOUR / 2), **named}
    assert admin("POST", "/ext/v1/availability", json=body).json["windows"]


def test_a_booking_on_any_host_reads_no_amounts_while_few_providers_have_changed(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    admin, other = Admin(application(database_url)), Admin(application(database_url))
    hosts = {make_provider(admin, f"cn{number}", VCPU=8) for number in range(4)}
    # these four hosts stand for some of a large cloud
    monkeypatch.setattr("placement.search.claims.timetable._SMALL_SHARE", 1)
    reads: list[Any] = []

    def counted(conn: Any, **keywords: Any) -> time_schedule.TimeSchedule:
        reads.append(keywords["of_providers"])
        return read_schedule(conn, **keywords)

    assert admin("POST", PATH, json=booking(1)).status_code == 201
    monkeypatch.setattr("placement.search.claims.timetable.read_schedule", counted)
    assert other("POST", PATH, json=booking(1)).status_code == 201
    assert reads
    reads.clear()
    # the skylines of this worker lack its own booking and that of the other worker
    answers = [admin("POST", PATH, json=booking(1)) for _ in range(2)]
    assert [each.status_code for each in answers] == [201, 201]
    windows = admin("GET", PATH).json["reservations"]
    assert {provider for each in windows for provider in each["allocations"]} == hosts
    # only a refusal, or a lost race, reads what has changed
    reads.clear()
    assert admin("POST", PATH, json=booking(1)).status_code == 409
    assert reads


def test_windows_one_after_the_other_share_a_few_hosts_of_a_small_cloud(database_url: str) -> None:
    admin = Admin(application(database_url))
    hosts = [make_provider(admin, f"cn{number}", VCPU=8) for number in range(8)]
    for hour in range(1, 9):
        assert admin("POST", PATH, json=booking(hour)).status_code == 201
    usages = [admin("GET", provider_path(each, "usages")).json["usages"] for each in hosts]
    assert sum(each["VCPU"] > 0 for each in usages) < len(hosts)
    assert post_claims(admin, new_claim("resources=VCPU:8")).status_code == 201


def test_outdated_amounts_refuse_no_window_for_which_another_host_has_room(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    admin, other = Admin(application(database_url)), Admin(application(database_url))
    monkeypatch.setattr("placement.search.claims.timetable._SMALL_SHARE", 1)
    largest = 2**31 - 1
    hosts = [make_provider(admin, f"cn{number}", DISK_GB=largest) for number in range(2)]

    def book(by: Admin, begin: float, amount: int, *named: str) -> None:
        body = booking(begin) | {"query": f"resources=DISK_GB:{amount}"}
        answer = by("POST", PATH, json=body | ({"allowed_hosts": named} if named else {}))
        assert answer.status_code == 201, answer.text

    book(other, 3, 1_500_000_000, hosts[0])
    book(admin, 3, 2_000_000_000)
    # the hold of the host does not grow, so it looks as free as before
    book(other, 5, 1_500_000_000, hosts[0])
    for _ in range(3):
        book(admin, 5, 200_000_000)
        book(admin, 5, 300_000_000)


def test_a_claim_that_is_over_is_refused_even_if_the_view_is_from_before_its_end(database_url: str) -> None:
    admin = Admin(application(database_url))
    make_provider(admin, "cn", VCPU=8)
    assert admin("POST", PATH, json=booking(1) | {"query": "resources=VCPU:1"}).status_code == 201
    assert admin("GET", "/resource_providers?name=cn").status_code == 200
    time.sleep(0.02)
    answer = post_claims(admin, new_claim("resources=VCPU:1"), ends_at=iso(time.time() - 0.01))
    assert (answer.status_code, "has to end" in answer.text) == (400, True)


def test_a_view_reads_once_while_others_write_steadily(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    admin = Admin(application(database_url))
    host = make_provider(admin, "cn", VCPU=8)
    with closing(ServiceDatabase(database_url)) as database:
        model = ReadModel(database, 1, due_changes.give_back_expired)
        timetable, fresh_view, views = WindowTimetable(model, database), model.fresh_view, []

        def interrupted() -> Any:
            views.append(put_allocation(admin, {host: {"VCPU": 1}}).status_code)
            return fresh_view()

        monkeypatch.setattr(model, "fresh_view", interrupted)
        for _ in range(2):
            with timetable.fresh_view() as timed:
                assert (views, list(timed.doubtful)) == ([204, 204], [host])
            assert not timetable.has_changed(timed)
            views.clear()
        assert admin("POST", PATH, json=booking(1) | {"query": "resources=VCPU:1"}).status_code == 201
        assert timetable.has_changed(timed)


def test_a_client_that_has_left_waits_for_no_other_reader(database_url: str) -> None:
    admin = Admin(application(database_url))
    make_provider(admin, "cn", VCPU=8)
    with kept_timetable(database_url) as (_, timetable):

        def leave_while_reading() -> None:
            with ThreadPoolExecutor(1) as others, pytest.raises(Unavailable):
                others.submit(leave).result(timeout=30)
            raise Unavailable("the first client has left, too")

        def leave() -> None:
            def refuse() -> None:
                raise Unavailable("left")

            with timetable.fresh_view(check_awaited=refuse):
                pass

        with pytest.raises(Unavailable, match="first"), timetable.fresh_view(None, leave_while_reading):
            pass
        with timetable.fresh_view() as timed:
            assert not timed.doubtful


def test_a_view_that_takes_too_long_leaves_the_rest_to_the_next_one(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    admin = Admin(application(database_url))
    hosts = [make_provider(admin, f"cn{number}", VCPU=8) for number in range(3)]
    # the hosts are in different buckets
    count = len({bucket_of(each) for each in hosts})
    assert admin("POST", PATH, json=booking(1)).status_code == 201
    monkeypatch.setattr("placement.search.claims.timetable._CHUNK", 1)
    with kept_timetable(database_url) as (database, timetable):
        for _ in range(count - 1):
            with (
                pytest.raises(Unavailable, match="still reading") as refusal,
                timetable.fresh_view(max_wait=-1.0),
            ):
                pass
            assert refusal.value.code == "placement.ext.search_too_long"
        with timetable.fresh_view(max_wait=-1.0):
            pass
        check_equal(database, timetable, "after the last step")


def test_a_request_that_waits_too_long_for_the_timetable_is_repeated_by_its_client(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    admin = Admin(application(database_url))
    hosts = [make_provider(admin, f"cn{number}", VCPU=8) for number in range(3)]
    # all hosts are read, one by one
    monkeypatch.setattr("placement.search.claims.timetable._FEW", 0)
    monkeypatch.setattr("placement.search.claims.timetable._CHUNK", 1)
    impatient = partialmethod(WindowTimetable.fresh_view, max_wait=-1.0)
    monkeypatch.setattr(WindowTimetable, "fresh_view", impatient)
    answers = [
        admin("POST", "/ext/v1/availability", json={"query": "resources=VCPU:4", "duration": 60})
        for _ in {bucket_of(each) for each in hosts}
    ]
    for answer in answers[:-1]:
        (error,) = answer.json["errors"]
        assert (answer.status_code, answer.headers["Retry-After"]) == (503, "5")
        assert error["code"] == "placement.ext.search_too_long"
    assert answers[-1].status_code == 200


@pytest.mark.parametrize("has_window", [True, False])
def test_a_worker_that_starts_reads_the_windows_that_exist(
    database_url: str, monkeypatch: pytest.MonkeyPatch, has_window: bool
) -> None:
    admin = Admin(application(database_url))
    make_provider(admin, "cn", VCPU=8)
    if has_window:
        assert admin("POST", PATH, json=booking(1)).status_code == 201
    with kept_timetable(database_url) as (_, timetable):
        read: list[str] = []

        def noted(*args: Any, **keywords: Any) -> time_schedule.TimeSchedule:
            read.extend(keywords["of_providers"])
            return read_schedule(*args, **keywords)

        monkeypatch.setattr("placement.search.claims.timetable.read_schedule", noted)
        timetable.read_ahead()
        assert len(read) == has_window
        with timetable.fresh_view(max_wait=-1.0) as timed:
            assert len(timed.skylines) == has_window
        assert len(read) == 1


def test_later_views_read_only_the_providers_that_have_changed(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    admin = Admin(application(database_url))
    hosts = [make_provider(admin, f"cn{number}", VCPU=8) for number in range(3)]
    read: list[list[str]] = []

    def noted(conn: Any, *, of_providers: Any) -> time_schedule.TimeSchedule:
        read.append(sorted(of_providers))
        return read_schedule(conn, of_providers=of_providers)

    monkeypatch.setattr("placement.search.claims.timetable.read_schedule", noted)
    with kept_timetable(database_url) as (_, timetable):
        for changed in (hosts, [], [hosts[1]]):
            if changed == [hosts[1]]:
                assert put_allocation(admin, {hosts[1]: {"VCPU": 1}}).status_code == 204
            with timetable.fresh_view():
                pass
            assert read == ([sorted(changed)] if changed else [])
            read.clear()
