"""The interface of controllers: each sets a part of the kernel, describes its changes, and undoes them.

A new controller implements :class:`KernelController`. A controller that handles one guest at a time inherits
the rest from :class:`GuestController`. Dry run, reconcile and release ask all controllers in the order in
which :mod:`compute_agent.agent.configured_host` makes them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final, Protocol, TypeVar

from compute_agent.inventory.provider_tree import ProviderNode
from compute_agent.model.guest import Allocation, CpuAssignment, Guest
from compute_agent.model.messages import DriverError, GuestGoneError
from compute_agent.model.resource import ThrottleControl


@dataclass(frozen=True, slots=True)
class GuestTarget:
    """A guest as it should be.

    :ivar assignment: where the guest runs. None: the agent does not place the guest.
    :ivar online: the CPUs that are online now.
    :ivar allocation: amounts by provider of this host and resource class. None: not known yet.
    :ivar limits: the temporary limits of throttling, in the units of their levers.
    :ivar spare: the online CPUs that the guest may run on while all its own CPUs are offline.
    """

    guest: Guest
    assignment: CpuAssignment | None
    online: frozenset[int]
    allocation: Allocation | None = None
    limits: Mapping[ThrottleControl, float] = field(default_factory=dict)
    spare: frozenset[int] = frozenset()


def without_preserved(targets: Iterable[GuestTarget]) -> list[GuestTarget]:
    """The guests on which a controller may act: all without the setting ``preserve``."""
    return [target for target in targets if not target.guest.settings.preserve]


@dataclass(frozen=True, slots=True)
class PlannedChange:
    """One change that would be made.

    :ivar where: ``placement``, or the name of a controller.
    """

    where: str
    subject: str
    change: str


FAILED: Final = "failed"
"""Prefix of the reason of an item that cannot be given back."""

PINS: Final = "pins"
"""The kind of items that bind a guest for good. A release removes pins only on demand, but limits always."""


@dataclass(frozen=True, slots=True)
class ReleaseItem:
    """One setting of the agent, with its current value in words.

    :ivar give_back: undoes the setting. None: the setting stays, for ``reason``.
    """

    kind: str
    name: str
    detail: str
    give_back: Callable[[], object] | None = None
    reason: str = "stays"

    @property
    def cannot_be_released(self) -> bool:
        """Whether the agent was told to remove the item, and cannot."""
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
            # A guest that has ended has nothing to give back.
            continue
        except DriverError as error:
            yield failed_item(kind, str(guest), error)


class KernelController(Protocol):
    """Keeps one part of the kernel's settings as the targets say. Called by the worker only.

    A controller remembers nothing that it cannot read back: a reload replaces it by a new one of its class.
    """

    name: str
    acts_early: bool
    """Whether the controller may act on the process of a guest before the guest's start is over."""

    awaits: bool = False
    """Whether sync() also gets the guests that are about to start, which have no process and no place yet."""

    refused: Mapping[str, Sequence[str]]
    """Reasons, by uuid, why guests did not get everything at the last sync()."""

    def sync(self, targets: Sequence[GuestTarget], zones: Sequence[ProviderNode]) -> None:
        """Set everything that concerns all guests together, such as the division of a cache.

        The worker calls it before describe_drift() and apply(), and after a guest came, left or changed.
        Preserved guests are among the targets, so that other guests do not get their resources.

        :param zones: the providers that allocations name.
        :raises DriverError: the work is not possible now; the worker calls again.
        :raises OSError: the work is not possible now; the worker calls again.
        """
        ...

    def describe_drift(self, target: GuestTarget) -> str | None:
        """Describe how the kernel differs from the target, in words for the log; None if it does not.

        :raises GuestGoneError:
        :raises DriverError:
        :raises OSError:
        """
        ...

    def apply(self, target: GuestTarget) -> bool:
        """Make the kernel agree with the target: compare, write the differences, read back.

        :return: whether anything had to be written.
        :raises GuestGoneError:
        :raises DriverError: the change is not possible now.
        :raises OSError: the change is not possible now.
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
        """Every setting of the controller's kind that the kernel still has from the agent.

        The configuration does not matter, because an earlier agent may have had another one.

        :param online: the CPUs that a guest may use afterwards.
        """
        ...


ControllerT = TypeVar("ControllerT", bound=KernelController)


def find_controller(controllers: Iterable[KernelController], kind: type[ControllerT]) -> ControllerT | None:
    """The controller of a class among these; None without one."""
    return next((one for one in controllers if isinstance(one, kind)), None)


class ControllersInForce(Protocol):
    """Knows the controllers that the worker has at the moment; a reload replaces them."""

    @property
    def controllers(self) -> tuple[KernelController, ...]:
        """The controllers in force."""
        ...


class GuestController(KernelController):
    """A controller that looks at one guest at a time."""

    acts_early = False
    # Read-only, because all controllers without refusals share it.
    refused: Mapping[str, Sequence[str]] = MappingProxyType({})

    def sync(self, targets: Sequence[GuestTarget], zones: Sequence[ProviderNode]) -> None:
        """Return at once: guests share nothing here."""
        return

    def plan_changes(
        self, targets: Sequence[GuestTarget], zones: Sequence[ProviderNode]
    ) -> Iterator[PlannedChange]:
        """The difference of each guest from its target. An unreadable guest has a row with the error."""
        # A fixed order makes two previews comparable.
        for target in sorted(without_preserved(targets), key=lambda target: target.guest.uuid):
            try:
                difference = self.describe_drift(target)
                if difference is not None:
                    change = self.describe_change(target, difference)
                    yield PlannedChange(self.name, str(target.guest), change)
            except GuestGoneError:
                # A guest that has ended needs no change.
                continue
            except (DriverError, OSError) as error:
                yield PlannedChange(self.name, str(target.guest), f"cannot be done: {error}")

    def describe_change(self, target: GuestTarget, difference: str) -> str:
        """A planned change in words.

        :param difference: the words of describe_drift().

        :raises GuestGoneError:
        :raises DriverError:
        """
        return difference
