"""``make release VERSION=1.2.0``: a commit with the version and the changelog, and its builds.

The command refuses a checkout that is not ready, and then changes nothing. Reasons are a tree with changes, a
version that is not the next one, no notes, and samples or an API reference older than their sources. It makes
two commits, the release and the next development version, and leaves the push to the operator. If the builds
fail, both commits are taken back.
"""

import argparse
import re
import shutil
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from packaging.version import InvalidVersion, Version

from tests.builds import BuildFailed, build_commit, run

ROOT: Final = Path(__file__).parents[1]
CHANGES: Final = "doc/changes"
_VERSION: Final = re.compile(r"(?m)^version = (.+)$")
_SECTION: Final = re.compile(r"(?m)^## (\S+) \(")


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
    if not declared.is_devrelease:
        yield f"setup.cfg declares {declared}, which is a release; the next one needs a development version"
    if version < Version(declared.base_version):
        yield f"{version} is older than {declared} of setup.cfg"
    if str(version) in _SECTION.findall((checkout / "CHANGELOG.md").read_text()):
        yield f"CHANGELOG.md already has a section of {version}"
    notes = [path for path in (checkout / CHANGES).glob("*.md") if path.name != "README.md"]
    if not notes:
        yield f"{CHANGES} has no notes"
    yield from (f"the note {path.name} is empty" for path in notes if not path.read_text().strip())


def find_outdated_files(checkout: Path) -> Iterator[str]:
    """Yield the generated files that are older than their sources. They are current afterwards."""
    run("make", "--silent", "samples", folder=checkout)
    run(sys.executable, "api-ref/build.py", folder=checkout)
    for path in run("git", "diff", "--name-only", folder=checkout).split():
        yield f"{path} is older than its sources; commit what 'make samples' and 'api-ref/build.py' write"


def make_release(checkout: Path, text: str, folder: Path, key: str | None, *, full: bool) -> list[Path]:
    """Make the two commits and the builds of a release.

    :param folder: the folder of the builds; it is emptied first.
    :param full: also build the Debian packages and the bill of materials.
    :param key: the key of ``gpg`` that signs the checksums; None leaves them without a signature.
    :returns: the files, the checksums and their signature last.
    :raises ReleaseRefused: the checkout is not ready.
    :raises BuildFailed: a program fails; the checkout is as before.
    """
    if obstacles := list(find_obstacles(checkout, text)) or list(find_outdated_files(checkout)):
        raise ReleaseRefused("\n".join(obstacles))
    version = Version(text)
    before = run("git", "rev-parse", "HEAD", folder=checkout).strip()
    try:
        declare_version(checkout, version)
        run(sys.executable, "-m", "towncrier", "build", "--yes", "--version", version, folder=checkout)
        _commit(checkout, f"Release {version}")
        files = build_commit(checkout, "HEAD", folder, debian=full, bill=full)
        if key is not None:
            signature = ("--batch", "--yes", "--local-user", key, "--detach-sign", "--armor")
            run("gpg", *signature, files[-1])
            files.append(files[-1].with_name(f"{files[-1].name}.asc"))
        declare_version(checkout, next_version(version))
        _commit(checkout, f"Development of {next_version(version).base_version} begins")
    except BaseException:
        run("git", "reset", "--quiet", "--hard", before, folder=checkout)
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return files


def _commit(checkout: Path, message: str) -> None:
    run("git", "commit", "--all", "--quiet", "--message", message, folder=checkout)


def main(argv: Sequence[str] | None = None) -> int:
    """Make a release of this checkout."""
    parser = argparse.ArgumentParser(prog="make release", description=__doc__)
    parser.add_argument("version", help="the version, such as 1.2.0")
    parser.add_argument("--folder", type=Path, default=ROOT / "dist", help="folder of the builds")
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
