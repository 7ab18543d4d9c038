"""The consumer through which a migrating guest holds its place. A pure function.

Nouns
    Before Nova moves a guest to another host or resizes it, its conductor gives all that the guest holds to a
    consumer of its own, that of the *migration*, in one request (POST /allocations), and claims the
    destination for the guest. The guest runs on here until it is there. When the move is confirmed the
    consumer of the migration goes away; when it is reverted the guest gets all back, in one request again.

    Nothing in Placement says which migration is whose. Nova sends no consumer types either, as its requests
    are of microversion 1.36: they are ``unknown``. A *claim* is what a consumer without a guest holds here.

What tells a pair
    A guest that held something here holds it no more, and a claim of exactly that is *new*: it was not there
    when the agent last looked. No type may say that it is something else than a migration, and no owner that
    it is another project's or user's. Of a guest of which is not known what it held, because the state of the
    agent was lost, the claim has to suit the CPUs that the guest runs on, and its owner or its type has to
    be known to be the right one.

    Guests of one flavor that move at the same time cannot be told apart. It does not matter: their claims are
    equal, each gets one of them, and when a claim goes away the guest that still runs gets another one.

What always holds
    - A claim is at most one guest's.
    - As many guests as can be get one.
    - A guest that has back what it had before is not migrating.
    - A guest that never held anything gets nothing.

What is wrong between the guests of a host and what Placement says they hold: pure functions.

And what would mend it.
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
    """A guest that runs here and holds something else now.

    ``before`` is what it held here so far, by itself or through ``migration`` (None: nobody knows), ``own``
    what it holds here by itself now. ``owner`` is known if it holds anything anywhere. ``suitable`` are the
    consumers whose claims suit where it runs.
    """

    uuid: str
    before: Allocation | None
    own: Allocation
    migration: str = ""
    owner: Owner | None = None
    suitable: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class MigrationClaim:
    """What a consumer without a guest holds here, whose it is (None: not said), and whether it is ``new``."""

    consumer: str
    allocation: Allocation
    owner: Owner | None = None
    consumer_type: str | None = None
    new: bool = True


def resolve(guests: Sequence[MovedGuest], claims: Iterable[MigrationClaim]) -> dict[str, GuestHolding]:
    """The present allocations of each guest, its own or through its migration.

    ``claims`` are those that no other guest is known to hold anything through.
    """
    free = {claim.consumer: claim for claim in claims}
    found: dict[str, GuestHolding] = {}
    waiting: list[MovedGuest] = []
    for guest in guests:
        if guest.own == guest.before or guest.before == {} or (guest.before is None and guest.own):
            found[guest.uuid] = GuestHolding(guest.own)
        elif guest.migration in free:
            found[guest.uuid] = GuestHolding(
                free.pop(guest.migration).allocation, GuestMigration(guest.migration)
            )
        else:
            waiting.append(guest)
    options = {guest.uuid: _options(guest, free.values()) for guest in waiting}
    chosen = _match(options)
    for guest in waiting:
        consumer = chosen.get(guest.uuid)
        if consumer is None:
            found[guest.uuid] = GuestHolding(guest.own)
            continue
        others = tuple(sorted(set(options[guest.uuid]) - {consumer}))
        found[guest.uuid] = GuestHolding(free[consumer].allocation, GuestMigration(consumer, others))
    return found


def _options(guest: MovedGuest, claims: Iterable[MigrationClaim]) -> list[str]:
    """The consumers that may be the migration of a guest, the likeliest first."""
    likely = [claim for claim in claims if _may_be(guest, claim)]
    likely.sort(key=lambda claim: (not _is_known_to_be(guest, claim), claim.consumer))
    return [claim.consumer for claim in likely]


def _may_be(guest: MovedGuest, claim: MigrationClaim) -> bool:
    if claim.consumer_type not in (None, UNKNOWN_TYPE, MIGRATION_TYPE):
        return False
    if guest.owner is not None and claim.owner is not None and guest.owner != claim.owner:
        return False
    if guest.before is None:
        return claim.consumer in guest.suitable and _is_known_to_be(guest, claim)
    return claim.allocation == guest.before and (claim.new or bool(guest.migration))


def _is_known_to_be(guest: MovedGuest, claim: MigrationClaim) -> bool:
    """Whether owner or type say that it is the migration of that guest, or of one like it."""
    same_owner = guest.owner is not None and guest.owner == claim.owner
    return same_owner or claim.consumer_type == MIGRATION_TYPE


def _match(options: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """A consumer for as many guests as can have one, the first of its options where it can be.

    Maximum matching by augmenting paths.
    """
    taken: dict[str, str] = {}

    def find(guest: str, seen: set[str]) -> bool:
        for consumer in options[guest]:
            if consumer not in seen:
                seen.add(consumer)
                if consumer not in taken or find(taken[consumer], seen):
                    taken[consumer] = guest
                    return True
        return False

    for guest in options:
        find(guest, set())
    return {guest: consumer for consumer, guest in taken.items()}


DEFAULT_MIN_AGE: Final = 3600.0
"""How long an allocation has no guest before it may be deleted: longer than a guest takes to come, its image
copied. Seconds.
"""

UNKNOWN_OWNER: Final = "00000000-0000-0000-0000-000000000000"
"""Project and user of guests without a known owner, as Placement has it for old consumers."""

_GUEST_TYPE: Final = "INSTANCE"

Decision = ConsumerAllocations | str
"""What a consumer shall hold, or why nothing is changed."""


class FindingKind(enum.StrEnum):
    """The kinds of findings. A migrating guest is no fault: its migration holds its place here."""

    UNALLOCATED = "guest without allocation"
    UNUSED = "allocation without guest"
    DIFFERENT = "other amounts than the guest uses"
    REFUSED = "guest without a place"
    STRAY = "guest on CPUs outside the sets"
    OVERLAP = "guests on the same CPUs"
    KINDS = "guest CPUs of another kind than ordered"
    MIGRATING = "guest that migrates"


@dataclass(frozen=True, slots=True)
class AuditedGuest:
    """A guest that runs here.

    ``vcpus`` are its guest CPUs, ``dedicated`` those of them that it is meant to have CPUs of its own for
    (None: nobody said). ``extra_cpu``: emulator threads have a CPU of their own too, if any has.
    ``resources`` is what it was ordered with beside CPUs, by class. ``location`` is where it runs,
    ``refusal`` why it has no place, ``stray`` which CPUs it holds that the present CPU sets do not have,
    ``migration`` the consumer that holds its place if it is migrating. ``held`` are the CPUs that it is to
    have for itself, ``known`` is what it holds as far as the agent remembers. ``dedicated_vcpus`` are the
    guest CPUs that its mask names, ``pinned_vcpus`` those that run on ``held`` CPUs alone.
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


@dataclass(frozen=True, slots=True)
class AuditFinding:
    """One thing that is wrong. ``allocation`` is what the consumer holds here; ``detail`` says more."""

    kind: FindingKind
    consumer: str
    name: str = ""
    allocation: Allocation = field(default_factory=dict)
    detail: str = ""


@dataclass(frozen=True, slots=True)
class HealOptions:
    """The repairs to make, and their consumers.

    Create what guests miss, delete what has had no guest for ``min_age`` seconds, of the ``confirmed`` alone
    unless that is None. With ``dry_run`` it is only said what would be done. ``consumers`` are those looked
    at; all if empty.
    """

    heal: bool = False
    delete: bool = False
    confirmed: frozenset[str] | None = None
    dry_run: bool = False
    min_age: float = DEFAULT_MIN_AGE
    consumers: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class ConsumerRecord:
    """A consumer as it was found just before it is changed.

    All that it ``holds``, the part of that which is ``ours``, and whether its guest is ``here``.
    """

    holds: ConsumerAllocations
    ours: Allocation
    here: bool


def compare(
    guests: Iterable[AuditedGuest],
    held: Held,
    inactive: frozenset[str],
    migrations: Mapping[str, str] = MappingProxyType({}),
) -> list[AuditFinding]:
    """All that is wrong, by kind; and which guests migrate.

    ``held`` is what all consumers hold of this host; ``inactive`` are guests that belong here and do not run,
    and may well hold something. ``migrations`` are the consumers that hold what a guest held, and that guest.
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
            _through(consumer),
        )
        for consumer, uuid in migrations.items()
        if consumer in held
    ]
    for guest in running.values():
        allocation = held.get(guest.migration) or held.get(guest.uuid, {})
        if not allocation:
            findings.append(AuditFinding(FindingKind.UNALLOCATED, guest.uuid, guest.name))
        elif differences := _differences(guest, total(allocation)):
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
        if overlaps := _overlaps(guest, running.values()):
            findings.append(AuditFinding(FindingKind.OVERLAP, guest.uuid, guest.name, allocation, overlaps))
    return sorted(findings, key=lambda finding: (list(FindingKind).index(finding.kind), finding.consumer))


def _overlaps(guest: AuditedGuest, guests: Iterable[AuditedGuest]) -> str:
    """Which of its CPUs others are to have for themselves as well, in words."""
    return ", ".join(
        f"{named_cpus(common)} also of guest {full_name(other.name, other.uuid)}"
        for other in guests
        if other.uuid != guest.uuid and (common := guest.held & other.held)
    )


def _kind_differences(guest: AuditedGuest) -> str:
    """Which guest CPUs are pinned to dedicated CPUs in place of those of its mask, in words."""
    if not guest.dedicated_vcpus or not guest.held or guest.dedicated_vcpus == guest.pinned_vcpus:
        return ""
    pinned = cpuset.format(guest.pinned_vcpus) or "none"
    return (
        f"guest CPUs {cpuset.format(guest.dedicated_vcpus)} are to be dedicated (hw:cpu_dedicated_mask),"
        f" those on dedicated CPUs are {pinned}"
    )


def _through(consumer: str) -> str:
    return f"held by consumer {consumer}"


def total(allocation: Allocation) -> dict[str, int]:
    """Amounts by class, whatever the provider."""
    amounts: Counter[str] = Counter()
    for resources in allocation.values():
        amounts.update(resources)
    return dict(amounts)


def needs(guest: AuditedGuest, holds: Mapping[str, int] | None = None) -> dict[str, int]:
    """The amounts by class that a guest should hold.

    How many of its CPUs are dedicated is told by its order; else by what it holds, as far as it has the guest
    CPUs for that; else by where it runs.
    """
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
    vcpu = guest.vcpus - (pcpu - extra if pcpu else 0)
    amounts = {"PCPU": pcpu, "VCPU": vcpu, **guest.resources}
    return {name: amount for name, amount in amounts.items() if amount > 0}


def _differences(guest: AuditedGuest, holds: Mapping[str, int]) -> str:
    """The difference between a guest's allocations and its needs, in words.

    CPUs that it was given for siblings which it keeps empty are right as well.
    """
    wanted = {"PCPU": 0, "VCPU": 0} | needs(guest, holds)
    if holds.get("PCPU", 0) == len(guest.location.own) > wanted["PCPU"] and guest.location.pinned_vcpus:
        wanted["PCPU"] = len(guest.location.own)
    return ", ".join(
        f"holds {holds.get(name, 0)} {name}, uses {amount}"
        for name, amount in sorted(wanted.items())
        if holds.get(name, 0) != amount
    )


def allocation_for(guest: AuditedGuest, free: FreeCapacity) -> Allocation | str:
    """The allocations that a guest without any here should hold, or the reason why it cannot have them.

    That is what the agent remembers of it; else it is on the providers of the CPUs where the guest runs.
    """
    if guest.known:
        return guest.known
    amounts = needs(guest)
    location = guest.location
    found = (
        free.fit({}, amounts, location) if location.own else free.fit_together({}, amounts, location.floating)
    )
    if isinstance(found, str):
        return found
    allocation: dict[str, dict[str, int]] = {}
    for name, parts in found.items():
        for provider, amount in parts.items():
            allocation.setdefault(provider, {})[name] = amount
    return allocation


def create(
    record: ConsumerRecord,
    allocation: Allocation,
    project_id: str,
    user_id: str,
    typed: bool = True,
    consumer_type: str | None = None,
) -> Decision:
    """Whether a guest that held nothing here shall hold ``allocation`` now.

    ``project_id`` and ``user_id`` are its owner's (empty if unknown), ``typed``: Placement knows types of
    consumers, which is ``consumer_type`` where that is known.
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


def delete(record: ConsumerRecord, finding: AuditFinding, age: float, options: HealOptions) -> Decision:
    """Whether what was found to have no guest shall be taken away now.

    ``age`` is for how many seconds it is known to have had none.
    """
    if record.ours != finding.allocation:
        return "left: somebody changes it"
    if record.holds.consumer_type == MIGRATION_TYPE:
        return "left: a migration holds it"
    if age < options.min_age:
        return f"left: it has been without a guest for {age:.0f} s, as far as is known"
    if options.confirmed is not None and finding.consumer not in options.confirmed:
        return "left: it was not among those confirmed"
    if record.here:
        return "not needed: its guest is here by now"
    return record.holds.without_providers(record.ours)
