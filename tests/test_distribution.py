"""Content of a built wheel."""

from __future__ import annotations

import configparser
import os
import shutil
import sqlite3
import subprocess
import sys
import tarfile
import zipfile
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.environments import copy_sources, run

ROOT = Path(__file__).parents[1]
FILES = Path("share/placement-compute")
PACKAGES = {"placement", "placement_extras", "compute_agent"}

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not (find_spec("pip") and find_spec("setuptools")), reason="needs pip and setuptools"),
]


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build a wheel from a copy, as building leaves files behind; return a folder with its content."""
    folder = tmp_path_factory.mktemp("wheel")
    source = copy_sources(folder / "source")
    subprocess.run(
        [
            sys.executable,
            "-m",
            "pip",
            "wheel",
            "-q",
            "--no-deps",
            "--no-build-isolation",
            "-w",
            folder,
            source,
        ],
        check=True,
    )
    with zipfile.ZipFile(next(folder.glob("*.whl"))) as wheel:
        wheel.extractall(folder / "installed")
    return folder / "installed"


def test_a_wheel_contains_the_packages_and_nothing_else(installed: Path) -> None:
    folders = {path.name for path in installed.iterdir() if path.suffix not in (".dist-info", ".data")}
    assert folders == PACKAGES
    assert all((installed / package / "py.typed").exists() for package in PACKAGES)


def test_a_wheel_contains_every_python_module(installed: Path) -> None:
    for package in PACKAGES:
        modules = {path.relative_to(ROOT) for path in (ROOT / package).rglob("*.py")}
        assert modules <= {path.relative_to(installed) for path in installed.rglob("*.py")}


def test_the_schema_is_made_by_the_migrations_in_the_wheel(installed: Path, tmp_path: Path) -> None:
    script = (
        "from placement.db import migration; "
        "migration.upgrade_schema('sqlite:///made.db'); print(migration.script_location())"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(installed)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert Path(done.stdout.strip()) == installed / "placement/db/migrations"
    with sqlite3.connect(tmp_path / "made.db") as database:
        tables = {name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    assert {"resource_providers", "inventories", "allocations", "change_buckets"} <= tables


def test_a_wheel_contains_templates_and_static_files_of_the_console(installed: Path) -> None:
    for kind in ("static", "templates"):
        folder = Path("placement_extras/console") / kind
        expected = {path.name for path in (ROOT / folder).iterdir()}
        assert expected
        assert {path.name for path in (installed / folder).iterdir()} == expected


def test_a_wheel_contains_units_and_samples(installed: Path) -> None:
    data = next(installed.glob("*.data")) / "data" / FILES
    for program in ("placement", "compute-agent"):
        there = {path.name: path.read_bytes() for path in (data / program).iterdir()}
        here = {
            path.name: path.read_bytes()
            for path in (ROOT / "etc" / program).iterdir()
            if not path.name.endswith("-generator.conf")  # of make samples
        }
        assert there == here


def test_packages_and_programs_have_the_version_of_setup_cfg(installed: Path, tmp_path: Path) -> None:
    declared = configparser.ConfigParser()
    declared.read(ROOT / "setup.cfg")
    version = declared["metadata"]["version"]
    metadata = (next(installed.glob("*.dist-info")) / "METADATA").read_text()
    assert f"\nVersion: {version}\n" in metadata
    script = (
        "import compute_agent; from placement.conf import installed_version; "
        "print(compute_agent.installed_version(), installed_version())"
    )
    told = run(sys.executable, "-c", script, cwd=tmp_path, PYTHONPATH=str(installed))
    assert told.split() == [version, version]


def test_an_sdist_has_the_files_of_the_repository_and_builds_the_same_wheel(tmp_path: Path) -> None:
    if not (ROOT / ".git").exists():
        pytest.skip("these sources are not a checkout")
    exported = tmp_path / "exported"
    run("git", "checkout-index", "--all", f"--prefix={exported}/", cwd=ROOT)
    build = (sys.executable, "-m", "build", "--no-isolation")
    run(*build, "--sdist", "--outdir", tmp_path, exported, cwd=tmp_path)
    (sdist,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    here = set(run("git", "ls-files", cwd=ROOT).splitlines())
    # the link to the migrations becomes a folder with them
    assert here - names <= {"placement/db/migrations"}
    run(*build, "--wheel", "--outdir", tmp_path / "here", exported, cwd=tmp_path)
    shutil.unpack_archive(sdist, tmp_path / "unpacked", filter="data")
    (unpacked,) = (tmp_path / "unpacked").iterdir()
    run(*build, "--wheel", "--outdir", tmp_path / "there", unpacked, cwd=tmp_path)
    assert _members(tmp_path / "here") == _members(tmp_path / "there")


def _members(folder: Path) -> dict[str, int]:
    """Return the checksums of the files in the wheel of a folder, by name."""
    (path,) = folder.glob("*.whl")
    with zipfile.ZipFile(path) as wheel:
        return {each.filename: each.CRC for each in wheel.infolist()}
