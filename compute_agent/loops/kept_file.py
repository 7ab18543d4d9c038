"""What loops learn, in a file each of the state folder: a new start goes on with it if it can be used."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Final, Generic, TypeVar

from compute_agent.files import UnsafeFileError, put_aside, read_own, write_durably

T = TypeVar("T")

LOG = logging.getLogger(__name__)

SAVE_SECONDS: Final = 300.0
"""What was learnt in so many seconds a crash may cost; what others were told is saved before."""


class KeptFile(Generic[T]):
    """One file of one loop. For one thread."""

    def __init__(self, path: Path, parse: Callable[[bytes], T], what: str) -> None:
        """``parse`` raises ValueError for what it cannot use. ``what`` is in the file, in words."""
        self._path = path
        self._parse = parse
        self._what = what
        self._saved = 0.0
        self._failure = ""

    def load(self) -> T | None:
        """What is in the file; None where it cannot be used. One with other content is put aside."""
        try:
            return self._parse(read_own(self._path))
        except FileNotFoundError:
            pass
        except UnsafeFileError as error:
            LOG.warning("%s is not used: %s", self._what, error)
        except (OSError, ValueError) as error:
            LOG.warning("%s cannot be used and is started anew: %s", self._what, error)
            try:
                put_aside(self._path)
            except OSError as failure:
                LOG.warning("%s cannot be put aside: %s", self._path, failure)
        return None

    def look(self) -> T | None:
        """As load(), for who just looks: what cannot be used is left alone."""
        try:
            return self._parse(read_own(self._path))
        except (OSError, ValueError):
            return None

    def is_due(self, now: float) -> bool:
        """Whether it is to be saved though nothing of note has changed; ``now`` is as save() has it."""
        return now - self._saved >= SAVE_SECONDS or now < self._saved

    def save(self, content: bytes, now: float) -> None:
        """Keep it. A full disk costs no more than what is learnt until it is not full, and is told once."""
        self._saved = now
        try:
            write_durably(self._path, content)
            self._failure = ""
        except OSError as error:
            if str(error) != self._failure:
                LOG.error("%s cannot be saved: %s; will be tried again", self._what, error)
            self._failure = str(error)
