"""Records of the values that services had before the agent changed them, one small file for each service.

A record, ``UUID.json``, is written before the first change of a property, so a crash between the two loses no
value. A value counts for one boot: what the agent sets ends with the boot, as systemd keeps it in ``/run``.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from compute_agent import kept_json
from compute_agent.drivers import procfs
from compute_agent.drivers.systemd.unit_properties import DEFAULTS, Values, parse_text, value_text
from compute_agent.drivers.systemd.unit_state import is_service_name
from compute_agent.files import put_aside, read_own, remove_durably, secure_folder, write_durably
from compute_agent.model.messages import is_uuid

LOG = logging.getLogger(__name__)

_VERSION: Final = 1
_SUFFIX: Final = ".json"


@dataclass(frozen=True, slots=True)
class UnitRecord:
    """The values of a service's own.

    :ivar values: the values before the agent's writes, by property.
    :ivar kept: the properties that were set at run time before, by a file that has to stay.
    :ivar scored: whether the agent has set ``oom_score_adj``, which was 0 before.
    """

    guest_uuid: str
    unit: str
    values: Values = field(default_factory=dict)
    kept: frozenset[str] = frozenset()
    scored: bool = False

    @property
    def is_empty(self) -> bool:
        """Whether the agent has changed nothing."""
        return not self.values and not self.scored

    def with_values(self, values: Values, kept: Collection[str]) -> UnitRecord:
        """The record with more values."""
        return replace(self, values={**values, **self.values}, kept=self.kept | frozenset(kept))

    def without_values(self, names: Collection[str]) -> UnitRecord:
        """The record without the properties that have been given back."""
        rest = {name: value for name, value in self.values.items() if name not in names}
        return replace(self, values=rest, kept=self.kept - frozenset(names))


class UnitRecords:
    """Records in one folder. The caller makes sure that only one thread changes a record at a time."""

    def __init__(self, folder: Path, look_only: bool = False) -> None:
        """Read the records.

        :param look_only: whether nothing is written.
        :raises UnsafeFileError: other users may write to the folder.
        :raises OSError: the folder cannot be used.
        """
        self._folder = folder
        self._look_only = look_only
        if not look_only:
            secure_folder(folder)
        self._records = {record.guest_uuid: record for record in self._load()}

    def record_of(self, guest_uuid: str, unit: str) -> UnitRecord:
        """The record of a guest; an empty one if the agent has changed nothing."""
        found = self._records.get(guest_uuid)
        return found if found is not None and found.unit == unit else UnitRecord(guest_uuid, unit)

    def all_records(self) -> list[UnitRecord]:
        """The records of all services that the agent has changed."""
        return list(self._records.values())

    def save(self, record: UnitRecord) -> None:
        """Write a record, durably; an empty one is removed.

        :raises OSError: it cannot be written.
        """
        if not self._look_only:
            path = self._folder / f"{record.guest_uuid}{_SUFFIX}"
            if record.is_empty:
                remove_durably(path)
            else:
                write_durably(path, _dump(record))
        if record.is_empty:
            self._records.pop(record.guest_uuid, None)
        else:
            self._records[record.guest_uuid] = record

    def _load(self) -> list[UnitRecord]:
        found = []
        for path in sorted(self._folder.glob(f"*{_SUFFIX}")) if self._folder.is_dir() else ():
            try:
                boot, record = kept_json.parse(_VERSION, read_own(path), _read)
                if path.name != f"{record.guest_uuid}{_SUFFIX}":
                    raise ValueError(f"it is the record of guest {record.guest_uuid}")
            except (OSError, ValueError) as error:
                LOG.error(
                    "The record %s of a service cannot be used: %s. Its limits stay as they are until"
                    " `systemctl revert` or a reboot",
                    path,
                    error,
                )
                self._put_aside(path)
                continue
            if boot == procfs.boot_id():
                found.append(record)
            elif not self._look_only:
                path.unlink(missing_ok=True)
        return found

    def _put_aside(self, path: Path) -> None:
        if self._look_only:
            return
        try:
            put_aside(path)
        except OSError as error:
            LOG.warning("%s cannot be put aside: %s", path, error)


def _dump(record: UnitRecord) -> bytes:
    content = {
        "boot_id": procfs.boot_id(),
        "uuid": record.guest_uuid,
        "unit": record.unit,
        "values": {name: value_text(value) for name, value in record.values.items()},
        "kept": sorted(record.kept),
        "scored": record.scored,
    }
    return kept_json.dump(_VERSION, content)


def _read(document: Mapping[str, Any]) -> tuple[str, UnitRecord]:
    guest_uuid, unit = kept_json.text(document["uuid"]), kept_json.text(document["unit"])
    if not is_uuid(guest_uuid) or not is_service_name(unit):
        raise ValueError(f"{guest_uuid!r} and {unit!r} are not a uuid and a service")
    values = {
        name: parse_text(name, kept_json.text(text))
        for name, text in document["values"].items()
        if name in DEFAULTS
    }
    kept = frozenset(map(kept_json.text, document["kept"]))
    return kept_json.text(document["boot_id"]), UnitRecord(
        guest_uuid, unit, values, kept, document["scored"] is True
    )
