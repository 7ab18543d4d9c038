"""What a guest was ordered with, where its driver knows that, and which guests exist without running."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from compute_agent.model.guest import Guest


@dataclass(frozen=True, slots=True)
class GuestFlavor:
    """An order: amounts by resource class, CPUs left out, and the ids of its owner (empty if unknown).

    ``dedicated`` is how many guest CPUs are to have CPUs of their own; None if that is not said.
    """

    resources: Mapping[str, int] = field(default_factory=dict)
    dedicated: int | None = None
    project_id: str = ""
    user_id: str = ""


class FlavorSource(Protocol):
    """A driver whose guests are defined by somebody else, and outlive their processes."""

    def flavor(self, guest: Guest) -> GuestFlavor:
        """What a guest was ordered with.

        :raises GuestGoneError:
        :raises DriverError:
        """
        ...

    def inactive(self) -> frozenset[str]:
        """The uuids of the guests that are defined here and do not run now.

        :raises DriverError:
        """
        ...
