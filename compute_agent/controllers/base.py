"""The interface of controllers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Protocol

from compute_agent.inventory.provider_tree import ProviderNode
from compute_agent.model.guest import Allocation, CpuAssignment, Guest
from compute_agent.model.resource import ThrottleControl


@dataclass(frozen=True, slots=True)
class GuestTarget:
    """A guest as it should be.

    ``assignment`` is where it runs (None: wherever it likes), ``online`` are the CPUs that are online now,
    ``spare`` those of them that it may run on while all its own are offline. ``allocation`` is what it holds
    on this host's providers (None: not known yet). ``limits`` hold it down for the time being, in the units
    of their levers.
    """

    guest: Guest
    assignment: CpuAssignment | None
    online: frozenset[int]
    allocation: Allocation | None = None
    limits: Mapping[ThrottleControl, float] = field(default_factory=dict)
    spare: frozenset[int] = frozenset()


class KernelController(Protocol):
    """Keeps one domain of the kernel as the targets say. Called by the worker only.

    A controller remembers nothing that it could not read back: another one of its kind takes its place when
    the configuration changes.
    """

    name: str
    acts_early: bool
    """Whether it may act on a guest whose process is there and whose start is not over."""

    @property
    def refused(self) -> Mapping[str, Sequence[str]]:
        """What guests, by uuid, do not get of what they ask for, and why; as of the last sync()."""
        ...

    def sync(self, targets: Sequence[GuestTarget], zones: Sequence[ProviderNode]) -> None:
        """Do what concerns all guests together, such as dividing what they share.

        It comes before drifted() and apply(), and when a guest came, left or became another.

        ``zones`` are the providers that allocations name.

        :raises DriverError: it cannot be done (now); it is then called again.
        :raises OSError: it cannot be done (now); it is then called again.
        """
        ...

    def drifted(self, target: GuestTarget) -> str | None:
        """How the kernel differs from the target, in words for the log; None if it does not.

        :raises GuestGoneError:
        :raises DriverError:
        :raises OSError:
        """
        ...

    def apply(self, target: GuestTarget) -> bool:
        """Make the kernel what the target says: compare, write differences, read back.

        True if anything had to be written.

        :raises GuestGoneError:
        :raises DriverError: it cannot be done (now).
        :raises OSError: it cannot be done (now).
        """
        ...


class GuestController:
    """A controller that looks at one guest at a time."""

    acts_early = False
    refused: Mapping[str, Sequence[str]] = MappingProxyType({})

    def sync(self, targets: Sequence[GuestTarget], zones: Sequence[ProviderNode]) -> None:
        """Guests share nothing here."""
