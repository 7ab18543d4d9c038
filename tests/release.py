"""``make release VERSION=1.2.0``: a commit with the version and the changelog, and its builds.

The changelog of a release is made of the notes in ``doc/changes``. If ``CHANGELOG.md`` already has a page
about the version, with the heading ``## 1.2.0 (unreleased)``, the release dates it, and adds the notes at its
end.

The command refuses a checkout that is not ready, and then changes nothing. Reasons are a tree with changes, a
version that is not the next one, no notes, and samples or an API reference older than their sources. It makes
two commits, the release and the next development version, and leaves the push to the operator. It works in a
copy of the last commit, so that a failure of the builds leaves the checkout as it was.
"""

import argparse
import re
import sys
import tempfile
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from packaging.version import InvalidVersion, Version

from tests.builds import BuildFailed, build_commit, run
from tests.upgrade.releases import Release, add_release

ROOT: Final = Path(__file__).parents[1]
CHANGES: Final = "doc/changes"
_VERSION: Final = re.compile(r"(?m)^version = (.+)$")
_AS_INSTALLED: Final = tuple(f"--old-file={Path(sys.prefix, name)}" for name in (".installed", ".runtime"))
"""Arguments of make with which it does not install the copy into the environment of the checkout."""
_SECTION: Final = re.compile(r"(?m)^## (\S+) \(")
_PREPARED: Final = "## {} (unreleased)"
"""The heading of a page in the changelog about a version that comes."""


class ReleaseRefused(Exception):
    """The checkout is not ready; the message has one line for each reason."""


def declared_version(checkout: Path) -> Version:
    """Return the version that ``setup.cfg`` declares."""
    found = _VERSION.search((checkout / "setup.cfg").read_text())
    if found is None:
        raise ReleaseRefused("setup.cfg has no line 'version = ...'")
    return Version(found[1])


def declare_version(checkout: Path, version: Version) -> None:
    """Write the version into ``setup.cfg``."""
    path = checkout / "setup.cfg"
    path.write_text(_VERSION.sub(f"version = {version}", path.read_text(), count=1))


def next_version(version: Version) -> Version:
    """Return the development version that follows a release."""
    return Version(f"{version.major}.{version.minor + 1}.0.dev0")


def find_obstacles(checkout: Path, text: str) -> Iterator[str]:
    """Yield the reasons why a checkout is not ready for a release."""
    if changed := run("git", "status", "--porcelain", folder=checkout).strip():
        yield f"the tree has changes; commit them first:\n{changed}"
    try:
        version = Version(text)
    except InvalidVersion:
        version = None
    if version is None or text != f"{version.major}.{version.minor}.{version.micro}":
        yield f"{text!r} is not a version such as 1.2.0"
        return
    declared = declared_version(checkout)
    changelog = (checkout / "CHANGELOG.md").read_text()
    prepared = _PREPARED.format(version) in changelog
    if not declared.is_devrelease and not (prepared and declared == version):
        yield f"setup.cfg declares {declared}, which is a release; the next one needs a development version"
    if version < Version(declared.base_version):
        yield f"{version} is older than {declared} of setup.cfg"
    if run("git", "tag", "--list", f"v{version}", folder=checkout).strip():
        yield f"the tag v{version} exists"
    if str(version) in _SECTION.findall(changelog) and not prepared:
        yield f"CHANGELOG.md already has a section of {version}"
    notes = find_notes(checkout)
    if not notes and not prepared:
        yield f"{CHANGES} has no notes"
    yield from (f"the note {path.name} is empty" for path in notes if not path.read_text().strip())


def find_notes(checkout: Path) -> list[Path]:
    """Return the notes of changes that are in no release yet."""
    return [path for path in (checkout / CHANGES).glob("*.md") if path.name != "README.md"]


def write_changelog(tree: Path, version: Version) -> None:
    """Move the notes into the changelog, below the page about the version if there is one."""
    towncrier = (sys.executable, "-m", "towncrier", "build", "--version", version)
    path = tree / "CHANGELOG.md"
    before, heading, after = path.read_text().partition(_PREPARED.format(version))
    if not heading:
        run(*towncrier, "--yes", folder=tree)
        return
    page, following, older = after.partition("\n## ")
    title, notes = f"## {version} ({datetime.now(UTC).date()})", ""
    if paths := find_notes(tree):
        drafted = run(*towncrier, "--draft", folder=tree).partition("\n### ")
        notes = "".join(drafted[1:]).rstrip() + "\n"
        run("git", "rm", "--quiet", *paths, folder=tree)
    path.write_text(f"{before}{title}{page.rstrip()}\n{notes}{following}{older}")


def find_outdated_files(tree: Path) -> Iterator[str]:
    """Yield the generated files that are older than their sources, or missing. They are current afterwards.

    :param tree: a copy of the checkout.
    """
    run("make", "--silent", "samples", f"VENV={Path(sys.prefix)}", *_AS_INSTALLED, folder=tree)
    run(sys.executable, "api-ref/build.py", folder=tree)
    for line in run("git", "status", "--porcelain", folder=tree).splitlines():
        yield f"{line[3:]} is older than its sources; commit what 'make samples' and 'api-ref/build.py' write"


def make_release(checkout: Path, text: str, folder: Path, key: str | None, *, full: bool) -> list[Path]:
    """Make the two commits and the builds of a release, and move the branch of the checkout to them.

    All is made in a copy of the last commit, so that a failure leaves the checkout as it was.

    :param folder: the folder of the builds.
    :param key: the key of ``gpg`` that signs the checksums; None leaves them without a signature.
    :param full: also build the Debian packages and the bill of materials.
    :returns: the files, the checksums and their signature last.
    :raises ReleaseRefused: the checkout is not ready.
    :raises BuildFailed: a program fails.
    """
    if obstacles := list(find_obstacles(checkout, text)):
        raise ReleaseRefused("\n".join(obstacles))
    version = Version(text)
    before = run("git", "rev-parse", "HEAD", folder=checkout).strip()
    with tempfile.TemporaryDirectory() as name:
        tree = Path(name, "tree")
        run("git", "worktree", "add", "--quiet", "--detach", tree, before, folder=checkout)
        try:
            if obstacles := list(find_outdated_files(tree)):
                raise ReleaseRefused("\n".join(obstacles))
            declare_version(tree, version)
            write_changelog(tree, version)
            _commit(tree, f"Release {version}")
            files = build_commit(tree, "HEAD", folder, debian=full, bill=full)
            if key is not None:
                signature = ("--batch", "--yes", "--local-user", key, "--detach-sign", "--armor")
                run("gpg", *signature, files[-1])
                files.append(files[-1].with_name(f"{files[-1].name}.asc"))
            released = run("git", "rev-parse", "HEAD", folder=tree).strip()
            add_release(tree, Release(version, released))
            declare_version(tree, next_version(version))
            _commit(tree, f"Development of {next_version(version).base_version} begins")
            made = run("git", "rev-parse", "HEAD", folder=tree).strip()
        finally:
            run("git", "worktree", "remove", "--force", tree, folder=checkout)
    # refused if the branch has a new commit meanwhile, or one of the files has changes
    run("git", "merge", "--quiet", "--ff-only", made, folder=checkout)
    return files


def _commit(tree: Path, message: str) -> None:
    run("git", "commit", "--all", "--quiet", "--message", message, folder=tree)


def main(argv: Sequence[str] | None = None) -> int:
    """Make a release of this checkout."""
    parser = argparse.ArgumentParser(prog="make release", description=__doc__)
    parser.add_argument("version", help="the version, such as 1.2.0")
    parser.add_argument(
        "--folder",
        type=Path,
        default=ROOT / "dist",
        help="folder of the builds; earlier ones in it are replaced",
    )
    parser.add_argument("--key", help="key of gpg that signs the checksums")
    parser.add_argument("--python-only", action="store_true", help="build only sdist and wheel")
    words = parser.parse_args(argv)
    try:
        files = make_release(ROOT, words.version, words.folder, words.key, full=not words.python_only)
    except (ReleaseRefused, BuildFailed) as problem:
        print(problem, file=sys.stderr)
        return 1
    for path in files:
        print(path)
    print(f"The release is the commit before the last one: git tag v{words.version} HEAD~1")
    return 0


if __name__ == "__main__":
    sys.exit(main())
