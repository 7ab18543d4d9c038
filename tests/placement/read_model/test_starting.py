"""A worker starts from the file of the model where the database goes on from there, and else without."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from placement.db import migration
from placement.db.database import ServiceDatabase, WriteTransaction
from placement.db.tables import change_buckets
from placement.exceptions import Unavailable
from placement.read_model import rows
from placement.read_model.feed import ReadModel
from placement.read_model.model_file import ModelFile, ModelFileWriter
from placement.store import allocations, classes, inventories, providers, traits
from tests.databases import DatabaseServer
from tests.placement.read_model.test_snapshot import content
from tests.placement.store.builders import build_claim, inventory_values

HOST = "00000001-0000-4000-8000-000000000000"
CHILD = "00000002-0000-4000-8000-000000000000"
OTHER = "00000003-0000-4000-8000-000000000000"
FOUR = inventory_values(4)

Start = Callable[[], ReadModel]


@pytest.fixture
def writer(database_url: str) -> Iterator[ServiceDatabase]:
    """The database with a host that has a child, as another worker has it."""
    database = ServiceDatabase(database_url)

    def fill(tx: WriteTransaction) -> None:
        classes.make_standard_names(tx, ["LLC", "MBA"])
        providers.create(tx, HOST, "host", None)
        providers.create(tx, CHILD, "child", HOST)
        inventories.add(tx, CHILD, "VCPU", FOUR)

    database.write(fill)
    yield database
    database.close()


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModelFile:
    """The file, which is written where a test says so."""
    monkeypatch.setattr(ModelFileWriter, "look", lambda self: None)
    return ModelFile(str(tmp_path / "model"))


@pytest.fixture
def start(writer: ServiceDatabase, database_url: str, file: ModelFile) -> Iterator[Start]:
    """Starts a worker, which has answered a request."""
    databases = []

    def worker() -> ReadModel:
        databases.append(ServiceDatabase(database_url))
        model = ReadModel(databases[-1], file=file)
        with model.fresh():
            pass
        return model

    yield worker
    for each in databases:
        each.close()


@pytest.fixture
def written(start: Start) -> None:
    """A worker has written its model down."""
    write(start())


def write(model: ReadModel) -> None:
    assert model._writer is not None
    model._writer.write()


@pytest.fixture
def whole_readings(monkeypatch: pytest.MonkeyPatch) -> list[None]:
    """One for each time that somebody reads everything."""
    read_all, found = rows.read_all, []

    def counted(*arguments: Any) -> Any:
        found.append(None)
        return read_all(*arguments)

    monkeypatch.setattr(rows, "read_all", counted)
    return found


def agrees(model: ReadModel, database_url: str) -> bool:
    """Whether the model is what one is that reads everything."""
    database = ServiceDatabase(database_url)
    with ReadModel(database).fresh() as expected, model.fresh() as view:
        same = content(view.snapshot) == content(expected.snapshot)
        same = same and view.names.__dict__ == expected.names.__dict__
        seqs = {each.uuid: expected.change_seq(each) for each in expected.snapshot}
        same = same and {each.uuid: view.change_seq(each) for each in view.snapshot} == seqs
    database.close()
    return same


def change_much(tx: WriteTransaction) -> None:
    providers.create(tx, OTHER, "other", None)
    classes.create(tx, "CUSTOM_NEW")
    inventories.add(tx, OTHER, "CUSTOM_NEW", FOUR)
    traits.replace(tx, HOST, 0, ["COMPUTE_NODE"])
    allocations.replace(tx, [build_claim(OTHER, {CHILD: {"VCPU": 3}})])


def test_nothing_is_read_where_nothing_changed(
    written: None,
    start: Start,
    whole_readings: list[None],
    database_url: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    model = start()
    assert not whole_readings
    assert agrees(model, database_url)
    assert model.reread == 0
    assert "not used" not in caplog.text


def test_what_changed_since_is_read(
    written: None, start: Start, whole_readings: list[None], writer: ServiceDatabase, database_url: str
) -> None:
    writer.write(change_much)
    model = start()
    assert not whole_readings
    assert agrees(model, database_url)
    writer.write(lambda tx: inventories.remove_all(tx, OTHER))
    assert agrees(model, database_url)


def test_what_was_deleted_since_is_gone(
    written: None, start: Start, whole_readings: list[None], writer: ServiceDatabase, database_url: str
) -> None:
    writer.write(lambda tx: providers.delete(tx, CHILD))
    model = start()
    assert not whole_readings
    assert agrees(model, database_url)


def test_what_is_written_by_a_worker_that_started_from_the_file_is_as_good(
    written: None,
    start: Start,
    whole_readings: list[None],
    writer: ServiceDatabase,
    file: ModelFile,
    database_url: str,
) -> None:
    model = start()
    writer.write(change_much)
    with model.fresh():
        pass
    os.utime(file.path, (0, 0))
    write(model)
    assert agrees(start(), database_url)
    assert len(whole_readings) == 1  # of who judged


def back(server: DatabaseServer, writer: ServiceDatabase, url: str, start: Start, file: ModelFile) -> None:
    """The file is of what a restore takes away again; then others come to as many changes and more."""
    backup = server.backup(url)
    writer.write(change_much)
    file.discard()
    write(start())
    server.restore(url, backup)
    for number in range(20):
        writer.write(
            lambda tx, number=number: providers.update(
                tx, HOST, f"host{number}", None, sets_parent=False, may_move=False
            )
        )  # type: ignore[misc]


def test_a_database_that_was_restored_since_is_read(
    start: Start, writer: ServiceDatabase, file: ModelFile, database_url: str,
    database_server: DatabaseServer, caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    back(database_server, writer, database_url, start, file)
    model = start()
    assert agrees(model, database_url)
    assert caplog.text.count("is not used: the database does not go on from where it was") == 1
    assert model.reread == 0
    assert not Path(file.path).exists()


def test_a_file_of_another_database_is_not_used(
    written: None, file: ModelFile, database_server: DatabaseServer, caplog: pytest.LogCaptureFixture
) -> None:
    url = database_server.fresh_database()
    migration.upgrade(url)
    database = ServiceDatabase(url)
    database.write(lambda tx: classes.make_standard_names(tx, ["LLC", "MBA"]))
    model = ReadModel(database, file=file)
    with model.fresh() as view:
        assert len(view.snapshot) == 0
    database.close()
    assert caplog.text.count("is not used") == 1


def test_a_file_from_before_a_new_epoch_is_not_used(
    written: None,
    start: Start,
    writer: ServiceDatabase,
    whole_readings: list[None],
    caplog: pytest.LogCaptureFixture,
) -> None:
    writer.write(lambda tx: tx.renew_epoch())
    start()
    assert "is not used: the database has a new epoch" in caplog.text
    assert len(whole_readings) == 1


def test_a_file_from_before_counters_were_set_back_is_not_used(
    written: None, start: Start, writer: ServiceDatabase, caplog: pytest.LogCaptureFixture
) -> None:
    writer.write(
        lambda tx: tx.conn.execute(sa.update(change_buckets).values(counter=change_buckets.c.counter / 2))
    )
    start()
    assert caplog.text.count("is not used") == 1


@pytest.mark.parametrize("damage", [b"", b"nonsense", b"\x80\x04\x95K\x00"])
def test_a_damaged_file_is_not_used_and_replaced_by_the_next_writing(
    written: None, start: Start, file: ModelFile, damage: bytes, whole_readings: list[None],
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    file.write([damage])
    model = start()
    assert caplog.text.count("is not used") == len(whole_readings) == 1
    write(model)
    start()
    assert len(whole_readings) == 1


def test_what_the_database_broke_off_to_confirm_is_shown_to_nobody(
    written: None,
    file: ModelFile,
    writer: ServiceDatabase,
    database_url: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    writer.write(change_much)
    database = ServiceDatabase(database_url)
    model = ReadModel(database, file=file)

    def broken(*_: Any) -> Any:
        raise sa.exc.OperationalError("", {}, Exception("gone"))

    with monkeypatch.context() as patched:
        patched.setattr(rows, "read_changed", broken)
        with pytest.raises((sa.exc.OperationalError, Unavailable)), model.fresh():
            pytest.fail("there was an answer")
    assert agrees(model, database_url)
    database.close()
