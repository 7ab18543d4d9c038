"""Tests of the file of samples: it is written in batches, limited in size, and its failures do not stop the
measurement.
"""

import logging
import os
import sqlite3
import threading

import pytest

from compute_agent.monitoring import samples as store_module
from compute_agent.monitoring.samples import SampleStore, StoredSample, connect_to_write

DAY = 86400.0
LARGE = 10**9


def sample(time, guest="one", cache=0, **values):
    return StoredSample(time, guest, f"vm-{guest}", "LS", cache, **values)


def rows(path, query="SELECT time, cache_id, occupancy, local, total, cpu FROM samples ORDER BY 1, 2"):
    with sqlite3.connect(path) as connection:
        return connection.execute(query).fetchall()


@pytest.fixture
def path(tmp_path):
    return tmp_path / "samples.db"


@pytest.fixture
def store(path):
    store = SampleStore(path, retention=DAY, max_bytes=LARGE)
    yield store
    store.close()


def test_all_samples_are_written_by_the_flush(store, path):
    store.add(
        [sample(1000.0, occupancy=7, local=1.5, total=2.5, cpu=0.25), sample(1000.0, cache=None, cpu=1.0)]
    )
    assert not path.exists()
    store.flush(1000.0)
    assert rows(path) == [(1000.0, -1, None, None, None, 1.0), (1000.0, 0, 7, 1.5, 2.5, 0.25)]
    assert rows(path, "SELECT guest, name, class FROM targets") == [("one", "vm-one", "LS")]
    store.flush(1001.0)
    assert len(rows(path)) == 2


def test_samples_go_when_they_are_too_old_and_their_targets_with_the_last_of_them(store, path):
    store.add([sample(0.0, "old"), sample(0.0), sample(DAY)])
    store.flush(DAY)
    assert [row[0] for row in rows(path)] == [0.0, 0.0, DAY]
    store.add([sample(DAY + 1)])
    store.flush(DAY + 1)
    assert [row[0] for row in rows(path)] == [DAY, DAY + 1]
    assert rows(path, "SELECT guest FROM targets") == [("one",)]
    store.add([sample(DAY + 2, "old")])
    store.flush(DAY + 2)
    assert rows(path, "SELECT guest FROM targets ORDER BY 1") == [("old",), ("one",)]


def test_the_oldest_go_when_samples_take_too_much_room(store, path):
    store.retention = 1e9
    store.max_bytes = 120_000
    for batch in range(20):
        store.add([sample(batch * 100.0 + n, f"g{g}", total=float(n)) for n in range(100) for g in range(5)])
        store.flush(0.0)
        assert path.stat().st_size <= 180_000
    times = [row[0] for row in rows(path)]
    assert max(times) == 1999.0
    assert min(times) > 500.0
    assert len(times) > 1500
    store.max_bytes = 50_000  # a smaller limit shrinks the file
    store.add([sample(2000.0)])
    store.flush(2000.0)
    store.close()
    assert path.stat().st_size <= 60_000
    assert max(row[0] for row in rows(path)) == 2000.0


def test_the_next_store_goes_on_with_the_file(store, path):
    store.add([sample(1.0)])
    store.flush(1.0)
    store.close()
    other = SampleStore(path, DAY, LARGE)
    other.add([sample(2.0)])
    other.flush(2.0)
    other.close()
    assert [row[0] for row in rows(path)] == [1.0, 2.0]
    assert len(rows(path, "SELECT id FROM targets")) == 1


def test_a_sample_of_the_same_moment_takes_the_place_of_the_other(store, path):
    store.add([sample(1.0, total=1.0), sample(1.0, total=2.0)])
    store.flush(1.0)
    assert [row[4] for row in rows(path)] == [2.0]


OTHER_DATABASE = "CREATE TABLE t (x); INSERT INTO t VALUES (1)"
NEWER = "PRAGMA user_version = 99; CREATE TABLE samples (x)"


@pytest.mark.parametrize("content", [b"no database at all" * 100, OTHER_DATABASE, NEWER])
def test_a_file_that_is_of_no_use_is_put_aside_once(store, path, content, caplog):
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        with sqlite3.connect(path) as connection:
            connection.executescript(content)
    before = path.read_bytes()
    store.add([sample(1.0)])
    with caplog.at_level(logging.WARNING):
        store.flush(1.0)
        store.add([sample(2.0)])
        store.flush(2.0)
    assert [row[0] for row in rows(path)] == [1.0, 2.0]
    assert path.with_name("samples.db.unusable").read_bytes() == before
    assert len(caplog.records) == 1
    assert store.failures == 0


def test_samples_are_not_written_through_a_symbolic_link(store, path, tmp_path, caplog):
    target = tmp_path / "elsewhere"
    path.symlink_to(target)
    store.add([sample(1000.0)])
    store.flush(1000.0)
    assert not target.exists()
    assert f"{path} is a symbolic link" in caplog.text
    path.unlink()
    store.flush(1001.0)
    assert len(rows(path)) == 1


def test_a_file_that_is_damaged_while_it_is_in_use_is_put_aside(store, path):
    store.add([sample(float(n), f"g{n % 50}") for n in range(20_000)])
    store.flush(0.0)
    store.close()
    size = path.stat().st_size
    with path.open("r+b") as file:
        for page in range(4096, size, 4096):
            file.seek(page)
            file.write(os.urandom(4096))
    for time in (1.0, 2.0):
        store.add([sample(time, "new")])
        store.flush(time)
    assert path.with_name("samples.db.unusable").exists()
    assert [row[0] for row in rows(path)] == [1.0, 2.0]


def test_a_file_that_others_lock_waits_and_nothing_is_lost(store, path, caplog, monkeypatch):
    monkeypatch.setattr(store_module, "LOCK_SECONDS", 0.01)
    store.add([sample(1.0)])
    store.flush(1.0)
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    store.close()
    with caplog.at_level(logging.INFO):
        for time in (2.0, 3.0):
            store.add([sample(time)])
            store.flush(time)
        assert [record.levelname for record in caplog.records] == ["WARNING"]
        assert "locked" in caplog.text
        other.execute("COMMIT")
        other.close()
        store.flush(4.0)
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"]
    assert [row[0] for row in rows(path)] == [1.0, 2.0, 3.0]
    assert store.failures == 2


def test_a_full_disk_costs_samples_and_one_line_in_the_log(store, path, caplog, monkeypatch):
    monkeypatch.setattr(store_module, "MAX_PENDING", 5)
    store = SampleStore(path, DAY, LARGE)

    def connect_full(*given):
        connection = connect_to_write(*given)
        connection.execute("PRAGMA max_page_count = 1")
        return connection

    with monkeypatch.context() as patch, caplog.at_level(logging.WARNING):
        patch.setattr(store_module, "connect_to_write", connect_full)
        for time in range(10):
            store.add([sample(float(time))])
            store.flush(float(time))
    assert ["disk is full" in one.message for one in caplog.records] == [True]
    store.flush(10.0)
    assert [row[0] for row in rows(path)] == [5.0, 6.0, 7.0, 8.0, 9.0]
    store.close()


def test_a_folder_that_is_missing_is_a_failure_until_it_is_there(tmp_path):
    store = SampleStore(tmp_path / "state/samples.db", DAY, LARGE)
    store.add([sample(1.0)])
    store.flush(1.0)
    assert store.failures == 1
    (tmp_path / "state").mkdir()
    store.flush(2.0)
    assert [row[0] for row in rows(store.path)] == [1.0]
    store.close()


def test_others_read_while_it_is_written(store, path):
    store.add([sample(0.0)])
    store.flush(0.0)
    seen, stop = [], threading.Event()

    def read():
        with sqlite3.connect(path) as connection:
            while not stop.is_set():
                seen.append(connection.execute("SELECT count(*) FROM samples").fetchone()[0])

    reader = threading.Thread(target=read)
    reader.start()
    for batch in range(1, 20):
        store.add([sample(batch * 100.0 + n) for n in range(50)])
        store.flush(0.0)
    stop.set()
    reader.join()
    assert store.failures == 0
    assert all((count - 1) % 50 == 0 for count in seen)  # whole batches only
