"""The identity of a host in its state folder: uuid and name of its root provider, and the folder's owner.

The uuid of the root is made once and then kept. The agent refuses the state folder of another host.

An agent does not start on a copy of another host's folder. A copy contains the uuid of the other host's root
provider. Two agents with one uuid would write to the same provider, and each would undo the changes of the
other. The program nova-compute has the same check: its compute node, which has the uuid in the file
``compute_id``, must have the host name of nova-compute.
"""

from __future__ import annotations

import fcntl
import logging
import os
import uuid
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from compute_agent import kept_json
from compute_agent.files import open_own, read_own, secure_folder, write_durably
from compute_agent.host.kernel_files import read_host_name, read_machine_hash
from compute_agent.model.messages import printable_text

LOG = logging.getLogger(__name__)

UUID_FILE: Final = "compute_id"
NAME_FILE: Final = "provider_name"
HOST_FILE: Final = "host_id"
VERSION: Final = 1


class IdentityError(Exception):
    """A damaged file with the root provider's uuid or name; the text names the file and says what to do."""


@dataclass(frozen=True, slots=True)
class HostIdentity:
    """The facts that identify a host, also after a reboot. An unknown fact is empty.

    :ivar name: the content of ``/etc/hostname``.
    :ivar machine: a hash of ``/etc/machine-id``.
    """

    name: str = ""
    machine: str = ""

    def differs_from(self, other: HostIdentity) -> bool:
        """Whether the identities certainly belong to different hosts, or to one host that was renamed."""
        # The name decides, as in Nova: a host without a system disk gets another machine id at each boot, and
        # hosts that were made from one image can have the same machine id.
        if self.name and other.name:
            return self.name != other.name
        return bool(self.machine and other.machine) and self.machine != other.machine

    def __str__(self) -> str:
        return self.name or f"with another /etc/machine-id ({self.machine[:8]})"


def read_identity(root: Path) -> HostIdentity:
    """The identity of the host with its files below ``root``."""
    # hostname(5): comments begin with #, and a name has at most 64 characters.
    lines = (line.strip() for line in read_host_name(root).lower().splitlines())
    name = next((printable_text(line)[:64] for line in lines if line and line[0] != "#"), "")
    # Images often contain the name localhost, which a host has until it gets a name of its own.
    is_own = name.partition(".")[0] != "localhost"
    return HostIdentity(name if is_own else "", read_machine_hash(root))


def check_owner(folder: Path, host: HostIdentity) -> HostIdentity:
    """Check that a folder belongs to ``host``, and return its saved identity; empty if none is saved.

    :raises IdentityError: the state folder belongs to another host, or the file with its host is damaged.
    :raises OSError: the file cannot be read.
    """
    path = folder / HOST_FILE
    try:
        kept = kept_json.parse(VERSION, read_own(path), _read_identity)
    except FileNotFoundError:
        return HostIdentity()
    except ValueError as error:
        raise IdentityError(
            f"{path} is damaged ({error}). If [DEFAULT] state_path = {folder} belongs to this host, remove"
            " the file, and start the agent again"
        ) from error
    if host.differs_from(kept):
        raise IdentityError(
            f"[DEFAULT] state_path = {folder} belongs to the host {kept}, but this is the host {host}. If the"
            " folder is a copy, empty it, and this host gets a provider of its own. If this host has got a"
            f" new name, or replaces the other one, whose agent is stopped for good, remove {path}, and"
            " start the agent again; guests and allocations stay"
        )
    return kept


def keep_owner(folder: Path, host: HostIdentity) -> None:
    """Save that the state folder belongs to ``host``. The caller has to hold the lock of the folder.

    :raises IdentityError: the state folder belongs to another host, or the file with its host is damaged.
    :raises OSError: the file cannot be read.
    """
    kept = check_owner(folder, host)
    wanted = HostIdentity(host.name or kept.name, host.machine or kept.machine)
    if wanted == kept:
        return
    try:
        write_durably(folder / HOST_FILE, kept_json.dump(VERSION, {"host": asdict(wanted)}))
    except OSError as error:  # such as a full disk, on which the agent has to start nevertheless
        LOG.warning(
            "The agent cannot record that the state folder belongs to this host: %s; the next start tries"
            " again",
            error,
        )


def _read_identity(document: Any) -> HostIdentity:
    host = document["host"]
    return HostIdentity(*(printable_text(kept_json.text(host[field])) for field in ("name", "machine")))


def load_or_create(state_path: Path) -> str:
    """The uuid of the root provider from the folder ``state_path``. A missing uuid is created and saved.

    Concurrent callers get the same uuid.

    An operator can write a uuid into the file before the first start.

    :raises IdentityError: the file has other content. The agent makes no new uuid then, because the host's
        allocations would stay at a provider that no agent reports any more.
    :raises OSError: the folder cannot be made or written.
    :raises UnsafeFileError: other users could change the file.
    """
    secure_folder(state_path)
    path = state_path / UUID_FILE
    # The lock has a file of its own, because a write replaces the file of the uuid.
    lock = open_own(state_path / f"{UUID_FILE}.lock", os.O_RDWR | os.O_CREAT)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            return _read_uuid(path)
        except FileNotFoundError:
            made = str(uuid.uuid4())
            write_durably(path, f"{made}\n".encode(), mode=0o644)
            return made
    finally:
        os.close(lock)


def look_up(state_path: Path) -> str | None:
    """The uuid of the root provider from the folder ``state_path``; None if no uuid is saved.

    :raises IdentityError: the file has other content.
    :raises OSError: the file cannot be read.
    """
    try:
        return _read_uuid(state_path / UUID_FILE)
    except FileNotFoundError:
        return None


def kept_name(state_path: Path) -> str:
    """The last name of the root provider; empty if no name is saved.

    :raises IdentityError: the file has other content.
    :raises OSError: the file cannot be read.
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
    """Save the name of the root provider.

    :raises IdentityError: the file has other content.
    :raises OSError: the file cannot be written.
    """
    if kept_name(state_path) != name:
        write_durably(state_path / NAME_FILE, f"{name}\n".encode(), mode=0o644)


def _read_uuid(path: Path) -> str:
    content = read_own(path)
    try:
        return str(uuid.UUID(content.decode("ascii").strip()))
    except ValueError as error:
        raise IdentityError(
            f"{path} holds {content[:60]!r} instead of a uuid: restore the uuid that this host's provider"
            " has in Placement, or remove the file if Placement has no provider of this host"
        ) from error
