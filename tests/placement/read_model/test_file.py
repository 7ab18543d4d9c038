"""Tests of the file of the model: it is complete at all times, has one writer, and is read only if no other
user may write it.
"""

import errno
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from placement.exceptions import Unavailable
from placement.read_model import model_file as module
from placement.read_model.columns import DamagedFile, WritableModel, decode_model
from placement.read_model.model_file import INTERVAL, PRECEDENCE, ModelFile, ModelFileWriter
from tests.placement.read_model.builders import EXAMPLE


@pytest.fixture
def file(tmp_path: Path) -> ModelFile:
    file = ModelFile(str(tmp_path / "model"))
    file.write([b"old"])
    return file


def test_only_the_service_can_read_the_written_file(file: ModelFile) -> None:
    assert file.write([b"a", b"", b"bc"]) == 3
    assert file.read() == b"abc"
    assert Path(file.path).stat().st_mode & 0o777 == 0o600


def test_a_full_disk_leaves_the_old_file_and_no_remains(
    file: ModelFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        file.write([b"new"])
    assert file.read() == b"old"
    assert [each.name for each in Path(file.path).parent.iterdir()] == ["model"]


def test_a_failing_writer_leaves_the_old_file(file: ModelFile) -> None:
    def parts() -> Iterator[bytes]:
        yield b"half"
        raise RuntimeError

    with pytest.raises(RuntimeError):
        file.write(parts())
    assert file.read() == b"old"


def test_the_remains_of_a_killed_writer_are_removed(file: ModelFile) -> None:
    Path(f"{file.path}.new").write_bytes(b"half")
    file.write([b"new"])
    assert file.read() == b"new"


def test_a_model_that_is_too_large_is_neither_written_nor_read(
    file: ModelFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_MAX_SIZE", 2)
    with pytest.raises(OSError, match="more than"):
        file.write([b"ne", b"w"])
    with pytest.raises(DamagedFile, match="larger"):
        file.read()


def test_a_file_that_is_replaced_while_it_is_read_is_read_unchanged(
    file: ModelFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    fstat = os.fstat

    def replaced(fd: int) -> os.stat_result:
        ModelFile(file.path).write([b"a newer one"])
        monkeypatch.setattr(os, "fstat", fstat)
        return fstat(fd)

    monkeypatch.setattr(os, "fstat", replaced)
    assert file.read() == b"old"
    assert file.read() == b"a newer one"


def test_a_file_that_is_truncated_while_it_is_read_is_damaged(
    file: ModelFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    fstat = os.fstat

    def cut_off(fd: int) -> os.stat_result:
        found = fstat(fd)
        os.truncate(file.path, 1)
        return found

    monkeypatch.setattr(os, "fstat", cut_off)
    with pytest.raises(DamagedFile):
        decode_model(file.read())


@pytest.mark.parametrize("kind", ["writable", "link", "fifo", "folder"])
def test_a_file_that_others_may_have_written_is_not_read(file: ModelFile, kind: str) -> None:
    path = Path(file.path)
    if kind == "writable":
        path.chmod(0o620)
    else:
        path.unlink()
        if kind == "link":
            (path.parent / "other").write_bytes(b"other")
            path.symlink_to("other")
        elif kind == "fifo":
            os.mkfifo(path)
        else:
            path.mkdir()
    with pytest.raises((DamagedFile, OSError)):
        file.read()


def test_one_of_two_workers_writes(file: ModelFile) -> None:
    other = ModelFile(file.path)
    with file.try_lock() as first, other.try_lock() as second:
        assert (first, second) == (True, False)
    with other.try_lock() as again:
        assert again


def test_a_worker_does_not_rewrite_a_recent_file(file: ModelFile) -> None:
    ModelFileWriter(file, lambda: EXAMPLE).write()
    assert file.read() == b"old"
    os.utime(file.path, (0, time.time() - INTERVAL - PRECEDENCE - 1))
    ModelFileWriter(file, lambda: EXAMPLE).write()
    assert decode_model(file.read())[0] == EXAMPLE.history


def test_the_worker_of_the_last_write_comes_first(file: ModelFile, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[str] = []

    def writer(name: str) -> ModelFileWriter:
        def model() -> WritableModel:
            written.append(name)
            return EXAMPLE

        return ModelFileWriter(file, model)

    one, other = writer("one"), writer("other")
    os.utime(file.path, (0, 0))
    one.write()
    for seconds, expected in (
        (INTERVAL - 1, []),
        (INTERVAL + 1, ["one"]),
        (INTERVAL + PRECEDENCE + 1, ["other"]),
    ):
        written.clear()
        now = file.written_at() + seconds
        with monkeypatch.context() as patched:
            patched.setattr(module.time, "time", lambda now=now: now)
            other.write()
            if not written:
                one.write()
        assert written == expected


def test_a_file_of_the_future_is_replaced(file: ModelFile) -> None:
    os.utime(file.path, (0, time.time() + 10_000))
    ModelFileWriter(file, lambda: EXAMPLE).write()
    assert decode_model(file.read())[0] == EXAMPLE.history


def test_a_missing_folder_is_logged_and_tried_again_later(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module.threading.Thread, "start", lambda self: self.run())
    writer = ModelFileWriter(ModelFile(str(tmp_path / "none" / "model")), lambda: EXAMPLE)
    writer.start_if_due()
    writer.start_if_due()
    assert caplog.text.count("cannot be written") == 1


def test_an_outdated_model_is_not_written(file: ModelFile, monkeypatch: pytest.MonkeyPatch) -> None:
    def model() -> WritableModel:
        raise Unavailable("no model")

    monkeypatch.setattr(module.threading.Thread, "start", lambda self: self.run())
    os.utime(file.path, (0, 0))
    ModelFileWriter(file, model).start_if_due()
    assert file.read() == b"old"
