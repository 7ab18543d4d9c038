"""Content of a built wheel."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import sys
import zipfile
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.environments import copy_sources

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
        "import sys; from placement.db import migration; "
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


def test_a_wheel_built_without_git_has_a_version(installed: Path) -> None:
    metadata = (next(installed.glob("*.dist-info")) / "METADATA").read_text()
    assert "\nVersion: 0.1.0.dev0\n" in metadata


@pytest.mark.parametrize(("tag", "version"), [("v1.2.3", "1.2.4.dev1"), (None, "0.0")])
def test_an_export_of_git_archive_has_its_version(tag: str | None, version: str, tmp_path: Path) -> None:
    checkout, exported = tmp_path / "checkout", tmp_path / "exported"
    checkout.mkdir()
    exported.mkdir()
    for name in ("pyproject.toml", ".gitattributes", ".git_archival.txt"):
        shutil.copy(ROOT / name, checkout)

    def git(*words: object) -> None:
        who = ("-c", "user.name=Test", "-c", "user.email=test@example.org")
        subprocess.run(["git", "-C", checkout, *who, *map(str, words)], check=True, capture_output=True)

    git("init")
    git("add", ".")
    git("commit", "-m", "one")
    if tag:
        git("tag", "-a", tag, "-m", tag)
    git("commit", "--allow-empty", "-m", "another")
    git("archive", "--output", tmp_path / "exported.tar", "HEAD")
    shutil.unpack_archive(tmp_path / "exported.tar", exported)
    told = subprocess.run(
        [sys.executable, "-m", "setuptools_scm", "--root", exported],
        capture_output=True,
        text=True,
        check=True,
        cwd=exported,
    )
    assert told.stdout.strip().startswith(version)
