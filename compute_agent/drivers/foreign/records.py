"""Records of the values that guests had before the agent changed them, one small file for each guest.

The agent writes a record, ``UUID.json``, before it first changes a value, so a crash between the record and
the change loses no value. A record is valid for one boot, because the agent's settings end with the boot.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from compute_agent import kept_json
from compute_agent.drivers import procfs
from compute_agent.drivers.foreign.values import DEFAULTS, Values, parse_text, value_text
from compute_agent.files import put_aside, read_own, remove_durably, secure_folder, write_durably
from compute_agent.model.messages import is_uuid

LOG = logging.getLogger(__name__)

_VERSION: Final = 1
_SUFFIX: Final = ".json"


@dataclass(frozen=True, slots=True)
class ValueRecord:
    """The values that a guest had before the agent changed them.

    :ivar name: the name of the unit or of the container.
    :ivar run: the run of the guest to which the values belong; empty if they belong to each run, because the
        program that owns the group keeps them.
    :ivar values: the values before the agent's writes, by name.
    :ivar kept: the properties that another program had set at run time. systemd's files of these properties
        have to stay.
    :ivar scored: whether the agent has set ``oom_score_adj``; its former value was 0.
    :ivar score: the last ``oom_score_adj`` that the agent has set; None means that the agent has set no
        score, or that an agent of an older release set it without this note.
    """

    guest_uuid: str
    name: str
    run: str = ""
    values: Values = field(default_factory=dict)
    kept: frozenset[str] = frozenset()
    scored: bool = False
    score: int | None = None

    @property
    def is_empty(self) -> bool:
        """Whether the agent has changed nothing."""
        return not self.values and not self.scored

    def with_values(self, values: Values, kept: Collection[str]) -> ValueRecord:
        """A copy of the record with more values; a value that the record already has stays."""
        return replace(self, values={**values, **self.values}, kept=self.kept | frozenset(kept))

    def without_values(self, names: Collection[str]) -> ValueRecord:
        """A copy of the record without values that the guest has got back."""
        rest = {name: value for name, value in self.values.items() if name not in names}
        return replace(self, values=rest, kept=self.kept - frozenset(names))


class ValueRecords:
    """Records in one folder. The caller makes sure that only one thread changes a record at a time."""

    def __init__(self, folder: Path, subject: str, look_only: bool = False) -> None:
        """Read the records.

        :param subject: the guests, such as ``unit``, for messages.
        :param look_only: whether the object only reads records.
        :raises UnsafeFileError: other users can write to the folder.
        :raises OSError: the folder cannot be used.
        """
        self._folder = folder
        self._subject = subject
        self._look_only = look_only
        if not look_only:
            secure_folder(folder)
        self._records = {record.guest_uuid: record for record in self._load()}

    def record_of(self, guest_uuid: str, name: str, run: str = "") -> ValueRecord:
        """The record of a guest in this run; an empty record if the agent has changed nothing."""
        found = self.find_record(guest_uuid)
        # A container can get another name during its run, so the name counts only if there is no run.
        if found is None or found.run != run or (not run and found.name != name):
            return ValueRecord(guest_uuid, name, run)
        return found

    def find_record(self, guest_uuid: str) -> ValueRecord | None:
        """The record of a uuid, perhaps of another subject or run; None if the agent has changed nothing."""
        return self._records.get(guest_uuid)

    def uuid_of_run(self, run: str) -> str:
        """The uuid of the guest that the agent has changed in this run; empty if there is no such guest."""
        return next((record.guest_uuid for record in self.all_records() if record.run == run), "")

    def all_records(self) -> list[ValueRecord]:
        """The records of all guests that the agent has changed."""
        return list(self._records.values())

    def save(self, record: ValueRecord) -> None:
        """Write a record durably; remove the record's file if the record is empty.

        :raises OSError: the file cannot be written.
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

    def _load(self) -> list[ValueRecord]:
        found = []
        for path in sorted(self._folder.glob(f"*{_SUFFIX}")) if self._folder.is_dir() else ():
            try:
                boot, record = kept_json.parse(_VERSION, read_own(path), _read)
                if path.name != f"{record.guest_uuid}{_SUFFIX}":
                    raise ValueError(f"it is the record of guest {record.guest_uuid}")
            except (OSError, ValueError) as error:
                LOG.error(
                    "The record %s of a %s cannot be used: %s. The limits of the guest stay as they are",
                    path,
                    self._subject,
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
            LOG.warning("The damaged file %s cannot be renamed: %s", path, error)


def _dump(record: ValueRecord) -> bytes:
    content = {
        "boot_id": procfs.boot_id(),
        "uuid": record.guest_uuid,
        "name": record.name,
        "run": record.run,
        "values": {name: value_text(value) for name, value in record.values.items()},
        "kept": sorted(record.kept),
        "scored": record.scored,
        "score": record.score,
    }
    return kept_json.dump(_VERSION, content)


def _read(document: Mapping[str, Any]) -> tuple[str, ValueRecord]:
    guest_uuid, name = kept_json.text(document["uuid"]), kept_json.text(document["name"])
    # The name is checked, because it becomes a part of paths and an argument of calls.
    if not is_uuid(guest_uuid) or not name or "/" in name:
        raise ValueError(f"{guest_uuid!r} and {name!r} are not a uuid and a name")
    values = {
        name: parse_text(name, kept_json.text(text))
        for name, text in document["values"].items()
        if name in DEFAULTS
    }
    kept = frozenset(map(kept_json.text, document["kept"]))
    run, scored = kept_json.text(document["run"]), document["scored"] is True
    # A record of an older release has no score.
    score = document.get("score")
    if score is not None and type(score) is not int:
        raise ValueError(f"score cannot be {score!r}")
    return kept_json.text(document["boot_id"]), ValueRecord(
        guest_uuid, name, run, values, kept, scored, score
    )
