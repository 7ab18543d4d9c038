"""The interface of controllers.

A controller sets one kind of kernel settings, describes changes, and undoes them. A method that handles one
guest raises GuestGoneError if the guest has ended. All methods raise DriverError or OSError if settings
cannot be read or changed now; the worker calls again.

A new controller implements :class:`KernelController`. A controller that handles one guest at a time inherits
from :class:`GuestController`, a controller that handles all guests together in sync() from
:class:`HostController`. Dry run, reconcile and release call all controllers in the order in which
:mod:`compute_agent.agent.configured_controllers` makes them.
"""

from __future__ import annotations

import contextlib
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
    """The wanted state of a guest: its CPUs, its allocation and its limits.

    :ivar assignment: the CPUs and NUMA nodes of the guest; None means that the agent does not place the
        guest.
    :ivar online: the online CPUs of the host.
    :ivar allocation: the allocated amounts by provider and by resource class; None if not known yet.
    :ivar limits: the temporary limits that throttling has set, by control, such as the bandwidth of one
        cache.
    :ivar spare: the online CPUs on which the guest may run while all its own CPUs are offline.
    :ivar starting_mems: the NUMA nodes for the memory of a guest that is still starting. An empty set means
        any node. The set is also empty after the guest has started.
    """

    guest: Guest
    assignment: CpuAssignment | None
    online: frozenset[int]
    allocation: Allocation | None = None
    limits: Mapping[ThrottleControl, float] = field(default_factory=dict)
    spare: frozenset[int] = frozenset()
    starting_mems: frozenset[int] = frozenset()


def without_preserved(targets: Iterable[GuestTarget]) -> list[GuestTarget]:
    """The targets on which a controller may act: all guests without the setting ``preserve``."""
    return [target for target in targets if not target.guest.settings.preserve]


@dataclass(frozen=True, slots=True)
class PlannedChange:
    """One change that a controller would make, as a dry run shows it.

    :ivar where: ``placement``, or the name of the controller.
    :ivar subject: the guest, the CPUs or the host that would change.
    :ivar change: a text that describes the change.
    """

    where: str
    subject: str
    change: str


FAILED: Final = "failed"
"""Prefix of the reason in a :class:`ReleaseItem` that cannot be undone."""

PINS: Final = "pins"
"""The kind of release items that bind a guest to CPUs or NUMA nodes.

A release of the host always removes limits, but removes pins only if the operator asks for it.
"""


@dataclass(frozen=True, slots=True)
class ReleaseItem:
    """One setting of the agent, which a release of the host can undo.

    :ivar kind: the kind of the setting, such as :data:`PINS`.
    :ivar name: the guest, or the files of the host, that have the setting.
    :ivar detail: a text that describes the current value.
    :ivar give_back: undoes the setting; None if the setting stays.
    :ivar reason: the reason why the setting stays.
    """

    kind: str
    name: str
    detail: str
    give_back: Callable[[], object] | None = None
    reason: str = "stays"

    @property
    def cannot_be_released(self) -> bool:
        """Whether an attempt to undo the setting has failed."""
        return self.give_back is None and self.reason.startswith(FAILED)


def failed_item(kind: str, name: str, error: Exception) -> ReleaseItem:
    """The release item of a setting that cannot be read, with the error as its reason."""
    return ReleaseItem(kind, name, "", None, f"{FAILED}: {error}")


FOREIGN_ROUNDS: Final = 6
"""The value of ``compare_rounds`` for settings that change only if another program writes them."""


class KernelController(Protocol):
    """A controller that the worker calls.

    A reload makes new controllers, so lasting state is on disk or in the kernel.
    """

    name: str
    acts_early: bool = False
    """Whether the controller may act on a guest's process while the guest is still starting."""

    awaits: bool = False
    """Whether sync() also gets guests that are about to start. A guest that is about to start has no process
    and no assignment of CPUs yet.
    """

    compare_rounds: int = 1
    """Number of rounds between two periodic comparisons by this controller.

    The number is above 1 for settings that change only if another program writes them. Pins of threads are
    compared in each round, because they also change without such a write.
    """

    # The default is read-only, because all controllers that have refused no request share it.
    refused: Mapping[str, Sequence[str]] = MappingProxyType({})
    """Messages about requests that the last sync() could not meet, by uuid of the guest."""

    def sync(self, targets: Sequence[GuestTarget], zones: Sequence[ProviderNode]) -> None:
        """Set values that depend on several guests, such as the partition of a cache.

        The worker calls sync() before describe_drift() and apply(), and after a guest came, left or changed.
        The targets include preserved guests, so that other guests do not get their resources.

        :param targets: the targets of all guests.
        :param zones: the resource providers of this host's zones (NUMA nodes and caches).
        """
        ...

    def begin_guest(self, target: GuestTarget) -> None:
        """Act on the process of a guest that is still starting.

        The target has no assignment, because libvirt itself sets CPUs and memory during the start.
        """
        if self.acts_early:
            self.apply(target)

    def describe_drift(self, target: GuestTarget) -> str | None:
        """Describe for the log how the kernel's settings of a guest differ from its target.

        The result is None if they agree.
        """
        ...

    def apply(self, target: GuestTarget) -> bool:
        """Compare the kernel's settings of a guest with its target, write differences, and read them back.

        :return: whether a setting was written.
        """
        ...

    def plan_changes(
        self, targets: Sequence[GuestTarget], zones: Sequence[ProviderNode]
    ) -> Iterator[PlannedChange]:
        """The changes that sync() and apply() would make for these targets. Nothing is written."""
        ...

    def release(self, guests: Sequence[Guest], online: frozenset[int]) -> Iterator[ReleaseItem]:
        """The settings that this controller wrote into the kernel, in this agent or in an earlier one.

        Settings that the present configuration does not contain are included: an earlier agent perhaps had
        another configuration.

        :param guests: the running guests.
        :param online: the online CPUs. A guest that is not pinned may use all of them.
        """
        ...


ControllerT = TypeVar("ControllerT", bound=KernelController)


def find_controller(controllers: Iterable[KernelController], kind: type[ControllerT]) -> ControllerT | None:
    """The controller of class ``kind`` in ``controllers``; None if the list has no such controller."""
    return next((one for one in controllers if isinstance(one, kind)), None)


class ControllersInForce(Protocol):
    """Provides the controllers that the worker uses now; a reload replaces them."""

    @property
    def controllers(self) -> tuple[KernelController, ...]:
        """The controllers that the worker uses at the moment."""
        ...


class HostController(KernelController):
    """A controller of which sync() compares and corrects the settings of all guests together."""

    def describe_drift(self, target: GuestTarget) -> str | None:
        """Always None, because sync() has compared and corrected the settings of all guests."""
        return None

    def apply(self, target: GuestTarget) -> bool:
        """Always False, because sync() has written the settings of all guests."""
        return False


class GuestController(KernelController, Protocol):
    """A controller for settings that do not depend on other guests."""

    release_kind: str = PINS
    """The kind of the release item of a guest that cannot be read."""

    def sync(self, targets: Sequence[GuestTarget], zones: Sequence[ProviderNode]) -> None:
        """Note for each guest which of its requests cannot be met. Nothing is written."""
        found: dict[str, tuple[str, ...]] = {}
        for target in targets:
            # A guest that has ended needs no settings.
            with contextlib.suppress(GuestGoneError):
                found[target.guest.uuid] = tuple(self.list_refusals(target))
        self.refused = {uuid: reasons for uuid, reasons in found.items() if reasons}

    def list_refusals(self, target: GuestTarget) -> Iterable[str]:
        """Messages about requests of a guest that cannot be met now."""
        return ()

    def release(self, guests: Sequence[Guest], online: frozenset[int]) -> Iterator[ReleaseItem]:
        """The release items of all guests. A guest that cannot be read has the error as its only item."""
        for guest in guests:
            try:
                yield from self.list_written(guest, online)
            except GuestGoneError:
                # A guest that has ended has nothing to give back.
                continue
            except DriverError as error:
                yield failed_item(self.release_kind, str(guest), error)

    def list_written(self, guest: Guest, online: frozenset[int]) -> Iterator[ReleaseItem]:
        """The settings of one guest that the agent wrote; see :meth:`KernelController.release`."""
        ...

    def plan_changes(
        self, targets: Sequence[GuestTarget], zones: Sequence[ProviderNode]
    ) -> Iterator[PlannedChange]:
        """The change of each guest that differs from its target, or the error of reading its settings."""
        # Guests are sorted, so that two dry runs can be compared.
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
        """The text for a planned change in a dry run.

        :param difference: the result of describe_drift().
        """
        return difference
