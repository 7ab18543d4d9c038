"""The state file: data that must outlive the agent and that no other source has.

JSON with a version and a checksum, replaced as a whole (see :mod:`compute_agent.files`). The loss of the file
costs little: assignments are read back from the kernel, and the agent claims its providers in Placement again
with the next report.
"""

from __future__ import annotations

import json
import logging
import os
import threading
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from compute_agent import kept_json, locks
from compute_agent.files import UnsafeFileError, read_own, secure_folder, write_durably
from compute_agent.model.cpuset import FormerValues
from compute_agent.model.guest import Allocation, CpuAssignment
from compute_agent.report.history import ConsumerOwner, OlderCopy, PlacementHistory
from compute_agent.report.plan import OwnedNames, Ownership
from compute_agent.report.root_provider import HostMaintenance, NovaRoot

LOG = logging.getLogger(__name__)

VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class SavedGuest:
    """The part of a cached guest that outlives the agent."""

    allocation: Allocation | None
    assignment: CpuAssignment | None


@dataclass(frozen=True, slots=True)
class AgentState:
    """The whole state.

    :ivar guests: by uuid.
    :ivar owned: the classes and traits that the agent wrote at each provider.
    :ivar driver: the name of the driver of the guests; empty: not known.
    :ivar maintenance: the last order of an operator; None: there is none.
    :ivar unclaimed: the allocations of consumers without a guest here.
    :ivar migrations: by consumer that is a migration, its guest.
    :ivar nova_root: the root provider of nova-compute when the agent last saw it; None: there was no such
        provider.
    :ivar former_values: former contents of the kernel files that classes of CPUs have changed.
    :ivar history: the last seen generations of Placement's providers, to notice an older database.
    :ivar former_watermarks: the JSON part in which former releases kept limits and evictions, until the state
        file of throttling has taken over the content; None: there is no such part.
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
    """The state in one file. Several threads may replace parts of it."""

    def __init__(self, path: Path) -> None:
        """Read ``path``. An absent file is an empty state; an unusable one is put aside and counts as empty.

        :raises UnsafeFileError: the file is not the agent's own.
        :raises OSError: the damaged file cannot be renamed.
        """
        self.path = path
        self._lock = threading.Lock()
        self._state = _load(path)
        # An absent file differs from any state, so that the first write makes it.
        self._saved: AgentState | None = self._state if path.exists() else None

    @property
    def state(self) -> AgentState:
        """The state in memory. The file may be older after a failed write."""
        return self._state

    def keep_driver(self, driver: str) -> None:
        """Replace the name of the driver; guests of another driver are forgotten.

        :raises OSError: the next call tries again.
        """
        with self._lock:
            changed = self._state.driver not in ("", driver)
            guests = {} if changed else self._state.guests
            self._state = replace(self._state, driver=driver, guests=guests)
            self._write()

    def keep_guests(
        self,
        guests: Mapping[str, SavedGuest],
        unclaimed: Mapping[str, Allocation] = MappingProxyType({}),
        migrations: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """Replace the guests and the consumers without a guest; durable when this returns.

        :raises OSError: the next call tries again.
        """
        with self._lock:
            self._state = replace(
                self._state, guests=dict(guests), unclaimed=dict(unclaimed), migrations=dict(migrations)
            )
            self._write()

    def keep_owned(self, owned: Ownership) -> None:
        """Replace the part on Placement; durable when this returns.

        :raises OSError: the next call tries again.
        """
        with self._lock:
            self._state = replace(self._state, owned=dict(owned))
            self._write()

    def keep_nova_root(self, root: NovaRoot | None) -> None:
        """Replace the root of nova-compute; durable when this returns.

        :raises OSError: the next call tries again.
        """
        with self._lock:
            self._state = replace(self._state, nova_root=root)
            self._write()

    @property
    def former_values(self) -> FormerValues:
        """The contents of kernel files before the agent wrote to them."""
        return self._state.former_values

    def keep_former_values(self, former: FormerValues) -> None:
        """Replace the former contents of kernel files; durable when this returns.

        :raises OSError: the next call tries again.
        """
        with self._lock:
            self._state = replace(self._state, former_values=former)
            self._write()

    @property
    def former_watermarks(self) -> Any:
        """The part on watermarks of a former release; None where there is none."""
        return self._state.former_watermarks

    def drop_former_watermarks(self) -> None:
        """Remove the part on watermarks of a former release; durable when this returns.

        :raises OSError: the next call tries again.
        """
        with self._lock:
            self._state = replace(self._state, former_watermarks=None)
            self._write()

    def keep_history(self, history: PlacementHistory) -> None:
        """Replace the history of Placement; durable when this returns.

        :raises OSError: the next call tries again.
        """
        with self._lock:
            self._state = replace(self._state, history=history)
            self._write()

    def keep_maintenance(self, maintenance: HostMaintenance) -> None:
        """Replace an operator's order of maintenance; durable when this returns.

        :raises OSError: the next call tries again.
        """
        with self._lock:
            self._state = replace(self._state, maintenance=maintenance)
            self._write()

    def _write(self) -> None:
        # Most events change nothing that is kept, and a durable write costs an fsync(2).
        if self._state == self._saved:
            return
        write_durably(self.path, dump(self._state))
        self._saved = self._state


def look_up(path: Path) -> AgentState:
    """The state in a file, for a reader that changes nothing. An unusable file counts as an empty state.

    :raises UnsafeFileError: the file is not the agent's own.
    """
    try:
        return parse(read_own(path))
    except UnsafeFileError:
        raise
    except (OSError, ValueError):
        return AgentState()


def lock_state_folder(folder: Path) -> int:
    """Lock the state folder (made if absent) for as long as this process lives.

    :return: the descriptor that holds the lock.
    :raises LockedError: another agent uses the folder.
    :raises OSError:
    """
    secure_folder(folder)
    try:
        return locks.hold_lock(folder / "agent.lock", f"pid {os.getpid()}")
    except locks.LockedError as error:
        raise locks.LockedError(f"another agent ({error}) works on the state folder {folder}") from error


def dump(state: AgentState) -> bytes:
    """The state as the content of its file."""
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
    # An older release that runs again would act by "qos": the part must be gone once another file has it.
    if state.former_watermarks is not None:
        data["qos"] = state.former_watermarks
    # As one line: with indentation json does not use its encoder in C, and each start of a guest writes all.
    return kept_json.dump(VERSION, kept_json.checked_content(data))


def parse(content: bytes) -> AgentState:
    """The state in the content of a file.

    :raises ValueError: the content cannot be used; the text says why.
    """
    try:
        document = json.loads(content)
        version = document["version"]
        if version != VERSION:
            # ``True`` is an int, too, and no version.
            later = type(version) is int and version > VERSION
            origin = ": a later release wrote it, which can use it again" if later else ""
            raise ValueError(f"version {version!r} is not {VERSION}{origin}")
        data = kept_json.checked_data(document)
        return AgentState(
            guests={uuid: _guest_from_json(guest) for uuid, guest in data["guests"].items()},
            owned={
                uuid: OwnedNames(
                    frozenset(owned["classes"]),
                    frozenset(owned["traits"]),
                    frozenset((name, field, value) for name, field, value in owned.get("written", ())),
                )
                for uuid, owned in data["owned"].items()
            },
            # Parts that are read with get() are missing in files of former releases.
            unclaimed={uuid: _allocation_to_json(held) for uuid, held in data.get("unclaimed", {}).items()},
            migrations={str(one): str(guest) for one, guest in data.get("migrations", {}).items()},
            driver=str(data.get("driver", "")),
            maintenance=_parse_maintenance(data.get("maintenance")),
            nova_root=_nova_root(data.get("nova_root")),
            former_values=_former_values(data.get("former_values")),
            history=_parse_history(data.get("history")),
            former_watermarks=data.get("qos"),
        )
    # RecursionError: a damaged file may be nested deeper than json can follow.
    except (KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"unexpected content: {type(error).__name__} {error}") from error


def _load(path: Path) -> AgentState:
    return kept_json.load_state(
        path,
        parse,
        AgentState(),
        lambda aside, error: LOG.warning(
            "The state file %s cannot be used; the agent starts without it, and it is %s now: %s",
            path,
            aside,
            error,
        ),
    )


def _nova_root(content: Any) -> NovaRoot | None:
    return None if content is None else NovaRoot(str(content["uuid"]), str(content["name"]))


def _former_values(content: Any) -> FormerValues:
    """Parse former values. The agent writes them to these paths, so each must be a file of CPUs."""
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
    }


def _allocation_to_json(allocation: Allocation) -> dict[str, dict[str, int]]:
    return {provider: dict(amounts) for provider, amounts in allocation.items()}


def _guest_from_json(content: Any) -> SavedGuest:
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
    return SavedGuest(content["allocation"], assignment)
