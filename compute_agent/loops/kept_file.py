"""What loops learn, in a file each of the state folder: a new start goes on with it if it can be used."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

from compute_agent.files import UnsafeFileError, put_aside, read_own, write_durably

T = TypeVar("T")

LOG = logging.getLogger(__name__)


def load(path: Path, parse: Callable[[bytes], Mapping[str, T]], what: str) -> Mapping[str, T]:
    """What ``parse`` (which may raise ValueError) makes of a file; nothing where it cannot be used.

    ``what`` is in it, in words. A file with other content is put aside.
    """
    try:
        return parse(read_own(path))
    except FileNotFoundError:
        return {}
    except UnsafeFileError as error:
        LOG.warning("%s is not used: %s", what, error)
    except (OSError, ValueError) as error:
        LOG.warning("%s cannot be used and is started anew: %s", what, error)
        try:
            put_aside(path)
        except OSError as failure:
            LOG.warning("%s cannot be put aside: %s", path, failure)
    return {}


def look(path: Path, parse: Callable[[bytes], Mapping[str, T]]) -> Mapping[str, T]:
    """As load(), for who just looks: what cannot be used is left alone."""
    try:
        return parse(read_own(path))
    except (OSError, ValueError):
        return {}


def save(path: Path, content: bytes, what: str) -> None:
    """Keep it; a disk that is full costs no more than what is learnt until it is not."""
    try:
        write_durably(path, content)
    except OSError as error:
        LOG.warning("%s cannot be kept for now: %s", what, error)
