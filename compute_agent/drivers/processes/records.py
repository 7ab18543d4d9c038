"""Records and logs of process guests: one small file for each guest, and its output beside the file.

A record, ``UUID.json``, corresponds to the definition of a domain. Records are separate from the agent's
state file, so the loss of either does not lose the guests. A record is written before the guest's program
runs. A process is a guest only if there is a record of it, because the agent does not trust what a process
says about itself.

The output of a guest is ``UUID.log``. A log without a record belongs to a guest that has ended. Its
modification time is the time of the guest's end (see :meth:`RecordStore.remove`) or of its last output. Logs
of ended guests are kept for a time and up to a total size.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
import os
import stat
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Any, Final, TypeVar

from oslo_config import cfg

from compute_agent.drivers.cgroup import GuestCgroup, group_at, group_name
from compute_agent.drivers.procfs import ProcessIdentity
from compute_agent.files import (
    open_own,
    put_aside,
    read_own,
    remove_durably,
    secure_folder,
    write_durably,
)
from compute_agent.model.guest import Guest, GuestIdentity
from compute_agent.model.guest_settings import SETTING_NAMES, GuestSettings
from compute_agent.model.messages import full_name, is_uuid, printable_text

LOG = logging.getLogger(__name__)

LOG_SUFFIX: Final = ".log"
RECORD_SUFFIX: Final = ".json"

GRACE_SECONDS: Final = 60.0
"""Seconds for which a log without a record always stays, because a starting guest has a log before it has a
record."""


TAIL_BYTES: Final = 1 << 20
"""Maximum number of bytes of a log that are kept when the log is shortened."""


@dataclass(frozen=True, slots=True)
class EndedLog:
    """The log of a guest that has ended.

    :ivar size: the size of the log in bytes.
    :ivar ended: the time of the guest's end, in seconds since the epoch.
    """

    path: Path
    size: int
    ended: float


def choose_logs(logs: Iterable[EndedLog], now: float, retention: float, max_bytes: int) -> list[EndedLog]:
    """The logs to remove: all logs older than ``retention``, and then the oldest ones above ``max_bytes``.

    :param now: the present time in seconds since the epoch.
    :param retention: the seconds for which a log is kept after the guest's end.
    :param max_bytes: the maximum number of bytes of all kept logs together.
    """
    chosen, taken = [], 0
    # The youngest logs come first, so that the oldest logs are those that exceed the total size.
    for log in sorted(logs, key=lambda one: one.ended, reverse=True):
        taken += log.size
        age = now - log.ended
        if age > GRACE_SECONDS and (age > retention or taken > max_bytes):
            chosen.append(log)
    return chosen


def prune_logs(folder: Path, retention: float, max_bytes: int) -> None:
    """Remove the logs of ended guests that choose_logs() chooses.

    :param folder: the folder of the records.
    :param retention: the seconds for which a log is kept after the guest's end.
    :param max_bytes: the maximum number of bytes of all kept logs together.
    :raises OSError: a log cannot be removed.
    """
    chosen = choose_logs(_ended_logs(folder), time.time(), retention, max_bytes)
    for log in chosen:
        log.path.unlink(missing_ok=True)
    if chosen:
        size = sum(log.size for log in chosen)
        LOG.info("Removed the logs of %d guests that have ended (%d bytes)", len(chosen), size)


def try_prune(folder: Path, options: cfg.ConfigOpts.GroupAttr) -> None:
    """Remove logs of ended guests according to the options of ``[guests]``. An error is logged."""
    try:
        prune_logs(folder, options.log_retention, options.log_max_mb * 10**6)
    except OSError as error:
        LOG.warning("The logs of guests that have ended cannot be removed: %s", error)


class GuestLogs:
    """Keeps the logs of guests from filling the file system that also contains the agent's state.

    Guests write their logs themselves, whether the agent runs or not. Guests open their logs with O_APPEND,
    so the agent can shorten a log in place. Output that a guest writes at that moment can be lost. Logs of
    ended guests are shortened, too: a guest perhaps ended because its log filled the disk, and the log would
    keep the disk full.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._told: dict[str, str] = {}

    def shorten_logs(self, max_bytes: int) -> None:
        """Cut logs above ``max_bytes`` to their last part; log an error once for each guest."""
        names = set()
        try:
            with os.scandir(self._folder) as entries:
                for entry in entries:
                    if entry.name.endswith(LOG_SUFFIX):
                        names.add(entry.name)
                        self._shorten_large(entry, max_bytes)
        except OSError as error:
            LOG.debug("The logs of guests cannot be listed: %s", error)
            return
        # Guests without a log are forgotten, so that the memory does not grow with each guest that ever ran.
        self._told = {guest: text for guest, text in self._told.items() if guest + LOG_SUFFIX in names}

    def _shorten_large(self, log: os.DirEntry[str], max_bytes: int) -> None:
        guest_uuid = log.name.removesuffix(LOG_SUFFIX)
        try:
            # The size is checked first, because the function runs each second for each guest, and most logs
            # are small.
            if log.stat(follow_symlinks=False).st_size <= max_bytes or not is_uuid(guest_uuid):
                return
            if (removed := _shorten_log(Path(log.path), max_bytes)) > 0:
                self._warn_once(
                    guest_uuid, "has a log above [guests] log_guest_mb: the agent removes its older part"
                )
                LOG.debug("Removed the oldest %d bytes of the output %s", removed, log.path)
        except FileNotFoundError:
            # The log was removed after the folder was listed.
            return
        except OSError as error:
            self._warn_once(guest_uuid, f"has a log that cannot be shortened: {error}")

    def _warn_once(self, guest_uuid: str, text: str) -> None:
        if self._told.get(guest_uuid) != text:
            self._told[guest_uuid] = text
            LOG.warning("The output of a guest is too large: guest %s %s", guest_uuid, text)


def _shorten_log(path: Path, max_bytes: int) -> int:
    """Shorten a log that is larger than ``max_bytes`` to its last part. Its modification time stays the same.

    :return: how many bytes were removed.
    :raises OSError: the log cannot be read or written.
    """
    descriptor = open_own(path, os.O_RDWR | os.O_APPEND)
    try:
        status = os.fstat(descriptor)
        size = status.st_size
        # At most half of the limit is kept, so that a guest with steady output does not reach the limit again
        # at once.
        start = max(0, size - min(TAIL_BYTES, max_bytes // 2))
        tail = os.pread(descriptor, size - start, start)
        # The file is truncated before the tail is written, because a full disk has no room for the whole file
        # and the tail. If the agent crashes between the two, the tail is lost.
        os.ftruncate(descriptor, 0)
        os.write(descriptor, b"[compute-agent removed %d bytes]\n" % start + tail)
        # The modification time of an ended guest's log is the time of its end.
        os.utime(descriptor, ns=(status.st_atime_ns, status.st_mtime_ns))
    finally:
        os.close(descriptor)
    return start


def _ended_logs(folder: Path) -> Iterator[EndedLog]:
    """The logs in a folder that have no record beside them."""
    names = set(os.listdir(folder)) if folder.is_dir() else set()
    for name in names:
        guest_uuid, suffix = os.path.splitext(name)
        if suffix != LOG_SUFFIX or guest_uuid + RECORD_SUFFIX in names or not is_uuid(guest_uuid):
            continue
        path = folder / name
        with contextlib.suppress(FileNotFoundError):
            status = path.lstat()
            # The agent makes regular files only. Anything else with such a name does not belong to the agent,
            # and stays.
            if stat.S_ISREG(status.st_mode):
                yield EndedLog(path, status.st_size, status.st_mtime)


DRIVER: Final = "process"
"""The name of the driver of process guests, in ``[guests] drivers`` and in documents."""

# The agent reads only the known fields of a record with a higher format number, and never writes such a
# record.
_FORMAT: Final = 1

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ProcessRecord:
    """The record of a process guest: its identity, its process, its settings, and how it was made.

    :ivar adopted: whether another program started the guest. The other program is the parent of the process
        and reads its exit status.
    :ivar log: the path of the file with the guest's output.
    :ivar cgroup: the path of the guest's own cgroup v2 group; empty if the guest has no group of its own.
    :ivar whole_group: whether the guest lives until the last process of its group ends. Otherwise the guest
        ends with its main process.
    :ivar limits: the cgroup files, and ``oom_score_adj``, that the agent has written.
    :ivar newer: whether a later release wrote the record. Fields that this release does not know are missing.
    :ivar declared: the names of the settings that the request for the guest contained, including settings
        with their default value.
    :ivar origin_cgroup: the cgroup of an adopted process before its adoption.
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
    limits: tuple[str, ...] = ()
    newer: bool = False
    declared: tuple[str, ...] = ()
    origin_cgroup: str = ""

    def __str__(self) -> str:
        return full_name(self.name, self.uuid)

    @property
    def own_group(self) -> GuestCgroup | None:
        """The guest's own group; None if the guest has no own group."""
        return group_at(self.cgroup) if self.cgroup else None

    def member_pids(self) -> list[int]:
        """The pids of the processes in the guest's own group; empty if there is no such group."""
        return [] if self.own_group is None else self.own_group.process_ids()

    def as_guest(self) -> Guest:
        """The guest in the form that all drivers share."""
        details = {
            "command": printable_text(" ".join(self.command)),
            "log": self.log,
            "origin": "adopted" if self.adopted else "started",
        }
        names = {*self.declared, *self.settings.chosen_values}
        return Guest(
            self.uuid,
            DRIVER,
            self.name,
            self.identity.pid,
            self.settings,
            self.cgroup,
            details,
            identity=GuestIdentity(cgroup=self.origin_cgroup),
            declared={name: getattr(self.settings, name) for name in SETTING_NAMES if name in names},
        )


@dataclass(frozen=True, slots=True)
class UnusableRecord:
    """A file that has the name of a record but cannot be read as a record, and the reason."""

    path: Path
    reason: str

    @property
    def guest_uuid(self) -> str:
        """The uuid in the file's name."""
        return self.path.name.removesuffix(RECORD_SUFFIX)

    @property
    def lost_reason(self) -> str:
        """The reason why the record cannot be used, and the remedy."""
        return (
            f"the guest record {self.path} cannot be used ({self.reason}), so its guest is not managed:"
            f" adopt the process again (compute-agent guest adopt --uuid {self.guest_uuid} --pid PID), or"
            " remove the file if the guest does not run any more"
        )


class RecordStore:
    """Records as files ``UUID.json`` in one folder, with the output of the guests in ``UUID.log``."""

    def __init__(self, folder: Path, look_only: bool = False) -> None:
        """Use a folder for records and logs, and make it if absent.

        :param look_only: whether the store makes, saves and removes nothing.
        :raises OSError: the folder cannot be made.
        :raises UnsafeFileError: other users can write there.
        """
        self.folder = folder
        self._look_only = look_only
        if not look_only:
            secure_folder(folder)

    def save(self, record: ProcessRecord) -> None:
        """Write a record to disk, durably. An unusable file with the same name is first moved aside.

        :raises OSError: the record cannot be written, or a later release wrote the existing record, which
            then stays.
        """
        if self._look_only:
            return
        if record.newer:
            raise OSError(f"{self._path(record.uuid)} was written by a later release, and stays as it is")
        content = {
            "format": _FORMAT,
            **dataclasses.asdict(record),
            "settings": _chosen_settings(record.settings),
        }
        # The field ``newer`` tells how the record was read, and is not stored in the file.
        del content["newer"]
        if self.find_unusable(record.uuid) is not None:
            self._put_aside(record.uuid)
        write_durably(self._path(record.uuid), json.dumps(content, indent=1).encode())

    def remove(self, record: ProcessRecord) -> None:
        """Remove the record of a guest that has ended, if the record exists. The guest's log stays.

        The modification time of the log becomes the time of the end.

        :raises OSError: the record cannot be removed.
        """
        if self._look_only:
            return
        # The retention of the log, in prune_logs(), begins at this time.
        with contextlib.suppress(OSError):
            os.utime(self._log_path(record.uuid), follow_symlinks=False)
        # A record with fields that this release does not know is renamed and not removed, because a later
        # release may still need it.
        if record.newer:
            with contextlib.suppress(FileNotFoundError):
                self._put_aside(record.uuid)
        else:
            remove_durably(self._path(record.uuid))

    def load(self) -> tuple[list[ProcessRecord], list[UnusableRecord]]:
        """All usable records of the folder, and the files that have names of records but cannot be used."""
        records, unusable = [], []
        for path in sorted(self.folder.glob(f"*{RECORD_SUFFIX}")):
            found = self._read(path)
            if isinstance(found, ProcessRecord):
                records.append(found)
            else:
                unusable.append(found)
        return records, unusable

    def find_unusable(self, guest_uuid: str) -> UnusableRecord | None:
        """The unusable file with the name of a guest's record; None if no such file exists."""
        path = self._path(guest_uuid)
        # The function lexists() is used, because a dangling symbolic link also counts as an existing record.
        found = self._read(path) if os.path.lexists(path) else None
        return found if isinstance(found, UnusableRecord) else None

    def open_log(self, guest_uuid: str) -> int:
        """Open the log of a guest for appending, and return the file descriptor, which the caller closes.

        :raises OSError: the log cannot be opened.
        """
        descriptor = open_own(self._log_path(guest_uuid), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o640)
        # The modification time is set to the present time. Otherwise the log of an earlier run with this uuid
        # could be pruned before the new record exists.
        try:
            os.utime(descriptor)
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor

    def log_of(self, guest_uuid: str) -> str:
        """The path of the log of a guest that the agent starts."""
        return str(self._log_path(guest_uuid))

    def _read(self, path: Path) -> ProcessRecord | UnusableRecord:
        try:
            record = parse_record(json.loads(read_own(path)))
            # A copy of a record under another name would make one process two guests.
            if path != self._path(record.uuid):
                raise ValueError(f"it is the record of guest {record.uuid}")
        # The file can contain anything, and one unusable record must not prevent the reading of other
        # records.
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            return UnusableRecord(path, f"{type(error).__name__}: {error}")
        # The path of the log is derived from the uuid and not read from the file: the folder may have moved,
        # and the content of a record must not choose a file.
        return record if record.adopted else replace(record, log=self.log_of(record.uuid))

    def _put_aside(self, guest_uuid: str) -> None:
        aside = put_aside(self._path(guest_uuid))
        LOG.warning(
            "The former record of guest %s, which this release cannot use in full, was renamed to %s",
            guest_uuid,
            aside,
        )

    def _path(self, guest_uuid: str) -> Path:
        return self.folder / f"{guest_uuid}{RECORD_SUFFIX}"

    def _log_path(self, guest_uuid: str) -> Path:
        return self.folder / f"{guest_uuid}{LOG_SUFFIX}"


def parse_record(content: Any) -> ProcessRecord:
    """A record from its JSON form. If a later release wrote it, the fields that this release knows are used.

    :raises ValueError: a field cannot be used.
    :raises KeyError: a field is missing.
    :raises TypeError: the content is not an object.
    :raises AttributeError: the content is not an object.
    """
    number = content["format"]
    # The exact type is compared and isinstance() is not used, because True is an int.
    if type(number) is not int or number < _FORMAT:
        raise ValueError(f"format {number!r} is not {_FORMAT}")
    newer = number > _FORMAT
    guest_uuid = content["uuid"]
    if not is_uuid(guest_uuid):
        raise ValueError(f"{guest_uuid!r} is not a uuid as it is written here")
    cgroup = _typed_value(content, "cgroup", str)
    # At the end of the guest the agent kills all processes of this group, so a record must not be able to
    # name another folder.
    if cgroup and (not os.path.isabs(cgroup) or Path(cgroup).name != group_name(guest_uuid)):
        raise ValueError(f"{cgroup!r} is not the group of guest {guest_uuid}")
    command = content["command"]
    if not isinstance(command, list) or not all(isinstance(word, str) for word in command):
        raise ValueError("the command is not a list of words")
    return ProcessRecord(
        uuid=guest_uuid,
        name=_typed_value(content, "name", str),
        identity=_read_identity(content["identity"]),
        settings=parse_settings(content["settings"], strict=not newer),
        command=tuple(command),
        adopted=_typed_value(content, "adopted", bool),
        cgroup=cgroup,
        # Records of earlier releases lack the fields from here on.
        whole_group="whole_group" in content and _typed_value(content, "whole_group", bool),
        limits=_read_names("limits", content),
        newer=newer,
        declared=tuple(name for name in _read_names("declared", content) if name in SETTING_NAMES),
        origin_cgroup=_typed_value(content, "origin_cgroup", str) if "origin_cgroup" in content else "",
    )


def _read_names(key: str, content: Mapping[str, Any]) -> tuple[str, ...]:
    names = content.get(key, [])
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ValueError(f"{key}: no list of names")
    return tuple(names)


def parse_settings(content: Mapping[str, Any], strict: bool = True) -> GuestSettings:
    """Guest settings from their JSON form. A setting that is absent has its default.

    :param strict: whether an unknown setting is an error.
    :raises ValueError: a value cannot be used, or a setting is unknown.
    """
    known = {field.name: field.default for field in dataclasses.fields(GuestSettings)}
    unknown = sorted(set(content) - set(known))
    if unknown and strict:
        raise ValueError(f"unknown guest settings: {', '.join(unknown)}")
    values = {name: value for name, value in content.items() if name in known}
    for name, default in known.items():
        if name in values and isinstance(default, StrEnum):
            values[name] = type(default)(values[name])
    for name, value in values.items():
        # Exact types are compared, because True is an int, too.
        if type(value) is not type(known[name]):
            raise ValueError(f"{name} cannot be {value!r}")
    settings = GuestSettings(**values)
    if settings.vcpus < 1:
        raise ValueError(f"vcpus must be a positive number, not {settings.vcpus!r}")
    return settings


def _chosen_settings(settings: GuestSettings) -> dict[str, Any]:
    """The settings that differ from their defaults, by name."""
    # An earlier release refuses a record with a setting that it does not know. So defaults are not written,
    # and most records stay readable after a downgrade.
    defaults = dataclasses.asdict(GuestSettings())
    return {name: value for name, value in dataclasses.asdict(settings).items() if value != defaults[name]}


def _read_identity(content: Mapping[str, Any]) -> ProcessIdentity:
    pid = _typed_value(content, "pid", int)
    if pid < 1:
        raise ValueError(f"{pid} is not a process id")
    return ProcessIdentity(
        pid, _typed_value(content, "start_time", int), _typed_value(content, "boot_id", str)
    )


def _typed_value(content: Mapping[str, Any], name: str, kind: type[T]) -> T:
    value = content[name]
    if type(value) is not kind:
        raise ValueError(f"{name} cannot be {value!r}")
    return value
