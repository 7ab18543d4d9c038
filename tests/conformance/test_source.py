"""The archive of requests is cached and checked against its hash; a failure has a reason."""

import hashlib
import io
import tarfile
from pathlib import Path

import pytest

from tests.conformance import source

_TREE = "openstack_placement-16.0.0/placement/tests/functional"


def _archive(**files: str) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for name, text in files.items():
            member = tarfile.TarInfo(f"{_TREE}/{name}")
            member.size = len(text)
            archive.addfile(member, io.BytesIO(text.encode()))
    return buffer.getvalue()


@pytest.fixture
def cached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Path of the cached archive, which does not exist yet."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "placement-compute" / "openstack-placement-16.0.0.tar.gz"


def _pin(content: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "SHA256", hashlib.sha256(content).hexdigest())


def test_only_files_of_requests_are_read_in_the_order_of_their_names(
    cached: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = _archive(
        **{"gabbits/b.yaml": "tests: [2]", "gabbits/a.yaml": "tests: [1]", "gabbits/c.py": "", "d.yaml": "x"}
    )
    _pin(content, monkeypatch)
    cached.parent.mkdir()
    cached.write_bytes(content)
    assert list(source.load().items()) == [("a", {"tests": [1]}), ("b", {"tests": [2]})]


@pytest.mark.parametrize("before", [None, b"", b"another"])
def test_a_download_replaces_a_cached_file_with_the_wrong_hash(
    cached: Path, monkeypatch: pytest.MonkeyPatch, before: bytes | None
) -> None:
    content = _archive(**{"gabbits/a.yaml": "tests: []"})
    _pin(content, monkeypatch)
    monkeypatch.setattr(source, "_download", lambda: content)
    if before is not None:
        cached.parent.mkdir()
        cached.write_bytes(before)
    assert list(source.load()) == ["a"]
    assert cached.read_bytes() == content


def test_an_unwritable_cache_is_ignored(cached: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = _archive(**{"gabbits/a.yaml": "tests: []"})
    _pin(content, monkeypatch)
    monkeypatch.setattr(source, "_download", lambda: content)
    cached.parent.write_text("a file where the folder should be")
    assert list(source.load()) == ["a"]


def test_the_error_has_the_message_of_pip(cached: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_FIND_LINKS"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    with pytest.raises(source.SourceMissing, match=r"could not download openstack-placement==16\.0\.0:\n.*"):
        source.load()
    assert not cached.exists()
