"""The revisions in the state folder of a host: the adopted revision, and the last offered revision."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Final

from compute_agent.files import read_own, remove_durably, sync_folder, write_durably
from compute_agent.fleet.revision import FleetError

KEPT: Final = "fleet.conf"
"""Name of the file with the adopted revision, in the state folder."""
OFFERED: Final = "fleet-offered.conf"
"""Name of the file with an offered revision, in the state folder. The file is renamed when the revision is
adopted.
"""

FAILED: Final = "fleet-failed"
"""Name of an empty file in the state folder. The file exists from a failed start to the next successful
start.
"""

# The owner writes, and the group may read, as with other configuration files.
_MODE: Final = 0o640


def read(path: Path) -> bytes | None:
    """The content of the file of a revision; None if the file does not exist.

    :raises FleetError: the file cannot be read, or another user could have written it.
    """
    try:
        return read_own(path)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise FleetError(f"{path} cannot be read: {error.strerror or error}") from error


def keep_offered(folder: Path, content: bytes) -> Path:
    """Write an offered revision to the state folder, where it can be tried. Returns the path of its file.

    :raises FleetError: the file cannot be written. The adopted revision does not change.
    """
    path = folder / OFFERED
    with suppress(FleetError):
        if read(path) == content:  # the revision was refused before, and is tried again
            return path
    try:
        write_durably(path, content, _MODE)
    except OSError as error:
        raise FleetError(f"{path} cannot be written: {error.strerror or error}") from error
    return path


def take_up(folder: Path) -> None:
    """Adopt the offered revision that is stored in the state folder.

    :raises FleetError: the file of the adopted revision cannot be replaced.
    """
    # A rename is atomic: after a crash the file is either the whole old file or the whole new file.
    try:
        os.replace(folder / OFFERED, folder / KEPT)
        sync_folder(folder)
    except OSError as error:
        raise FleetError(f"{folder / KEPT} cannot be replaced: {error.strerror or error}") from error


def has_failed(folder: Path) -> bool:
    """Whether a failed start of the agent is noted in this state folder."""
    return (folder / FAILED).exists()


def note_failure(folder: Path) -> None:
    """Note in the state folder that a start of the agent has failed.

    :raises OSError: the note cannot be written.
    """
    write_durably(folder / FAILED, b"", _MODE)


def forget_failure(folder: Path) -> None:
    """Remove the note of a failed start.

    :raises OSError: the note cannot be removed.
    """
    with suppress(FileNotFoundError):
        remove_durably(folder / FAILED)
