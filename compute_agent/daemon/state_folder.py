"""The folder in which the agent keeps what must outlive it, and what is wrong with it."""

from __future__ import annotations

from pathlib import Path

from oslo_config import cfg

from compute_agent.files import UnsafeFileError, secure_folder
from compute_agent.inventory.cpu_sets import ConfigError

STATE_FILE = "state.json"
GUESTS_FOLDER = "guests"


def make_state_folder(conf: cfg.ConfigOpts) -> Path:
    """The folder, made if it is absent. Raises ConfigError if it cannot be had, or others may write there."""
    folder = Path(conf.state_path)
    try:
        for part in (folder, folder / GUESTS_FOLDER):
            secure_folder(part)
    except UnsafeFileError as error:
        raise ConfigError(f"[DEFAULT] state_path = {folder}: {error}") from error
    except OSError as error:
        raise ConfigError(
            f"[DEFAULT] state_path = {folder}: {error}; the agent needs a folder there that it can write to"
        ) from error
    return folder
