"""Tests of choosing the moment at which the database is copied."""

import logging
import sqlite3
import subprocess
import tempfile
from contextlib import closing, nullcontext
from dataclasses import replace
from pathlib import Path

import pytest

from placement.db import migration
from placement.exceptions import InvalidRequest, ServiceError
from placement.store.consumers import ConsumerOwnership
from placement_extras.migration import importer
from placement_extras.migration.stock_database import StockContent
from placement_extras.shadow import copied_databases
from placement_extras.shadow.copied_databases import MAX_MOMENTS, CopiedDatabases, CopyMoment, copy
from placement_extras.shadow.copy_queue import ByteBacklog
from placement_extras.shadow.exchange import MirroredRequest, ShadowRequest
from placement_extras.shadow.follower import BOUNDS
from tests.placement_extras.migration.reference_world import ReferenceDatabase

OWNER = ConsumerOwnership("p", "u", None)


@pytest.fixture
def stock(tmp_path: Path) -> CopiedDatabases:
    """An empty database of OpenStack Placement."""
    url = f"sqlite:///{tmp_path / 'stock.sqlite'}"
    ReferenceDatabase(url)
    return CopiedDatabases(url, "", OWNER, ())


@pytest.fixture
def copied(monkeypatch: pytest.MonkeyPatch) -> list[StockContent]:
    """The contents that are copied; nothing is written."""
    found: list[StockContent] = []
    monkeypatch.setattr(copied_databases, "open_database", nullcontext)
    monkeypatch.setattr(importer, "run", lambda database, source, *_, **__: found.append(source))
    return found


def test_the_copy_is_of_a_moment_without_a_write(stock: CopiedDatabases, copied: list[StockContent]) -> None:
    moments: list[CopyMoment] = []

    def is_third(moment: CopyMoment) -> bool:
        moments.append(moment)
        return len(moments) == 3

    assert copy(stock, is_third) is moments[-1]
    assert (len(moments), len(copied)) == (3, 1)


def test_the_last_moment_is_copied_with_a_warning_if_none_is_quiet(
    stock: CopiedDatabases, copied: list[StockContent], caplog: pytest.LogCaptureFixture
) -> None:
    moments: list[CopyMoment] = []

    def is_never(moment: CopyMoment) -> bool:
        moments.append(moment)
        return False

    with caplog.at_level(logging.WARNING):
        assert copy(stock, is_never) is moments[-1]
    assert (len(moments), len(copied)) == (MAX_MOMENTS, 1)
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
    """A file of one megabyte that is copied, and an empty database of ours."""
    file, ours = tmp_path / "stock.sqlite", f"sqlite:///{tmp_path / 'ours.sqlite'}"
    migration.upgrade_schema(ours)
    with closing(sqlite3.connect(file)) as there, there:
        there.execute("CREATE TABLE t AS SELECT zeroblob(1000000) AS x")
    return CopiedDatabases(f"sqlite:///{file}", ours, OWNER, ())


def test_an_unusable_target_is_named_before_anything_is_copied(
    source: CopiedDatabases, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "none"))
    with pytest.raises(ServiceError, match="no schema yet"):
        copied_databases.check_databases(replace(source, target=f"sqlite:///{tmp_path / 'empty.sqlite'}"))


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
