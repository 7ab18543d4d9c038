"""Tests of reading stored samples, with and without an agent that writes them."""

import sqlite3

import pytest

from compute_agent.monitoring.history import HistoryError, SampleHistory, TimeSpan
from compute_agent.monitoring.samples import SampleStore, StoredSample

ONE, TWO = "11111111-0000-4000-8000-000000000001", "22222222-0000-4000-8000-000000000002"
ALWAYS = TimeSpan(0.0, 1e12)


def sample(time, guest, name, qos_class="LS", cache=0, **values):
    return StoredSample(time, guest, name, qos_class, cache, **values)


SAMPLES = [
    sample(10.0, ONE, "web", cache=0, occupancy=1, total=5.0, local=4.0, cpu=0.5),
    sample(10.0, ONE, "web", cache=1, occupancy=2),
    sample(20.0, ONE, "web", "BE", cache=0, occupancy=3),
    sample(20.0, TWO, "db", cache=None, cpu=2.0),
    sample(15.0, "", "", "LS", total=9.0),
]


@pytest.fixture
def path(tmp_path):
    """The path of a file with a name that would mean another file in a URL."""
    folder = tmp_path / "a?b #c%20"
    folder.mkdir()
    return folder / "samples.db"


@pytest.fixture
def store(path):
    store = SampleStore(path, 1e9, 10**9)
    store.add(SAMPLES)
    store.flush(0.0)
    yield store
    store.close()


@pytest.mark.parametrize("running", [True, False])
def test_samples_come_back_as_they_were(path, store, running):
    if not running:
        store.close()
    history = SampleHistory(path)
    assert history.samples_of(ONE, ALWAYS) == SAMPLES[:3]  # whatever its class was
    assert history.samples_of("web", ALWAYS) == SAMPLES[:3]
    assert history.samples_of(ONE.upper(), TimeSpan(10.0, 10.0)) == SAMPLES[:2]
    assert history.samples_of(ONE, TimeSpan(11.0, 19.0)) == []
    assert history.samples_of(TWO, ALWAYS) == [SAMPLES[3]]
    assert history.samples_of("LS", ALWAYS) == [SAMPLES[4]]


def test_the_last_samples_of_all_are_one_moment_of_each(path, store):
    assert SampleHistory(path).latest_samples() == [SAMPLES[4], SAMPLES[2], SAMPLES[3]]


def test_readers_see_only_whole_writes(path, store):
    history = SampleHistory(path)
    store.add([sample(30.0, TWO, "db", total=1.0)])
    assert len(history.samples_of(TWO, ALWAYS)) == 1
    store.flush(0.0)
    assert len(history.samples_of(TWO, ALWAYS)) == 2


def test_reading_changes_nothing(path, store):
    store.close()
    before = path.read_bytes()
    SampleHistory(path).latest_samples()
    assert path.read_bytes() == before
    assert sorted(file.name for file in path.parent.iterdir()) == ["samples.db"]


@pytest.mark.parametrize("wanted", ["nobody", "BE", "", ONE[:8]])
def test_an_unknown_guest_is_named_in_the_error(path, store, wanted):
    with pytest.raises(HistoryError, match=f"no samples of a guest or class {wanted}"):
        SampleHistory(path).samples_of(wanted, ALWAYS)


def test_a_name_of_several_guests_is_not_taken_for_one(path, store):
    store.add([sample(30.0, TWO, "web")])
    store.flush(0.0)
    with pytest.raises(HistoryError, match=f"several guests are called web: {ONE}, {TWO}"):
        SampleHistory(path).samples_of("web", ALWAYS)


def test_without_a_file_there_are_no_samples(tmp_path):
    with pytest.raises(HistoryError, match=r"no file .*none\.db"):
        SampleHistory(tmp_path / "none.db")


@pytest.mark.parametrize("content", ["garbage", "empty"])
def test_a_file_of_something_else_cannot_be_read(tmp_path, content):
    path = tmp_path / "samples.db"
    if content == "garbage":
        path.write_bytes(b"garbage" * 1000)
    else:
        sqlite3.connect(path).execute("CREATE TABLE t (x)").close()
    with pytest.raises(HistoryError, match="cannot be read"):
        SampleHistory(path).latest_samples()
