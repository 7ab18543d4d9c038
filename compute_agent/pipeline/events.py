"""Events of the worker's queue.

An event contains all data that the worker needs, so that the worker sends no requests to Placement.
``allocation`` is the guest's allocation, and ``owner`` the project, user and type of its consumer. None means
that Placement was not asked, or did not answer. ``as_of`` is the time, in monotonic seconds, at which the
event's allocations were requested from Placement. ``declared`` has the names of the settings that a request
sets explicitly. The *answer* to an event is the result of the future that ``submit()`` returns.
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
from compute_agent.policy.load_profiles import LoadProfile
from compute_agent.report.history import ConsumerOwner


@dataclass(frozen=True, slots=True)
class StartGuest:
    """A request to start a guest. The answer is the guest's GuestView, or GuestRefusedError with the reason.

    :ivar command: the program and arguments of the guest.
    :ivar cwd: the working directory of the guest.
    """

    uuid: str
    name: str
    settings: GuestSettings
    command: tuple[str, ...]
    allocation: Allocation
    as_of: float
    cwd: str = "/"
    # The environment is left out of repr(), which can be logged: a variable can contain a password.
    environment: Mapping[str, str] = field(default_factory=dict, repr=False)
    declared: tuple[str, ...] = ()
    owner: ConsumerOwner | None = None


@dataclass(frozen=True, slots=True)
class AdoptGuest:
    """A request to adopt a running process, or all processes of a cgroup, as a guest.

    The answer is the guest's GuestView, or GuestRefusedError with the reason.

    :ivar origin: the process id, or the folder of the cgroup.
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
    """A driver reports a running guest. An owner of None means that the owner is unchanged.

    :ivar since: the time, in monotonic seconds, at which the driver saw the guest.
    :ivar started: whether the guest has just started. If False, the guest has changed its settings or its
        main process, or the agent sees it for the first time. The cache cannot determine this: a guest can
        continue with another pid, and can be found before its start is reported.
    """

    guest: Guest
    allocation: Allocation | None
    as_of: float = 0.0
    since: float = 0.0
    started: bool = False
    owner: ConsumerOwner | None = None


@dataclass(frozen=True, slots=True)
class GuestExpected:
    """A guest is about to start.

    If the guest can have a cache group, the answer comes when the group exists.
    """

    guest: Guest
    allocation: Allocation | None
    owner: ConsumerOwner | None = None


@dataclass(frozen=True, slots=True)
class GuestAppeared:
    """The process of an expected guest exists. The worker answers when the process is in its cache group."""

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
    """The allocations of guests were read from Placement.

    :ivar allocations: the allocation of each guest by uuid. While a guest migrates, its entry can be the
        allocation of the migration. An empty allocation means that the guest holds nothing any more.
    :ivar held: the allocations of all consumers on this host, with or without a guest, by consumer; None if
        these allocations have not changed.
    :ivar migrations: the migrations that hold the allocation of a guest, by uuid of the guest.
    :ivar owners: changed owners of consumers, by uuid of the guest.
    """

    allocations: Mapping[str, Allocation]
    as_of: float
    held: Mapping[str, Allocation] | None = None
    migrations: Mapping[str, GuestMigration] = field(default_factory=dict)
    owners: Mapping[str, ConsumerOwner] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RoomRefused:
    """Placement has refused the agent's claim for a guest, because the host has no room for it."""

    uuid: str


@dataclass(frozen=True, slots=True)
class HostStateChanged:
    """The configuration or the hardware has changed.

    :ivar controllers: the new controllers; None if the present controllers stay.
    """

    host_state: HostState
    controllers: Sequence[KernelController] | None = None


@dataclass(frozen=True, slots=True)
class ConfigureGuest:
    """An operator or the fleet sets and unsets settings of a guest.

    The answer comes when the settings are saved and applied. The answer is GuestGoneError if there is no such
    guest.

    :ivar texts: a dict from the name of each setting to its value as text.
    :ivar unset: the names of settings to remove.
    """

    uuid: str
    texts: Mapping[str, str]
    unset: tuple[str, ...] = ()
    source: SettingSource = SettingSource.BY_HAND


@dataclass(frozen=True, slots=True)
class LimitGuest:
    """Throttling sets or removes a limit of a guest.

    The answer comes when the kernel has the limit. The answer is an error if there is no such guest
    (GuestGoneError), or if the controller fails.

    :ivar limit: the limit, in the unit of the control; None means that the limit is removed.
    """

    uuid: str
    knob: ThrottleControl
    limit: float | None


@dataclass(frozen=True, slots=True)
class MoveGuest:
    """A request to move a guest from CPUs outside of the configured CPU sets to CPUs within them.

    The answer is the new assignment, or None if the guest has no CPUs outside of the sets. The answer is
    GuestRefusedError if there are no free CPUs within the sets, and GuestGoneError if there is no such guest.

    :ivar dry_run: whether the move is only computed.
    """

    uuid: str
    dry_run: bool = False


@dataclass(frozen=True, slots=True)
class UseMeasured:
    """The CPU use of guests was measured.

    :ivar use: the use in cores by hour of the week, by uuid of the guest. The use of a guest without an
        entry is unknown.
    :ivar recent: the mean CPU use of the last minutes, in the same form as ``use``.
    """

    use: Mapping[str, LoadProfile]
    recent: Mapping[str, LoadProfile] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ReconcileGuests:
    """A periodic request to compare all guests with the kernel, repair drift, and retry pending changes."""


Event = (
    StartGuest
    | AdoptGuest
    | GuestStarted
    | GuestExpected
    | GuestAppeared
    | GuestStopped
    | AllocationsRead
    | RoomRefused
    | HostStateChanged
    | ConfigureGuest
    | LimitGuest
    | MoveGuest
    | UseMeasured
    | ReconcileGuests
)
