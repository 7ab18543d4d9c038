"""The image, built by buildah with a small Debian instead of the base image, runs the service."""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.image_names import remove_random_names
from tests.packages import debian
from tests.packages.machine import SECONDS
from tests.ports import free_port
from tests.programs import run_program, wait_for_answer

pytestmark = [pytest.mark.packages, pytest.mark.slow, pytest.mark.root]

ROOT = Path(__file__).parents[2]
RECIPE = ROOT / "etc/packages/Containerfile"
WANTED = ["python3", "python3-venv", "passwd", "ca-certificates"]
EXTRAS = "postgresql,mysql,memcached"
EPOCH = "1790000000"


class Buildah:
    """buildah with a store of its own, and with containers in chroots."""

    def __init__(self, store: Path) -> None:
        self._words = ["buildah", "--root", f"{store}/root", "--runroot", f"{store}/run"]
        self._words += ["--storage-driver", "vfs"]
        self._environ = {**os.environ, "BUILDAH_ISOLATION": "chroot"}

    def words(self, *words: object) -> list[str]:
        return [*self._words, *map(str, words)]

    def __call__(self, *words: object) -> str:
        done = subprocess.run(
            self.words(*words),
            env=self._environ,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=1800,
            check=False,
        )
        assert done.returncode == 0, (words, done.stdout[-3000:], done.stderr[-3000:])
        return done.stdout.strip()


@pytest.fixture(scope="module")
def context(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with only an sdist."""
    folder = tmp_path_factory.mktemp("context")
    words = [sys.executable, "-m", "build", "--no-isolation", "--sdist", "--outdir", folder, ROOT]
    subprocess.run(words, check=True, capture_output=True, timeout=SECONDS)
    return folder


@pytest.fixture(scope="module")
def wheels(context: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Download the wheels for Debian's Python, because the build has no network."""
    folder = tmp_path_factory.mktemp("wheels")
    environment = folder.with_name("pip")
    made = subprocess.run(["/usr/bin/python3", "-m", "venv", environment], capture_output=True, check=False)
    if made.returncode:
        pytest.skip(f"Debian's Python makes no environments: {made.stdout.decode()}")
    (sdist,) = context.glob("*.tar.gz")
    download = [environment / "bin/pip", "--quiet", "download", "--dest", folder]
    download += ["--constraint", ROOT / "etc/constraints.txt", f"{sdist}[{EXTRAS}]"]
    subprocess.run([*download, "setuptools"], check=True, timeout=1800)
    return folder


@pytest.fixture(scope="module")
def buildah(tmp_path_factory: pytest.TempPathFactory) -> Buildah:
    """buildah, with the base image."""
    if shutil.which("buildah") is None:
        pytest.skip("buildah is not installed")
    folder = tmp_path_factory.mktemp("store")
    base = folder / "base"
    base.mkdir()
    try:
        debian.make(base, WANTED)
    except debian.DebianMissing as missing:
        pytest.skip(str(missing))
    made = Buildah(folder)
    made("from", "--name", "base", "scratch")
    made("add", "base", base, "/")
    made("commit", "--rm", "base", "localhost/base")
    shutil.rmtree(base)
    return made


def build(buildah: Buildah, context: Path, wheels: Path, tag: str) -> str:
    """Build the image as ``make image`` does, from nothing, and return its id."""
    offline = ["--build-arg", "PIP_NO_INDEX=1", "--build-arg", "PIP_FIND_LINKS=/wheels"]
    offline += ["--volume", f"{wheels}:/wheels:ro", "--build-arg", "BASE=localhost/base"]
    times = ["--timestamp", EPOCH, "--build-arg", f"SOURCE_DATE_EPOCH={EPOCH}"]
    words = ["--format", "docker", "--no-cache", *times, *offline, "--tag", tag, "--file", RECIPE, context]
    buildah("build", *words)
    return remove_random_names(buildah.words(), f"localhost/{tag}")


@pytest.fixture(scope="module")
def digest(buildah: Buildah, context: Path, wheels: Path) -> str:
    """The id of the image, which is a digest of its configuration with the digests of its layers."""
    return build(buildah, context, wheels, "placement-compute")


@pytest.fixture(scope="module")
def container(buildah: Buildah, digest: str) -> Iterator[str]:
    """A container of the image."""
    yield buildah("from", "--name", "placement", "localhost/placement-compute")
    buildah("rm", "placement")


def test_the_image_has_its_user_command_port_and_environment(buildah: Buildah, container: str) -> None:
    config = json.loads(buildah("inspect", "--type", "image", "localhost/placement-compute"))["Docker"][
        "config"
    ]
    assert config["User"] == "placement"
    assert config["Cmd"] == ["placement-api", "--bind", "0.0.0.0:8778"]
    assert list(config["ExposedPorts"]) == ["8778/tcp"]
    assert config["Healthcheck"]["Test"][0] == "CMD"
    environ = dict(each.split("=", 1) for each in config["Env"])
    assert environ["OS_PLACEMENT_CONFIG_DIR"] == "/etc/placement"
    assert not [name for name in environ if "PIP" in name or "PASSWORD" in name]


def test_the_image_has_the_pinned_versions_and_no_configuration(buildah: Buildah, container: str) -> None:
    root = Path(buildah("mount", container))
    assert [*(root / "etc/placement").iterdir()] == []
    assert not (root / "source").exists()
    assert not (root / "opt/placement-compute/bin/pip").exists()
    pins = (ROOT / "etc/constraints.txt").read_text().splitlines()
    pinned = {_normalized(*line.split("==")) for line in pins if "==" in line}
    (packages,) = root.glob("opt/placement-compute/lib/python3*/site-packages")
    names = [each.stem for each in packages.glob("*.dist-info") if not each.stem.startswith("placement_")]
    assert len(names) > 20
    assert {_normalized(*name.rsplit("-", 1)) for name in names} <= pinned


def _normalized(name: str, version: str) -> tuple[str, str]:
    return re.sub("[-_.]+", "-", name).lower(), version


def test_the_service_answers_as_another_user(buildah: Buildah, container: str, tmp_path: Path) -> None:
    settings = tmp_path / "etc"
    settings.mkdir(mode=0o755)
    (settings / "placement.conf").write_text(
        "[api]\nauth_strategy = noauth2\n[placement_database]\nsync_on_startup = true\n"
        "connection = sqlite:////var/lib/placement/placement.sqlite\n"
    )
    port = free_port()
    volume = ("--volume", f"{settings}:/etc/placement:ro")
    words = buildah.words("run", "--isolation", "chroot", "--network", "host", *volume, container, "--")
    service = ["placement-api", "--bind", f"127.0.0.1:{port}", "--workers", "1"]
    assert buildah("run", *volume, container, "--", "id", "--user") == "42479"
    assert "revision" in buildah("run", *volume, container, "--", "placement-manage", "db", "sync")
    with run_program([*words, *service], tmp_path / "log") as process:
        wait_for_answer(f"http://127.0.0.1:{port}/healthcheck", process, tmp_path / "log")


def test_two_builds_have_the_same_bytes(buildah: Buildah, context: Path, wheels: Path, digest: str) -> None:
    assert build(buildah, context, wheels, "again") == digest
