"""The YAML files of requests and expected answers that OpenStack Placement's source package holds.

pip downloads the archive once, from its configured index, into the user's cache folder. Each reading checks
the pinned hash. The files are read from the archive without unpacking it.
"""

import hashlib
import io
import os
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any, Final

import yaml

PROJECT: Final = "openstack-placement"
VERSION: Final = "16.0.0"
SHA256: Final = "ec95a0f74a2be1326f91c377b46cf930838722235e39f741137f80bc7e59fb9c"

_FOLDER: Final = PurePosixPath("placement/tests/functional/gabbits")
_SECONDS: Final = 300
_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class SourceMissing(Exception):
    """The archive is not available; the message has the reason."""


def load() -> Mapping[str, dict[str, Any]]:
    """Return the content of each file by its name without the suffix, sorted by name.

    :raises SourceMissing: the archive is neither cached nor downloadable
    """
    files = {}
    with tarfile.open(fileobj=io.BytesIO(_archive())) as archive:
        for member in archive:
            path = PurePosixPath(*PurePosixPath(member.name).parts[1:])  # below the folder of the package
            content = archive.extractfile(member)
            if path.parent == _FOLDER and path.suffix == ".yaml" and content is not None:
                files[path.stem] = yaml.load(content.read(), Loader=_Loader)  # a safe loader
    return dict(sorted(files.items()))


def _archive() -> bytes:
    """Return the bytes of the archive, from the cache if their hash is right."""
    path = _cache() / f"{PROJECT}-{VERSION}.tar.gz"
    try:
        content = path.read_bytes()
    except OSError:
        content = b""
    if hashlib.sha256(content).hexdigest() == SHA256:
        return content
    content = _download()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as part:
            part.write(content)
        os.replace(part.name, path)
    except OSError:
        pass  # the next run downloads it again
    return content


def _cache() -> Path:
    home = os.environ.get("XDG_CACHE_HOME")
    return (Path(home) if home else Path.home() / ".cache") / "placement-compute"


def _download() -> bytes:
    """Download the archive with pip, which checks the hash before it opens the archive."""
    with tempfile.TemporaryDirectory() as folder:
        requirements = Path(folder) / "requirements.txt"
        requirements.write_text(f"{PROJECT}=={VERSION} --hash=sha256:{SHA256}\n")
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--retries", "1"]
        command += [
            "--disable-pip-version-check",
            "--no-deps",
            "--no-binary",
            PROJECT,
            "--require-hashes",
            "--requirement",
        ]
        try:
            done = subprocess.run(
                [*command, str(requirements), "--dest", folder],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=_SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise SourceMissing(f"pip did not download {PROJECT} within {_SECONDS} s") from error
        archives = list(Path(folder).glob("*.tar.gz"))
        if done.returncode or len(archives) != 1:
            last_words = "\n".join(done.stderr.strip().splitlines()[-5:])
            raise SourceMissing(f"pip could not download {PROJECT}=={VERSION}:\n{last_words}")
        return archives[0].read_bytes()
