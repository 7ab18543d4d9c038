"""Migrations of guests, and differences between guests and their allocations with repairs. Pure functions.

:func:`resolve_holdings` finds the consumer through which a migrating guest holds its place.
:func:`compare_holdings` finds differences; :func:`decide_creation` and :func:`decide_deletion` repair them.

Nouns
    Before Nova moves or resizes a guest, its conductor gives the guest's allocations to another consumer,
    that of the *migration*, in one request (POST /allocations). The conductor then claims the destination for
    the guest, which runs here until the move ends. After a confirmed move the migration's consumer
    disappears. After a reverted one the guest gets its allocations back, again in one request.

    Placement has no link between a migration and its guest. Nova's requests have microversion 1.36, so the
    consumer type is ``unknown``, too. A *claim* is the allocation of a consumer without a guest here.

Matching
    A guest has lost its allocation here, and a claim with the same amounts is *new*: it was absent from the
    last listing. The type of the claim must be unknown or a migration, and its owner unknown or the guest's.
    After the agent lost its state, the former allocation of a guest is unknown. The claim then has to suit
    the CPUs that the guest runs on, and its owner or type has to be known and right.

    Guests of one flavor that move at the same time cannot be told apart, which does no harm: their claims
    are equal, and each guest gets one. When a claim disappears, the guest that still runs gets another.

Invariants
    - A claim belongs to at most one guest.
    - The number of guests with a claim is the largest possible.
    - A guest that has its former allocation back is not migrating.
    - A guest that never held anything gets no claim.
"""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Final

from compute_agent.model import cpuset
from compute_agent.model.cpuset import CpuSet, named_cpus
from compute_agent.model.guest import Allocation, ConsumerAllocations, GuestHolding, GuestMigration
from compute_agent.model.messages import full_name
from compute_agent.report.capacity import CpuLocation, FreeCapacity, Held

MIGRATION_TYPE: Final = "MIGRATION"
UNKNOWN_TYPE: Final = "unknown"

Owner = tuple[str, str]
"""Project and user."""


@dataclass(frozen=True, slots=True)
class MovedGuest:
    """A running guest of this host with changed allocations.

    :ivar before: the guest's former allocation here, under its own consumer or under ``migration``; None:
        unknown.
    :ivar own: the allocation of the guest's own consumer here now.
    :ivar owner: known if the consumer holds anything anywhere.
    :ivar suitable: consumers with claims that suit the CPUs on which the guest runs.
    """

    uuid: str
    before: Allocation | None
    own: Allocation
    migration: str = ""
    owner: Owner | None = None
    suitable: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class MigrationClaim:
    """The allocation here of a consumer without a guest, with its owner, and whether it is ``new``."""

    consumer: str
    allocation: Allocation
    owner: Owner | None = None
    consumer_type: str | None = None
    new: bool = True


def resolve_holdings(
    guests: Sequence[MovedGuest], claims: Iterable[MigrationClaim]
) -> dict[str, GuestHolding]:
    """The present allocations of each guest, its own or through its migration.

    :param claims: claims without a known guest.
    """
    free = {claim.consumer: claim for claim in claims}
    found: dict[str, GuestHolding] = {}
    waiting: list[MovedGuest] = []
    for guest in guests:
        # Its own allocation is back, or it never held one, or after a loss of state only the present one is
        # known.
        if guest.own == guest.before or guest.before == {} or (guest.before is None and guest.own):
            found[guest.uuid] = GuestHolding(guest.own)
        # A known migration goes on: matching again could swap the claims of equal guests.
        elif guest.migration in free:
            # A claim of one guest is not an option for any other.
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
    """Consumers that may be the migration of a guest, the likeliest first."""
    likely = [claim for claim in claims if _may_be(guest, claim)]
    # By consumer in the end, so that each look finds the same order.
    likely.sort(key=lambda claim: (not _is_known_to_be(guest, claim), claim.consumer))
    return [claim.consumer for claim in likely]


def _may_be(guest: MovedGuest, claim: MigrationClaim) -> bool:
    # None is a Placement without types, "unknown" a client that sends none, such as Nova.
    if claim.consumer_type not in (None, UNKNOWN_TYPE, MIGRATION_TYPE):
        return False
    if guest.owner is not None and claim.owner is not None and guest.owner != claim.owner:
        return False
    # Amounts cannot be compared after the state of the agent was lost, so more evidence is
    # needed.
    if guest.before is None:
        return claim.consumer in guest.suitable and _is_known_to_be(guest, claim)
    return claim.allocation == guest.before and (claim.new or bool(guest.migration))


def _is_known_to_be(guest: MovedGuest, claim: MigrationClaim) -> bool:
    """Whether owner or type of a claim are known to fit the guest, or another guest of the same owner."""
    same_owner = guest.owner is not None and guest.owner == claim.owner
    return same_owner or claim.consumer_type == MIGRATION_TYPE


def _match_consumers(options: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """The consumer of each guest that can have one, its first option if possible."""
    taken: dict[str, str] = {}

    def find_consumer(guest: str, seen: set[str]) -> bool:
        # A maximum matching by augmenting paths: a guest without a free option makes another one change its
        # own.
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
"""Seconds that an allocation has to be without a guest before it may be deleted. Nova claims a host before it
copies the image, so a guest may take long to arrive.
"""

UNKNOWN_OWNER: Final = "00000000-0000-0000-0000-000000000000"
"""Project and user of guests without a known owner, as Placement has it for old consumers."""

_GUEST_TYPE: Final = "INSTANCE"

Decision = ConsumerAllocations | str
"""The new allocations of a consumer, or the reason why nothing changes."""


class FindingKind(enum.StrEnum):
    """The kinds of findings. A migrating guest is not a fault: its migration holds its place here."""

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
    """A guest that runs here.

    :ivar vcpus: number of guest CPUs.
    :ivar location: the CPUs on which the guest runs.
    :ivar dedicated: number of guest CPUs that were ordered as dedicated; None is unknown.
    :ivar extra_cpu: whether emulator threads have a dedicated CPU, too, if any guest CPU has.
    :ivar resources: ordered amounts by class, except CPUs.
    :ivar refusal: the reason why the guest has no CPUs; empty if it has some.
    :ivar stray: words about CPUs that the guest holds outside the current CPU sets.
    :ivar migration: the consumer that holds the guest's CPUs during a migration.
    :ivar held: CPUs that the guest should have for itself.
    :ivar known: the guest's allocation, as the agent remembers it.
    :ivar dedicated_vcpus: guest CPUs that the mask of the flavor names.
    :ivar pinned_vcpus: guest CPUs that run on ``held`` CPUs only.
    :ivar misplaced: words about the guest's threads that run no guest CPU, but run on dedicated CPUs.
    :ivar devices: words about PCI devices that the guest has and does not hold, or the reverse.
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
    """One difference. ``allocation`` is the consumer's on this host; ``detail`` explains the difference."""

    kind: FindingKind
    consumer: str
    name: str = ""
    allocation: Allocation = field(default_factory=dict)
    detail: str = ""


@dataclass(frozen=True, slots=True)
class HealOptions:
    """The repairs to make, and their consumers.

    :ivar heal: create missing allocations of guests.
    :ivar delete: delete allocations that have had no guest for ``min_age`` seconds.
    :ivar confirmed: the only consumers to delete allocations of; None allows all.
    :ivar dry_run: report the repairs without making them.
    :ivar consumers: the consumers to check; all if empty.
    """

    heal: bool = False
    delete: bool = False
    confirmed: frozenset[str] | None = None
    dry_run: bool = False
    min_age: float = DEFAULT_MIN_AGE
    consumers: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class ConsumerRecord:
    """A consumer just before its change.

    The repair decides again on this record, because time has passed since the finding.

    :ivar holds: all allocations of the consumer.
    :ivar ours: the part of the allocations on this host.
    :ivar here: whether the consumer's guest is on this host.
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

    :param held: allocations of all consumers on this host.
    :param inactive: guests of this host that do not run, and may hold something.
    :param migrations: the guest of each migration's consumer.
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
            _held_through(consumer),
        )
        for consumer, uuid in migrations.items()
        if consumer in held
    ]
    for guest in running.values():
        # During a migration the guest's own consumer holds the destination.
        allocation = held.get(guest.migration) or held.get(guest.uuid, {})
        if not allocation:
            findings.append(AuditFinding(FindingKind.UNALLOCATED, guest.uuid, guest.name))
        elif differences := _amount_differences(guest, total(allocation)):
            findings.append(
                AuditFinding(FindingKind.DIFFERENT, guest.uuid, guest.name, allocation, differences)
            )
        if guest.refusal:
            findings.append(
                AuditFinding(FindingKind.REFUSED, guest.uuid, guest.name, allocation, guest.refusal)
            )
        if guest.stray:
            findings.append(AuditFinding(FindingKind.STRAY, guest.uuid, guest.name, allocation, guest.stray))
        if kinds := _kind_differences(guest):
            findings.append(AuditFinding(FindingKind.KINDS, guest.uuid, guest.name, allocation, kinds))
        if guest.misplaced:
            findings.append(
                AuditFinding(FindingKind.EMULATOR, guest.uuid, guest.name, allocation, guest.misplaced)
            )
        if guest.devices:
            findings.append(
                AuditFinding(FindingKind.DEVICES, guest.uuid, guest.name, allocation, guest.devices)
            )
        if overlaps := _overlapping_cpus(guest, running.values()):
            findings.append(AuditFinding(FindingKind.OVERLAP, guest.uuid, guest.name, allocation, overlaps))
    # In the order in which the class lists the kinds, so that equal findings make equal reports.
    return sorted(findings, key=lambda finding: (list(FindingKind).index(finding.kind), finding.consumer))


def _overlapping_cpus(guest: AuditedGuest, guests: Iterable[AuditedGuest]) -> str:
    """Return, in words, the CPUs of a guest that other guests should have for themselves as well."""
    return ", ".join(
        f"{named_cpus(common)} also of guest {full_name(other.name, other.uuid)}"
        for other in guests
        if other.uuid != guest.uuid and (common := guest.held & other.held)
    )


def _kind_differences(guest: AuditedGuest) -> str:
    """Guest CPUs on dedicated CPUs that are not those of its mask, in words; empty if the mask is met."""
    if not guest.dedicated_vcpus or not guest.held or guest.dedicated_vcpus == guest.pinned_vcpus:
        return ""
    pinned = cpuset.format(guest.pinned_vcpus) or "none"
    return (
        f"guest CPUs {cpuset.format(guest.dedicated_vcpus)} are to be dedicated (hw:cpu_dedicated_mask),"
        f" those on dedicated CPUs are {pinned}"
    )


def _held_through(consumer: str) -> str:
    return f"held by consumer {consumer}"


def total(allocation: Allocation) -> dict[str, int]:
    """Amounts by class over all providers."""
    amounts: Counter[str] = Counter()
    for resources in allocation.values():
        amounts.update(resources)
    return dict(amounts)


def needed_amounts(guest: AuditedGuest, holds: Mapping[str, int] | None = None) -> dict[str, int]:
    """The amounts by class that a guest should hold.

    The number of its dedicated CPUs comes from its order. Without an order, the amount comes from the guest's
    allocation, up to the number of guest CPUs; without an allocation, from the CPUs on which the guest runs.

    :param holds: amounts that the consumer holds, by class.
    """
    # An isolated emulator thread has a dedicated CPU beside those of the guest CPUs.
    extra = int(guest.extra_cpu)
    own = len(guest.location.own)
    if guest.dedicated is not None:
        pcpu = guest.dedicated + (extra if guest.dedicated else 0)
    elif holds is not None:
        pcpu = min(holds.get("PCPU", 0), guest.vcpus + extra)
    elif guest.location.pinned_vcpus:
        return {"PCPU": own, **guest.resources}  # siblings that are kept empty count
    else:
        pcpu = min(own, guest.vcpus + extra)
    # The emulator's CPU is not a guest CPU.
    vcpu = guest.vcpus - (pcpu - extra if pcpu else 0)
    amounts = {"PCPU": pcpu, "VCPU": vcpu, **guest.resources}
    return {name: amount for name, amount in amounts.items() if amount > 0}


def _amount_differences(guest: AuditedGuest, holds: Mapping[str, int]) -> str:
    """The difference between a guest's allocations and its needs, in words."""
    wanted = {"PCPU": 0, "VCPU": 0} | needed_amounts(guest, holds)
    if holds.get("PCPU", 0) == len(guest.location.own) > wanted["PCPU"] and guest.location.pinned_vcpus:
        # Dedicated CPUs that it holds for empty siblings are not a difference.
        wanted["PCPU"] = len(guest.location.own)
    return ", ".join(
        f"holds {holds.get(name, 0)} {name}, uses {amount}"
        for name, amount in sorted(wanted.items())
        if holds.get(name, 0) != amount
    )


def allocation_for(guest: AuditedGuest, free: FreeCapacity) -> Allocation | str:
    """The allocations that a guest without any here should hold, or the reason why it cannot have them.

    The result has the remembered allocations, or else allocations on the providers of the CPUs on which the
    guest runs.
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
    """Decide whether a guest that held nothing here shall hold ``allocation`` now.

    :param project_id: as ``user_id``, of the owner; empty if unknown.
    :param typed: whether Placement knows types of consumers.
    :param consumer_type: the type, where it is known.
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
    """Decide whether an allocation without a guest shall be deleted now.

    :param age: seconds for which the consumer is known to have had no guest.
    """
    # Another program works on the consumer: its next request would undo a deletion, or lose an amount.
    if record.ours != finding.allocation:
        return "left: another program changes it"
    # Nova itself removes it when the migration ends.
    if record.holds.consumer_type == MIGRATION_TYPE:
        return "left: a migration holds it"
    if age < options.min_age:
        return f"left: it has been without a guest for {age:.0f} s, as far as is known"
    if options.confirmed is not None and finding.consumer not in options.confirmed:
        return "left: it was not among those confirmed"
    if record.here:
        return "not needed: its guest is here by now"
    return record.holds.without_providers(record.ours)
