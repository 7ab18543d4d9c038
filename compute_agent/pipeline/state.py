"""The state file: data that a restarted agent needs and cannot read anywhere else.

The file is JSON with a version and a checksum, and is replaced as a whole (see :mod:`compute_agent.files`).
The loss of the file does little harm: the agent reads assignments from the kernel, and the next report
records again which providers in Placement belong to the agent. A method that keeps a value raises OSError if
the file could not be written; the next call tries again.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from compute_agent import files, kept_json
from compute_agent.drivers.base import split_names
from compute_agent.files import secure_folder, write_durably
from compute_agent.model.cpuset import FormerValues
from compute_agent.model.guest import Allocation, CpuAssignment
from compute_agent.report.history import ConsumerOwner, OlderCopy, PlacementHistory
from compute_agent.report.plan import OwnedNames, Ownership
from compute_agent.report.root_provider import HostMaintenance, NovaRoot

LOG = logging.getLogger(__name__)

VERSION: Final = 1
"""Version of the content of the state file."""


@dataclass(frozen=True, slots=True)
class SavedGuest:
    """The data of a guest in the state file: its allocation and its assignment.

    :ivar driver: the name of the driver of the guest; empty if unknown, as in files of former releases.
    :ivar without_room: whether Placement has last refused the agent's claim for the guest for lack of room.
    """

    allocation: Allocation | None
    assignment: CpuAssignment | None
    driver: str = ""
    without_room: bool = False


@dataclass(frozen=True, slots=True)
class AgentState:
    """The whole content of the state file.

    :ivar guests: the saved guests, by uuid.
    :ivar owned: the resource classes and traits that the agent wrote to each provider, by uuid of the
        provider.
    :ivar driver: the name of the driver of the guests; empty if unknown. Commas separate several names.
    :ivar maintenance: the last request of an operator for maintenance; None if there is no such request.
    :ivar unclaimed: the allocations on this host of consumers without a guest, by uuid of the consumer.
    :ivar migrations: uuids of migrating guests, by the consumer of the migration.
    :ivar nova_root: the last known root provider of nova-compute; None if the agent has found no such
        provider.
    :ivar former_values: the contents of kernel files before the agent applied its classes of CPUs.
    :ivar history: the last seen generations of Placement's providers, by which the agent notices a database
        that was restored from an older copy.
    :ivar former_watermarks: the limits and evictions that a former release wrote here, or None. The agent
        moves them to the state file of throttling.
    """

    guests: Mapping[str, SavedGuest] = field(default_factory=dict)
    owned: Ownership = field(default_factory=dict)
    driver: str = ""
    maintenance: HostMaintenance | None = None
    unclaimed: Mapping[str, Allocation] = field(default_factory=dict)
    migrations: Mapping[str, str] = field(default_factory=dict)
    nova_root: NovaRoot | None = None
    former_values: FormerValues = field(default_factory=FormerValues)
    history: PlacementHistory = field(default_factory=PlacementHistory)
    former_watermarks: Any = None


class StateFile:
    """The state file of the agent. Several threads can replace parts of the state at once."""

    def __init__(self, path: Path) -> None:
        """Read the file.

        The state is empty if the file is absent, or if it is damaged. A damaged file is renamed.

        :raises UnsafeFileError: other users could have written the file.
        :raises OSError: the file cannot be read, or a damaged file cannot be renamed.
        """
        self.path = path
        self._lock = threading.Lock()
        self._state = _load(path)
        # None makes the first call of _write() create the file, even if the state is empty.
        self._saved: AgentState | None = self._state if path.exists() else None

    @property
    def state(self) -> AgentState:
        """The present state. After a failed write, the file has an older state."""
        return self._state

    def keep_driver(self, driver: str) -> None:
        """Replace the name of the driver, and drop the saved guests of other drivers.

        :param driver: the name of the driver; commas separate several names.
        """
        with self._lock:
            used = set(split_names(driver))
            # A guest without the name of a driver can belong to any former driver.
            if used.issuperset(split_names(self._state.driver)):
                used.add("")
            guests = {uuid: guest for uuid, guest in self._state.guests.items() if guest.driver in used}
            self._write(replace(self._state, driver=driver, guests=guests))

    def keep_guests(
        self,
        guests: Mapping[str, SavedGuest],
        unclaimed: Mapping[str, Allocation] = MappingProxyType({}),
        migrations: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """Replace guests, allocations without a guest, and migrations, and wait until they are on disk."""
        self._keep_parts(guests=dict(guests), unclaimed=dict(unclaimed), migrations=dict(migrations))

    def keep_owned(self, owned: Ownership) -> None:
        """Replace the classes and traits that the agent owns in Placement.

        The data is on disk when this method returns.
        """
        self._keep_parts(owned=dict(owned))

    def keep_nova_root(self, root: NovaRoot | None) -> None:
        """Replace the root provider of nova-compute, and wait until it is on disk."""
        self._keep_parts(nova_root=root)

    @property
    def former_values(self) -> FormerValues:
        """The contents of kernel files before the agent first wrote to them."""
        return self._state.former_values

    def keep_former_values(self, former: FormerValues) -> None:
        """Replace the former contents of kernel files, and wait until they are on disk."""
        self._keep_parts(former_values=former)

    @property
    def former_watermarks(self) -> Any:
        """The state of watermarks that a former release has written, as JSON values; None without one."""
        return self._state.former_watermarks

    def drop_former_watermarks(self) -> None:
        """Remove the state of watermarks of a former release, and wait until the change is on disk.

        :raises OSError: the file could not be written; the next write of the file removes this state.
        """
        self._keep_parts(former_watermarks=None)

    def keep_history(self, history: PlacementHistory) -> None:
        """Replace the history of Placement's database, and wait until it is on disk."""
        self._keep_parts(history=history)

    def keep_maintenance(self, maintenance: HostMaintenance) -> None:
        """Replace the operator's request for maintenance, and wait until it is on disk."""
        self._keep_parts(maintenance=maintenance)

    def _keep_parts(self, **parts: Any) -> None:
        """Replace fields of the state, by name, and wait until the new values are on disk."""
        with self._lock:
            self._write(replace(self._state, **parts))

    def _write(self, state: AgentState) -> None:
        self._state = state
        # Most events do not change the saved state, and a write waits for an fsync(2).
        if state != self._saved:
            write_durably(self.path, dump(state))
            self._saved = state


def look_up(path: Path) -> AgentState:
    """Read the state file for a command that must not change it. An unusable file counts as an empty state.

    :raises UnsafeFileError: other users could have written the file.
    """
    return kept_json.look_up(path, parse, AgentState())


def lock_state_folder(folder: Path) -> int:
    """Make the state folder if it is absent, and lock it.

    :return: the descriptor that holds the lock until it is closed.
    :raises LockedError: another agent uses the folder.
    :raises OSError: the folder cannot be made, or the lock file cannot be opened.
    """
    secure_folder(folder)
    try:
        return files.hold_lock(folder / "agent.lock", f"pid {os.getpid()}")
    except files.LockedError as error:
        raise files.LockedError(f"another agent ({error}) works on the state folder {folder}") from error


def dump(state: AgentState) -> bytes:
    """The content of the state file for a given state."""
    data: dict[str, Any] = {
        "guests": {uuid: _guest_to_json(guest) for uuid, guest in sorted(state.guests.items())},
        "unclaimed": {uuid: _allocation_to_json(held) for uuid, held in sorted(state.unclaimed.items())},
        "migrations": dict(sorted(state.migrations.items())),
        "owned": {
            uuid: {
                "classes": sorted(owned.classes),
                "traits": sorted(owned.traits),
                "written": sorted(map(list, owned.written)),
            }
            for uuid, owned in sorted(state.owned.items())
        },
        "driver": state.driver,
        "maintenance": None if state.maintenance is None else asdict(state.maintenance),
        "nova_root": None if state.nova_root is None else asdict(state.nova_root),
        "former_values": {"boot": state.former_values.boot, "values": dict(state.former_values.values)},
        "history": {
            "generations": dict(sorted(state.history.generations.items())),
            "older": None if state.history.older is None else asdict(state.history.older),
            "holders": {uuid: asdict(holder) for uuid, holder in sorted(state.history.holders.items())},
        },
    }
    # The part ``qos`` is left out once the state file of throttling has it. Otherwise an older release that
    # runs again would act on it.
    if state.former_watermarks is not None:
        data["qos"] = state.former_watermarks
    # The text has no indentation, because json uses a slow encoder in Python for indented texts. Each start
    # of a guest writes the whole file.
    return kept_json.dump(VERSION, kept_json.checked_content(data))


def parse(content: bytes) -> AgentState:
    """Parse the content of the state file.

    :raises ValueError: the content is damaged, or of another version; the text has the reason.
    """
    return kept_json.parse(VERSION, content, lambda document: _read_state(kept_json.checked_data(document)))


def _read_state(data: Any) -> AgentState:
    # Former releases wrote no driver of a guest: all guests had the driver of the host.
    driver = str(data.get("driver", ""))
    return AgentState(
        guests={uuid: _guest_from_json(guest, driver) for uuid, guest in data["guests"].items()},
        owned={
            uuid: OwnedNames(
                frozenset(owned["classes"]),
                frozenset(owned["traits"]),
                frozenset((name, field, value) for name, field, value in owned.get("written", ())),
            )
            for uuid, owned in data["owned"].items()
        },
        # get() is for parts that files of former releases do not have.
        unclaimed={uuid: _allocation_to_json(held) for uuid, held in data.get("unclaimed", {}).items()},
        migrations={str(one): str(guest) for one, guest in data.get("migrations", {}).items()},
        driver=driver,
        maintenance=_parse_maintenance(data.get("maintenance")),
        nova_root=_nova_root(data.get("nova_root")),
        former_values=_former_values(data.get("former_values")),
        history=_parse_history(data.get("history")),
        former_watermarks=data.get("qos"),
    )


def _load(path: Path) -> AgentState:
    return kept_json.load_state(
        path,
        parse,
        AgentState(),
        lambda aside, error: LOG.warning(
            "The state file %s cannot be used. The agent starts without it, and has renamed it to %s: %s",
            path,
            aside,
            error,
        ),
    )


def _nova_root(content: Any) -> NovaRoot | None:
    return None if content is None else NovaRoot(str(content["uuid"]), str(content["name"]))


def _former_values(content: Any) -> FormerValues:
    """Parse former values.

    :raises ValueError: a path is not in the folder of CPUs. Such paths are refused, because the agent will
        write to the paths of former values.
    """
    if content is None:
        return FormerValues()
    values = {str(path): str(text) for path, text in content["values"].items()}
    if not all(path.startswith("sys/devices/system/cpu/") and ".." not in path for path in values):
        raise ValueError("former values of files that are not of CPUs")
    return FormerValues(str(content["boot"]), values)


def _parse_history(content: Any) -> PlacementHistory:
    if content is None:
        return PlacementHistory()
    older = content["older"]
    return PlacementHistory(
        {str(uuid): int(generation) for uuid, generation in content["generations"].items()},
        None if older is None else OlderCopy(str(older["reason"]), float(older["since"])),
        {
            uuid: ConsumerOwner(str(it["project_id"]), str(it["user_id"]), it["consumer_type"])
            for uuid, it in content["holders"].items()
        },
    )


def _parse_maintenance(content: Any) -> HostMaintenance | None:
    if content is None:
        return None
    return HostMaintenance(bool(content["off"]), str(content["reason"]), float(content["since"]))


def _guest_to_json(guest: SavedGuest) -> dict[str, Any]:
    allocation = guest.allocation
    assignment = guest.assignment
    return {
        "allocation": None if allocation is None else _allocation_to_json(allocation),
        "assignment": None
        if assignment is None
        else {
            "vcpu_cpus": [sorted(cpus) for cpus in assignment.vcpu_cpus],
            "emulator_cpus": sorted(assignment.emulator_cpus),
            "dedicated": list(assignment.dedicated),
            "withheld": sorted(assignment.withheld),
            "mems": sorted(assignment.mems),
        },
        "driver": guest.driver,
        "without_room": guest.without_room,
    }


def _allocation_to_json(allocation: Allocation) -> dict[str, dict[str, int]]:
    return {provider: dict(amounts) for provider, amounts in allocation.items()}


def _guest_from_json(content: Any, driver: str) -> SavedGuest:
    saved = content["assignment"]
    assignment = None
    if saved is not None:
        assignment = CpuAssignment(
            vcpu_cpus=tuple(frozenset(cpus) for cpus in saved["vcpu_cpus"]),
            emulator_cpus=frozenset(saved["emulator_cpus"]),
            dedicated=tuple(saved["dedicated"]),
            withheld=frozenset(saved["withheld"]),
            mems=frozenset(saved["mems"]),
        )
    return SavedGuest(
        content["allocation"],
        assignment,
        str(content.get("driver", driver)),
        content.get("without_room") is True,
    )
