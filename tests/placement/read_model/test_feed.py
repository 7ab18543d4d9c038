"""Tests that the read model follows every change of the database, and reads only what has changed."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import islice
from typing import Any

import pytest
import sqlalchemy as sa

from placement.db import buckets
from placement.db.batch import PreparedStatement, StatementBatch
from placement.db.buckets import bucket_of
from placement.db.database import ServiceDatabase, WriteTransaction
from placement.db.position import DatabaseVersion
from placement.db.tables import change_buckets, resource_providers
from placement.exceptions import Unavailable
from placement.read_model import rows
from placement.read_model.feed import ReadModel
from placement.read_model.snapshot import ModelSnapshot
from placement.store import (
    allocations,
    consumers,
    inventories,
    known_names,
    provider_properties,
    providers,
    reservation_changes,
)
from tests.databases import DatabaseServer
from tests.placement.store.builders import build_claim, inventory_values

HOST = "00000001-0000-4000-8000-000000000000"
CHILD = "00000002-0000-4000-8000-000000000000"
FOUR = inventory_values(4)


@pytest.fixture
def writer(database_url: str) -> Iterator[ServiceDatabase]:
    """The database, as another worker uses it to write."""
    database = ServiceDatabase(database_url)
    database.write(lambda tx: known_names.make_standard_names(tx, ["LLC", "MBA"]))
    yield database
    database.close()


@pytest.fixture
def model(writer: ServiceDatabase, database_url: str) -> Iterator[ReadModel]:
    database = ServiceDatabase(database_url)
    yield ReadModel(database)
    database.close()


def create(writer: ServiceDatabase, uuid: str = HOST, name: str = "host", parent: str | None = None) -> None:
    writer.write(lambda tx: providers.create_provider(tx, uuid, name, parent))


def names(model: ReadModel) -> dict[str, str]:
    with model.fresh_view() as view:
        return {provider.uuid: provider.name for provider in view.snapshot}


def test_changes_of_another_worker_are_visible_at_once(writer: ServiceDatabase, model: ReadModel) -> None:
    assert names(model) == {}
    create(writer)
    assert names(model) == {HOST: "host"}
    writer.write(lambda tx: inventories.add(tx, HOST, "LLC", FOUR))
    writer.write(lambda tx: provider_properties.replace_aggregates(tx, HOST, 1, [CHILD]))
    writer.write(lambda tx: provider_properties.replace_traits(tx, HOST, 2, ["COMPUTE_NODE"]))
    with model.fresh_view() as view:
        provider = view.snapshot.get(HOST)
        assert provider is not None
        assert (provider.generation, provider.inventories["LLC"].total) == (3, 4)
        assert (provider.traits, provider.aggregates) == ({"COMPUTE_NODE"}, {CHILD})


def test_a_deleted_provider_goes_and_its_name_can_be_used_again(
    writer: ServiceDatabase, model: ReadModel
) -> None:
    create(writer)
    assert names(model) == {HOST: "host"}
    writer.write(lambda tx: providers.delete(tx, HOST))
    create(writer, CHILD)
    assert names(model) == {CHILD: "host"}
    with model.fresh_view() as view:
        assert view.snapshot.get(HOST) is None


def test_a_moved_subtree_has_its_new_root(writer: ServiceDatabase, model: ReadModel) -> None:
    third = "00000003-0000-4000-8000-000000000000"
    create(writer)
    create(writer, CHILD, "child", HOST)
    create(writer, third, "grandchild", CHILD)
    assert len(names(model)) == 3
    writer.write(lambda tx: providers.update(tx, CHILD, "child", None, sets_parent=True, may_move=True))
    with model.fresh_view() as view:
        by_uuid = {provider.uuid: provider for provider in view.snapshot}
        assert by_uuid[third].root_id == by_uuid[CHILD].root_id == by_uuid[CHILD].id
        assert by_uuid[HOST].root_id == by_uuid[HOST].id


def test_a_renamed_resource_class_is_renamed_wherever_it_is_used(
    writer: ServiceDatabase, model: ReadModel
) -> None:
    create(writer)
    writer.write(lambda tx: known_names.create_class(tx, "CUSTOM_OLD"))
    writer.write(lambda tx: inventories.add(tx, HOST, "CUSTOM_OLD", FOUR))
    with model.fresh_view() as view:
        assert view.snapshot.by_class.keys() == {"CUSTOM_OLD"}
    writer.write(lambda tx: known_names.rename_class(tx, "CUSTOM_OLD", "CUSTOM_NEW"))
    with model.fresh_view() as view:
        assert view.snapshot.by_class.keys() == {"CUSTOM_NEW"}
        assert "CUSTOM_OLD" not in view.names.classes


def test_an_unchanged_database_is_not_read(
    writer: ServiceDatabase, model: ReadModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    create(writer)
    names(model)
    monkeypatch.setattr(ServiceDatabase, "read", lambda self: pytest.fail("read without need"))
    assert names(model) == {HOST: "host"}


def test_changes_read_by_another_request_are_not_read_again(
    writer: ServiceDatabase, model: ReadModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another request updates the model after a request has read the version of the database, and before its
    turn.
    """
    create(writer)
    names(model)
    position, read = ServiceDatabase.position, ServiceDatabase.read
    meanwhile: list[dict[str, str]] = []
    reads: list[ServiceDatabase] = []

    def ask_and_be_overtaken(self: ServiceDatabase) -> DatabaseVersion:
        found = position(self)
        monkeypatch.setattr(ServiceDatabase, "position", position)
        create(writer, CHILD, "child")
        meanwhile.append(names(model))
        return found

    monkeypatch.setattr(ServiceDatabase, "position", ask_and_be_overtaken)
    monkeypatch.setattr(ServiceDatabase, "read", lambda self: reads.append(self) or read(self))
    assert names(model) == {HOST: "host", CHILD: "child"} == meanwhile[0]
    assert len(reads) == 1


def test_one_change_does_not_reread_everything(
    writer: ServiceDatabase, model: ReadModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    create(writer)
    names(model)
    monkeypatch.setattr(rows, "read_all", lambda *args: pytest.fail("everything was read"))
    create(writer, CHILD, "child")
    assert names(model) == {HOST: "host", CHILD: "child"}


def test_only_the_usage_is_read_after_a_claim(
    writer: ServiceDatabase, model: ReadModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    create(writer)
    writer.write(lambda tx: inventories.add(tx, HOST, "VCPU", FOUR))
    names(model)
    described: list[Any] = []
    read_some = rows.read_some
    monkeypatch.setattr(rows, "read_all", lambda *args: pytest.fail("everything was read"))
    monkeypatch.setattr(
        rows,
        "read_some",
        lambda conn, rows, *more: described.extend(rows) or read_some(conn, rows, *more),
    )
    for consumer, used in ((CHILD, 1), (HOST, 3)):
        claim = build_claim(consumer, {HOST: {"VCPU": used}})
        writer.write(lambda tx, claim=claim: allocations.replace(tx, [claim]))
    with model.fresh_view() as view:
        provider = view.snapshot.get(HOST)
        assert provider is not None
        assert (provider.used, provider.generation) == ({"VCPU": 4}, 3)
    assert (described, model.reread) == ([], 0)


def test_deleting_the_last_provider_of_a_bucket_does_not_reread_everything(
    writer: ServiceDatabase, model: ReadModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    create(writer)
    create(writer, CHILD, "child")
    assert bucket_of(HOST) != bucket_of(CHILD)
    names(model)
    monkeypatch.setattr(rows, "read_all", lambda *args: pytest.fail("everything was read"))
    writer.write(lambda tx: providers.delete(tx, HOST))
    assert names(model) == {CHILD: "child"}
    writer.write(lambda tx: inventories.add(tx, CHILD, "LLC", FOUR))
    create(writer)
    assert names(model) == {HOST: "host", CHILD: "child"}
    assert model.reread == 0


def test_changes_of_many_buckets_are_followed_at_once(
    writer: ServiceDatabase, model: ReadModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    uuids = [f"{number:08x}-0000-4000-8000-000000000000" for number in range(250)]

    def create_all(tx: WriteTransaction) -> None:
        for uuid in uuids:
            providers.create_provider(tx, uuid, uuid, None)

    writer.write(create_all)
    assert len(names(model)) == 250
    monkeypatch.setattr(rows, "read_all", lambda *args: pytest.fail("everything was read"))
    changed = uuids[:99]
    assert len({buckets.bucket_of(uuid) for uuid in changed}) > 64

    def change(tx: WriteTransaction) -> None:
        for uuid in changed:
            inventories.add(tx, uuid, "LLC", FOUR)

    writer.write(change)
    with model.fresh_view() as view:
        assert {provider.uuid for provider in view.snapshot if "LLC" in provider.inventories} == set(changed)
        assert {provider.generation for provider in view.snapshot if provider.uuid in changed} == {1}


def test_a_damaged_model_is_reread(writer: ServiceDatabase, model: ReadModel) -> None:
    create(writer)
    names(model)
    with model.fresh_view() as view:
        view.snapshot.by_class.clear()
        view.snapshot.trees.clear()
        view.snapshot.by_name["host"] = 99
        view.snapshot.by_trait = None  # type: ignore[assignment]  # which breaks it
    writer.write(lambda tx: providers.delete(tx, HOST))
    create(writer, CHILD, "child")
    assert names(model) == {CHILD: "child"}


def test_a_model_with_inconsistent_trees_is_reread(writer: ServiceDatabase, model: ReadModel) -> None:
    create(writer)
    create(writer, CHILD, "child", HOST)
    names(model)
    with model.fresh_view() as view:
        del view.snapshot.providers[view.snapshot.by_uuid[HOST]]
    writer.write(lambda tx: inventories.add(tx, CHILD, "LLC", FOUR))
    assert names(model) == {HOST: "host", CHILD: "child"}
    with model.fresh_view() as view:
        assert [len(tree.members) for tree in view.snapshot.whole_trees().values()] == [2]


def test_changes_lost_by_a_failing_database_do_not_stay_in_the_model(
    writer: ServiceDatabase,
    model: ReadModel,
    database_server: DatabaseServer,
    database_url: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    create(writer)
    create(writer, CHILD, "child")
    assert names(model) == {HOST: "host", CHILD: "child"}
    backup = database_server.backup(database_url)
    writer.write(lambda tx: providers.delete(tx, HOST))
    writer.write(lambda tx: inventories.add(tx, CHILD, "LLC", FOUR))

    def break_off(*args: object) -> None:
        raise sa.exc.OperationalError("SELECT", {}, Exception("lost connection"))

    with monkeypatch.context() as patched:
        patched.setattr(rows, "read_some", break_off)  # if the deleted object is already gone
        with pytest.raises(Unavailable):
            names(model)
    database_server.restore(database_url, backup)
    assert names(model) == {HOST: "host", CHILD: "child"}


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The random steps by which counters grow at the next changes."""
    steps: list[int] = []
    monkeypatch.setattr(buckets, "random_step", lambda: steps.pop(0))
    return steps


def in_bucket_of(uuid: str, count: int) -> list[str]:
    """The uuids of other providers that belong to the same bucket."""
    others = (f"{number:08d}-0000-4000-8000-0000000000aa" for number in range(100_000))
    return list(islice((each for each in others if bucket_of(each) == bucket_of(uuid)), count))


@pytest.mark.parametrize("lost", ["a change", "a creation", "a description under a later usage"])
def test_lost_changes_below_a_larger_counter_are_noticed(
    writer: ServiceDatabase,
    model: ReadModel,
    database_server: DatabaseServer,
    database_url: str,
    lost: str,
    steps: list[int],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The counter of the bucket is larger than its known value, but the lost change has left no new stamp."""
    other, new = in_bucket_of(HOST, 2)
    steps += [5] * 4
    create(writer)
    create(writer, other, "other")
    for uuid in (HOST, other):
        writer.write(lambda tx, uuid=uuid: inventories.add(tx, uuid, "VCPU", FOUR))  # type: ignore[misc]  # binds early
    backup = database_server.backup(database_url)
    steps += [5]
    if lost == "a creation":
        create(writer, new, "new")
    else:
        eight = replace(FOUR, total=8)
        writer.write(lambda tx: inventories.change_inventory(tx, HOST, 1, "VCPU", eight))
    with model.fresh_view() as view:
        before = {each.uuid: dict(each.inventories) for each in view.snapshot}
    database_server.restore(database_url, backup)
    steps += [20]
    claimed = HOST if lost == "a description under a later usage" else other
    claim = build_claim(CHILD, {claimed: {"VCPU": 1}})
    writer.write(lambda tx: allocations.replace(tx, [claim]))
    with model.fresh_view() as view:
        shown = {each.uuid: (each.inventories["VCPU"].total, each.used.get("VCPU")) for each in view.snapshot}
    assert shown == {HOST: (4, None), other: (4, None)} | {claimed: (4, 1)}
    assert before.keys() == {HOST, other} | ({new} if lost == "a creation" else set())
    assert "has another history" in caplog.text or lost == "a description under a later usage"


def test_a_database_restored_from_an_older_copy_is_reread(writer: ServiceDatabase, model: ReadModel) -> None:
    create(writer)
    create(writer, CHILD, "child")
    assert len(names(model)) == 2

    def restore(tx: Any) -> None:
        tx.conn.execute(sa.delete(resource_providers).where(resource_providers.c.uuid == CHILD))
        tx.conn.execute(sa.update(change_buckets).values(counter=0))

    writer.write(restore)
    assert names(model) == {HOST: "host"}


class TestLongRequests:
    def test_other_requests_change_the_model_while_a_long_one_keeps_its_view(
        self, writer: ServiceDatabase, model: ReadModel
    ) -> None:
        create(writer)
        with ThreadPoolExecutor(1) as others, model.fresh_view() as view:
            view.yield_lock()
            create(writer, CHILD, "child", HOST)
            assert others.submit(names, model).result(timeout=60) == {HOST: "host", CHILD: "child"}
            view.yield_lock()
            assert [provider.uuid for provider in view.snapshot] == [HOST]
            assert view.snapshot.trees == {view.snapshot.by_uuid[HOST]: [view.snapshot.by_uuid[HOST]]}
        assert names(model) == {HOST: "host", CHILD: "child"}

    def test_a_snapshot_is_only_copied_while_it_is_pinned(
        self, writer: ServiceDatabase, model: ReadModel, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        copies: list[ModelSnapshot] = []
        copy = ModelSnapshot.copy
        monkeypatch.setattr(ModelSnapshot, "copy", lambda snapshot: copies.append(snapshot) or copy(snapshot))
        create(writer)
        with model.fresh_view() as view:
            view.yield_lock()
            view.yield_lock()
        create(writer, CHILD, "child", HOST)
        assert names(model) == {HOST: "host", CHILD: "child"}
        assert copies == []

    def test_long_requests_take_turns_and_keep_their_views(
        self, writer: ServiceDatabase, model: ReadModel
    ) -> None:
        create(writer)
        looks, done = threading.Semaphore(0), threading.Event()

        def look() -> set[int]:
            with model.fresh_view() as view:
                seen = set()
                while not done.is_set():
                    view.yield_lock()
                    seen.add(len(view.snapshot))
                    looks.release()
                return seen

        with ThreadPoolExecutor(2) as others:
            looking = [others.submit(look) for _ in range(2)]
            try:
                for number in range(20):
                    for _ in range(10):
                        assert looks.acquire(timeout=60)
                    assert len(names(model)) == 1 + number
                    create(writer, f"0000000a-0000-4000-8000-{number:012}", f"host{number}")
            finally:
                done.set()
            # one request may have started late, but its snapshot stayed the same until its end
            assert [len(each.result(timeout=60)) for each in looking] == [1, 1]

    def test_surplus_long_requests_are_refused_while_short_ones_are_answered(
        self, writer: ServiceDatabase
    ) -> None:
        create(writer)
        model = ReadModel(writer, long_requests=1)

        def one_more() -> None:
            with model.fresh_view() as view:
                view.yield_lock()

        with ThreadPoolExecutor(1) as others:
            with model.fresh_view() as view:
                view.yield_lock()
                with pytest.raises(Unavailable, match="try again"):
                    others.submit(one_more).result(timeout=60)
                assert others.submit(names, model).result(timeout=60) == {HOST: "host"}
            others.submit(one_more).result(timeout=60)

    def test_a_stopped_request_leaves_nothing_behind(self, writer: ServiceDatabase, model: ReadModel) -> None:
        def stopped() -> None:
            with model.fresh_view() as view:
                view.yield_lock()
                raise RuntimeError("stopped")

        with pytest.raises(RuntimeError, match="stopped"):
            stopped()
        create(writer)
        with ThreadPoolExecutor(1) as others:
            assert others.submit(names, model).result(timeout=60) == {HOST: "host"}


def test_a_server_with_a_slow_clock_is_not_asked_by_every_request_to_release(
    writer: ServiceDatabase, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("placement.read_model.feed._PAUSE", 3600.0)
    # as a node of a Galera cluster that is written to, where another one is asked for the time
    owner = consumers.ConsumerOwnership("project", "user", "RESERVATION")
    writer.write(lambda tx: consumers.create_consumers(tx, {CHILD: owner}))
    writer.write(
        lambda tx: reservation_changes.make_reservation(
            tx, CHILD, None, reservation_changes.ReservationEnd(None, 2.0)
        )
    )
    asked = []

    def nothing_yet(database: ServiceDatabase) -> int:
        asked.append(database)
        return 0

    database = ServiceDatabase(database_url)
    try:
        model = ReadModel(database, give_back_expired=nothing_yet)
        while not asked:
            assert names(model) == {}
        for _ in range(3):
            assert names(model) == {}
    finally:
        database.close()
    assert len(asked) == 1


def test_one_update_reads_one_state_of_the_database(writer: ServiceDatabase, database_url: str) -> None:
    """This also holds for statements in batches, which begin the transaction themselves."""
    database = ServiceDatabase(database_url)
    create(writer)
    everything = PreparedStatement(sa.select(resource_providers.c.name))
    with database.read() as conn:
        before = StatementBatch(conn).add(everything, {}).rows
        create(writer, CHILD, "child")
        assert StatementBatch(conn).add(everything, {}).rows == before
        assert conn.execute(sa.select(resource_providers.c.name)).scalars().all() == ["host"]
    database.close()


def test_equal_inventories_of_different_times_are_shared(writer: ServiceDatabase, model: ReadModel) -> None:
    uuids = [f"{number:08d}-0000-4000-8000-000000000000" for number in range(20)]
    for uuid in uuids:
        create(writer, uuid, f"host-{uuid}")
    names(model)
    written = {}
    for uuid in uuids:
        writer.write(
            lambda tx, uuid=uuid: inventories.replace_all(
                tx, uuid, 0, {"LLC": FOUR, "MBA": FOUR}, may_have_none=False
            )
        )
        with writer.read() as conn:
            written[uuid] = conn.execute(
                sa.select(resource_providers.c.updated_at).where(resource_providers.c.uuid == uuid)
            ).scalar_one()
        names(model)
    assert len(set(written.values())) > 1
    for each in (model, ReadModel(writer)):
        with each.fresh_view() as view:
            hosts = list(view.snapshot)
        assert len({id(host.inventories) for host in hosts}) == 1
        assert len({id(one) for host in hosts for one in host.inventories.values()}) == 1
        assert {host.uuid: host.offered_at("MBA") for host in hosts} == written


def test_each_inventory_of_a_host_has_its_own_time(writer: ServiceDatabase, model: ReadModel) -> None:
    create(writer)
    writer.write(lambda tx: inventories.add(tx, HOST, "MBA", FOUR, may_have_none=False))
    with model.fresh_view() as view:
        (host,) = view.snapshot
    first = host.offered_at("MBA")
    writer.write(lambda tx: inventories.add(tx, HOST, "LLC", FOUR, may_have_none=False))
    with model.fresh_view() as view:
        (host,) = view.snapshot
    assert host.offered_at("MBA") == first < host.offered_at("LLC")
