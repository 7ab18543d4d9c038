"""The process driver's own record of its guests: one small file per guest, as libvirt keeps a definition per
domain.

Independent of the agent's state file, so that either can be lost without losing the guests.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from compute_agent.drivers.base import Guest, GuestSettings
from compute_agent.drivers.cgroup import Group
from compute_agent.drivers.procfs import ProcessIdentity
from compute_agent.files import remove_durably, write_durably
from compute_agent.naming import called
from compute_agent.policy.base import EmulatorPolicy, ThreadPolicy

LOG = logging.getLogger(__name__)

DRIVER = "process"
"""The name of the driver whose guests these are."""

_FORMAT = 1


@dataclass(frozen=True, slots=True)
class ProcessRecord:
    """A process guest: who it is, which process it is, and how it was made.

    ``adopted`` guests were started by somebody else, who also wants to hear of their end. ``cgroup`` is the
    path of the guest's own cgroup v2 group, empty where plain affinity is used. ``whole_group`` guests live
    as long as any process in their group, others as long as their main process. ``log`` takes the guest's
    output.
    """

    uuid: str
    name: str
    identity: ProcessIdentity
    settings: GuestSettings
    command: tuple[str, ...]
    adopted: bool = False
    log: str = ""
    cgroup: str = ""
    whole_group: bool = False

    def __str__(self) -> str:
        return called(self.name, self.uuid)

    @property
    def group(self) -> Group | None:
        """The guest's own group; None if it has none."""
        return Group(Path(self.cgroup)) if self.cgroup else None

    def members(self) -> list[int]:
        """The processes in the guest's own group."""
        return [] if self.group is None else self.group.processes()

    def guest(self) -> Guest:
        """The guest as others know it."""
        details = {
            "command": " ".join(self.command),
            "log": self.log,
            "origin": "adopted" if self.adopted else "started",
            **({"cgroup": self.cgroup} if self.cgroup else {}),
        }
        return Guest(self.uuid, DRIVER, self.name, self.identity.pid, self.settings, details)


class Registry:
    """Records as files ``UUID.json`` in one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(mode=0o750, parents=True, exist_ok=True)

    def save(self, record: ProcessRecord) -> None:
        """Write a record; durable when this returns. Raises OSError."""
        content = {"format": _FORMAT, **dataclasses.asdict(record)}
        write_durably(self._path(record.uuid), json.dumps(content, indent=1).encode())

    def remove(self, guest_uuid: str) -> None:
        """Forget a guest; unknown ones are no error."""
        remove_durably(self._path(guest_uuid))

    def load(self) -> Iterator[ProcessRecord]:
        """Every readable record. A damaged one costs a log line and is left for a human to look at."""
        for path in sorted(self.folder.glob("*.json")):
            try:
                yield parse_record(json.loads(path.read_bytes()))
            except (OSError, ValueError, KeyError, TypeError) as error:
                LOG.warning("The guest record %s cannot be used (%s: %s)", path, type(error).__name__, error)

    def _path(self, guest_uuid: str) -> Path:
        return self.folder / f"{guest_uuid}.json"


def parse_record(content: Any) -> ProcessRecord:
    """A record from its JSON form. Raises ValueError, KeyError or TypeError if it is not one."""
    if content["format"] != _FORMAT:
        raise ValueError(f"format {content['format']!r} is not {_FORMAT}")
    return ProcessRecord(
        uuid=str(uuid.UUID(content["uuid"])),
        name=str(content["name"]),
        identity=ProcessIdentity(**content["identity"]),
        settings=parse_settings(content["settings"]),
        command=tuple(content["command"]),
        adopted=bool(content["adopted"]),
        log=str(content["log"]),
        cgroup=str(content["cgroup"]),
        whole_group=bool(content.get("whole_group", False)),  # earlier releases did not know it
    )


def parse_settings(content: Any) -> GuestSettings:
    """Guest settings from their JSON form; what is absent has its default. Raises ValueError for unknown
    values.
    """
    known = {field.name for field in dataclasses.fields(GuestSettings)}
    unknown = sorted(set(content) - known)
    if unknown:
        raise ValueError(f"unknown guest settings: {', '.join(unknown)}")
    values = dict(content)
    if "thread_policy" in values:
        values["thread_policy"] = ThreadPolicy(values["thread_policy"])
    if "emulator_policy" in values:
        values["emulator_policy"] = EmulatorPolicy(values["emulator_policy"])
    settings = GuestSettings(**values)
    if not isinstance(settings.vcpus, int) or settings.vcpus < 1:
        raise ValueError(f"vcpus must be a positive number, not {settings.vcpus!r}")
    return settings
