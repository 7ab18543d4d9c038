"""Notes on disk: which guests have a cookie of core scheduling from the agent.

A cookie itself has no mark, and a guest may have one of another program. The note of a guest has its main
process, so that the next run of the guest is another one.
"""

from __future__ import annotations

import contextlib
import logging
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from compute_agent import kept_json
from compute_agent.drivers.procfs import ProcessIdentity
from compute_agent.files import put_aside, read_own, write_durably
from compute_agent.schedules.cookies import CookieNote, CookieNotes

LOG = logging.getLogger(__name__)

NOTES_FILE: Final = "core_cookies.json"
_VERSION: Final = 1
_MAX_NUMBER: Final = 1 << 64


class CookieNotesFile:
    """Keeps notes in a file, which is read when it is asked for first."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._notes: CookieNotes | None = None

    @property
    def kept_notes(self) -> CookieNotes:
        """The notes in the file; none where it is absent. A damaged one is put aside.

        :raises UnsafeFileError: it is not ours.
        :raises OSError: it cannot be read.
        """
        if self._notes is None:
            try:
                self._notes = kept_json.parse(_VERSION, read_own(self._path), _read_notes)
            except FileNotFoundError:
                self._notes = {}
            except ValueError as error:
                LOG.error("%s cannot be used: %s; guests keep their core cookies", self._path, error)
                with contextlib.suppress(FileNotFoundError):
                    put_aside(self._path)
                self._notes = {}
        return self._notes

    def keep_notes(self, notes: CookieNotes) -> None:
        """Replace the file.

        :raises OSError: the former notes are still stored.
        """
        if notes == self.kept_notes:
            return
        data = {uuid: asdict(note) for uuid, note in notes.items()}
        write_durably(self._path, kept_json.dump(_VERSION, kept_json.checked_content(data)))
        self._notes = dict(notes)


def _read_notes(document: Any) -> CookieNotes:
    return {str(uuid): _read_note(one) for uuid, one in kept_json.checked_data(document).items()}


def _read_note(one: Any) -> CookieNote:
    main = one["main"]
    pid, start = (_read_whole(main[name]) for name in ("pid", "start_time"))
    return CookieNote(
        ProcessIdentity(pid, start, kept_json.text(main["boot_id"])), _read_whole(one["before"])
    )


def _read_whole(value: Any) -> int:
    # A cookie has 64 bits, which a float has not.
    kept_json.read_number(value, _MAX_NUMBER)
    return int(value)
