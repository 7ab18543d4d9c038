"""The state file of throttling: limits, evictions, the scheduling switch, cases and baselines.

The file is JSON with a version and a checksum, and each write replaces the whole file. The loss of the file
does little harm: the first round removes limits that are not in the file, and sets the scheduling switch
explicitly. Baselines are learnt again.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from compute_agent import kept_json
from compute_agent.files import UnsafeFileError, read_own, write_durably
from compute_agent.throttling.arbiter import lowest_of
from compute_agent.throttling.interference import state as interference_state
from compute_agent.throttling.interference.state import InterferenceState
from compute_agent.throttling.levers import GuestLimits
from compute_agent.throttling.watermarks import state as watermark_state
from compute_agent.throttling.watermarks.state import WatermarkState

LOG = logging.getLogger(__name__)

FILE_NAME: Final = "throttling.json"
"""Name of the state file of throttling, in the agent's state folder."""

VERSION: Final = 1
"""Version of the content of the state file."""

Clock = Callable[[], float]
"""Returns monotonic seconds."""


@dataclass(frozen=True, slots=True)
class ThrottlingState:
    """The states of both triggers, which outlive the process of the agent."""

    watermarks: WatermarkState = field(default_factory=WatermarkState)
    interference: InterferenceState = field(default_factory=InterferenceState)

    def guest_limits(self, foreign: Collection[str] = ()) -> GuestLimits:
        """The limits in force, by guest and by ``ThrottleControl``: the lower limit of both triggers.

        Limits of levers in ``foreign`` are left out, because no controller of the agent sets them.
        """
        return lowest_of((self.watermarks.guest_limits(foreign), self.interference.guest_limits()))


class ThrottlingFile:
    """The state file of throttling. Each trigger replaces its own part, from its own thread."""

    def __init__(self, folder: Path, clock: Clock = time.monotonic) -> None:
        """Read the file in the state folder.

        Without a file the state is empty. A damaged file is renamed, and the state is then empty.

        :raises UnsafeFileError: other users could have written the file.
        :raises OSError: the file cannot be read, or a damaged file cannot be renamed.
        """
        self._path = folder / FILE_NAME
        self._clock = clock
        self._lock = threading.Lock()
        # load_state() refuses a file that other users can write: its content could limit and stop guests.
        self._state = kept_json.load_state(
            self._path,
            lambda content: parse_state(content, clock()),
            ThrottlingState(),
            lambda aside, error: LOG.warning(
                "The state of throttling in %s cannot be used and starts empty: %s; the agent has renamed the"
                " file to %s",
                self._path,
                error,
                aside,
            ),
        )
        # If the value is None, the first call of _write() creates the file, even if the state is empty.
        self._saved: ThrottlingState | None = self._state if self._path.exists() else None
        self._learnt_at = clock()

    @property
    def state(self) -> ThrottlingState:
        """The present state, which can be newer than the file."""
        return self._state

    def keep_watermarks(self, state: WatermarkState) -> None:
        """Replace the state of watermarks. The new state is on disk when this method returns.

        :raises OSError: the file could not be written; the next call tries again.
        """
        with self._lock:
            self._state = replace(self._state, watermarks=state)
            if self._saved is None or state != self._saved.watermarks:
                self._write()

    def keep_interference(self, state: InterferenceState, *, learnt: bool = False) -> None:
        """Replace the state of interference. Cases and pairs are on disk when this method returns.

        Baselines, which change with each sample, are saved only periodically, or at once if ``learnt`` is
        set.

        :raises OSError: the file could not be written; the next call tries again.
        """
        with self._lock:
            # The new state is always kept in memory, so that the next write saves this state, even if the
            # write is for the other trigger.
            self._state = replace(self._state, interference=state)
            saved = InterferenceState() if self._saved is None else self._saved.interference
            # A negative age counts as due. Otherwise the next save would be late after the clock was set
            # back.
            due = not 0 <= self._clock() - self._learnt_at < kept_json.SAVE_SECONDS
            if learnt or due or (state.cases, state.pairs) != (saved.cases, saved.pairs):
                self._learnt_at = self._clock()
                self._write()

    def _write(self) -> None:
        # An unchanged state is not written, because a sync takes milliseconds to seconds, and a round can
        # come each second.
        if self._state != self._saved:
            # A rename replaces the file at once, so that a crash leaves either the old content or the new
            # content.
            write_durably(self._path, dump_state(self._state, self._clock()))
            self._saved = self._state


def look_up_state(folder: Path) -> ThrottlingState:
    """Read from a folder the state with which an agent would start, and change no file.

    An unusable file counts as an empty state.

    :raises UnsafeFileError: other users could have written the file.
    """
    try:
        return parse_state(read_own(folder / FILE_NAME), time.monotonic())
    except UnsafeFileError:
        raise
    except (OSError, ValueError):
        return ThrottlingState()


def forget_interference(folder: Path) -> None:
    """Remove cases, pairs and baselines from the file in a state folder that no running agent uses.

    :raises OSError: a file cannot be removed or written.
    """
    path = folder / FILE_NAME
    try:
        state = parse_state(read_own(path), time.monotonic())
    except (OSError, ValueError):
        return  # without a file nothing has to be removed; the next start renames a damaged file
    write_durably(path, dump_state(ThrottlingState(state.watermarks), time.monotonic()))


def dump_state(state: ThrottlingState, now: float) -> bytes:
    """The content of the state file. Times are saved relative to ``now``, which is in monotonic seconds."""
    data = {
        "watermarks": watermark_state.state_to_json(state.watermarks),
        "interference": interference_state.state_to_json(state.interference, now),
    }
    return kept_json.dump(VERSION, kept_json.checked_content(data))


def parse_state(content: bytes, now: float) -> ThrottlingState:
    """Parse the content of the state file; ``now`` is in monotonic seconds.

    :raises ValueError: the content is damaged, or of another version; the text has the reason.
    """

    def read_document(document: Any) -> ThrottlingState:
        data = kept_json.checked_data(document)
        return ThrottlingState(
            watermark_state.state_from_json(data["watermarks"]),
            interference_state.state_from_json(data["interference"], now),
        )

    return kept_json.parse(VERSION, content, read_document)
