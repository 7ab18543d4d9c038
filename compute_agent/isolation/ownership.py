"""The right to change the masks of a host, which only one agent has at a time.

A host may have two agents: one for domains and one for processes. Each agent would take the other's masks for
drift. So the first agent with a quiet guest keeps the right until all masks have their originals.
"""

from __future__ import annotations

import contextlib
import logging
import os
from pathlib import Path
from typing import Final

from compute_agent.locks import LockedError, hold_lock, is_held

LOG = logging.getLogger(__name__)

LOCK_FILE: Final = "isolation.lock"


class MaskOwnership:
    """Takes a lock in a folder that all agents of the host share. Only one thread may use this object."""

    def __init__(self, folder: Path | None = None) -> None:
        """Use a lock in ``folder``; None if the host has no other agent."""
        self._path = None if folder is None else folder / LOCK_FILE
        self._held: int | None = None
        #: The reason why no lock can be taken; empty if there is no problem.
        self.problem = ""

    def find_objection(self) -> str:
        """Take the right to change masks, or name the agent that has it; ``problem`` has a failed lock."""
        if self._path is None or (self._held is not None and is_held(self._path, self._held)):
            return ""
        self.give_up()
        problem = ""
        try:
            self._held = hold_lock(self._path, f"pid {os.getpid()}")
        except LockedError as error:
            return f"another agent has quiet CPUs on this host ({error})"
        except OSError as error:
            # Isolation goes on without a lock, because few hosts have two agents, and a container may lack
            # the folder.
            problem = f"a second agent of this host would undo the masks, as no lock can be taken: {error}"
            if problem != self.problem:
                LOG.warning(
                    "The agent changes the masks of quiet CPUs without a lock, so another agent may"
                    " change them, too: %s",
                    problem,
                )
        self.problem = problem
        return ""

    def give_up(self) -> None:
        """Release the right to change masks, so that another agent may take it."""
        if self._held is not None:
            with contextlib.suppress(OSError):
                os.close(self._held)
            self._held = None
