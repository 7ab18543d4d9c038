"""Notes on disk about guests that have a core scheduling cookie or a realtime priority from the agent.

The kernel does not show which program has set a cookie or a priority, so the agent keeps notes about those
that it sets. A note names the guest's main process, so the note becomes invalid when the guest is started
again. The agent has one file of notes for cookies and one for priorities.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from compute_agent import kept_json
from compute_agent.drivers.procfs import ProcessIdentity
from compute_agent.files import put_aside, read_own, write_durably

LOG = logging.getLogger(__name__)

COOKIES_FILE: Final = "core_cookies.json"
PRIORITIES_FILE: Final = "realtime_guests.json"
_VERSION: Final = 1
_MAX_NUMBER: Final = 1 << 64


@dataclass(frozen=True, slots=True)
class CookieLender:
    """A guest that shared a cookie of another program with a noted guest: its main process, and the cookie.

    The kernel has no call to set a cookie by its number, so only this guest can give the cookie back.
    """

    main: ProcessIdentity
    cookie: int


@dataclass(frozen=True, slots=True)
class RunNote:
    """A note about a guest that has, or is about to get, a cookie or a priority from the agent.

    :ivar main: the main process of the guest.
    :ivar before: the cookie that the main process had before the guest joined its group.
    :ivar group: the group with which the guest shares a cookie.
    :ivar lender: the guest that can give back the cookie from before the first note; None means no such
        guest.
    """

    main: ProcessIdentity
    before: int = 0
    group: str = ""
    lender: CookieLender | None = None


RunNotes = Mapping[str, RunNote]
"""Notes by the uuid of the guest."""


def note_of(notes: RunNotes, uuid: str, main: ProcessIdentity) -> RunNote | None:
    """The note of a guest, if it is about the guest's present main process; otherwise None."""
    note = notes.get(uuid)
    return note if note is not None and note.main == main else None


class RunNotesFile:
    """Keeps notes in a file. The file is read when the notes are requested for the first time."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._notes: RunNotes | None = None

    @property
    def kept_notes(self) -> RunNotes:
        """The notes in the file; empty if the file does not exist. A damaged file is renamed.

        :raises UnsafeFileError: another user could have written the file.
        :raises OSError: the file cannot be read.
        """
        if self._notes is None:
            try:
                self._notes = kept_json.parse(_VERSION, read_own(self._path), _read_notes)
            except FileNotFoundError:
                self._notes = {}
            except ValueError as error:
                LOG.error(
                    "%s cannot be used: %s; guests keep the settings that the file recorded",
                    self._path,
                    error,
                )
                with contextlib.suppress(FileNotFoundError):
                    put_aside(self._path)
                self._notes = {}
        return self._notes

    def keep_notes(self, notes: RunNotes) -> None:
        """Replace the file.

        :raises OSError: the file cannot be written. The former notes are still stored.
        """
        if notes == self.kept_notes:
            return
        data = {uuid: asdict(note) for uuid, note in notes.items()}
        write_durably(self._path, kept_json.dump(_VERSION, kept_json.checked_content(data)))
        self._notes = dict(notes)


def _read_notes(document: Any) -> RunNotes:
    return {str(uuid): _read_note(one) for uuid, one in kept_json.checked_data(document).items()}


def _read_note(one: Any) -> RunNote:
    # Notes of older releases have no lender.
    lender = one.get("lender")
    return RunNote(
        _read_identity(one["main"]),
        _read_whole(one["before"]),
        kept_json.text(one["group"]),
        None
        if lender is None
        else CookieLender(_read_identity(lender["main"]), _read_whole(lender["cookie"])),
    )


def _read_identity(main: Any) -> ProcessIdentity:
    pid, start = (_read_whole(main[name]) for name in ("pid", "start_time"))
    return ProcessIdentity(pid, start, kept_json.text(main["boot_id"]))


def _read_whole(value: Any) -> int:
    # A cookie has 64 bits, more than a float can represent exactly.
    kept_json.read_number(value, _MAX_NUMBER)
    return int(value)
