"""Notes in state files that belong to one host. A copy of the state folder has the notes of another host."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TypeVar


@dataclass(frozen=True, slots=True)
class HostNote:
    """A note that a host has made.

    :ivar machine: the other host that made the note, as ``read_host_id()`` has it. Empty for a note of this
        host, and for a note without a host.
    """

    machine: str = field(default="", kw_only=True)


NoteT = TypeVar("NoteT", bound=HostNote)


def split_notes(notes: Mapping[str, NoteT], machine: str) -> tuple[dict[str, NoteT], dict[str, NoteT]]:
    """The notes of this host, and those of other hosts, by uuid of the guest.

    A note without a host, or on a host without an id, counts as this host's.

    :param notes: the notes of a file. Each has the host that made it.
    :param machine: this host, as ``read_host_id()`` has it.
    """
    foreign = {
        uuid: note for uuid, note in notes.items() if machine and note.machine and note.machine != machine
    }
    own = {uuid: replace(note, machine="") for uuid, note in notes.items() if uuid not in foreign}
    return own, foreign
