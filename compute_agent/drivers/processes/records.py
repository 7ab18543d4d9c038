"""Records and logs of process guests: one small file per guest, and its output beside it.

A record, ``UUID.json``, corresponds to the definition of a domain. It does not depend on the agent's state
file, so that either can be lost without losing the guests. It is written before the guest's program runs,
and only it makes a process a guest: what processes say of themselves is not believed.

The output is ``UUID.log``. A log without a record is of a guest that has ended; its modification time is the
guest's end (see :meth:`RecordStore.remove`) or its last output. Logs are kept for a while, as far as there is
room.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import logging
import os
import stat
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, TypeVar

from oslo_config import cfg

from compute_agent.drivers.cgroup import GuestCgroup, group_name
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
from compute_agent.model.guest_settings import (
    SETTING_NAMES,
    EmulatorPolicy,
    GuestSettings,
    MemoryType,
    ThreadPolicy,
)
from compute_agent.model.messages import full_name, is_uuid, printable_text

LOG = logging.getLogger(__name__)

LOG_SUFFIX: Final = ".log"
RECORD_SUFFIX: Final = ".json"

GRACE_SECONDS: Final = 60.0
"""A log that changed later than so long ago may be of a guest that is just being started."""


TAIL_BYTES: Final = 1 << 20
"""Bytes at most that stay of the output of a guest when there is too much of it."""


@dataclass(frozen=True, slots=True)
class EndedLog:
    """The log of a guest that has ended: its size in bytes, and when (seconds since the epoch) that was."""

    path: Path
    size: int
    ended: float


def choose(logs: Iterable[EndedLog], now: float, retention: float, max_bytes: int) -> list[EndedLog]:
    """The logs to remove.

    These are of guests that ended longer than ``retention`` seconds ago, and the oldest of the others while
    they are more than ``max_bytes`` bytes altogether.
    """
    chosen, taken = [], 0
    for log in sorted(logs, key=lambda one: one.ended, reverse=True):
        taken += log.size
        age = now - log.ended
        if age > GRACE_SECONDS and (age > retention or taken > max_bytes):
            chosen.append(log)
    return chosen


def prune(folder: Path, retention: float, max_bytes: int) -> None:
    """Remove what is to be removed in the folder of the records.

    :raises OSError:
    """
    chosen = choose(_ended(folder), time.time(), retention, max_bytes)
    for log in chosen:
        log.path.unlink(missing_ok=True)
    if chosen:
        size = sum(log.size for log in chosen)
        LOG.info("Removed the logs of %d guests that have ended (%d bytes)", len(chosen), size)


def try_prune(folder: Path, options: cfg.ConfigOpts.GroupAttr) -> None:
    """As prune(), by the options of [guests]; a failure is a line of the log."""
    try:
        prune(folder, options.log_retention, options.log_max_mb * 10**6)
    except OSError as error:
        LOG.warning("The logs of guests that have ended cannot be removed: %s", error)


class GuestLogs:
    """Keeps the logs of guests from filling the file system of the agent's own state.

    Guests write them without the agent, whether it runs or not, and go on at the end of what there is
    (O_APPEND): a log is shortened in its place. A guest that writes meanwhile may lose a part of its output.
    The logs of ended guests are shortened as well: a guest that fills a small disk within a second ends by
    that, and its log would keep the disk full.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._told: dict[str, str] = {}

    def shorten(self, max_bytes: int) -> None:
        """Have only the end of each log that is larger; a failure is a line of the log, once."""
        try:
            names = set(os.listdir(self._folder))
        except OSError as error:
            LOG.debug("There are no logs of guests to look at: %s", error)
            return
        for name in names:
            guest_uuid, suffix = os.path.splitext(name)
            if suffix == LOG_SUFFIX and is_uuid(guest_uuid):
                try:
                    if (removed := _shorten(self._folder / name, max_bytes)) > 0:
                        self._tell(
                            guest_uuid, "has much output: [guests] log_guest_mb is what its log may have"
                        )
                        LOG.debug("Removed %d bytes of %s", removed, name)
                except FileNotFoundError:
                    continue
                except OSError as error:
                    self._tell(guest_uuid, f"has a log that cannot be shortened: {error}")
        self._told = {guest: text for guest, text in self._told.items() if guest + LOG_SUFFIX in names}

    def _tell(self, guest_uuid: str, text: str) -> None:
        if self._told.get(guest_uuid) != text:
            self._told[guest_uuid] = text
            LOG.warning("Guest %s %s", guest_uuid, text)


def _shorten(path: Path, max_bytes: int) -> int:
    """The bytes that were removed of a log larger than that. Its modification time stays.

    :raises OSError:
    """
    if path.lstat().st_size <= max_bytes:
        return 0
    descriptor = open_own(path, os.O_RDWR | os.O_APPEND)
    try:
        status = os.fstat(descriptor)
        size = status.st_size
        start = max(0, size - min(TAIL_BYTES, max_bytes // 2))
        tail = os.pread(descriptor, size - start, start)
        os.ftruncate(descriptor, 0)  # before the tail is written: there may be no room for both
        os.write(descriptor, b"[compute-agent removed %d bytes]\n" % start + tail)
        os.utime(descriptor, ns=(status.st_atime_ns, status.st_mtime_ns))  # of an ended guest it is the end
    finally:
        os.close(descriptor)
    return start


def _ended(folder: Path) -> Iterator[EndedLog]:
    names = set(os.listdir(folder)) if folder.is_dir() else set()
    for name in names:
        guest_uuid, suffix = os.path.splitext(name)
        if suffix != LOG_SUFFIX or guest_uuid + RECORD_SUFFIX in names or not is_uuid(guest_uuid):
            continue
        path = folder / name
        with contextlib.suppress(FileNotFoundError):
            status = path.lstat()
            if stat.S_ISREG(status.st_mode):
                yield EndedLog(path, status.st_size, status.st_mtime)


DRIVER: Final = "process"
"""The name of the driver whose guests these are."""

_FORMAT: Final = 1

T = TypeVar("T")


@functools.lru_cache(maxsize=4096)
def _group(folder: str) -> GuestCgroup:
    """The group in a folder; every round asks for it a dozen times."""
    return GuestCgroup(Path(folder))


@dataclass(frozen=True, slots=True)
class ProcessRecord:
    """A process guest: who it is, which process it is, and how it was made.

    ``adopted`` guests were started by somebody else, who also wants to hear of their end. ``cgroup`` is the
    path of the guest's own cgroup v2 group, empty where plain affinity is used. ``whole_group`` guests live
    as long as any process in their group, others as long as their main process. ``log`` takes the guest's
    output. ``declared`` are the names of settings that were chosen at the start, at their defaults or not.
    ``origin_cgroup`` is the cgroup that an adopted process was in. ``limits`` are the files with limits of
    memory that the agent has written. ``newer``: it was written by a later release, and what this one does
    not know of it is missing.
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
    def group(self) -> GuestCgroup | None:
        """The guest's own group; None if it has none."""
        return _group(self.cgroup) if self.cgroup else None

    def members(self) -> list[int]:
        """The processes in the guest's own group."""
        return [] if self.group is None else self.group.processes()

    def guest(self) -> Guest:
        """The guest as others know it."""
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
    """A file that is no record, or none that can be used: whose it would be, and what is wrong with it."""

    path: Path
    reason: str

    @property
    def guest_uuid(self) -> str:
        """The guest that the file is named after."""
        return self.path.name.removesuffix(RECORD_SUFFIX)


class RecordStore:
    """Records as files ``UUID.json`` in one folder, with the output of the guests in ``UUID.log``."""

    def __init__(self, folder: Path, look_only: bool = False) -> None:
        """``look_only``: nothing is made, saved or removed.

        :raises OSError: the folder cannot be had.
        :raises UnsafeFileError: others may write there.
        """
        self.folder = folder
        self._look_only = look_only
        if not look_only:
            secure_folder(folder)

    def save(self, record: ProcessRecord) -> None:
        """Write a record; durable when this returns.

        What cannot be used and is in its place is put aside; a record of a later release stays.

        :raises OSError:
        """
        if self._look_only:
            return
        if record.newer:
            raise OSError(f"{self._path(record.uuid)} was written by a later release, and stays as it is")
        content = {"format": _FORMAT, **dataclasses.asdict(record), "settings": _chosen(record.settings)}
        del content["newer"]
        if self.find_unusable(record.uuid) is not None:
            self._put_aside(record.uuid)
        write_durably(self._path(record.uuid), json.dumps(content, indent=1).encode())

    def remove(self, record: ProcessRecord) -> None:
        """Forget a guest that has ended; one that is not recorded is no error. Its log is kept, as of now.

        :raises OSError:
        """
        if self._look_only:
            return
        with contextlib.suppress(OSError):
            os.utime(self._log(record.uuid), follow_symlinks=False)
        if record.newer:
            with contextlib.suppress(FileNotFoundError):
                self._put_aside(record.uuid)
        else:
            remove_durably(self._path(record.uuid))

    def load(self) -> tuple[list[ProcessRecord], list[UnusableRecord]]:
        """All records, and what of the folder should be one and cannot be used; each for itself."""
        records, unusable = [], []
        for path in sorted(self.folder.glob(f"*{RECORD_SUFFIX}")):
            found = self._read(path)
            if isinstance(found, ProcessRecord):
                records.append(found)
            else:
                unusable.append(found)
        return records, unusable

    def find_unusable(self, guest_uuid: str) -> UnusableRecord | None:
        """What stands where the record of a guest belongs and cannot be used, if anything does."""
        path = self._path(guest_uuid)
        found = self._read(path) if os.path.lexists(path) else None
        return found if isinstance(found, UnusableRecord) else None

    def open_log(self, guest_uuid: str) -> int:
        """A descriptor that takes the output of a guest, from now on.

        :raises OSError:
        """
        descriptor = open_own(self._log(guest_uuid), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o640)
        try:
            os.utime(descriptor)
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor

    def log_of(self, guest_uuid: str) -> str:
        """Where the output of a guest goes that the agent starts."""
        return str(self._log(guest_uuid))

    def _read(self, path: Path) -> ProcessRecord | UnusableRecord:
        try:
            record = parse_record(json.loads(read_own(path)))
            if path != self._path(record.uuid):
                raise ValueError(f"it is the record of guest {record.uuid}")
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            return UnusableRecord(path, f"{type(error).__name__}: {error}")
        return record if record.adopted else replace(record, log=self.log_of(record.uuid))

    def _put_aside(self, guest_uuid: str) -> None:
        aside = put_aside(self._path(guest_uuid))
        LOG.warning("What was recorded of guest %s is %s now", guest_uuid, aside)

    def _path(self, guest_uuid: str) -> Path:
        return self.folder / f"{guest_uuid}{RECORD_SUFFIX}"

    def _log(self, guest_uuid: str) -> Path:
        return self.folder / f"{guest_uuid}{LOG_SUFFIX}"


def parse_record(content: Any) -> ProcessRecord:
    """A record from its JSON form.

    One of a later format is understood as far as it is like one of this.

    :raises ValueError:
    :raises KeyError:
    :raises TypeError: it is not one.
    :raises AttributeError: it is not one.
    """
    number = content["format"]
    if type(number) is not int or number < _FORMAT:
        raise ValueError(f"format {number!r} is not {_FORMAT}")
    newer = number > _FORMAT
    guest_uuid = content["uuid"]
    if not is_uuid(guest_uuid):
        raise ValueError(f"{guest_uuid!r} is not a uuid as it is written here")
    cgroup = _typed(content, "cgroup", str)
    if cgroup and (not os.path.isabs(cgroup) or Path(cgroup).name != group_name(guest_uuid)):
        raise ValueError(f"{cgroup!r} is not the group of guest {guest_uuid}")
    command = content["command"]
    if not isinstance(command, list) or not all(isinstance(word, str) for word in command):
        raise ValueError("the command is no list of words")
    return ProcessRecord(
        uuid=guest_uuid,
        name=_typed(content, "name", str),
        identity=_identity(content["identity"]),
        settings=parse_settings(content["settings"], strict=not newer),
        command=tuple(command),
        adopted=_typed(content, "adopted", bool),
        cgroup=cgroup,
        whole_group="whole_group" in content and _typed(content, "whole_group", bool),  # absent in old ones
        limits=_names("limits", content),
        newer=newer,
        declared=tuple(name for name in _names("declared", content) if name in SETTING_NAMES),
        origin_cgroup=_typed(content, "origin_cgroup", str) if "origin_cgroup" in content else "",
    )


def _names(key: str, content: Mapping[str, Any]) -> tuple[str, ...]:
    names = content.get(key, [])  # absent in old records
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ValueError(f"{key}: no list of names")
    return tuple(names)


def parse_settings(content: Mapping[str, Any], strict: bool = True) -> GuestSettings:
    """Guest settings from their JSON form; what is absent has its default.

    :raises ValueError: for unknown values, and unless not ``strict`` for unknown settings.
    """
    known = {field.name: field.default for field in dataclasses.fields(GuestSettings)}
    unknown = sorted(set(content) - set(known))
    if unknown and strict:
        raise ValueError(f"unknown guest settings: {', '.join(unknown)}")
    values = {name: value for name, value in content.items() if name in known}
    if "thread_policy" in values:
        values["thread_policy"] = ThreadPolicy(values["thread_policy"])
    if "emulator_policy" in values:
        values["emulator_policy"] = EmulatorPolicy(values["emulator_policy"])
    if "memory_type" in values:
        values["memory_type"] = MemoryType(values["memory_type"])
    for name, value in values.items():
        if type(value) is not type(known[name]):
            raise ValueError(f"{name} cannot be {value!r}")
    settings = GuestSettings(**values)
    if settings.vcpus < 1:
        raise ValueError(f"vcpus must be a positive number, not {settings.vcpus!r}")
    return settings


def _chosen(settings: GuestSettings) -> dict[str, Any]:
    """The settings that are not at their defaults, as an earlier release refuses those that it does not know.

    It would then find the guest without its record, and record it under its uuid in place of its name.
    """
    defaults = dataclasses.asdict(GuestSettings())
    return {name: value for name, value in dataclasses.asdict(settings).items() if value != defaults[name]}


def _identity(content: Mapping[str, Any]) -> ProcessIdentity:
    pid = _typed(content, "pid", int)
    if pid < 1:
        raise ValueError(f"{pid} is no process id")
    return ProcessIdentity(pid, _typed(content, "start_time", int), _typed(content, "boot_id", str))


def _typed(content: Mapping[str, Any], name: str, kind: type[T]) -> T:
    value = content[name]
    if type(value) is not kind:
        raise ValueError(f"{name} cannot be {value!r}")
    return value
