"""The revisions that a host keeps: the one that it works by, and one that it did not take up."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Final

from compute_agent.files import read_own, remove_durably, sync_folder, write_durably
from compute_agent.fleet.errors import FleetError

KEPT: Final = "fleet.conf"
"""In the state folder: what the agent works by."""
OFFERED: Final = "fleet-offered.conf"
"""In the state folder: what it was offered later, and has not taken up."""

STARTING: Final = "fleet-starting"
"""In the state folder while an agent begins by what is kept: if it is there before, that went wrong."""

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
        raise FleetError(f"{path} cannot be read: {error}") from error


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
        raise FleetError(f"{path} cannot be written: {error}") from error
    return path


def take_up(folder: Path) -> None:
    """Have what was offered be what the agent works by: the file of the one becomes that of the other.

    :raises FleetError: as keep_offered() does.
    """
    try:
        os.replace(folder / OFFERED, folder / KEPT)
        sync_folder(folder)
    except OSError as error:
        raise FleetError(f"{folder / KEPT} cannot be replaced: {error}") from error


def note_start(folder: Path) -> bool:
    """Remember that an agent begins; whether the one before it did not come through its start.

    :raises FleetError: it cannot be remembered.
    """
    path = folder / STARTING
    if read(path) is not None:
        return True
    try:
        write_durably(path, b"", _MODE)
    except OSError as error:
        raise FleetError(f"{path} cannot be written: {error}") from error
    return False


def note_started(folder: Path) -> None:
    """The agent has come through its start.

    :raises FleetError: that cannot be remembered.
    """
    path = folder / STARTING
    try:
        with suppress(FileNotFoundError):
            remove_durably(path)
    except OSError as error:
        raise FleetError(f"{path} cannot be removed: {error}") from error
