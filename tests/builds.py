"""Builds of a commit that have the same bytes each time: sdist, wheel, Debian packages and bill of materials.

Times in archives are those of the commit (``SOURCE_DATE_EPOCH``, see
https://reproducible-builds.org/specs/source-date-epoch/), and archives list files by name. Names of users,
the order of directories and the time of the build have no effect.

``python -m tests.builds FOLDER [--debian] [--bill]`` builds the last commit of a checkout. Sources without
git have the time of their ``setup.cfg``.
"""

import argparse
import gzip
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
EXTRAS: Final = "postgresql,mysql,memcached"
"""The extras that Debian packages and the image have."""
CHECKSUMS: Final = "SHA256SUMS"
_BUILT: Final = ("*.whl", "*.tar.gz", "*.deb", "*.cdx.json", f"{CHECKSUMS}*")
"""Patterns of the files of a build."""
_DEVELOPMENT: Final = re.compile(r"^version = .*\.dev\d+$", re.MULTILINE)
"""The line of ``setup.cfg`` with a development version."""
_SECONDS: Final = 1800


class BuildFailed(Exception):
    """A program of the build failed; the message has the end of its output."""


def run(*words: object, folder: Path = ROOT, **variables: str) -> str:
    """Return the output of a program.

    :raises BuildFailed: the program fails.
    """
    done = subprocess.run(
        [*map(str, words)],
        cwd=folder,
        env=os.environ | {"LC_ALL": "C.UTF-8"} | variables,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=_SECONDS,
        check=False,
        umask=0o022,  # wheels have the modes of files
    )
    if done.returncode:
        raise BuildFailed(f"{' '.join(map(str, words))}\n{done.stdout[-4000:]}")
    return done.stdout


def commit_time(commit: str, checkout: Path) -> str:
    """Return the time of a commit, in seconds since the epoch."""
    return run("git", "log", "-1", "--format=%ct", commit, folder=checkout).strip()


def export_commit(commit: str, folder: Path, checkout: Path) -> Path:
    """Write the files of a commit into a new folder."""
    archive = folder.with_suffix(".tar")
    run("git", "archive", "--output", archive, commit, folder=checkout)
    with tarfile.open(archive) as packed:
        packed.extractall(folder, filter="data")
    archive.unlink()
    return folder


def build_distributions(source: Path, folder: Path, epoch: str) -> tuple[Path, Path]:
    """Build the sdist of a folder, and the wheel of the sdist.

    :param epoch: the time of all files, in seconds since the epoch.
    """
    build = (sys.executable, "-m", "build", "--no-isolation")
    with tempfile.TemporaryDirectory() as name:
        run(*build, "--sdist", "--outdir", name, source, SOURCE_DATE_EPOCH=epoch)
        (made,) = Path(name).glob("*.tar.gz")
        unpacked = Path(name, "unpacked")
        with tarfile.open(made) as packed:
            packed.extractall(unpacked, filter="data")
        sdist = folder / made.name
        _pack(unpacked, sdist, int(epoch))
        (sources,) = unpacked.iterdir()
        run(*build, "--wheel", "--outdir", name, sources, SOURCE_DATE_EPOCH=epoch)
        (wheel,) = Path(name).glob("*.whl")
        return sdist, Path(shutil.copy(wheel, folder))


def _pack(folder: Path, target: Path, epoch: int) -> None:
    """Write a tar archive of all files below a folder, in the order of their names, without owners."""

    def without_owner(entry: tarfile.TarInfo) -> tarfile.TarInfo:
        entry.uid = entry.gid = 0
        entry.uname = entry.gname = ""
        entry.mtime = epoch
        # the umask of the build decides on the bits of groups and others
        entry.mode = 0o755 if entry.isdir() or entry.mode & 0o100 else 0o644
        return entry

    with (
        target.open("wb") as output,
        gzip.GzipFile("", "wb", 9, output, mtime=epoch) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive,
    ):
        for path in sorted(folder.rglob("*")):
            archive.add(path, str(path.relative_to(folder)), recursive=False, filter=without_owner)


def build_debian(source: Path, sdist: Path, folder: Path, epoch: str) -> list[Path]:
    """Build the Debian packages of an sdist, by the script of its sources."""
    before = set(folder.glob("*.deb"))
    run(source / "etc/packages/build-deb", sdist, folder, SOURCE_DATE_EPOCH=epoch)
    return sorted(set(folder.glob("*.deb")) - before)


def write_bill(source: Path, sdist: Path, folder: Path, epoch: str) -> Path:
    """Write the bill of materials of the packages' environment, with licences, in CycloneDX's format."""
    target = folder / sdist.name.replace(".tar.gz", ".cdx.json")
    with tempfile.TemporaryDirectory() as name:
        environment = Path(name, "environment")
        run(sys.executable, "-m", "venv", environment)
        pip = (environment / "bin/pip", "--quiet", "--disable-pip-version-check")
        constraints = ("--constraint", source / "etc/constraints.txt")
        run(*pip, "install", "--no-compile", *constraints, f"{sdist}[{EXTRAS}]")
        run(*pip, "uninstall", "--yes", "pip", "setuptools")
        for note in environment.rglob("direct_url.json"):  # it has the path of the sdist on this machine
            note.unlink()
        run(
            *(sys.executable, "-m", "cyclonedx_py", "environment", "--output-reproducible"),
            *("--gather-license-texts", "--output-file", target, environment),
            SOURCE_DATE_EPOCH=epoch,
        )
    return target


def write_checksums(files: Iterable[Path], folder: Path) -> Path:
    """Write the checksums of files for ``sha256sum --check``."""
    target = folder / CHECKSUMS
    lines = [f"{hashlib.sha256(each.read_bytes()).hexdigest()}  {each.name}\n" for each in sorted(files)]
    target.write_text("".join(lines))
    return target


def require_folder_of_builds(folder: Path) -> None:
    """Refuse a folder that has other files than builds, because all its files are replaced.

    :raises BuildFailed: the folder has other files, or is a file itself.
    """
    if not folder.exists():
        return
    if not folder.is_dir():
        raise BuildFailed(f"{folder} is no folder")
    others = sorted(path.name for path in folder.iterdir() if not any(map(path.match, _BUILT)))
    if others:
        raise BuildFailed(
            f"{folder} has other files than builds: {', '.join(others[:3])}; name another folder"
        )


def build_all(source: Path, folder: Path, epoch: str, *, debian: bool, bill: bool) -> list[Path]:
    """Build the sources, and return the files with their checksums last.

    Files of earlier builds in the folder are replaced when all is built.

    :raises BuildFailed: a program fails, or the folder has other files than builds.
    """
    require_folder_of_builds(folder)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as name:
        made = Path(name)
        sdist, wheel = build_distributions(source, made, epoch)
        files = [sdist, wheel]
        if debian:
            files += build_debian(source, sdist, made, epoch)
        if bill:
            files.append(write_bill(source, sdist, made, epoch))
        files.append(write_checksums(files, made))
        for path in files:  # an image gets its time from these
            os.utime(path, (int(epoch), int(epoch)))
        if folder.exists():
            shutil.rmtree(folder)
        folder.mkdir()
        return [Path(shutil.move(path, folder / path.name)) for path in files]


def build_commit(checkout: Path, commit: str, folder: Path, *, debian: bool, bill: bool) -> list[Path]:
    """Build a commit like :func:`build_all`; a development version gets the commit's time and hash."""
    epoch = commit_time(commit, checkout)
    with tempfile.TemporaryDirectory() as name:
        source = export_commit(commit, Path(name, "source"), checkout)
        # otherwise all commits between two releases would have one version, and pip would not replace one
        # commit by another. The time comes first, so that a later commit has a higher version.
        when = time.strftime("%Y%m%d%H%M%S", time.gmtime(int(epoch)))
        mark = f"+{when}.g{run('git', 'rev-parse', commit, folder=checkout)[:8]}"
        setup = source / "setup.cfg"
        setup.write_text(_DEVELOPMENT.sub(rf"\g<0>{mark}", setup.read_text()))
        return build_all(source, folder, epoch, debian=debian, bill=bill)


def main() -> int:
    """Build the sources that this module is part of."""
    parser = argparse.ArgumentParser(prog="python -m tests.builds", description=__doc__)
    parser.add_argument("folder", type=Path, help="folder for the files; earlier builds in it are replaced")
    parser.add_argument("--debian", action="store_true", help="build the Debian packages")
    parser.add_argument("--bill", action="store_true", help="write the bill of materials")
    words = parser.parse_args()
    wanted = {"debian": words.debian, "bill": words.bill}
    try:
        if (ROOT / ".git").exists():
            if run("git", "status", "--porcelain"):
                print("Changes that are not committed are not part of the build.", file=sys.stderr)
            files = build_commit(ROOT, "HEAD", words.folder, **wanted)
        else:
            epoch = os.environ.get("SOURCE_DATE_EPOCH") or str(int((ROOT / "setup.cfg").stat().st_mtime))
            files = build_all(ROOT, words.folder, epoch, **wanted)
    except BuildFailed as failure:
        print(failure, file=sys.stderr)
        return 1
    print(*files, sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
