"""The files of the state folder that hold notes about guests. A note is a JSON record about one guest.

The notes are about claims that the agent made, end times of claims, and evictions that operators ordered. A
file keeps notes with the id of another host, because the folder can be a copy, or the host can get its former
id back. Notes with another id have no effect.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Generic

from compute_agent import kept_json
from compute_agent.files import write_durably
from compute_agent.kept_json import HostNote, NoteFormat, NoteT, split_notes
from compute_agent.model.messages import full_name
from compute_agent.report.claim_ends import END_NOTES, EndNote
from compute_agent.report.guest_claims import CLAIM_NOTES, ClaimNote

LOG = logging.getLogger(__name__)

_EVICTIONS_VERSION: Final = 1
_MAX_PID: Final = 1 << 22
"""The kernel's limit of process ids on 64-bit hosts."""


@dataclass(frozen=True, slots=True)
class EvictionNote(HostNote):
    """An eviction by an operator's command that has not ended.

    :ivar pid: the main process of the guest, and ``boot`` the id of the boot in which it ran. If the guest
        has been started again since, it is not evicted.
    """

    uuid: str
    name: str
    driver: str
    pid: int
    boot: str

    def __str__(self) -> str:
        return full_name(self.name, self.uuid)


def _eviction_row(note: EvictionNote) -> dict[str, Any]:
    return {
        "uuid": note.uuid,
        "name": note.name,
        "driver": note.driver,
        "pid": note.pid,
        "boot": note.boot,
    }


def _read_eviction(guest_uuid: str, row: Any) -> EvictionNote:
    return EvictionNote(
        guest_uuid,
        kept_json.text(row["name"]),
        kept_json.text(row["driver"]),
        int(kept_json.read_number(row["pid"], _MAX_PID)),
        kept_json.text(row["boot"]),
        machine=kept_json.text(row["machine"]),
    )


EVICTION_NOTES: Final = NoteFormat(_EVICTIONS_VERSION, _eviction_row, _read_eviction)
"""The format of the file of notes about evictions."""


CLAIMS_FILE: Final = "claims.json"
ENDS_FILE: Final = "claim_ends.json"
EVICTIONS_FILE: Final = "evictions.json"


class NoteFile(Generic[NoteT]):
    """A file with notes by uuid of the guest. Only one thread at a time may use the object.

    Subclasses set ``file_name``, the name in the state folder, and ``notes_format``.
    """

    file_name: str
    notes_format: NoteFormat[NoteT]

    def __init__(self, folder: Path, machine: str) -> None:
        """Read the notes. A file that cannot be used is renamed.

        :param folder: the state folder.
        :param machine: the id of this host, as ``read_host_id()`` returns it.
        :raises UnsafeFileError: perhaps another user has made the file.
        :raises OSError: the file cannot be renamed.
        """
        self._path, self._machine = folder / self.file_name, machine
        nothing: Mapping[str, NoteT] = {}
        found = kept_json.load_state(self._path, self.notes_format.parse, nothing, self.report_loss)
        self.notes: Mapping[str, NoteT]
        """The notes of this host."""
        self.foreign: Mapping[str, NoteT]
        """The notes of other hosts."""
        self.notes, self.foreign = split_notes(found, machine)
        # The first change is written in any case, because notes of an older version of the agent lack the id
        # of this host.
        self._saved = b"" if self.notes else self.notes_format.dump(self.foreign.values(), machine)

    def report_loss(self, path: Path, error: Exception) -> None:
        """Log the new path of a file that cannot be used, and the error."""
        raise NotImplementedError

    def keep_notes(self, notes: Mapping[str, NoteT]) -> None:
        """Store the notes. They are on disk when this method returns.

        :raises OSError: the notes cannot be written.
        """
        # If a note of another host has the uuid of a guest of this host, the note of this host replaces it.
        foreign = {uuid: note for uuid, note in self.foreign.items() if uuid not in notes}
        content = self.notes_format.dump([*notes.values(), *foreign.values()], self._machine)
        if content != self._saved:
            write_durably(self._path, content)
        self.notes, self.foreign, self._saved = dict(notes), foreign, content


class ClaimStore(NoteFile[ClaimNote]):
    """The notes about claims that the agent has made."""

    file_name, notes_format = CLAIMS_FILE, CLAIM_NOTES

    def report_loss(self, path: Path, error: Exception) -> None:
        """Log that the notes of claims are lost."""
        LOG.error(
            "The agent cannot use its file with the notes of claims, and has renamed it to %s: %s. The agent"
            " does not give back the allocations that it claimed before",
            path,
            error,
        )


class EndStore(NoteFile[EndNote]):
    """The notes about the end times of claims."""

    file_name, notes_format = ENDS_FILE, END_NOTES
    _failure = ""

    def report_loss(self, path: Path, error: Exception) -> None:
        """Log that the end times of claims are lost."""
        LOG.error(
            "The agent cannot use its file with the end times of claims, and has renamed it to %s: %s. The"
            " agent does not evict guests whose claims ended while no agent ran",
            path,
            error,
        )

    def keep_notes(self, notes: Mapping[str, EndNote]) -> None:
        """Store the notes in the file. A failure is logged once; the notes then stay in memory only."""
        try:
            super().keep_notes(notes)
            self._failure = ""
        except OSError as error:
            self.notes = dict(notes)
            if str(error) != self._failure:
                LOG.error("The end times of claims cannot be written: %s; the agent tries again", error)
            self._failure = str(error)


class EvictionStore(NoteFile[EvictionNote]):
    """The notes about evictions that operators have ordered."""

    file_name, notes_format = EVICTIONS_FILE, EVICTION_NOTES

    def report_loss(self, path: Path, error: Exception) -> None:
        """Log that the notes of evictions are lost."""
        LOG.error(
            "The agent cannot use its file with the notes of evictions, and has renamed it to %s: %s. The"
            " agent does not continue the evictions that operators have ordered before",
            path,
            error,
        )
