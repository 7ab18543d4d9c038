"""The interface of controllers: what each does to the kernel, would do, and gives back.

A new controller implements :class:`KernelController`; one that looks at a guest at a time has the rest from
:class:`GuestController`. Dry run, reconcile and release ask all controllers alike, in the order in which
:mod:`compute_agent.agent.configured_host` makes them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final, Protocol

from compute_agent.inventory.provider_tree import ProviderNode
from compute_agent.model.guest import Allocation, CpuAssignment, Guest
from compute_agent.model.messages import DriverError, GuestGoneError
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


def without_preserved(targets: Iterable[GuestTarget]) -> list[GuestTarget]:
    """The guests that a controller may act on: those that the agent does not have to leave as they are."""
    return [target for target in targets if not target.guest.settings.preserve]


@dataclass(frozen=True, slots=True)
class PlannedChange:
    """One change that would be made: ``where`` (placement, or a controller's name), subject and change."""

    where: str
    subject: str
    change: str


FAILED: Final = "failed"
"""Begins the reason of an item that cannot be given back."""

PINS: Final = "pins"
"""The kind of items that bind a guest for good: given back when ordered. Limits always are."""


@dataclass(frozen=True, slots=True)
class ReleaseItem:
    """One thing that the agent has set, with its current value in words.

    ``give_back`` None: it stays, for a ``reason`` in words.
    """

    kind: str
    name: str
    detail: str
    give_back: Callable[[], object] | None = None
    reason: str = "stays"

    @property
    def cannot_be_released(self) -> bool:
        """Whether it is ordered to be given back, and cannot be."""
        return self.give_back is None and self.reason.startswith(FAILED)


def failed_item(kind: str, name: str, error: Exception) -> ReleaseItem:
    """The item of a setting that cannot even be read."""
    return ReleaseItem(kind, name, "", None, f"{FAILED}: {error}")


def items_by_guest(
    guests: Iterable[Guest], kind: str, items: Callable[[Guest], Iterator[ReleaseItem]]
) -> Iterator[ReleaseItem]:
    """The items of each guest; one that cannot be read costs its own items alone."""
    for guest in guests:
        try:
            yield from items(guest)
        except GuestGoneError:
            continue
        except DriverError as error:
            yield failed_item(kind, str(guest), error)


class KernelController(Protocol):
    """Keeps one domain of the kernel as the targets say. Called by the worker only.

    A controller remembers nothing that it could not read back: another one of its kind takes its place when
    the configuration changes.
    """

    name: str
    acts_early: bool
    """Whether it may act on the process of a guest before the start of the guest is over."""

    awaits: bool = False
    """Whether sync() gets the guests that are about to start as well: without a process, and a place."""

    refused: Mapping[str, Sequence[str]]
    """What guests, by uuid, do not get of what they ask for, and why; as of the last sync()."""

    def sync(self, targets: Sequence[GuestTarget], zones: Sequence[ProviderNode]) -> None:
        """Do what concerns all guests together, such as dividing what they share.

        It comes before drifted() and apply(), and when a guest came, left or became another. Preserved guests
        are among the targets, as what they hold is not to be given to others.

        ``zones`` are the providers that allocations name.

        :raises DriverError: it cannot be done (now); it is then called again.
        :raises OSError: it cannot be done (now); it is then called again.
        """
        ...

    def describe_drift(self, target: GuestTarget) -> str | None:
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

    def plan_changes(
        self, targets: Sequence[GuestTarget], zones: Sequence[ProviderNode]
    ) -> Iterator[PlannedChange]:
        """The changes that sync() and apply() would make for these targets. Nothing is written.

        :raises DriverError: settings of all guests together cannot be read.
        :raises OSError: as above.
        """
        ...

    def release(self, guests: Sequence[Guest], online: frozenset[int]) -> Iterator[ReleaseItem]:
        """Everything that the controller ever sets and the kernel still has.

        The configuration does not matter, as an earlier agent may have had another one. ``online`` are the
        CPUs that a guest may use afterwards.
        """
        ...


class GuestController(KernelController):
    """A controller that looks at one guest at a time."""

    acts_early = False
    refused: Mapping[str, Sequence[str]] = MappingProxyType({})

    def sync(self, targets: Sequence[GuestTarget], zones: Sequence[ProviderNode]) -> None:
        """Return at once: guests share nothing here."""
        return

    def plan_changes(
        self, targets: Sequence[GuestTarget], zones: Sequence[ProviderNode]
    ) -> Iterator[PlannedChange]:
        """How each guest differs from its target. One that cannot be read is reported as such."""
        for target in sorted(without_preserved(targets), key=lambda target: target.guest.uuid):
            try:
                difference = self.describe_drift(target)
                if difference is not None:
                    change = self.describe_change(target, difference)
                    yield PlannedChange(self.name, str(target.guest), change)
            except GuestGoneError:
                continue
            except (DriverError, OSError) as error:
                yield PlannedChange(self.name, str(target.guest), f"cannot be done: {error}")

    def describe_change(self, target: GuestTarget, difference: str) -> str:
        """A planned change in words; ``difference`` are those of drifted().

        :raises GuestGoneError:
        :raises DriverError:
        """
        return difference
