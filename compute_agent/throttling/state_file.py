"""The state file of throttling: limits, evictions, the scheduling switch, cases and baselines.

JSON with a version and a checksum, replaced as a whole. A lost file does little harm: the first round removes
limits that are not in the file, the scheduling switch is set explicitly, and baselines are learnt again.

Former releases
    They kept watermarks in a part of the agent's ``state.json``, and interference in ``interference.json``.
    Both parts are taken over at the start, and removed as soon as this file is durable.

Downgrade
    An older release that runs again finds neither part, as if its state had been lost. It removes all
    limits in its first round, and sets the scheduling switch by that round. It asks guests again to leave
    only if usage is still above the threshold. It learns baselines for five minutes.

    The old parts must not remain: the older release would limit and stop guests for reasons that are long
    over. This file stays meanwhile. The next upgrade takes over the parts that the older release has written,
    because they are newer.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Final, Protocol

from compute_agent import kept_json
from compute_agent.files import UnsafeFileError, read_own, remove_durably, write_durably
from compute_agent.kept_json import KeptFile
from compute_agent.throttling.actions import GuestLimits
from compute_agent.throttling.arbiter import lowest_of
from compute_agent.throttling.interference import state as interference_state
from compute_agent.throttling.interference.state import InterferenceState
from compute_agent.throttling.watermarks import state as watermark_state
from compute_agent.throttling.watermarks.state import WatermarkState

LOG = logging.getLogger(__name__)

FILE_NAME: Final = "throttling.json"
"""In the state folder."""

FORMER_FILE: Final = "interference.json"
"""In the state folder: where former releases kept the part on interference."""

VERSION: Final = 1
_FORMER_VERSION: Final = 1

Clock = Callable[[], float]
"""Monotonic seconds."""


class FormerState(Protocol):
    """The agent's own state file, in which former releases kept the part on watermarks."""

    @property
    def former_watermarks(self) -> Any:
        """The JSON of that part; None where there is none."""
        ...

    def drop_former_watermarks(self) -> None:
        """Remove that part; durable when this returns.

        :raises OSError: the next write of the file removes it.
        """
        ...


@dataclass(frozen=True, slots=True)
class ThrottlingState:
    """The state of both triggers that outlives the agent."""

    watermarks: WatermarkState = field(default_factory=WatermarkState)
    interference: InterferenceState = field(default_factory=InterferenceState)

    def guest_limits(self, foreign: Collection[str] = ()) -> GuestLimits:
        """The limits in force, by guest; ``foreign`` levers are set by no controller of the agent."""
        return lowest_of((self.watermarks.guest_limits(foreign), self.interference.guest_limits()))


class ThrottlingFile:
    """The state in one file. Each trigger replaces its part, from its own thread."""

    def __init__(self, folder: Path, former: FormerState, clock: Clock = time.monotonic) -> None:
        """Read the file in the state folder, and take over files of a former release.

        An absent file is an empty state. An unusable file is renamed, and counts as an empty state, too.

        :raises UnsafeFileError: the file is not ours.
        :raises OSError: the damaged file cannot be renamed.
        """
        self._path = folder / FILE_NAME
        self._clock = clock
        self._lock = threading.Lock()
        self._state = _load_state(self._path, clock())
        # None: the file is made by the first write, even where the state is empty.
        self._saved: ThrottlingState | None = self._state if self._path.exists() else None
        self._learnt_at = clock()
        #: What is to be removed of former releases; tried with each write, until it is.
        self._leftovers: list[Callable[[], None]] = []
        self._take_over(folder / FORMER_FILE, former)

    @property
    def state(self) -> ThrottlingState:
        """The state as it was last set or read."""
        return self._state

    def keep_watermarks(self, state: WatermarkState) -> None:
        """Replace the part on watermarks; durable when this returns.

        :raises OSError: the next call tries again.
        """
        with self._lock:
            self._state = replace(self._state, watermarks=state)
            if self._saved is None or state != self._saved.watermarks:
                self._write()

    def keep_interference(self, state: InterferenceState, *, learnt: bool = False) -> None:
        """Replace the part on interference. Cases are durable when this returns, learnt values later.

        Learnt values are saved periodically, and on demand (``learnt``).

        :raises OSError: the next call tries again.
        """
        with self._lock:
            # Always in memory, so that a write of the other trigger takes it along.
            self._state = replace(self._state, interference=state)
            saved = InterferenceState() if self._saved is None else self._saved.interference
            # A clock that went back would put off the next save for as long.
            due = not 0 <= self._clock() - self._learnt_at < kept_json.SAVE_SECONDS
            if learnt or due or (state.cases, state.pairs) != (saved.cases, saved.pairs):
                self._learnt_at = self._clock()
                self._write()

    def _write(self) -> None:
        # A sync costs milliseconds to seconds, and a round of each second mostly changes nothing.
        if self._state != self._saved:
            # At once or not at all, as a rename: a crash leaves the old content or the new one.
            write_durably(self._path, dump_state(self._state, self._clock()))
            self._saved = self._state
        self._remove_former()

    def _take_over(self, former_file: Path, former: FormerState) -> None:
        """Take over the parts of a former release into this file."""
        watermarks, interference = former.former_watermarks, _former_file(former_file, self._clock()).load()
        if watermarks is None and interference is None:
            return
        self._state = merge_former(self._state, _former_watermarks(watermarks), interference)
        if watermarks is not None:
            # The former parts are removed once this file is durable, not before: a crash in between leaves
            # both, and the next start takes over the same parts again.
            self._leftovers.append(former.drop_former_watermarks)
        if interference is not None:
            # Last: its absence beside a part on watermarks means that nothing was limited.
            self._leftovers.append(partial(remove_durably, former_file))
        try:
            self._write()
        except OSError as error:
            LOG.error("The state of throttling cannot be saved: %s; the agent tries again", error)
        else:
            LOG.info("The state of throttling is now in %s", self._path)

    def _remove_former(self) -> None:
        # One by one, and again from where it broke off: each may be done twice, none may be left out.
        while self._leftovers:
            self._leftovers[0]()
            del self._leftovers[0]


def merge_former(
    state: ThrottlingState, watermarks: WatermarkState | None, interference: InterferenceState | None
) -> ThrottlingState:
    """The state with the parts of a former release, each None where there is none.

    The former parts are newer: this release removes them as it starts. A former release that has left a part
    on watermarks and no file of interference had no guest limited: cases of before are over, and baselines
    are still good.
    """
    if interference is None and watermarks is not None:
        interference = replace(state.interference, cases=())
    return ThrottlingState(
        state.watermarks if watermarks is None else watermarks,
        state.interference if interference is None else interference,
    )


def look_up_state(folder: Path, former_watermarks: Any = None) -> ThrottlingState:
    """The state that a start would find in a folder; nothing is put aside, taken over or removed.

    An unusable part becomes an empty state.

    :raises UnsafeFileError: the file is not ours.
    """
    now = time.monotonic()
    try:
        state = parse_state(read_own(folder / FILE_NAME), now)
    except UnsafeFileError:
        raise
    except (OSError, ValueError):
        state = ThrottlingState()
    interference = _former_file(folder / FORMER_FILE, now).peek_content()
    return merge_former(state, _former_watermarks(former_watermarks), interference)


def forget_interference(folder: Path) -> None:
    """Remove cases and baselines from the file in a folder, in which no agent works.

    :raises OSError:
    """
    remove_durably(folder / FORMER_FILE)
    path = folder / FILE_NAME
    try:
        state = parse_state(read_own(path), time.monotonic())
    except (OSError, ValueError):
        return  # absent, or put aside by the next agent
    write_durably(path, dump_state(ThrottlingState(state.watermarks), time.monotonic()))


def dump_state(state: ThrottlingState, now: float) -> bytes:
    """The state as the content of its file; ``now`` is in monotonic seconds."""
    data = {
        "watermarks": watermark_state.state_to_json(state.watermarks),
        "interference": interference_state.state_to_json(state.interference, now),
    }
    return kept_json.dump(VERSION, kept_json.checked_content(data))


def parse_state(content: bytes, now: float) -> ThrottlingState:
    """The state in the content of a file.

    :raises ValueError: saying what is wrong with it.
    """
    return kept_json.parse(VERSION, content, lambda document: _read_document(document, now))


def _read_document(document: Any, now: float) -> ThrottlingState:
    data: Mapping[str, Any] = kept_json.checked_data(document)
    return ThrottlingState(
        watermark_state.state_from_json(data["watermarks"]),
        interference_state.state_from_json(data["interference"], now),
    )


def _load_state(path: Path, now: float) -> ThrottlingState:
    # Not a file that others can write, as for the agent's own state: it might stop guests.
    return kept_json.load_state(
        path,
        lambda content: parse_state(content, now),
        ThrottlingState(),
        lambda aside, error: LOG.warning(
            "The state of throttling in %s cannot be used and starts empty; the file is now %s: %s",
            path,
            aside,
            error,
        ),
    )


def _former_file(path: Path, now: float) -> KeptFile[InterferenceState]:
    """The part on interference of a former release."""
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
    """The part on watermarks of a former release; None where there is none that can be used."""
    if content is None:
        return None
    try:
        return watermark_state.state_from_json(content)
    except ValueError as error:
        LOG.warning("The state of watermarks of a former release cannot be used and starts empty: %s", error)
        # As after the loss of the file: the switch is not known, and no limit is.
        return WatermarkState()
