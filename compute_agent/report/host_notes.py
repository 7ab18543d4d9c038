"""Notes in state files that belong to one host. A copy of the state folder has the notes of another host."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Generic, TypeVar

from compute_agent import kept_json
from compute_agent.model.messages import is_uuid


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
        return kept_json.dump(self.version, kept_json.checked_content(rows))

    def parse(self, content: bytes) -> dict[str, NoteT]:
        """The notes in the content of a file, by uuid of the guest.

        :raises ValueError: the content is damaged, or of another version.
        """
        return kept_json.parse(self.version, content, self._read_notes)

    def _read_notes(self, document: Any) -> dict[str, NoteT]:
        found = {}
        for row in kept_json.checked_data(document):
            guest_uuid = kept_json.text(row["uuid"])
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
