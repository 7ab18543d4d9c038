"""Reads the archives of ``compute-agent report`` and ``placement-manage report``."""

import tarfile
from pathlib import Path


def read_archive(path: Path) -> dict[str, str]:
    """Return the texts of an archive by name; each is readable by its owner alone."""
    found = {}
    with tarfile.open(path) as archive:
        for entry in archive:
            assert entry.mode == 0o600
            content = archive.extractfile(entry)
            assert content is not None
            found[entry.name.rpartition("/")[2]] = content.read().decode()
    return found
