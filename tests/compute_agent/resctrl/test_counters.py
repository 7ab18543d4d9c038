"""Tests of the files of counters, which stay open up to a limit, and are closed later."""

import errno
import os
from collections.abc import Iterator

import pytest

from compute_agent.resctrl.filesystem import ResctrlError
from compute_agent.resctrl.monitoring import OCCUPANCY, CounterFiles
from tests.compute_agent.resctrl import fake

EACH = 6  # two caches, three events


@pytest.fixture
def files(tmp_path) -> fake.FakeResctrl:
    files = fake.FakeResctrl.of(fake.INTEL, tmp_path / "tree")
    for group in ("a", "b", "c"):
        files.make_folder(group)
    return files


@pytest.fixture
def counters(files: fake.FakeResctrl) -> Iterator[CounterFiles]:
    """Counter files that may stay open for two groups and one more file."""
    found = CounterFiles(files, 2 * EACH + 1)
    yield found
    found.close()


def still_open(files: fake.FakeResctrl) -> dict[str, int]:
    """The number of open files of each group."""
    names = []
    for number in os.listdir("/proc/self/fd"):
        try:
            names.append(os.readlink(f"/proc/self/fd/{number}"))
        except FileNotFoundError:
            continue  # that of the folder itself
    counts = {each: sum(f"{files.root}/{each}/mon_data" in name for name in names) for each in "abc"}
    return {group: count for group, count in counts.items() if count}


def test_files_stay_open_up_to_the_limit(files: fake.FakeResctrl, counters: CounterFiles) -> None:
    for group in "abcabc":
        assert len(counters.read_sample(group, 1.0).values) == EACH
    assert still_open(files) == {"a": EACH, "b": EACH, "c": 1}


def test_a_forgotten_group_frees_descriptors_for_others(
    files: fake.FakeResctrl, counters: CounterFiles
) -> None:
    for group in "ab":
        counters.read_sample(group, 1.0)
    counters.forget_group("a")
    assert still_open(files) == {"b": EACH}
    counters.forget_group("a")
    counters.read_sample("c", 1.0)
    assert still_open(files) == {"b": EACH, "c": EACH}
    counters.keep_groups(["c"])
    assert still_open(files) == {"c": EACH}
    for group in "ab":
        counters.read_sample(group, 1.0)
    assert still_open(files) == {"c": EACH, "a": EACH, "b": 1}
    counters.close()
    assert still_open(files) == {}


def test_a_limit_of_0_keeps_no_file_open(files: fake.FakeResctrl) -> None:
    counters = CounterFiles(files, 0)
    assert len(counters.read_sample("a", 1.0).values) == EACH
    assert still_open(files) == {}
    counters.close()


def test_open_files_show_current_values(files: fake.FakeResctrl, counters: CounterFiles) -> None:
    file = files.root / "a" / "mon_data" / "mon_L3_01" / OCCUPANCY
    for value in (5, 123456789, 7):
        file.write_text(f"{value}\n")
        assert counters.read_sample("a", float(value)).values[1, OCCUPANCY] == value


def test_a_removed_group_is_an_error_and_leaves_no_file_open(
    files: fake.FakeResctrl, counters: CounterFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    counters.read_sample("a", 1.0)

    def fail(*_: object) -> bytes:
        raise OSError(errno.ENODEV, "gone")

    with monkeypatch.context() as patch:
        patch.setattr(os, "pread", fail)
        with pytest.raises(ResctrlError) as caught:
            counters.read_sample("a", 2.0)
    assert (caught.value.errno, still_open(files)) == (errno.ENODEV, {})
    assert len(counters.read_sample("a", 3.0).values) == EACH  # the files are opened again
    assert still_open(files) == {"a": EACH}


class NotedPlace:
    """Records on which cache a thread is when it reads."""

    def __init__(self) -> None:
        self.cache: int | None = None
        self.reads: list[tuple[int | None, str]] = []

    def move_near(self, cache: int) -> None:
        self.cache = cache

    def return_home(self) -> None:
        self.cache = None


def test_counters_of_a_cache_are_read_from_there(
    files: fake.FakeResctrl, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, read = NotedPlace(), os.pread

    def noted(descriptor: int, size: int, offset: int) -> bytes:
        place.reads.append((place.cache, os.readlink(f"/proc/self/fd/{descriptor}")))
        return read(descriptor, size, offset)

    monkeypatch.setattr(os, "pread", noted)
    counters = CounterFiles(files, place=place)
    found = counters.read_samples(["a", "missing", "b", "a"], 1.0)
    counters.close()
    assert {group: isinstance(one, ResctrlError) for group, one in found.items()} == {
        "a": False,
        "b": False,
        "missing": True,
    }
    assert len(place.reads) == 2 * EACH
    assert all(f"/mon_L3_0{cache}/" in path for cache, path in place.reads)
    # One move for each cache, and back.
    assert [cache for cache, _ in place.reads] == sorted(
        cache for cache, _ in place.reads if cache is not None
    )
    assert place.cache is None
