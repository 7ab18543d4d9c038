"""The revisions that a host keeps: the one that it works by, and one that it did not take up."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Final

from compute_agent.files import read_own, remove_durably, sync_folder, write_durably
from compute_agent.fleet.revision import FleetError

KEPT: Final = "fleet.conf"
"""In the state folder: what the agent works by."""
OFFERED: Final = "fleet-offered.conf"
"""In the state folder: what it was offered later, and has not taken up."""

FAILED: Final = "fleet-failed"
"""In the state folder from a start that went wrong to one that did not."""

_MODE: Final = 0o640


def read(path: Path) -> bytes | None:
    """The content of one of them; None if there is none.

    :raises FleetError: it cannot be read, or somebody else may have written it.
    """
    try:
        return read_own(path)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise FleetError(f"{path} cannot be read: {error.strerror or error}") from error


def keep_offered(folder: Path, content: bytes) -> Path:
    """Keep what was offered, so that it can be tried; its path.

    :raises FleetError: it cannot be written; all stays as it was.
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
    """Have what was offered be what the agent works by: the file of the one becomes that of the other.

    :raises FleetError: as keep_offered() does.
    """
    try:
        os.replace(folder / OFFERED, folder / KEPT)
        sync_folder(folder)
    except OSError as error:
        raise FleetError(f"{folder / KEPT} cannot be replaced: {error.strerror or error}") from error


def has_failed(folder: Path) -> bool:
    """Whether the last start by what is kept went wrong."""
    return (folder / FAILED).exists()


def note_failure(folder: Path) -> None:
    """Remember that a start by what is kept goes wrong.

    :raises OSError: it cannot be remembered.
    """
    write_durably(folder / FAILED, b"", _MODE)


def forget_failure(folder: Path) -> None:
    """The agent has started.

    :raises OSError: that cannot be remembered.
    """
    with suppress(FileNotFoundError):
        remove_durably(folder / FAILED)
