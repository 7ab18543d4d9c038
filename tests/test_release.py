"""A release is refused where a checkout is not ready, and builds the same bytes each time."""

import os
import subprocess
from pathlib import Path

import pytest
from packaging.version import Version

from tests.builds import BuildFailed, build_all, build_commit, run
from tests.release import ReleaseRefused, declared_version, find_obstacles, make_release
from tests.upgrade.releases import Release, read_releases

MAKEFILE = "samples:\n\tcp options sample\n"
SETUP = "[metadata]\nname = made-up\nversion = 1.2.0.dev0\n\n[options]\npy_modules = made_up\n"
PYPROJECT = """
[build-system]
requires = ["setuptools"]
build-backend = "setuptools.build_meta"
[tool.towncrier]
directory = "doc/changes"
filename = "CHANGELOG.md"
start_string = "<!-- release notes start -->\\n"
title_format = "## {version} ({project_date})"
[[tool.towncrier.type]]
directory = "fix"
name = "Fixed"
showcontent = true
"""
FILES = {
    "Makefile": MAKEFILE,
    "setup.cfg": SETUP,
    "pyproject.toml": PYPROJECT,
    "MANIFEST.in": "include CHANGELOG.md\n",
    "made_up.py": "",
    "options": "old\n",
    "sample": "old\n",
    "api-ref/build.py": "",
    "CHANGELOG.md": "# Changelog\n\n<!-- release notes start -->\n\n## 1.1.0 (2026-01-01)\n",
    "tests/upgrade/releases.txt": "# releases\n1.1.0 0123456789\n",
    "doc/changes/README.md": "Notes\n",
    "doc/changes/hosts.fix.md": "Hosts are found again.\n",
}


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    folder = tmp_path / "checkout"
    for name, content in FILES.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    git(folder, "init", "--quiet")
    git(folder, "config", "user.name", "Test")
    git(folder, "config", "user.email", "test@example.org")
    commit(folder)
    return folder


def git(folder: Path, *words: str) -> str:
    return run("git", *words, folder=folder).strip()


def commit(folder: Path) -> None:
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--message", "one")


def refusal(checkout: Path, version: str) -> str:
    before = git(checkout, "rev-parse", "HEAD")
    with pytest.raises(ReleaseRefused) as refused:
        make_release(checkout, version, checkout.parent / "dist", None, full=False)
    assert git(checkout, "rev-parse", "HEAD") == before
    return str(refused.value)


def test_a_release_has_the_version_the_notes_and_a_next_version(checkout: Path) -> None:
    files = make_release(checkout, "1.2.0", checkout.parent / "dist", None, full=False)
    assert [path.name for path in files] == [
        "made_up-1.2.0.tar.gz",
        "made_up-1.2.0-py3-none-any.whl",
        "SHA256SUMS",
    ]
    run("sha256sum", "--check", "SHA256SUMS", folder=files[-1].parent)
    assert git(checkout, "log", "--format=%s", "-2") == "Development of 1.3.0 begins\nRelease 1.2.0"
    assert "version = 1.2.0\n" in git(checkout, "show", "HEAD~1:setup.cfg")
    assert str(declared_version(checkout)) == "1.3.0.dev0"
    assert read_releases(checkout) == [
        Release(Version("1.2.0"), git(checkout, "rev-parse", "HEAD~1")),
        Release(Version("1.1.0"), "0123456789"),
    ]
    changelog = (checkout / "CHANGELOG.md").read_text()
    assert (
        changelog.index("## 1.2.0 (") < changelog.index("Hosts are found again") < changelog.index("## 1.1.0")
    )
    assert [path.name for path in (checkout / "doc/changes").iterdir()] == ["README.md"]
    assert git(checkout, "status", "--porcelain") == ""


def test_a_build_between_releases_has_the_time_and_the_hash_of_its_commit(checkout: Path) -> None:
    versions = []
    for second in ("05", "10"):
        (checkout / "made_up.py").write_text(f"second = '{second}'\n")
        git(checkout, "add", "--all")
        when = f"2026-12-01T01:02:{second}+0000"
        run("git", "commit", "--quiet", "--message", "one", folder=checkout, GIT_COMMITTER_DATE=when)
        _, wheel, _ = build_commit(checkout, "HEAD", checkout.parent / "dist", debian=False, bill=False)
        versions.append(wheel.name.split("-")[1])
        assert versions[-1] == f"1.2.0.dev0+202612010102{second}.g{git(checkout, 'rev-parse', 'HEAD')[:8]}"
    assert Version("1.2.0.dev0") < Version(versions[0]) < Version(versions[1]) < Version("1.2.0")


def test_a_prepared_page_is_dated_and_gets_the_notes(checkout: Path) -> None:
    path = checkout / "CHANGELOG.md"
    page = "## 1.2.0 (unreleased)\n\nA page.\n\n### Limits\n\nOne.\n\n## 1.1.0"
    path.write_text(path.read_text().replace("## 1.1.0", page))
    (checkout / "setup.cfg").write_text(SETUP.replace("1.2.0.dev0", "1.2.0"))
    commit(checkout)
    make_release(checkout, "1.2.0", checkout.parent / "dist", None, full=False)
    changelog = path.read_text()
    assert "unreleased" not in changelog
    parts = (
        "## 1.2.0 (2",
        "A page.",
        "### Limits",
        "One.",
        "### Fixed",
        "Hosts are found again.",
        "## 1.1.0",
    )
    places = [changelog.index(part) for part in parts]
    assert places == sorted(places)
    assert [each.name for each in (checkout / "doc/changes").iterdir()] == ["README.md"]
    assert git(checkout, "log", "--format=%s", "-2") == "Development of 1.3.0 begins\nRelease 1.2.0"
    assert "CHANGELOG.md already has a section of 1.2.0" in refusal(checkout, "1.2.0")


def test_a_prepared_page_needs_no_notes(checkout: Path) -> None:
    path = checkout / "CHANGELOG.md"
    path.write_text(path.read_text().replace("## 1.1.0", "## 1.2.0 (unreleased)\n\nA page.\n\n## 1.1.0"))
    (checkout / "doc/changes/hosts.fix.md").unlink()
    commit(checkout)
    make_release(checkout, "1.2.0", checkout.parent / "dist", None, full=False)
    assert "A page.\n\n## 1.1.0 (" in path.read_text()


@pytest.mark.parametrize(
    ("version", "reason"),
    [
        ("1.1.9", "1.1.9 is older than 1.2.0.dev0 of setup.cfg"),
        ("1.2", "'1.2' is not a version such as 1.2.0"),
        ("1.2.0rc1", "'1.2.0rc1' is not a version such as 1.2.0"),
        ("next", "'next' is not a version such as 1.2.0"),
        ("", "'' is not a version such as 1.2.0"),
    ],
)
def test_a_version_that_is_not_the_next_one_is_refused(checkout: Path, version: str, reason: str) -> None:
    assert refusal(checkout, version) == reason


def test_changes_that_are_not_committed_are_refused(checkout: Path) -> None:
    (checkout / "made_up.py").write_text("changed = True\n")
    assert "the tree has changes; commit them first:\nM made_up.py" in refusal(checkout, "1.2.0")


def test_no_notes_are_refused(checkout: Path) -> None:
    (checkout / "doc/changes/hosts.fix.md").unlink()
    commit(checkout)
    assert refusal(checkout, "1.2.0") == "doc/changes has no notes"


def test_an_empty_note_is_refused(checkout: Path) -> None:
    (checkout / "doc/changes/hosts.fix.md").write_text("\n")
    commit(checkout)
    assert refusal(checkout, "1.2.0") == "the note hosts.fix.md is empty"


def test_outdated_samples_are_refused(checkout: Path) -> None:
    (checkout / "options").write_text("new\n")
    commit(checkout)
    assert refusal(checkout, "1.2.0").startswith("sample is older than its sources")


def test_a_version_that_was_released_is_refused(checkout: Path) -> None:
    path = checkout / "CHANGELOG.md"
    path.write_text(path.read_text().replace("1.1.0", "1.2.0"))
    commit(checkout)
    assert refusal(checkout, "1.2.0") == "CHANGELOG.md already has a section of 1.2.0"


def test_a_second_release_of_one_development_version_is_refused(checkout: Path) -> None:
    (checkout / "setup.cfg").write_text(SETUP.replace("1.2.0.dev0", "1.2.0"))
    commit(checkout)
    assert "setup.cfg declares 1.2.0, which is a release" in refusal(checkout, "1.2.0")


def test_a_failed_build_leaves_the_checkout_as_it_is(checkout: Path) -> None:
    (checkout / "pyproject.toml").write_text(PYPROJECT.replace("setuptools.build_meta", "setuptools.missing"))
    commit(checkout)
    before = git(checkout, "rev-parse", "HEAD")
    with pytest.raises(BuildFailed):
        make_release(checkout, "1.2.0", checkout.parent / "dist", None, full=False)
    assert git(checkout, "rev-parse", "HEAD") == before
    assert list(find_obstacles(checkout, "1.2.0")) == []
    assert not (checkout.parent / "dist").exists()
    assert len(git(checkout, "worktree", "list").splitlines()) == 1


def test_work_of_others_during_a_release_is_kept(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def build_slowly(*words: object, **options: object) -> list[Path]:
        (checkout / "made_up.py").write_text("changed = True\n")
        git(checkout, "commit", "--all", "--quiet", "--message", "meanwhile")
        (checkout / "options").write_text("new\n")
        return []

    monkeypatch.setattr("tests.release.build_commit", build_slowly)
    with pytest.raises(BuildFailed):
        make_release(checkout, "1.2.0", checkout.parent / "dist", None, full=False)
    assert git(checkout, "log", "--format=%s", "-1") == "meanwhile"
    assert (checkout / "options").read_text() == "new\n"


def test_a_sample_that_is_missing_is_refused(checkout: Path) -> None:
    (checkout / "sample").unlink()
    commit(checkout)
    assert refusal(checkout, "1.2.0").startswith("sample is older than its sources")
    assert git(checkout, "status", "--porcelain") == ""


def test_a_tag_of_the_version_is_refused(checkout: Path) -> None:
    git(checkout, "tag", "v1.2.0")
    assert refusal(checkout, "1.2.0") == "the tag v1.2.0 exists"


def test_a_folder_with_other_files_is_refused(checkout: Path) -> None:
    (checkout.parent / "dist").mkdir()
    (checkout.parent / "dist" / "letters").write_text("mine")
    with pytest.raises(BuildFailed, match="has other files than builds: letters"):
        make_release(checkout, "1.2.0", checkout.parent / "dist", None, full=False)
    assert (checkout.parent / "dist" / "letters").read_text() == "mine"


def test_earlier_builds_are_replaced(checkout: Path) -> None:
    folder = checkout.parent / "dist"
    make_release(checkout, "1.2.0", folder, None, full=False)
    (checkout / "doc/changes/more.fix.md").write_text("More.\n")
    commit(checkout)
    make_release(checkout, "1.3.0", folder, None, full=False)
    assert not list(folder.glob("*1.2.0*"))


def test_a_key_signs_the_checksums(checkout: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    try:
        subprocess.run(["gpg", "--version"], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("gpg is not installed")
    home = tmp_path / "keys"
    home.mkdir(mode=0o700)
    monkeypatch.setenv("GNUPGHOME", str(home))
    try:
        run("gpg", "--batch", "--passphrase", "", "--quick-generate-key", "test@example.org")
        *_, sums, signature = make_release(
            checkout, "1.2.0", tmp_path / "dist", "test@example.org", full=False
        )
        assert "Good signature" in run("gpg", "--verify", signature, sums)
        sums.write_text(sums.read_text().replace("a", "b"))
        with pytest.raises(BuildFailed, match="BAD signature"):
            run("gpg", "--verify", signature, sums)
    finally:
        subprocess.run(["gpgconf", "--kill", "gpg-agent"], check=False, capture_output=True)


def test_two_builds_have_the_same_bytes(checkout: Path, tmp_path: Path) -> None:
    sums = []
    for number, umask in ((1, 0o022), (2, 0o077)):
        before = os.umask(umask)
        try:
            copy = tmp_path / f"copy {number}"
            run("git", "clone", "--quiet", checkout, copy)
            *_, listed = build_all(copy, tmp_path / f"dist{number}", "1790000000", debian=False, bill=False)
        finally:
            os.umask(before)
        sums.append(listed.read_text())
    assert sums[0] == sums[1]
