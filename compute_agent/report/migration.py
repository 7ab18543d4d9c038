"""Through whom a guest that is being moved holds its place: a pure function.

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
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from compute_agent.model.guest import Allocation, GuestHolding, GuestMigration

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
    """What each of the guests holds now, by itself or through its migration.

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
