"""Claims of what was chosen by the read model: written if the choice is still good."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import sqlalchemy as sa

from placement.db.batch import KEPT_SIZES, PreparedStatement, bind_parameters, bind_values
from placement.db.database import WriteTransaction
from placement.db.tables import resource_providers
from placement.exceptions import Conflict, InvalidRequest
from placement.model.provider import Provider
from placement.store import expiries, memberships, outright, reservations
from placement.store.allocations import check_generations, lock_claimed, write_claims
from placement.store.claims import ConsumerClaim
from placement.store.groups import ConsumerGroup, Members, present


class LostRace(Exception):
    """Somebody else was faster: what was chosen is gone, taken, or not any more what it was."""


@dataclass(frozen=True, slots=True)
class GroupMembership:
    """The uuid of a consumer that joins a group, and the roots of the hosts where it is going to be."""

    consumer: str
    group: ConsumerGroup
    hosts: Collection[int]


def bind(
    tx: WriteTransaction,
    claims: Sequence[ConsumerClaim],
    chosen: Mapping[str, Provider],
    joining: Sequence[GroupMembership] = (),
    reservation: str | None = None,
    expiring: Mapping[str, float] | None = None,
) -> dict[str, float]:
    """Put all the claims into effect, or none of them; the consumers are then in these groups and no others.

    :param chosen: by uuid each provider that makes the choices good, as it was then. Those that nothing is
        taken of are not locked: who changes them later comes later.
    :param reservation: what all that they take is moved from.
    :param expiring: by uuid the consumers whose claims are gone in so many seconds if nobody confirms them.
    :returns: by uuid when that is.
    :raises ConcurrentUpdate: a consumer's generation is not the given one.
    :raises Conflict: there is no such reservation for them.
    :raises LostRace: the choice is no longer good.
    """
    if not (joining or reservation or expiring) and outright.is_possible(tx, claims, chosen):
        outright.write(tx, claims, chosen)
        return {}
    described = {provider.id: provider.described_seq for provider in chosen.values()}
    names = {each.group.name for each in joining}
    others = [] if reservation is None else [reservation]
    locked = lock_claimed(tx, claims, buckets=memberships.buckets_of(names), others=others)
    check_generations(claims, locked)
    if reservation is not None:
        groups = {each.consumer: each.group.name for each in joining}
        left = reservations.remainder(tx, reservation, claims, groups, locked)
        if left is None:
            raise LostRace(f"Reservation {reservation} does not hold all of it any more.")
        claims = [*claims, left]
    found = tx.queue(_described(len(described)), bind_values("id", sorted(described)))
    members = tx.queue(*memberships.lookup(names)) if names else None
    try:
        write_claims(tx, claims, locked)
    except (Conflict, InvalidRequest) as error:
        raise LostRace(error.detail) from error
    if {row[0]: row[1] for row in found.rows} != described:
        raise LostRace("A provider has changed.")
    if members is not None:
        _check_groups(joining, memberships.members(members.rows), {claim.consumer for claim in claims})
    memberships.leave(tx, [row.id for row in locked.consumers.values()])
    memberships.join(tx, {each.consumer: each.group.name for each in joining})
    times = expiries.write(
        tx, expiring or {}, [row.id for uuid, row in locked.consumers.items() if uuid in (expiring or {})]
    )
    return {} if times is None else {row[0]: row[1] for row in times.rows}


def _check_groups(joining: Sequence[GroupMembership], members: Members, moving: Collection[str]) -> None:
    """Make sure that each may join where it is going to be, beside all that are there and those before it.

    :param moving: consumers that are not any more where they were.
    :raises LostRace: somebody else has joined meanwhile.
    """
    counts = {name: present(members.get(name, ()), moving) for name in {each.group.name for each in joining}}
    for each in joining:
        count = counts[each.group.name]
        if not each.group.allows(each.hosts, count):
            raise LostRace(f"Group {each.group.name} has other members now.")
        count.update(each.hosts)


@lru_cache(KEPT_SIZES)
def _described(count: int) -> PreparedStatement:
    chosen = resource_providers.c.id.in_(bind_parameters("id", count, sa.Integer))
    return PreparedStatement(
        sa.select(resource_providers.c.id, resource_providers.c.described_seq).where(chosen)
    )
