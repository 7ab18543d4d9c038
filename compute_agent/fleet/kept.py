"""The revisions in the state folder of a host: the adopted one, and the last one that was offered."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Final

from compute_agent.files import read_own, remove_durably, sync_folder, write_durably
from compute_agent.fleet.revision import FleetError

KEPT: Final = "fleet.conf"
"""Name of the adopted revision in the state folder."""
OFFERED: Final = "fleet-offered.conf"
"""Name of the offered revision in the state folder, until it is adopted."""

FAILED: Final = "fleet-failed"
"""Name of an empty file in the state folder, from a failed start to the next successful one."""

_MODE: Final = 0o640


def read(path: Path) -> bytes | None:
    """The content of a kept revision; None without one.

    :raises FleetError: the file cannot be read, or another user may have written it.
    """
    try:
        return read_own(path)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise FleetError(f"{path} cannot be read: {error.strerror or error}") from error


def keep_offered(folder: Path, content: bytes) -> Path:
    """Write an offered revision, so that it can be tried. Returns its path.

    :raises FleetError: the file cannot be written. Nothing has changed then.
    """
    path = folder / OFFERED
    with suppress(FleetError):
        if read(path) == content:  # it was refused before, and is tried again
            return path
    try:
        write_durably(path, content, _MODE)
    except OSError as error:
        raise FleetError(f"{path} cannot be written: {error.strerror or error}") from error
    return path


def take_up(folder: Path) -> None:
    """Make the offered revision the adopted one.

    :raises FleetError: the file cannot be replaced.
    """
    # A rename, so that after a crash there is either the old file or the new one as a whole.
    try:
        os.replace(folder / OFFERED, folder / KEPT)
        sync_folder(folder)
    except OSError as error:
        raise FleetError(f"{folder / KEPT} cannot be replaced: {error.strerror or error}") from error


def has_failed(folder: Path) -> bool:
    """Whether the last start with the kept revision failed."""
    return (folder / FAILED).exists()


def note_failure(folder: Path) -> None:
    """Note that a start with the kept revision has failed.

    :raises OSError: the note cannot be written.
    """
    write_durably(folder / FAILED, b"", _MODE)


def forget_failure(folder: Path) -> None:
    """Remove the note of a failed start.

    :raises OSError: the note cannot be removed.
    """
    with suppress(FileNotFoundError):
        remove_durably(folder / FAILED)
