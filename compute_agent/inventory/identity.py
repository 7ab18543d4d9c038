"""The uuid of the root provider, made once and kept for as long as the host lives, and its name."""

import fcntl
import os
import uuid
from pathlib import Path
from typing import Final

from compute_agent.files import open_own, read_own, secure_folder, write_durably

FILE_NAME: Final = "compute_id"
NAME_FILE: Final = "provider_name"


class IdentityError(Exception):
    """The file of the uuid holds something else; the text names the file and says what to do."""


def load_or_create(state_path: Path) -> str:
    """The uuid kept in ``state_path``, made when there is none; whoever asks at the same time gets the same.

    An operator may put a uuid of their own into the file before the first start.

    :raises IdentityError: for a file with other content: a new uuid would leave the host's allocations with a
        provider that nobody serves.
    :raises OSError: the folder cannot be made or written.
    :raises UnsafeFileError: others could change what is in it.
    """
    secure_folder(state_path)
    path = state_path / FILE_NAME
    lock = open_own(state_path / f"{FILE_NAME}.lock", os.O_RDWR | os.O_CREAT)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            return _read(path)
        except FileNotFoundError:
            made = str(uuid.uuid4())
            write_durably(path, f"{made}\n".encode(), mode=0o644)
            return made
    finally:
        os.close(lock)


def look_up(state_path: Path) -> str | None:
    """The uuid kept in ``state_path``; None where there is none. Nothing is made.

    :raises IdentityError:
    :raises OSError:
    """
    try:
        return _read(state_path / FILE_NAME)
    except FileNotFoundError:
        return None


def kept_name(state_path: Path) -> str:
    """The name that the root provider had last; empty where none is kept.

    :raises IdentityError:
    :raises OSError:
    """
    path = state_path / NAME_FILE
    try:
        content = read_own(path)
    except FileNotFoundError:
        return ""
    try:
        name = content.decode().strip()
    except ValueError:
        name = ""
    if not name or not name.isprintable():
        raise IdentityError(
            f"{path} holds {content[:60]!r} instead of the name of this host's provider: write that into it,"
            " or set [compute] resource_provider_name and remove the file"
        )
    return name


def keep_name(state_path: Path, name: str) -> None:
    """Keep the name of the root provider.

    :raises IdentityError:
    :raises OSError:
    """
    if kept_name(state_path) != name:
        write_durably(state_path / NAME_FILE, f"{name}\n".encode(), mode=0o644)


def _read(path: Path) -> str:
    content = read_own(path)
    try:
        return str(uuid.UUID(content.decode("ascii").strip()))
    except ValueError as error:
        raise IdentityError(
            f"{path} holds {content[:60]!r} instead of a uuid: restore the uuid that this host's provider"
            " has in Placement, or remove the file if it has none"
        ) from error
