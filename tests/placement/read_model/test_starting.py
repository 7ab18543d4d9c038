"""Tests of a worker that starts from the file of the model if this file belongs to the database's history,
and otherwise without it.
"""

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
from placement.read_model.model_file import ModelFile, ModelFileWriter, find_preloaded, preloaded_model
from placement.store import allocations, inventories, known_names, provider_properties, providers
from tests.databases import DatabaseServer
from tests.placement.read_model.builders import content
from tests.placement.store.builders import build_claim, inventory_values

HOST = "00000001-0000-4000-8000-000000000000"
CHILD = "00000002-0000-4000-8000-000000000000"
OTHER = "00000003-0000-4000-8000-000000000000"
FOUR = inventory_values(4)

Start = Callable[[], ReadModel]


@pytest.fixture
def writer(database_url: str) -> Iterator[ServiceDatabase]:
    """The database with a host that has a child provider, as another worker uses it to write."""
    database = ServiceDatabase(database_url)

    def fill(tx: WriteTransaction) -> None:
        known_names.make_standard_names(tx, ["LLC", "MBA"])
        providers.create_provider(tx, HOST, "host", None)
        providers.create_provider(tx, CHILD, "child", HOST)
        inventories.add(tx, CHILD, "VCPU", FOUR)

    database.write(fill)
    yield database
    database.close()


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModelFile:
    """The file of the model. It is written only where a test says so."""
    monkeypatch.setattr(ModelFileWriter, "start_if_due", lambda self: None)
    return ModelFile(str(tmp_path / "model"))


@pytest.fixture
def start(writer: ServiceDatabase, database_url: str, file: ModelFile) -> Iterator[Start]:
    """Start a worker, and let it answer a request."""
    databases = []

    def worker() -> ReadModel:
        databases.append(ServiceDatabase(database_url))
        model = ReadModel(databases[-1], file=file)
        with model.fresh_view():
            pass
        return model

    yield worker
    for each in databases:
        each.close()


@pytest.fixture
def written(start: Start) -> None:
    """A worker that has written the file of its model."""
    write(start())


def write(model: ReadModel) -> None:
    assert model.writer is not None
    model.writer.write()


@pytest.fixture
def whole_readings(monkeypatch: pytest.MonkeyPatch) -> list[None]:
    """A list with one item for each time that everything is read from the database."""
    read_all, found = rows.read_all, []

    def counted(*arguments: Any) -> Any:
        found.append(None)
        return read_all(*arguments)

    monkeypatch.setattr(rows, "read_all", counted)
    return found


def agrees(model: ReadModel, database_url: str) -> bool:
    """Whether the model equals a model that was read completely from the database."""
    database = ServiceDatabase(database_url)
    with ReadModel(database).fresh_view() as expected, model.fresh_view() as view:
        same = content(view.snapshot) == content(expected.snapshot)
        same = same and view.names.__dict__ == expected.names.__dict__
        seqs = {each.uuid: expected.change_seq(each) for each in expected.snapshot}
        same = same and {each.uuid: view.change_seq(each) for each in view.snapshot} == seqs
    database.close()
    return same


def change_much(tx: WriteTransaction) -> None:
    providers.create_provider(tx, OTHER, "other", None)
    known_names.create_class(tx, "CUSTOM_NEW")
    inventories.add(tx, OTHER, "CUSTOM_NEW", FOUR)
    provider_properties.replace_traits(tx, HOST, 0, ["COMPUTE_NODE"])
    allocations.replace(tx, [build_claim(OTHER, {CHILD: {"VCPU": 3}})])


def test_an_unchanged_database_is_not_read_at_the_start(
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


def test_changes_since_the_write_are_read(
    written: None, start: Start, whole_readings: list[None], writer: ServiceDatabase, database_url: str
) -> None:
    writer.write(change_much)
    model = start()
    assert not whole_readings
    assert agrees(model, database_url)
    writer.write(lambda tx: inventories.remove_all(tx, OTHER))
    assert agrees(model, database_url)


def test_providers_deleted_since_the_write_are_gone(
    written: None, start: Start, whole_readings: list[None], writer: ServiceDatabase, database_url: str
) -> None:
    writer.write(lambda tx: providers.delete(tx, CHILD))
    model = start()
    assert not whole_readings
    assert agrees(model, database_url)


def test_a_worker_that_started_from_the_file_writes_an_equal_one(
    written: None,
    start: Start,
    whole_readings: list[None],
    writer: ServiceDatabase,
    file: ModelFile,
    database_url: str,
) -> None:
    model = start()
    writer.write(change_much)
    with model.fresh_view():
        pass
    os.utime(file.path, (0, 0))
    write(model)
    assert agrees(start(), database_url)
    assert len(whole_readings) == 1  # of the judge


def back(server: DatabaseServer, writer: ServiceDatabase, url: str, start: Start, file: ModelFile) -> None:
    """Restore the database to a state before changes that the file has. Other changes then raise the counters
    further.
    """
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


def test_a_database_restored_since_the_write_is_read(
    start: Start, writer: ServiceDatabase, file: ModelFile, database_url: str,
    database_server: DatabaseServer, caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    back(database_server, writer, database_url, start, file)
    model = start()
    assert agrees(model, database_url)
    assert caplog.text.count("is not used: the database has another history") == 1
    assert model.reread == 0
    assert not Path(file.path).exists()


def test_a_file_of_another_database_is_not_used(
    written: None, file: ModelFile, database_server: DatabaseServer, caplog: pytest.LogCaptureFixture
) -> None:
    url = database_server.fresh_database()
    migration.upgrade_schema(url)
    database = ServiceDatabase(url)
    database.write(lambda tx: known_names.make_standard_names(tx, ["LLC", "MBA"]))
    model = ReadModel(database, file=file)
    with model.fresh_view() as view:
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


def test_a_state_that_the_database_did_not_confirm_is_in_no_view(
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
        with pytest.raises((sa.exc.OperationalError, Unavailable)), model.fresh_view():
            pytest.fail("there was an answer")
    assert agrees(model, database_url)
    database.close()


def test_a_worker_takes_the_model_that_its_parent_has_read(
    written: None, start: Start, whole_readings: list[None], file: ModelFile, writer: ServiceDatabase,
    database_url: str, caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    with preloaded_model(file.path):
        writer.write(change_much)
        file.discard()
        model = start()
        assert not whole_readings
        assert find_preloaded(file.path) is None
    assert agrees(model, database_url)
    assert "not used" not in caplog.text
    writer.write(lambda tx: inventories.remove_all(tx, OTHER))
    assert agrees(model, database_url)


def test_a_worker_reads_a_newer_file_if_the_model_of_its_parent_is_of_no_use(
    start: Start, whole_readings: list[None], file: ModelFile, writer: ServiceDatabase, database_url: str,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    caplog.set_level("INFO")
    other = start()
    write(other)
    with preloaded_model(file.path):
        writer.write(lambda tx: tx.renew_epoch())
        with other.fresh_view():
            os.utime(file.path, (0, 0))
        write(other)
        whole_readings.clear()
        model = start()
    assert not whole_readings
    assert "The read model of the parent process is not used: the database has a new epoch" in caplog.text
    assert Path(file.path).exists()
    assert (agrees(model, database_url), model.reread) == (True, 0)


def test_the_model_of_the_parent_is_kept_until_the_database_answers(
    written: None, start: Start, whole_readings: list[None], file: ModelFile, database_url: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    with preloaded_model(file.path):
        database = ServiceDatabase(database_url)
        model = ReadModel(database, file=file)

        def broken(*_: Any) -> Any:
            raise sa.exc.OperationalError("", {}, Exception("gone"))

        with monkeypatch.context() as patched:
            patched.setattr(database, "read", broken)
            with pytest.raises(sa.exc.OperationalError), model.fresh_view():
                pytest.fail("there was an answer")
        file.discard()
        with model.fresh_view():
            pass
    assert not whole_readings
    assert agrees(model, database_url)
    database.close()


@pytest.mark.parametrize("damage", [None, b"nonsense"])
def test_a_parent_leaves_a_file_that_it_cannot_use_to_the_workers(
    start: Start, file: ModelFile, damage: bytes | None, whole_readings: list[None],
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    if damage is not None:
        file.write([damage])
    with preloaded_model(file.path):
        assert find_preloaded(file.path) is None
        assert Path(file.path).exists() == (damage is not None)
        assert not caplog.text
        start()
    assert len(whole_readings) == 1
    assert ("is not used" in caplog.text) == (damage is not None)


def test_a_parent_drops_the_model_after_the_start_of_workers(written: None, file: ModelFile) -> None:
    with preloaded_model(file.path):
        found = find_preloaded(file.path)
        assert found is not None
        # a reload also starts missing workers
        with preloaded_model(file.path):
            assert find_preloaded(file.path) is found
        assert find_preloaded(file.path) is found
    assert find_preloaded(file.path) is None
