"""The folder in which the agent keeps what must outlive it, and what is wrong with it."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

from oslo_config import cfg

from compute_agent.files import UnsafeFileError, check_folder, secure_folder
from compute_agent.model.messages import ConfigError

STATE_FILE: Final = "state.json"
GUESTS_FOLDER: Final = "guests"

_OPTION: Final = "[DEFAULT] state_path"
_NEEDED: Final = "the agent needs a folder there that it can write to"


def check_state_folder(conf: cfg.ConfigOpts) -> str:
    """Why this user cannot keep anything there; empty if that can be. Nothing is made.

    :raises ConfigError: others may write there, so that the agent of any user would refuse it.
    """
    folder = Path(conf.state_path)
    if reason := _fault(folder, check_folder):
        return reason
    there = next(part for part in (folder.absolute(), *folder.absolute().parents) if part.exists())
    if there.is_dir() and os.access(there, os.W_OK | os.X_OK):
        return ""
    return f"{_OPTION} = {folder}: user {os.geteuid()} cannot write to {there}; {_NEEDED}"


def make_state_folder(conf: cfg.ConfigOpts) -> Path:
    """The folder, made if it is absent.

    :raises ConfigError: it cannot be had, or others may write there.
    """
    folder = Path(conf.state_path)
    if reason := _fault(folder, secure_folder):
        raise ConfigError(reason)
    return folder


def _fault(folder: Path, see_to: Callable[[Path], None]) -> str:
    """Why the folder, or that of guests in it, cannot be had; empty if both can.

    :raises ConfigError: others may write there.
    """
    try:
        for part in (folder, folder / GUESTS_FOLDER):
            see_to(part)
    except UnsafeFileError as error:
        raise ConfigError(f"{_OPTION} = {folder}: {error}") from error
    except OSError as error:
        return f"{_OPTION} = {folder}: {error}; {_NEEDED}"
    return ""
