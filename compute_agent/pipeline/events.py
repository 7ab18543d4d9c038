"""Events of the worker's queue.

An event carries all data for its handling, so that the worker sends no request. ``as_of`` is the monotonic
time of the request that read the allocations in the event. An *answer* is the result of the event's future.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from compute_agent.controllers.base import KernelController
from compute_agent.model.guest import Allocation, Guest, GuestMigration
from compute_agent.model.guest_settings import GuestSettings, SettingSource
from compute_agent.model.resource import ThrottleControl
from compute_agent.pipeline.host_state import HostState
from compute_agent.report.history import ConsumerOwner


@dataclass(frozen=True, slots=True)
class StartGuest:
    """An order to start a guest. The answer is its GuestView, or the reason for a refusal.

    :ivar declared: the names of the settings that the order has.
    :ivar owner: project, user and type of the guest's consumer in Placement.
    """

    uuid: str
    name: str
    settings: GuestSettings
    command: tuple[str, ...]
    allocation: Allocation
    as_of: float
    cwd: str = "/"
    # Not in repr(), which the log has: variables may hold a password.
    environment: Mapping[str, str] = field(default_factory=dict, repr=False)
    declared: tuple[str, ...] = ()
    owner: ConsumerOwner | None = None


@dataclass(frozen=True, slots=True)
class AdoptGuest:
    """An order to adopt a running process, or all processes of a cgroup, as a guest.

    The answer is that of StartGuest.

    :ivar origin: the pid, or the folder of the cgroup.
    """

    uuid: str
    name: str
    settings: GuestSettings
    origin: int | Path
    allocation: Allocation
    as_of: float
    declared: tuple[str, ...] = ()
    owner: ConsumerOwner | None = None


@dataclass(frozen=True, slots=True)
class GuestStarted:
    """A driver reports a guest that runs.

    :ivar allocation: None: Placement was not asked, or did not answer.
    :ivar since: the monotonic time of the report.
    :ivar started: whether the guest has just started. Otherwise the guest has other settings or another main
        process, or the agent sees it for the first time.
    :ivar owner: project, user and type of its consumer; None: as before.
    """

    guest: Guest
    allocation: Allocation | None
    as_of: float = 0.0
    since: float = 0.0
    started: bool = False
    owner: ConsumerOwner | None = None


@dataclass(frozen=True, slots=True)
class GuestExpected:
    """A guest is about to start. The answer comes when the guest's cache group exists, if one is possible.

    :ivar allocation: None: Placement did not answer.
    :ivar owner: None: Placement did not answer.
    """

    guest: Guest
    allocation: Allocation | None
    owner: ConsumerOwner | None = None


@dataclass(frozen=True, slots=True)
class GuestAppeared:
    """The process of an expected guest is there. The answer comes when the guest is in its cache group."""

    guest: Guest


@dataclass(frozen=True, slots=True)
class GuestStopped:
    """A driver reports the end of a guest.

    :ivar ending: the exit status or signal of the guest; empty if unknown.
    """

    guest: Guest
    ending: str = ""


@dataclass(frozen=True, slots=True)
class AllocationsRead:
    """The current allocations of guests, by uuid, of their own consumers or of their migrations.

    :ivar allocations: an empty allocation: the guest holds nothing any more.
    :ivar held: the allocations of all consumers of this host, with guest or without; None: as before.
    :ivar migrations: the migrations that hold the allocations of some of these guests.
    :ivar owners: new owners of the guests' consumers.
    """

    allocations: Mapping[str, Allocation]
    as_of: float
    held: Mapping[str, Allocation] | None = None
    migrations: Mapping[str, GuestMigration] = field(default_factory=dict)
    owners: Mapping[str, ConsumerOwner] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class HostStateChanged:
    """The configuration or the hardware changed.

    :ivar controllers: the controllers from now on; None: the current ones stay.
    """

    host_state: HostState
    controllers: Sequence[KernelController] | None = None


@dataclass(frozen=True, slots=True)
class ConfigureGuest:
    """An operator, or the fleet, sets and unsets settings of a guest by their texts.

    The answer comes when the settings are stored and in effect, or is an error: GuestGoneError if there is no
    such guest.
    """

    uuid: str
    texts: Mapping[str, str]
    unset: tuple[str, ...] = ()
    source: SettingSource = SettingSource.BY_HAND


@dataclass(frozen=True, slots=True)
class LimitGuest:
    """Throttling limits a guest, or lifts a limit.

    The answer comes when that is in effect, or is the error: GuestGoneError if there is no such guest.

    :ivar limit: in the lever's unit; None: no limit.
    """

    uuid: str
    knob: ThrottleControl
    limit: float | None


@dataclass(frozen=True, slots=True)
class MoveGuest:
    """An order to move a guest off the CPUs that are outside the current CPU sets.

    The answer is the guest's new assignment, None if the guest has no such CPUs, or the reason why the guest
    cannot move. The answer is GuestGoneError if there is no such guest.

    :ivar dry_run: whether the move is only planned.
    """

    uuid: str
    dry_run: bool = False


@dataclass(frozen=True, slots=True)
class UseMeasured:
    """The CPU use of guests, in cores by uuid, measured over minutes. Guests without an entry are unknown."""

    use: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class ReconcileGuests:
    """The timer: compare every guest with the kernel, repair drift, and retry pending changes."""


Event = (
    StartGuest
    | AdoptGuest
    | GuestStarted
    | GuestExpected
    | GuestAppeared
    | GuestStopped
    | AllocationsRead
    | HostStateChanged
    | ConfigureGuest
    | LimitGuest
    | MoveGuest
    | UseMeasured
    | ReconcileGuests
)
