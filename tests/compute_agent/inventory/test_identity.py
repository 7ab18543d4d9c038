"""Tests of the root provider's uuid: it is made once, is the same for all callers, and never changes."""

import multiprocessing
import os
import uuid
from pathlib import Path

import pytest

from compute_agent.inventory import host_identity


def test_uuid_is_made_once_and_kept(tmp_path: Path) -> None:
    folder = tmp_path / "lib" / "agent"
    made = host_identity.load_or_create(folder)
    assert str(uuid.UUID(made)) == made
    assert host_identity.load_or_create(folder) == made
    assert (folder / host_identity.UUID_FILE).read_text() == f"{made}\n"


def test_uuid_of_an_operator_is_taken_in_any_spelling(tmp_path: Path) -> None:
    (tmp_path / host_identity.UUID_FILE).write_text("  5A8F3E6C9D5F4AB08F3D2A6C9A3A1F00")
    assert host_identity.load_or_create(tmp_path) == "5a8f3e6c-9d5f-4ab0-8f3d-2a6c9a3a1f00"


@pytest.mark.parametrize("content", [b"", b"host1\n", b"\xff\xfe", b"5a8f3e6c-9d5f-4ab0-8f3d\n"])
def test_other_content_is_refused_and_left_alone(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / host_identity.UUID_FILE
    path.write_bytes(content)
    with pytest.raises(host_identity.IdentityError, match=str(path)):
        host_identity.load_or_create(tmp_path)
    assert path.read_bytes() == content


def test_uuid_is_in_place_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(OSError, match="No space left"):
            host_identity.load_or_create(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [f"{host_identity.UUID_FILE}.lock"]
    assert uuid.UUID(host_identity.load_or_create(tmp_path))


@pytest.mark.slow
def test_processes_that_start_at_once_agree(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    with context.Pool(4) as pool:
        made = pool.map(host_identity.load_or_create, [tmp_path] * 16, chunksize=1)
    assert len(set(made)) == 1


def test_the_name_is_kept_and_what_is_no_name_is_refused(tmp_path: Path) -> None:
    assert host_identity.kept_name(tmp_path) == ""
    host_identity.keep_name(tmp_path, "host7.example")
    before = (tmp_path / host_identity.NAME_FILE).stat().st_ino
    host_identity.keep_name(tmp_path, "host7.example")
    assert (tmp_path / host_identity.NAME_FILE).stat().st_ino == before
    assert host_identity.kept_name(tmp_path) == "host7.example"
    for content in (b"", b"\n", b"\xff", b"a\x1bb"):
        (tmp_path / host_identity.NAME_FILE).write_bytes(content)
        with pytest.raises(host_identity.IdentityError, match="provider_name"):
            host_identity.kept_name(tmp_path)
