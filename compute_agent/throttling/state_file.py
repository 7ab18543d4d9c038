"""The state file of throttling: limits, evictions, the scheduling switch, cases and baselines.

The file is JSON with a version and a checksum, and each write replaces the whole file. The loss of the file
does little harm: the first round removes limits that are not in the file, and sets the scheduling switch
explicitly. Baselines are learnt again.

Former releases
    A former release kept the state of watermarks in a part of the agent's ``state.json``, and the state of
    interference in ``interference.json``. At its start, the agent copies these two states into this file.
    Once this file is on disk, the agent removes the former parts.

Downgrade
    After a downgrade, the older release finds neither part and begins with an empty state. Its first round
    removes all limits, and sets the scheduling switch. The agent evicts a guest again after a restart only if
    usage is still above the threshold. After a restart, the agent learns baselines for five minutes.

    The old parts are removed because the older release would otherwise limit and stop guests for outdated
    reasons. This file stays during the downgrade. After the next upgrade, the agent reads the parts of the
    older release, because they are newer than this file.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Final, Protocol

from compute_agent import kept_json
from compute_agent.files import read_own, remove_durably, write_durably
from compute_agent.kept_json import KeptFile
from compute_agent.throttling.arbiter import lowest_of
from compute_agent.throttling.interference import state as interference_state
from compute_agent.throttling.interference.state import InterferenceState
from compute_agent.throttling.levers import GuestLimits
from compute_agent.throttling.watermarks import state as watermark_state
from compute_agent.throttling.watermarks.state import WatermarkState

LOG = logging.getLogger(__name__)

FILE_NAME: Final = "throttling.json"
"""Name of the state file of throttling, in the agent's state folder."""

FORMER_FILE: Final = "interference.json"
"""Name of the file in the state folder in which former releases kept the state of interference."""

VERSION: Final = 1
"""Version of the content of the state file."""

_FORMER_VERSION: Final = 1
"""Version of the content of ``interference.json``, in every release that wrote it."""

Clock = Callable[[], float]
"""Returns monotonic seconds."""


class FormerState(Protocol):
    """The agent's ``state.json``, in which former releases kept the state of watermarks."""

    @property
    def former_watermarks(self) -> Any:
        """The state of watermarks in the file, as JSON values; None if the file has none."""
        ...

    def drop_former_watermarks(self) -> None:
        """Remove the state of watermarks from the file; the change is on disk when this method returns.

        :raises OSError: the file could not be written; the next write of the file removes this state.
        """
        ...


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

    def __init__(self, folder: Path, former: FormerState, clock: Clock = time.monotonic) -> None:
        """Read the file in the state folder, and then the files of a former release.

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
        #: Functions that remove the files of former releases. Each write calls them until they succeed.
        self._leftovers: list[Callable[[], None]] = []
        self._take_over(folder / FORMER_FILE, former)

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
        self._remove_former()

    def _take_over(self, former_file: Path, former: FormerState) -> None:
        """Copy the files of a former release into this file.

        Once the copy is on disk, remove the former files.
        """
        watermarks, interference = former.former_watermarks, _former_file(former_file, self._clock()).load()
        if watermarks is None and interference is None:
            return
        self._state = merge_former(self._state, _former_watermarks(watermarks), interference)
        if watermarks is not None:
            # _write() removes the former files after its sync. After a crash in between, the former files
            # still exist, and the next start reads the same parts again.
            self._leftovers.append(former.drop_former_watermarks)
        if interference is not None:
            # interference.json is removed after the part on watermarks. In the other order, a crash could
            # leave only the part on watermarks, and merge_former() would drop all cases.
            self._leftovers.append(partial(remove_durably, former_file))
        try:
            self._write()
        except OSError as error:
            LOG.error("The state of throttling cannot be saved: %s; the agent tries again", error)
        else:
            LOG.info("The state of throttling is now in %s", self._path)

    def _remove_former(self) -> None:
        # A function is dropped only after its success, and repeated after a failure. So each function has to
        # tolerate a second call.
        while self._leftovers:
            self._leftovers[0]()
            del self._leftovers[0]


def merge_former(
    state: ThrottlingState, watermarks: WatermarkState | None, interference: InterferenceState | None
) -> ThrottlingState:
    """The state in which the parts of a former release replace those of this file.

    If a part is None, the former release has not left it.

    The former parts are newer, because this release removes them when it starts. If the former release has
    left only the part on watermarks, no guest was limited for interference. The cases of ``state`` are then
    dropped, and its baselines are kept.
    """
    if interference is None and watermarks is not None:
        interference = replace(state.interference, cases=())
    return ThrottlingState(
        state.watermarks if watermarks is None else watermarks,
        state.interference if interference is None else interference,
    )


def look_up_state(folder: Path, former_watermarks: Any = None) -> ThrottlingState:
    """Read from a folder the state with which an agent would start, and change no file.

    An unusable file counts as an empty state.

    :raises UnsafeFileError: other users could have written the file.
    """
    now = time.monotonic()
    state = kept_json.look_up(
        folder / FILE_NAME, lambda content: parse_state(content, now), ThrottlingState()
    )
    interference = _former_file(folder / FORMER_FILE, now).peek_content()
    return merge_former(state, _former_watermarks(former_watermarks), interference)


def forget_interference(folder: Path) -> None:
    """Remove cases, pairs and baselines from the file in a state folder that no running agent uses.

    :raises OSError: a file cannot be removed or written.
    """
    remove_durably(folder / FORMER_FILE)
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


def _former_file(path: Path, now: float) -> KeptFile[InterferenceState]:
    """Read the file ``interference.json``, in which former releases kept the state of interference."""
    return KeptFile(
        path,
        lambda content: _parse_former(content, now),
        "The state of interference of a former release",
    )


def _parse_former(content: bytes, now: float) -> InterferenceState:
    return kept_json.parse(
        _FORMER_VERSION, content, lambda document: interference_state.state_from_json(document, now)
    )


def _former_watermarks(content: Any) -> WatermarkState | None:
    """The state of watermarks of a former release; None if there is no such state, empty if unusable."""
    if content is None:
        return None
    try:
        return watermark_state.state_from_json(content)
    except ValueError as error:
        LOG.warning("The state of watermarks of a former release cannot be used and starts empty: %s", error)
        # The state is then the same as after the loss of the file: no limits, and an unknown scheduling
        # switch.
        return WatermarkState()
