"""Events of the worker's queue.

An event carries all that its handling needs, so that the worker sends no request. ``as_of`` is the monotonic
time of the request that read the allocations in the event.
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
    """Somebody wants a new guest; answered with its GuestView, or with the reason why not.

    ``declared`` are the names of settings that were chosen, ``owner`` is whose the consumer is in Placement.
    """

    uuid: str
    name: str
    settings: GuestSettings
    command: tuple[str, ...]
    allocation: Allocation
    as_of: float
    cwd: str = "/"
    environment: Mapping[str, str] = field(default_factory=dict, repr=False)  # may hold a password
    declared: tuple[str, ...] = ()
    owner: ConsumerOwner | None = None


@dataclass(frozen=True, slots=True)
class AdoptGuest:
    """Somebody wants a running process, or all processes of the cgroup in a folder, to be a guest.

    Answered as StartGuest is.
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
    """A driver says something of a guest that runs, at the monotonic time ``since``.

    ``started``: it does so since just now; else it ran before, and has other settings, another main process,
    or could not be seen. ``allocation`` is None when Placement was not asked, or did not answer. ``owner`` is
    whose the consumer is, None if that is not news.
    """

    guest: Guest
    allocation: Allocation | None
    as_of: float = 0.0
    since: float = 0.0
    started: bool = False
    owner: ConsumerOwner | None = None


@dataclass(frozen=True, slots=True)
class GuestExpected:
    """A guest is about to start; ``allocation`` and ``owner`` are None where they could not be learnt.

    Answered when its cache group is there, as far as it can be.
    """

    guest: Guest
    allocation: Allocation | None
    owner: ConsumerOwner | None = None


@dataclass(frozen=True, slots=True)
class GuestAppeared:
    """The process of a guest that was expected is there. Answered when it is in its cache group."""

    guest: Guest


@dataclass(frozen=True, slots=True)
class GuestStopped:
    """A driver says that a guest ended; ``ending`` is its exit status or signal, if that is known."""

    guest: Guest
    ending: str = ""


@dataclass(frozen=True, slots=True)
class AllocationsRead:
    """What guests hold now, by guest uuid, by themselves or through their migrations.

    An empty allocation is that of a guest that holds nothing any more. ``migrations`` are those through which
    some of these guests hold theirs. ``held`` is what all consumers hold of this host, with guest or without;
    None: nothing new. ``owners`` are whose the consumers of guests are, as far as that is news.
    """

    allocations: Mapping[str, Allocation]
    as_of: float
    held: Mapping[str, Allocation] | None = None
    migrations: Mapping[str, GuestMigration] = field(default_factory=dict)
    owners: Mapping[str, ConsumerOwner] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class WorldChanged:
    """The configuration or the hardware changed.

    ``controllers`` take the places of those before them; None: they stay.
    """

    world: HostState
    controllers: Sequence[KernelController] | None = None


@dataclass(frozen=True, slots=True)
class ConfigureGuest:
    """An operator, or the fleet, sets and unsets settings of a guest by their texts.

    Answered when they are kept and in effect as far as can be, or with what went wrong; GuestGoneError if
    there is no such guest.
    """

    uuid: str
    texts: Mapping[str, str]
    unset: tuple[str, ...] = ()
    source: SettingSource = SettingSource.BY_HAND


@dataclass(frozen=True, slots=True)
class LimitGuest:
    """The watermarks hold a guest down to ``limit`` (in the lever's unit), or let it go again (None).

    Answered when that is in effect, or with what went wrong; GuestGoneError if there is no such guest.
    """

    uuid: str
    knob: ThrottleControl
    limit: float | None


@dataclass(frozen=True, slots=True)
class MoveGuest:
    """Somebody wants a guest off the CPUs that the present sets do not have.

    With ``dry_run`` it is only planned.

    Answered with its new assignment, None if it has nothing to leave, or the reason why it cannot move;
    GuestGoneError if there is no such guest.
    """

    uuid: str
    dry_run: bool = False


@dataclass(frozen=True, slots=True)
class UseMeasured:
    """What guests use of CPUs, in cores by uuid, measured over minutes; of the others it is not known."""

    use: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class ReconcileGuests:
    """The timer: compare every guest with the kernel, repair, retry what is pending."""


Event = (
    StartGuest
    | AdoptGuest
    | GuestStarted
    | GuestExpected
    | GuestAppeared
    | GuestStopped
    | AllocationsRead
    | WorldChanged
    | ConfigureGuest
    | LimitGuest
    | MoveGuest
    | UseMeasured
    | ReconcileGuests
)
