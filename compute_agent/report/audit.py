"""The audit: finds differences between guests and their allocations, and guests that migrate. Pure functions.

:func:`resolve_holdings` finds the consumer that holds the allocation of a migrating guest.
    :func:`compare_holdings` finds differences; :func:`decide_creation` and :func:`decide_deletion` decide on
    repairs.

Nouns
    Before Nova moves or resizes a guest, its conductor gives the guest's allocations to another consumer, the
    *migration*, in one request (POST /allocations). The conductor then claims the destination for the guest's
    own consumer. The guest runs on this host until the move ends. After a confirmed move the migration's
    consumer disappears. After a reverted move the guest gets its allocations back, again in one request.

    Placement has no link between a migration and its guest. The consumer type does not help either: Nova's
    requests have microversion 1.36, so the type is ``unknown``. In this module a *claim* is the allocation of
    a consumer that has no guest on this host.

Matching
    A claim can belong to the migration of a guest that has lost its allocation on this host. The claim must
    have the same amounts and be *new*, which means that the last listing did not contain it. The type of the
    claim must be unknown or a migration, and its owner must be unknown or the guest's. If the agent lost its
    state, it does not know the former allocation of the guest. In this case the claim must contain the CPUs
    on which the guest runs, and its owner or type must be known and be that of the guest.

    Guests of one flavor that move at the same time cannot be told apart. A wrong match does no harm, because
    the claims of such guests are equal, and each guest gets one of them. When a claim disappears, the guest
    that still runs gets another claim.

Invariants
    - A claim belongs to at most one guest.
    - As many guests as possible get a claim.
    - A guest that has got its former allocation back is not migrating.
    - A guest that never had an allocation gets no claim.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Final

from compute_agent.model import cpuset
from compute_agent.model.cpuset import CpuSet, named_cpus
from compute_agent.model.guest import Allocation, ConsumerAllocations, GuestHolding, GuestMigration
from compute_agent.model.messages import full_name
from compute_agent.model.resource import RECLAIMED_VCPU
from compute_agent.report.capacity import CpuLocation, FreeCapacity, Held, total_amounts

MIGRATION_TYPE: Final = "MIGRATION"
UNKNOWN_TYPE: Final = "unknown"

Owner = tuple[str, str]
"""A pair of uuids: of a project and of a user."""


@dataclass(frozen=True, slots=True)
class MovedGuest:
    """A running guest of this host that no longer has the allocations that the agent remembers.

    :ivar before: the guest's former allocation on this host, held by its own consumer or by ``migration``;
        None if unknown.
    :ivar own: the present allocation of the guest's own consumer on this host.
    :ivar migration: the consumer of the guest's migration, as found before; empty if there is no migration.
    :ivar owner: the owner of the guest's consumer; None if the consumer holds nothing anywhere.
    :ivar suitable: the consumers with a claim that contains the CPUs on which the guest runs.
    """

    uuid: str
    before: Allocation | None
    own: Allocation
    migration: str = ""
    owner: Owner | None = None
    suitable: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class MigrationClaim:
    """The allocation on this host of a consumer that has no guest on this host.

    :ivar consumer_type: the type of the consumer; None if Placement has no consumer types.
    :ivar new: whether the claim was absent from the last listing.
    """

    consumer: str
    allocation: Allocation
    owner: Owner | None = None
    consumer_type: str | None = None
    new: bool = True


def resolve_holdings(
    guests: Sequence[MovedGuest], claims: Iterable[MigrationClaim]
) -> dict[str, GuestHolding]:
    """The present allocation of each guest, held by its own consumer or by the consumer of its migration.

    :param claims: the claims of consumers without a known guest.
    """
    free = {claim.consumer: claim for claim in claims}
    found: dict[str, GuestHolding] = {}
    waiting: list[MovedGuest] = []
    for guest in guests:
        # In these cases, the guest has its allocation back or never held one, or the agent has lost its state
        # and knows only the present allocation.
        if guest.own == guest.before or guest.before == {} or (guest.before is None and guest.own):
            found[guest.uuid] = GuestHolding(guest.own)
        # Known migrations are matched first: a new match could swap the claims of equal guests.
        elif guest.migration in free:
            # The claim is removed from the list, because a claim belongs to only one guest.
            found[guest.uuid] = GuestHolding(
                free.pop(guest.migration).allocation, GuestMigration(guest.migration)
            )
        else:
            waiting.append(guest)
    options = {guest.uuid: _options(guest, free.values()) for guest in waiting}
    chosen = _match_consumers(options)
    for guest in waiting:
        consumer = chosen.get(guest.uuid)
        if consumer is None:
            found[guest.uuid] = GuestHolding(guest.own)
            continue
        others = tuple(sorted(set(options[guest.uuid]) - {consumer}))
        found[guest.uuid] = GuestHolding(free[consumer].allocation, GuestMigration(consumer, others))
    return found


def _options(guest: MovedGuest, claims: Iterable[MigrationClaim]) -> list[str]:
    """The consumers that can be the migration of a guest, the likeliest first."""
    likely = [claim for claim in claims if _may_be(guest, claim)]
    # Equal claims are ordered by consumer, so that each audit finds the same order.
    likely.sort(key=lambda claim: (not _is_known_to_be(guest, claim), claim.consumer))
    return [claim.consumer for claim in likely]


def _may_be(guest: MovedGuest, claim: MigrationClaim) -> bool:
    # The type is None if Placement has no consumer types. The type is "unknown" if the client sends no
    # type, like Nova.
    if claim.consumer_type not in (None, UNKNOWN_TYPE, MIGRATION_TYPE):
        return False
    if guest.owner is not None and claim.owner is not None and guest.owner != claim.owner:
        return False
    # After a loss of the agent's state there are no former amounts to compare, so other evidence is needed.
    if guest.before is None:
        return claim.consumer in guest.suitable and _is_known_to_be(guest, claim)
    return claim.allocation == guest.before and (claim.new or bool(guest.migration))


def _is_known_to_be(guest: MovedGuest, claim: MigrationClaim) -> bool:
    """Whether the owner or the type of a claim is known and is that of the guest."""
    same_owner = guest.owner is not None and guest.owner == claim.owner
    return same_owner or claim.consumer_type == MIGRATION_TYPE


def _match_consumers(options: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """The consumer that counts as the migration of each guest, for as many guests as possible.

    A guest gets the likeliest consumer if that is possible.

    :param options: for each guest, the consumers that can be its migration, the likeliest first.
    """
    taken: dict[str, str] = {}

    def find_consumer(guest: str, seen: set[str]) -> bool:
        # This finds a maximum matching by augmenting paths: if a guest has no free option, another guest
        # changes to another one of its options.
        for consumer in options[guest]:
            if consumer not in seen:
                seen.add(consumer)
                if consumer not in taken or find_consumer(taken[consumer], seen):
                    taken[consumer] = guest
                    return True
        return False

    for guest in options:
        find_consumer(guest, set())
    return {guest: consumer for consumer, guest in taken.items()}


DEFAULT_MIN_AGE: Final = 3600.0
"""Seconds for which an allocation must be without a guest before the audit deletes it.

Nova claims resources of a host before it copies the image, so the guest can start long after its allocation
was made.
"""

UNKNOWN_OWNER: Final = "00000000-0000-0000-0000-000000000000"
"""The uuid of project and user for guests with an unknown owner.

Placement uses it for old consumers, too.
"""

_GUEST_TYPE: Final = "INSTANCE"

Decision = ConsumerAllocations | str
"""The new allocations of a consumer, or the reason why its allocations do not change."""


class FindingKind(enum.StrEnum):
    """Kinds of rows of the audit.

    A migrating guest is no finding, because the migration's consumer holds its allocation.
    """

    UNALLOCATED = "guest without allocation"
    UNUSED = "allocation without guest"
    DIFFERENT = "other amounts than the guest uses"
    REFUSED = "guest without a place"
    STRAY = "guest on CPUs outside the sets"
    OVERLAP = "guests on the same CPUs"
    KINDS = "guest CPUs of another kind than ordered"
    EMULATOR = "emulator threads on dedicated CPUs"
    DEVICES = "other PCI devices than held"
    MIGRATING = "guest that migrates"


@dataclass(frozen=True, slots=True)
class AuditedGuest:
    """A guest that runs on this host, with the values that the audit compares.

    :ivar location: the CPUs on which the guest runs.
    :ivar dedicated: the number of guest CPUs that have dedicated CPUs according to the flavor; None if
        unknown.
    :ivar extra_cpu: whether the emulator threads get a dedicated CPU of their own, if any guest CPU is
        dedicated.
    :ivar resources: the amounts of the flavor by resource class, without CPUs.
    :ivar refusal: the reason why the guest has no CPUs; empty if the guest has CPUs.
    :ivar stray: a text about CPUs that the guest holds outside the present CPU sets.
    :ivar migration: the consumer that holds the guest's CPUs during a migration; otherwise empty.
    :ivar held: the CPUs that belong to the guest alone.
    :ivar known: the guest's allocation, as the agent remembers it.
    :ivar dedicated_vcpus: the guest CPUs that the mask of the flavor names as dedicated.
    :ivar pinned_vcpus: the guest CPUs that can run only on CPUs in ``held``.
    :ivar misplaced: a text about threads that run on dedicated CPUs although they run no guest CPU.
    :ivar devices: a text about PCI devices that the guest uses but has not allocated, or has allocated but
        does not use.
    """

    uuid: str
    name: str
    vcpus: int
    location: CpuLocation
    dedicated: int | None = None
    extra_cpu: bool = False
    resources: Mapping[str, int] = field(default_factory=dict)
    refusal: str = ""
    stray: str = ""
    migration: str = ""
    held: CpuSet = frozenset()
    known: Allocation = field(default_factory=dict)
    dedicated_vcpus: CpuSet = frozenset()
    pinned_vcpus: CpuSet = frozenset()
    misplaced: str = ""
    devices: str = ""


@dataclass(frozen=True, slots=True)
class AuditFinding:
    """One difference that the audit found.

    :ivar consumer: the uuid of the guest or other consumer.
    :ivar name: the name of the guest; empty if the consumer has no guest.
    """

    kind: FindingKind
    consumer: str
    name: str = ""
    allocation: Allocation = field(default_factory=dict)
    detail: str = ""


@dataclass(frozen=True, slots=True)
class HealOptions:
    """The repairs that the audit can make, and the consumers that it checks.

    :ivar heal: create missing allocations of guests.
    :ivar delete: delete allocations that have had no guest for ``min_age`` seconds.
    :ivar confirmed: the consumers of which the audit is allowed to delete allocations; None means all
        consumers.
    :ivar dry_run: report the repairs without making them.
    :ivar consumers: the consumers to check; empty means all.
    """

    heal: bool = False
    delete: bool = False
    confirmed: frozenset[str] | None = None
    dry_run: bool = False
    min_age: float = DEFAULT_MIN_AGE
    consumers: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class ConsumerRecord:
    """The state of a consumer just before a repair.

    The audit decides again from this record, because the consumer may have changed since the difference was
    found.

    :ivar holds: the allocations of the consumer on all hosts.
    :ivar ours: the allocations on this host alone.
    :ivar here: whether this host has a guest of this consumer.
    """

    holds: ConsumerAllocations
    ours: Allocation
    here: bool


def compare_holdings(
    guests: Iterable[AuditedGuest],
    held: Held,
    inactive: frozenset[str],
    migrations: Mapping[str, str] = MappingProxyType({}),
) -> list[AuditFinding]:
    """The differences between guests and their allocations, by kind, and the guests that migrate.

    :param inactive: the stopped guests of this host, which can hold allocations.
    :param migrations: the guest of each migration, by the migration's consumer.
    """
    running = {guest.uuid: guest for guest in guests}
    findings = [
        AuditFinding(FindingKind.UNUSED, consumer, allocation=allocation)
        for consumer, allocation in held.items()
        if consumer not in running and consumer not in inactive and consumer not in migrations
    ]
    findings += [
        AuditFinding(
            FindingKind.MIGRATING,
            uuid,
            running[uuid].name if uuid in running else "",
            held[consumer],
            f"held by consumer {consumer}",
        )
        for consumer, uuid in migrations.items()
        if consumer in held
    ]
    for guest in running.values():
        # During a migration, the guest's own consumer holds amounts of the destination. The migration's
        # consumer holds amounts of this host.
        allocation = held.get(guest.migration) or held.get(guest.uuid, {})
        if not allocation:
            findings.append(AuditFinding(FindingKind.UNALLOCATED, guest.uuid, guest.name))
        details = {
            FindingKind.DIFFERENT: _amount_differences(guest, total_amounts(allocation))
            if allocation
            else "",
            FindingKind.REFUSED: guest.refusal,
            FindingKind.STRAY: guest.stray,
            FindingKind.KINDS: _kind_differences(guest),
            FindingKind.EMULATOR: guest.misplaced,
            FindingKind.DEVICES: guest.devices,
            FindingKind.OVERLAP: _overlapping_cpus(guest, running.values()),
        }
        findings += [
            AuditFinding(kind, guest.uuid, guest.name, allocation, detail)
            for kind, detail in details.items()
            if detail
        ]
    # The findings are in the order of the enumeration, so that equal findings make equal reports.
    return sorted(findings, key=lambda finding: (list(FindingKind).index(finding.kind), finding.consumer))


def _overlapping_cpus(guest: AuditedGuest, guests: Iterable[AuditedGuest]) -> str:
    """A text about CPUs that this guest and another guest should each have alone; empty without such CPUs."""
    return ", ".join(
        f"{named_cpus(common)} also of guest {full_name(other.name, other.uuid)}"
        for other in guests
        if other.uuid != guest.uuid and (common := guest.held & other.held)
    )


def _kind_differences(guest: AuditedGuest) -> str:
    """A text about guest CPUs that are dedicated contrary to the flavor's mask; empty if there are none."""
    if not guest.dedicated_vcpus or not guest.held or guest.dedicated_vcpus == guest.pinned_vcpus:
        return ""
    pinned = cpuset.format(guest.pinned_vcpus) or "none"
    return (
        f"guest CPUs {cpuset.format(guest.dedicated_vcpus)} are to be dedicated (hw:cpu_dedicated_mask),"
        f" those on dedicated CPUs are {pinned}"
    )


def needed_amounts(guest: AuditedGuest, holds: Mapping[str, int] | None = None) -> dict[str, int]:
    """The amounts that a guest should hold, by resource class.

    The number of its dedicated CPUs comes from its flavor. If the flavor is not known, the number comes from
    the guest's allocation, up to the number of guest CPUs. Without an allocation the number comes from the
    CPUs on which the guest runs.

    :param holds: the amounts that the consumer holds, by resource class; None means no allocation.
    """
    # An isolated emulator thread gets a dedicated CPU in addition to those of the guest CPUs.
    extra = int(guest.extra_cpu)
    own = len(guest.location.own)
    if guest.dedicated is not None:
        pcpu = guest.dedicated + (extra if guest.dedicated else 0)
    elif holds is not None:
        pcpu = min(holds.get("PCPU", 0), guest.vcpus + extra)
    elif guest.location.pinned_vcpus:
        return {"PCPU": own, **guest.resources}  # includes siblings that are kept empty
    else:
        pcpu = min(own, guest.vcpus + extra)
    # The CPU of the emulator is not a guest CPU.
    vcpu = guest.vcpus - (pcpu - extra if pcpu else 0)
    # A guest of class BE can hold reclaimed CPUs in place of other shared CPUs.
    vcpu -= min(vcpu, (holds or {}).get(RECLAIMED_VCPU, 0))
    amounts = {"PCPU": pcpu, "VCPU": vcpu, **guest.resources}
    return {name: amount for name, amount in amounts.items() if amount > 0}


def _amount_differences(guest: AuditedGuest, holds: Mapping[str, int]) -> str:
    """A text with the difference between the amounts that a guest holds and needs; empty if equal."""
    wanted = {"PCPU": 0, "VCPU": 0} | needed_amounts(guest, holds)
    if holds.get("PCPU", 0) == len(guest.location.own) > wanted["PCPU"] and guest.location.pinned_vcpus:
        # Dedicated CPUs that the guest holds to keep siblings empty are no difference.
        wanted["PCPU"] = len(guest.location.own)
    return ", ".join(
        f"holds {holds.get(name, 0)} {name}, uses {amount}"
        for name, amount in sorted(wanted.items())
        if holds.get(name, 0) != amount
    )


def allocation_for(guest: AuditedGuest, free: FreeCapacity) -> Allocation | str:
    """The allocation for a guest without an allocation on this host, or the reason why it cannot get one.

    The result is the allocation that the agent remembers for the guest. If the agent remembers no allocation,
    the amounts come from the providers of the CPUs on which the guest runs.
    """
    if guest.known:
        return guest.known
    amounts = needed_amounts(guest)
    location = guest.location
    found = (
        free.fit_amounts({}, amounts, location)
        if location.own
        else free.fit_together({}, amounts, location.floating)
    )
    if isinstance(found, str):
        return found
    allocation: dict[str, dict[str, int]] = {}
    for name, parts in found.items():
        for provider, amount in parts.items():
            allocation.setdefault(provider, {})[name] = amount
    return allocation


def decide_creation(
    record: ConsumerRecord,
    allocation: Allocation,
    project_id: str,
    user_id: str,
    typed: bool = True,
    consumer_type: str | None = None,
) -> Decision:
    """Decide whether the audit creates ``allocation`` for a guest that held nothing on this host.

    :param project_id: the project of the owner; empty if not known.
    :param user_id: the user of the owner; empty if not known.
    :param typed: whether Placement knows consumer types.
    :param consumer_type: the type of the consumer; None if unknown.
    """
    if record.ours:
        return "not needed: it has an allocation by now"
    if record.holds.resources:
        return "left: it holds something on other hosts, as guests do that are migrated"
    if not record.here:
        return "not needed: it is gone"
    return replace(
        record.holds,
        resources=allocation,
        project_id=project_id or UNKNOWN_OWNER,
        user_id=user_id or UNKNOWN_OWNER,
        consumer_type=(consumer_type or _GUEST_TYPE) if typed else None,
    )


def decide_deletion(
    record: ConsumerRecord, finding: AuditFinding, age: float, options: HealOptions
) -> Decision:
    """Decide whether the audit deletes the allocation of a consumer without a guest.

    :param age: the seconds for which the consumer is known to have had no guest.
    """
    # If the allocation differs, another program is changing the consumer, and its next request could undo the
    # repair.
    if record.ours != finding.allocation:
        return "left: another program changes it"
    # Nova itself removes the allocation when the migration ends.
    if record.holds.consumer_type == MIGRATION_TYPE:
        return "left: a migration holds it"
    if age < options.min_age:
        return f"left: it has been without a guest for {age:.0f} s, as far as is known"
    if options.confirmed is not None and finding.consumer not in options.confirmed:
        return "left: it was not among those confirmed"
    if record.here:
        return "not needed: its guest is here by now"
    return record.holds.without_providers(record.ours)
