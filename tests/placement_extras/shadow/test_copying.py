"""Tests of choosing the moment at which the database is copied."""

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
from placement_extras.shadow.copied_databases import MAX_MOMENTS, CopiedDatabases, CopyMoment, copy
from placement_extras.shadow.copy_queue import ByteBacklog
from placement_extras.shadow.exchange import MirroredRequest, ShadowRequest
from placement_extras.shadow.follower import BOUNDS

DATABASES = CopiedDatabases("their", "ours", ConsumerOwnership("p", "u", None), ())


class CopyRecorder:
    """Records the moments that were tried (one in each second, from 1 on), and those at which the database
    was copied.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.looked_at: list[float] = []
        self.copied: list[float] = []
        monkeypatch.setattr(copied_databases, "open_database", self._open)
        monkeypatch.setattr(copied_databases, "_open_copy", self._open_copy)
        monkeypatch.setattr(importer, "run", lambda *_, **__: self.copied.append(self.looked_at[-1]))

    @contextmanager
    def _open(self, url: str) -> Iterator[None]:
        yield

    @contextmanager
    def _open_copy(self, databases: CopiedDatabases) -> Iterator[tuple[Any, CopyMoment]]:
        self.looked_at.append(len(self.looked_at) + 1.0)
        yield None, CopyMoment(self.looked_at[-1], self.looked_at[-1] + 0.1)


@pytest.fixture
def copied(monkeypatch: pytest.MonkeyPatch) -> CopyRecorder:
    return CopyRecorder(monkeypatch)


def test_the_copy_is_of_a_moment_without_a_write(copied: CopyRecorder) -> None:
    assert copy(DATABASES, lambda moment: moment.earliest >= 3).earliest == 3
    assert (copied.looked_at, copied.copied) == ([1, 2, 3], [3])


def test_the_last_moment_is_copied_with_a_warning_if_none_is_quiet(
    copied: CopyRecorder, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        assert copy(DATABASES, lambda _: False).earliest == MAX_MOMENTS
    assert copied.copied == [MAX_MOMENTS]
    assert "Clients wrote to the database during the copy" in caplog.text


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
def test_a_moment_is_quiet_without_a_write_in_flight(
    method: str, started: float, seconds: float, quiet: bool
) -> None:
    backlog = ByteBacklog(BOUNDS)
    backlog.put(
        MirroredRequest(
            1, ShadowRequest(method, "/traits/CUSTOM_A", (), b""), None, started, seconds, frozenset()
        )
    )
    assert backlog.any_waiting(CopyMoment(6.0, 6.1).is_within) is not quiet


@pytest.fixture
def source(tmp_path: Path) -> CopiedDatabases:
    """A file of one megabyte that is copied."""
    file = tmp_path / "stock.sqlite"
    with closing(sqlite3.connect(file)) as there, there:
        there.execute("CREATE TABLE t AS SELECT zeroblob(1000000) AS x")
    return CopiedDatabases(f"sqlite:///{file}", "", ConsumerOwnership("p", "u", None), ())


def test_a_missing_folder_for_the_copy_is_named(
    source: CopiedDatabases, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "none"))
    with pytest.raises(InvalidRequest, match=r"no folder for a copy of the source database: .*none"):
        copied_databases.check_databases(source)


@pytest.mark.root
def test_a_full_disk_for_the_copy_is_named(
    source: CopiedDatabases, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = tmp_path / "small"
    small.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=200k", "tmpfs", str(small)]).returncode:
        pytest.skip("no file system may be mounted here")
    try:
        monkeypatch.setattr(tempfile, "tempdir", str(small))
        with pytest.raises(InvalidRequest, match=f"copied to {small} .*TMPDIR.*disk is full"):
            copied_databases.check_databases(source)
        assert list(small.iterdir()) == []
    finally:
        subprocess.run(["umount", str(small)], check=True)
