"""The moment at which our database becomes a copy."""

import logging
import sqlite3
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from placement.exceptions import InvalidRequest
from placement.store.consumers import ConsumerOwnership
from placement_extras.migration import importer
from placement_extras.shadow import copied_databases
from placement_extras.shadow.copied_databases import MOMENTS, CopiedDatabases, CopyMoment, copy
from placement_extras.shadow.copy_queue import ByteBacklog
from placement_extras.shadow.exchange import MirroredRequest, ShadowRequest
from placement_extras.shadow.follower import BOUNDS, was_quiet

DATABASES = CopiedDatabases("their", "ours", ConsumerOwnership("p", "u", None), ())


class Copied:
    """Which moments were looked at, one a second from 1 on, and which were copied."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.looked_at: list[float] = []
        self.copied: list[float] = []
        monkeypatch.setattr(copied_databases, "open_database", self._open)
        monkeypatch.setattr(copied_databases, "_source", self._source)
        monkeypatch.setattr(importer, "run", lambda *_, **__: self.copied.append(self.looked_at[-1]))

    @contextmanager
    def _open(self, url: str) -> Iterator[None]:
        yield

    @contextmanager
    def _source(self, databases: CopiedDatabases) -> Iterator[tuple[Any, CopyMoment]]:
        self.looked_at.append(len(self.looked_at) + 1.0)
        yield None, CopyMoment(self.looked_at[-1], self.looked_at[-1] + 0.1)


@pytest.fixture
def copied(monkeypatch: pytest.MonkeyPatch) -> Copied:
    return Copied(monkeypatch)


def test_it_is_one_at_which_nothing_was_written(copied: Copied) -> None:
    assert copy(DATABASES, lambda moment: moment.earliest >= 3).earliest == 3
    assert (copied.looked_at, copied.copied) == ([1, 2, 3], [3])


def test_if_there_is_none_the_last_is_taken_and_the_log_says_so(
    copied: Copied, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        assert copy(DATABASES, lambda _: False).earliest == MOMENTS
    assert copied.copied == [MOMENTS]
    assert "There was no moment without a write" in caplog.text


@pytest.mark.parametrize(
    ("method", "started", "seconds", "quiet"),
    [
        ("GET", 5.0, 1.0, True),
        ("PUT", 5.0, 0.9, True),
        ("PUT", 5.0, 1.0, False),
        ("PUT", 6.05, 1.0, False),
        ("PUT", 6.1, 1.0, True),
    ],
)
def test_a_write_in_flight_is_one_that_may_be_in_it_or_not(
    method: str, started: float, seconds: float, quiet: bool
) -> None:
    backlog = ByteBacklog(BOUNDS)
    backlog.put(
        MirroredRequest(
            1, ShadowRequest(method, "/traits/CUSTOM_A", (), b""), None, started, seconds, frozenset()
        )
    )
    assert was_quiet(backlog, CopyMoment(6.0, 6.1)) is quiet


@pytest.fixture
def source(tmp_path: Path) -> CopiedDatabases:
    """A file of a megabyte, to be copied."""
    file = tmp_path / "stock.sqlite"
    with closing(sqlite3.connect(file)) as there, there:
        there.execute("CREATE TABLE t AS SELECT zeroblob(1000000) AS x")
    return CopiedDatabases(f"sqlite:///{file}", "", ConsumerOwnership("p", "u", None), ())


def test_no_folder_for_the_copy_is_said(
    source: CopiedDatabases, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "none"))
    with pytest.raises(InvalidRequest, match=r"no folder for a copy of the source database: .*none"):
        copied_databases._source(source).__enter__()


@pytest.mark.root
def test_a_disk_on_which_the_copy_finds_no_room_is_named(
    source: CopiedDatabases, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = tmp_path / "small"
    small.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=200k", "tmpfs", str(small)]).returncode:
        pytest.skip("no file system may be mounted here")
    try:
        monkeypatch.setattr(tempfile, "tempdir", str(small))
        with pytest.raises(InvalidRequest, match=f"copied to {small} .*TMPDIR.*disk is full"):
            copied_databases._source(source).__enter__()
        assert list(small.iterdir()) == []
    finally:
        subprocess.run(["umount", str(small)], check=True)
