"""Compares the values of guests with the wanted values, sets the wanted ones, and restores the old ones.

The records on disk have the values before the first write (``records.py``).
"""

from __future__ import annotations

import abc
import logging
import os
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from compute_agent.drivers import procfs
from compute_agent.drivers.cgroup import GuestCgroup, group_at
from compute_agent.drivers.foreign.kernel_values import Texts, differing_files, files_of
from compute_agent.drivers.foreign.records import ValueRecord, ValueRecords
from compute_agent.drivers.foreign.values import (
    CPUS,
    DEFAULTS,
    NODES,
    USUAL_NAMES,
    GoalChoice,
    Values,
    own_value,
)
from compute_agent.drivers.procfs import READING_SECONDS
from compute_agent.host.block_devices import find_limited_device
from compute_agent.host.cpus import read_online
from compute_agent.host.kernel_files import SysFiles
from compute_agent.model.guest import Guest
from compute_agent.model.messages import DriverError

LOG = logging.getLogger(__name__)

SETS_SECONDS: Final = 0.1
"""Maximum age, in seconds, of the sets of the host's CPUs and NUMA nodes that a comparison uses. A round
compares hundreds of guests in this time, and each comparison would read the same files."""

WholeSets = Mapping[str, frozenset[int]]
"""All CPUs, and all NUMA nodes, each by the name of its value."""


@dataclass(frozen=True, slots=True)
class HostFolders:
    """The folders of the host.

    :ivar root: the root of the host's files.
    :ivar groups: the root of all control groups.
    :ivar runtime: the folder of the files that systemd writes until the next boot.
    """

    root: Path = Path("/")
    groups: Path = Path("/sys/fs/cgroup")
    runtime: Path = Path("/run/systemd")
    _sets: list[tuple[float, WholeSets]] = field(default_factory=list, init=False, repr=False, compare=False)
    """The whole sets that were read last, with the time of the read in seconds of the monotonic clock."""

    @property
    def online_cpus(self) -> frozenset[int]:
        """The online CPUs."""
        return read_online(self.root)

    @property
    def possible_cpus(self) -> frozenset[int]:
        """The CPUs that the host has now or can get later by hotplug."""
        return SysFiles(self.root).cpu_list("sys/devices/system/cpu/possible") or self.online_cpus

    @property
    def block_devices(self) -> frozenset[str]:
        """The numbers (``MAJOR:MINOR``) of the block devices."""
        try:
            return frozenset(os.listdir(self.root / "sys/dev/block"))
        except OSError:
            return frozenset()

    def limited_device(self, path: str) -> str:
        """The number of the device that systemd limits for a path; empty if it is not known."""
        return find_limited_device(self.root, path)

    @property
    def whole_sets(self) -> WholeSets:
        """All online CPUs, and all NUMA nodes, each by the name of its value."""
        return {CPUS: self.online_cpus, NODES: procfs.nodes_with_memory()}

    @property
    def recent_sets(self) -> WholeSets:
        """The whole sets, read at most :data:`SETS_SECONDS` ago, for comparisons."""
        now = time.monotonic()
        if not self._sets or now - self._sets[0][0] > SETS_SECONDS:
            self._sets[:] = [(now, self.whole_sets)]
        return self._sets[0][1]


@dataclass(frozen=True, slots=True)
class ValueComparison:
    """The present values of a guest, its wanted values, and the names of those that differ."""

    present: Values
    goals: Values
    differing: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ValueReading:
    """The values of a guest, read at a time in seconds of the monotonic clock.

    :ivar texts: the contents of files of the guest's group, by name; None means that the file does not exist.
        Files that were not needed have no entry.
    :ivar noted: the values that the guest had before the agent changed them.
    """

    guest_uuid: str
    time: float
    values: Values
    texts: Texts
    noted: Values

    def is_fresh(self, guest: Guest) -> bool:
        """Whether these values are of this guest, and recent enough for a comparison."""
        return self.guest_uuid == guest.uuid and time.monotonic() - self.time <= READING_SECONDS


def read_texts(group: GuestCgroup, names: Collection[str] = USUAL_NAMES) -> Texts:
    """The contents of the files of a group.

    :param names: the names of the values that are needed.
    :raises DriverError: a file cannot be read.
    """
    try:
        return {file: group.read_file(file) for file in files_of(names)}
    except OSError as error:
        raise DriverError(f"the control group {group.folder} cannot be read: {error}") from error


class ValueEditor(abc.ABC):
    """Compares and sets the values of guests; a subclass has methods that read and write values.

    Any thread is allowed to call the methods.
    """

    subject = "guest"
    """The guests, such as ``unit``, for messages."""

    def __init__(self, records: ValueRecords, folders: HostFolders) -> None:
        self._records = records
        self._folders = folders
        self._lock = threading.RLock()
        # Only the last reading is kept, because a round compares all settings of one guest before it goes on
        # to the next guest.
        self._reading: ValueReading | None = None
        self._writes = 0
        """The number of writes. If it grows during a read, the values of this read are not kept."""

    def record_of(self, guest: Guest) -> ValueRecord:
        """The record of the values that the guest had before the agent changed them."""
        with self._lock:
            return self._records.record_of(guest.uuid, guest.name, self._run_of(guest))

    def compare_guest(self, guest: Guest, choice: GoalChoice) -> ValueComparison:
        """Compare the values of a guest with its wanted values.

        Successive comparisons of one guest share the values that were read.

        :raises GuestGoneError: the guest has ended.
        :raises DriverError: the values cannot be read.
        """
        reading = self._reading
        if reading is None or not reading.is_fresh(guest):
            reading = self._read_guest(guest, choice.names)
        elif not files_of(choice.names) <= reading.texts.keys():
            reading = self._read_guest(guest, choice.names, reading)
        return self._compare_values(guest, choice, reading)

    def apply(self, guest: Guest, choice: GoalChoice) -> bool:
        """Set the values that differ from their goals, and read them back; return whether any differed.

        :raises GuestGoneError: the guest has ended.
        :raises DriverError: a value is refused, or cannot be recorded.
        """
        with self._lock:
            found = self._compare_values(guest, choice, self._read_guest(guest, USUAL_NAMES | choice.names))
            if not found.differing:
                return False
            writes = {name: found.goals[name] for name in found.differing}
            record = self._note_values(self._take_record(guest), found.present, writes)
            self._write_values(guest, writes)
            own = {name for name in writes if writes[name] == own_value(name, found.present, record.values)}
            self._forget_values(record, own)
        return True

    def note_score(self, guest: Guest, score: int | None) -> None:
        """Record the ``oom_score_adj`` that the agent sets for the guest; None means no score.

        :raises DriverError: the note cannot be written.
        """
        with self._lock:
            record = self._take_record(guest)
            if (record.scored, record.score) != (score is not None, score):
                self._save(replace(record, scored=score is not None, score=score))

    def give_back(self, is_managed: Callable[[ValueRecord], bool]) -> None:
        """Restore the values of all subjects that are no longer guests.

        A failure is logged, and the next call tries again.

        :param is_managed: whether the subject of a record is a guest.
        """
        with self._lock:
            for record in self._records.all_records():
                if not is_managed(record):
                    try:
                        self._settle_record(record)
                    except DriverError as error:
                        LOG.warning("The former limits of %s cannot be restored: %s", record.name, error)

    # The parts of each kind of guests

    def _run_of(self, guest: Guest) -> str:
        """The run of the guest to which its own values belong; empty if the values belong to every run."""
        return ""

    @abc.abstractmethod
    def _read_values(self, guest: Guest, texts: Texts) -> Values:
        """The present values of a guest, without the values that this guest cannot have.

        :param texts: the contents of the files of its group.
        :raises GuestGoneError: the guest has ended.
        :raises DriverError: the values cannot be read.
        """

    def _find_differing(self, values: Values, reading: ValueReading) -> Collection[str]:
        """The names of those wanted ``values`` that differ from the guest's values in ``reading``."""
        return self._differing_files(values, reading.texts, is_recent=True)

    @abc.abstractmethod
    def _write_values(self, guest: Guest, writes: Values) -> None:
        """Set values of a guest, and read them back.

        :raises GuestGoneError: the guest has ended.
        :raises DriverError: a value is refused.
        """

    @abc.abstractmethod
    def _restore_values(self, record: ValueRecord) -> None:
        """Restore the values from before the agent's writes, if the unit or container still exists.

        :raises DriverError: a value is refused.
        """

    def _names_to_keep(self, record: ValueRecord, names: Collection[str]) -> Sequence[str]:
        """The ``names`` for which systemd's file has to stay, because another program caused the file."""
        return ()

    def _remove_files(self, record: ValueRecord, names: Collection[str]) -> None:
        """Remove the files that keep these values, because the files would outlive the agent's values."""
        return

    # Inner parts

    def _take_record(self, guest: Guest) -> ValueRecord:
        """The record of a guest that is about to change.

        Each uuid has one file. If the file is still that of another subject or run with the uuid, the former
        values of that one are restored first.

        :raises DriverError: these values cannot be restored.
        """
        record, former = self.record_of(guest), self._records.find_record(guest.uuid)
        if former is not None and former is not record:
            try:
                self._settle_record(former)
            except DriverError as error:
                raise DriverError(
                    f"guest {guest} cannot be changed until the former limits of {former.name}, which had"
                    f" its uuid, are restored: {error}"
                ) from error
        return record

    def _settle_record(self, record: ValueRecord) -> None:
        """Restore the values of a subject that is no longer a guest, and remove its record.

        :raises DriverError: a value is refused, or the record cannot be removed.
        """
        self._restore_values(record)
        self._forget_values(record, record.values.keys())
        self._save(ValueRecord(record.guest_uuid, record.name, record.run))
        LOG.info(
            "%s %s is no longer a guest, and its former limits are restored",
            self.subject.capitalize(),
            record.name,
        )

    def _compare_values(self, guest: Guest, choice: GoalChoice, reading: ValueReading) -> ValueComparison:
        present = reading.values
        # A value that an older systemd or kernel lacks has no goal.
        goals = {
            name: value
            for name, value in choice.choose({**DEFAULTS, **present}, reading.noted).items()
            if name in present
        }
        differing = self._find_differing(goals, reading)
        return ValueComparison({**DEFAULTS, **present}, goals, tuple(sorted(differing)))

    def _read_guest(
        self, guest: Guest, names: Collection[str] = USUAL_NAMES, earlier: ValueReading | None = None
    ) -> ValueReading:
        """Read values of a guest.

        :param names: the names of the values that are needed.
        :param earlier: a recent reading of this guest. The result includes the files of this reading.
        """
        writes, now = self._writes, time.monotonic()
        texts = read_texts(group_at(guest.cgroup), names)
        if earlier is not None:
            # The combined reading is as old as its older part.
            now, texts = earlier.time, {**texts, **earlier.texts}
        noted = self.record_of(guest).values if earlier is None else earlier.noted
        reading = ValueReading(guest.uuid, now, self._read_values(guest, texts), texts, noted)
        if writes == self._writes:
            self._reading = reading
        return reading

    def _forget_reading(self) -> None:
        """Record that a value was written or perhaps written, so that the next comparison reads again."""
        self._writes += 1
        self._reading = None

    def _differing_files(self, values: Values, texts: Texts, *, is_recent: bool = False) -> list[str]:
        """The names of those wanted ``values`` that differ from the files of the guest's group.

        :param is_recent: whether the host's CPUs and NUMA nodes can be up to :data:`SETS_SECONDS` old.
        """
        # All CPUs and NUMA nodes are read only if a value is the empty set, which stands for them.
        if frozenset() not in values.values():
            return differing_files(values, texts, {})
        folders = self._folders
        return differing_files(values, texts, folders.recent_sets if is_recent else folders.whole_sets)

    def _note_values(self, record: ValueRecord, present: Values, writes: Values) -> ValueRecord:
        """Record the guest's own values of ``writes`` before the agent writes them for the first time."""
        new = {name: present[name] for name in writes if name not in record.values}
        if not new:
            return record
        record = record.with_values(new, self._names_to_keep(record, new))
        self._save(record)
        return record

    def _forget_values(self, record: ValueRecord, names: Collection[str]) -> None:
        """Remove from the record the values that the guest has got back."""
        known = [name for name in names if name in record.values]
        if known:
            self._remove_files(record, [name for name in known if name not in record.kept])
            self._save(record.without_values(known))

    def _save(self, record: ValueRecord) -> None:
        # The last reading is forgotten, because it also contains values of the record.
        self._forget_reading()
        try:
            self._records.save(record)
        except OSError as error:
            raise DriverError(
                f"{self.subject} {record.name} keeps its limits, because its record cannot be written:"
                f" {error}"
            ) from error
