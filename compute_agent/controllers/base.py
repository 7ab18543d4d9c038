"""The interface of controllers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from compute_agent.drivers.base import Guest
from compute_agent.policy.base import Assignment


@dataclass(frozen=True, slots=True)
class Target:
    """A guest, where it should run, and which CPUs are online now."""

    guest: Guest
    assignment: Assignment
    online: frozenset[int]


class Controller(Protocol):
    """Keeps one domain of the kernel as the assignments say. Called by the worker only."""

    name: str

    def drifted(self, target: Target) -> str | None:
        """How the kernel differs from the assignment, in words for the log; None if it does not.

        Raises GuestGoneError.
        """
        ...

    def apply(self, target: Target) -> bool:
        """Make the kernel what the assignment says: compare, write differences, read back.

        True if anything had to be written. Raises GuestGoneError, or DriverError if it cannot be done (now).
        """
        ...
