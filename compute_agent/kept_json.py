"""Reads and writes the agent's state files, which are JSON with a version; renames unusable files.

A file also has a checksum if damage to it could harm guests. A note is a record that belongs to one host,
because a copy of the state folder has the notes of another host.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, Generic, TypeVar

from compute_agent.files import UnsafeFileError, put_aside, read_own, write_durably
from compute_agent.model.messages import is_uuid

T = TypeVar("T")

LOG = logging.getLogger(__name__)

SAVE_SECONDS: Final = 300.0
"""Seconds between two saves of learned values. After a crash, the values since the last save are lost. They
are not saved more often, because a sync after each sample would wear out the disk. A value that was reported,
or that another part of the agent acts on, is saved at once.
"""


def checked_content(data: Any) -> dict[str, Any]:
    """The JSON document that contains ``data`` and the checksum of ``data``."""
    return {"sha256": _data_checksum(data), "data": data}


def checked_data(document: Any) -> Any:
    """The data in a document, after a check of its checksum.

    :raises ValueError: the checksum does not match.
    :raises LookupError: there is no checksum, or there are no data.
    """
    data = document["data"]
    if document["sha256"] != _data_checksum(data):
        raise ValueError("the checksum does not match")
    return data


def _data_checksum(data: Any) -> str:
    # The checksum is over the parsed data, so that white space does not matter.
    return hashlib.sha256(json.dumps(data, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def dump(version: int, content: Mapping[str, Any]) -> bytes:
    """The bytes of a file with ``content`` and the version of its format."""
    return json.dumps({"version": version, **content}).encode()


def parse(version: int, content: bytes, read: Callable[[Any], T]) -> T:
    """Parse the content of a file, and return the result of ``read`` for its document.

    :param version: the version of the format that the caller reads.

    :raises ValueError: the content is not JSON or has another version, or lacks a part that ``read`` needs.
    """
    try:
        document = json.loads(content)
        found = document["version"]
        if found != version:
            # Exact types are compared, because True is an instance of int, too.
            later = type(found) is int and found > version
            origin = ": a later release wrote it, which can use it again" if later else ""
            raise ValueError(f"version {found!r} is not {version}{origin}")
        return read(document)
    # The document can be any JSON: a list in place of an object, a deep nesting, a missing key. Callers
    # rename a damaged file, and expect one kind of error for it.
    except (LookupError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"unexpected content: {type(error).__name__} {error}") from error


@dataclass(frozen=True, slots=True)
class MappingFormat(Generic[T]):
    """The format of a file with one value for each name, such as the state of each zone by its uuid.

    :ivar key: the name of the mapping in the document.
    :ivar write_value: converts a value to JSON.
    :ivar read_value: converts JSON to a value; raises ValueError if it is wrong.
    """

    version: int
    key: str
    write_value: Callable[[T], Any]
    read_value: Callable[[Any], T]

    def dump(self, values: Mapping[str, T]) -> bytes:
        """The content of the file for some values by name."""
        rows = {name: self.write_value(one) for name, one in sorted(values.items())}
        return dump(self.version, {self.key: rows})

    def parse(self, content: bytes) -> dict[str, T]:
        """The values in the content of the file, by name.

        :raises ValueError: the content is damaged, or of another version.
        """
        return parse(
            self.version,
            content,
            lambda document: {str(name): self.read_value(one) for name, one in document[self.key].items()},
        )


@dataclass(frozen=True, slots=True)
class HostNote:
    """A note that a host has made.

    :ivar machine: the id of the other host that made the note, as ``read_host_id()`` returned it there. Empty
        for a note of this host, and for a note without a host.
    """

    machine: str = field(default="", kw_only=True)


NoteT = TypeVar("NoteT", bound=HostNote)


@dataclass(frozen=True, slots=True)
class NoteFormat(Generic[NoteT]):
    """The format of a file of notes. Each note is about one guest.

    :ivar row_of: returns the fields of a note without the host. One of them is ``uuid``, the guest's.
    :ivar read_row: returns a note for the uuid of its guest and its fields, which include the host.
    """

    version: int
    row_of: Callable[[NoteT], Mapping[str, Any]]
    read_row: Callable[[str, Any], NoteT]

    def dump(self, notes: Iterable[NoteT], machine: str = "") -> bytes:
        """The content of a file of notes.

        :param machine: the id of this host, as ``read_host_id()`` returns it.
        """
        rows = [{**self.row_of(note), "machine": note.machine or machine} for note in notes]
        return dump(self.version, checked_content(rows))

    def parse(self, content: bytes) -> dict[str, NoteT]:
        """The notes in the content of a file, by uuid of the guest.

        :raises ValueError: the content is damaged, or of another version.
        """
        return parse(self.version, content, self._read_notes)

    def _read_notes(self, document: Any) -> dict[str, NoteT]:
        found = {}
        for row in checked_data(document):
            guest_uuid = text(row["uuid"])
            if not is_uuid(guest_uuid):
                raise ValueError(f"{guest_uuid!r} is not a uuid")
            found[guest_uuid] = self.read_row(guest_uuid, row)
        return found


def split_notes(notes: Mapping[str, NoteT], machine: str) -> tuple[dict[str, NoteT], dict[str, NoteT]]:
    """The notes of this host, and those of other hosts, by uuid of the guest.

    A note without a host counts as a note of this host. If this host has no id, all notes do.

    :param notes: the notes of a file. A note can have the id of the host that made it.
    :param machine: the id of this host, as ``read_host_id()`` returns it.
    """
    foreign = {
        uuid: note for uuid, note in notes.items() if machine and note.machine and note.machine != machine
    }
    own = {uuid: replace(note, machine="") for uuid, note in notes.items() if uuid not in foreign}
    return own, foreign


def read_number(value: Any, largest: float) -> float:
    """A number from a state file.

    :raises ValueError: the value is not a number from 0 to ``largest``.
    """
    # bool is an int to Python; NaN and infinity, which json.loads() takes, fail the comparison.
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= largest:
        raise ValueError(f"{value!r} is not a number from 0 to {largest:g}")
    return float(value)


def text(value: Any) -> str:
    """A text from a state file.

    :raises ValueError: the value is not a text.
    """
    if not isinstance(value, str):
        raise ValueError(f"{value!r} is not a text")
    return value


def load_state(
    path: Path, parse_file: Callable[[bytes], T], empty: T, report: Callable[[Path, Exception], None]
) -> T:
    """Read a state file; return ``empty`` if there is no file.

    A file that cannot be used is renamed and not overwritten, because no other copy of its content exists.

    :param report: logs the new name of a renamed file, and the error.
    :raises UnsafeFileError: another user could have made the file. The file is then not renamed.
    :raises OSError: the file cannot be renamed.
    """
    try:
        return parse_file(read_own(path))
    except FileNotFoundError:
        return empty
    except UnsafeFileError:
        raise
    except (OSError, ValueError) as error:
        report(put_aside(path), error)
        return empty


def look_up(path: Path, parse_file: Callable[[bytes], T], empty: T) -> T:
    """Read a state file for a command that must not change it; return ``empty`` if the file is unusable.

    Only the running agent renames a damaged file, and logs this.

    :raises UnsafeFileError: another user could have made the file.
    """
    try:
        return parse_file(read_own(path))
    # This error is also an OSError. It is raised again, because the file is not damaged but dangerous.
    except UnsafeFileError:
        raise
    except (OSError, ValueError):
        return empty


class KeptFile(Generic[T]):
    """A JSON file with data for the next start of the agent; only one thread may use the object."""

    def __init__(self, path: Path, parse: Callable[[bytes], T], subject: str) -> None:
        """Begin without reading the file; load() reads it.

        :param parse: converts the content of the file; raises ValueError if the content cannot be used.
        :param subject: a name for the content, which is the subject of log lines about the file.
        """
        self._path = path
        self._parse = parse
        self._subject = subject
        # This time is before each time of the caller's clock, so the first save is due at once.
        self._saved = 0.0
        self._failure = ""

    def load(self) -> T | None:
        """The content of the file; None if there is no file, or if it cannot be used.

        A file that cannot be used is renamed, unless other users can write to it.
        """
        try:
            return self._parse(read_own(self._path))
        # The file does not exist before the first save.
        except FileNotFoundError:
            pass
        except UnsafeFileError as error:
            LOG.warning("%s is not read, because other users can write its file: %s", self._subject, error)
        except (OSError, ValueError) as error:
            LOG.warning("%s cannot be used and starts empty: %s", self._subject, error)
            try:
                put_aside(self._path)
            except OSError as failure:
                LOG.warning("The damaged file %s cannot be renamed: %s", self._path, failure)
        return None

    def peek_content(self) -> T | None:
        """Read the content like load(), but do not rename an unusable file."""
        try:
            return self._parse(read_own(self._path))
        except (OSError, ValueError):
            return None

    def is_due(self, now: float) -> bool:
        """Whether the next save() is due. ``now`` is a time of the clock that save() uses."""
        # If the clock was set back, ``now`` is before the last save, and a save is due at once.
        return now - self._saved >= SAVE_SECONDS or now < self._saved

    def save(self, content: bytes, now: float) -> None:
        """Write the content. A failure, such as a full disk, is logged once and not raised."""
        # The time is set before the write. So after a failure, such as a full disk, the next attempt comes at
        # the usual interval.
        self._saved = now
        try:
            write_durably(self._path, content)
            self._failure = ""
        except OSError as error:
            if str(error) != self._failure:
                LOG.error("%s cannot be saved: %s; the agent tries again", self._subject, error)
            self._failure = str(error)
