"""Commits claims with providers chosen in the read model, if these choices are still valid.

Most claims of new consumers are written without reading the database first (:func:`is_worthwhile`). The
statements that write such a claim contain the conditions of a valid choice. All properties of a chosen
provider, except its usage, must be unchanged since the choice, and enough of its capacity must be free. If a
condition fails, the statement inserts an allocation with a provider id that does not exist. A foreign key
forbids such an allocation, so the database rolls the whole transaction back. The next attempt reads the
database first, and finds the reason.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from functools import lru_cache

import sqlalchemy as sa

from placement.db.batch import (
    KEPT_SIZES,
    MAX_ROWS,
    PreparedStatement,
    bind_parameters,
    bind_rows,
    bind_values,
)
from placement.db.database import WriteTransaction
from placement.db.tables import (
    NO_ID,
    RESERVATION,
    allocations,
    consumers,
    resource_classes,
    resource_providers,
)
from placement.exceptions import Conflict, InvalidRequest
from placement.read_model.provider import Provider
from placement.store import expiries, reservations, window_room
from placement.store.allocations import write_claims
from placement.store.claimants import check_generations, lock_claimed
from placement.store.claims import CapacityExceeded, ConsumerClaim, claimed_amounts
from placement.store.groups import (
    GroupMembership,
    Members,
    group_buckets,
    group_lookup,
    group_members,
    join_groups,
    leave_groups,
    members_by_host,
)
from placement.store.providers import queue_versions
from placement.store.time_profile import HoldRefusal
from placement.store.window_room import WindowMove, moved_claims


def is_worthwhile(
    tx: WriteTransaction, claims: Sequence[ConsumerClaim], chosen: Mapping[str, Provider]
) -> bool:
    """Return whether to try to write claims without reading the database first.

    Such a write has to be the first attempt, all its consumers have to be new, and the database has to accept
    several statements in one round trip.

    :param chosen: all providers that the choices depend on, by uuid, in their state at the time of the
        choice.
    """
    return (
        # the quick tests come first, because this runs for each claim
        tx.optimistic
        and tx.sends_at_once
        # a single insertion cannot have more rows
        and sum(len(resources) for claim in claims for resources in claim.resources.values()) <= MAX_ROWS
        # the statements are for new consumers only: for other consumers they would have to count the current
        # allocations as free
        and all(claim.generation is None for claim in claims)
        # the claim is checked with the read model, because the statements check only the capacity, not
        # min_unit, max_unit and step_size
        and all(
            chosen[uuid].inventories[name].is_portion(amount)
            for _, uuid, name, amount in claimed_amounts(claims)
        )
    )


def write(tx: WriteTransaction, claims: Sequence[ConsumerClaim], chosen: Mapping[str, Provider]) -> None:
    """Queue statements that write all claims, or none of them if a choice is no longer valid."""
    # nothing is sent yet: this inserts new consumers, and queues the locks
    lock_claimed(tx, claims)
    # amounts are summed over all claims, because each condition has to leave room for every claim that uses
    # the inventory
    taken: Counter[tuple[str, str]] = Counter()
    for _, uuid, name, amount in claimed_amounts(claims):
        taken[uuid, name] += amount
    rows = [
        {
            "consumer": claim.consumer,
            "provider": chosen[uuid].id,
            # the capacity comes from the read model, because with an unchanged described_seq the database has
            # the same capacity
            "described": chosen[uuid].described_seq,
            "class": name,
            "used": amount,
            # the limit is computed in Python, so that the statement only has to compare the usage with one
            # number
            "others": chosen[uuid].inventories[name].capacity - taken[uuid, name],
        }
        for claim, uuid, name, amount in claimed_amounts(claims)
    ]
    # the witnesses are providers that give no amount but have to be unchanged, such as a parent with a
    # required trait
    named = {uuid for uuid, _ in taken}
    witnesses = [provider for uuid, provider in chosen.items() if uuid not in named]
    values = {
        **bind_rows(rows),
        **bind_values("witness", [each.id for each in witnesses]),
        **bind_values("seen", [each.described_seq for each in witnesses]),
        "now": tx.now,
    }
    tx.queue(_claim_insertion(len(rows), len(witnesses)), values)
    # only the providers that give amounts are stamped, because no other provider changes
    tx.note_changed([chosen[uuid].id for uuid in named], generation=True, usage_only=True)


@lru_cache(KEPT_SIZES)
def _claim_insertion(count: int, witnesses: int) -> PreparedStatement:
    """Return a statement that inserts allocations if all providers of the choice are unchanged.

    ``witnesses`` is the number of further providers on which the choice depends, but from which it takes no
    amount, such as a parent with a required trait. The parameter ``others`` is the maximum amount of a class
    that all other consumers together may have allocated.
    """
    # the witnesses are conditions of the first row, so that they need no statement of their own
    seen = [
        _unchanged_provider(provider, seq).exists()
        for provider, seq in zip(
            bind_parameters("witness", witnesses, sa.Integer),
            bind_parameters("seen", witnesses, sa.BigInteger),
            strict=True,
        )
    ]
    rows = []
    for consumer, provider, described, name, used, others in zip(
        bind_parameters("consumer", count),
        bind_parameters("provider", count, sa.Integer),
        bind_parameters("described", count, sa.BigInteger),
        bind_parameters("class", count),
        bind_parameters("used", count, sa.Integer),
        bind_parameters("others", count, sa.BigInteger),
        strict=True,
    ):
        # the class is looked up by name, because after a restore of the database the read model's id may
        # belong to another name
        class_id = sa.select(resource_classes.c.id).where(resource_classes.c.name == name).scalar_subquery()
        held = sa.select(sa.func.coalesce(sa.func.sum(allocations.c.used), 0)).where(
            allocations.c.provider_id == provider, allocations.c.resource_class_id == class_id
        )
        # all conditions are in one sub-query, which returns the id of the provider or no row
        good = _unchanged_provider(provider, described).where(held.scalar_subquery() <= others, *seen)
        rows.append(
            {
                "consumer_id": sa.select(consumers.c.id)
                .where(consumers.c.uuid == consumer)
                .scalar_subquery(),
                # NO_ID violates the foreign key, so that the whole transaction is rolled back
                "provider_id": sa.func.coalesce(good.scalar_subquery(), NO_ID),
                # a resource class that was deleted also becomes NO_ID
                "resource_class_id": sa.func.coalesce(class_id, NO_ID),
                "used": used,
                "updated_at": sa.bindparam("now", type_=sa.Double),
            }
        )
        # only the first row checks the witnesses, because its failure rolls back the whole transaction
        seen = []
    return PreparedStatement(sa.insert(allocations).values(rows))


def _unchanged_provider(provider: sa.BindParameter[int], seq: sa.BindParameter[int]) -> sa.Select[tuple[int]]:
    """Return a query for a provider's id, without a result if more than its usage has changed."""
    return sa.select(resource_providers.c.id).where(
        resource_providers.c.id == provider, resource_providers.c.described_seq == seq
    )


class LostRace(Exception):
    """Another transaction has committed first, so a chosen provider is deleted, full or changed."""


def commit_claims(
    tx: WriteTransaction,
    claims: Sequence[ConsumerClaim],
    chosen: Mapping[str, Provider],
    joining: Sequence[GroupMembership] = (),
    reservation: str | None = None,
    expiring: Mapping[str, float] | None = None,
    preempted: Collection[str] = (),
    moves: Sequence[WindowMove] = (),
) -> dict[str, float]:
    """Write all claims or none, and move their consumers to the given groups.

    :param chosen: all providers that the choices depend on, by uuid, in their state at the time of the
        choice. Providers without amounts are not locked, so a change of such a provider during the commit can
        go unnoticed.
    :param reservation: the reservation from which all amounts are taken.
    :param expiring: the number of seconds after which an unconfirmed claim expires, by uuid of the consumer.
    :param preempted: the consumers of preemptible claims that end at the start of a window; the only element
        of ``claims`` is then this window.
    :param moves: moves of windows that make room for the claims.
    :returns: the times at which these claims expire, by uuid of the consumer.
    :raises ConcurrentUpdate: a generation in a claim is not the current generation of its consumer.
    :raises Conflict: the named reservation does not exist, or the claims are not allowed to use it. Or a
        provider has too little for the reservation.
    :raises LostRace: another transaction has made the choice of a provider invalid.
    """
    # groups, reservations and expiries need answers before the commit
    is_timed = any(claim.window is not None for claim in claims)
    if not (joining or reservation or expiring or is_timed) and is_worthwhile(tx, claims, chosen):
        write(tx, claims, chosen)
        return {}
    # the described_seq of each provider by id, which also differs for a provider that was deleted and created
    # again
    described = {provider.id: provider.described_seq for provider in chosen.values()}
    for move in moves:
        described |= move.described
    names = {each.group.name for each in joining}
    others = [*preempted] if reservation is None else [reservation]
    others += [each.consumer for each in moves]
    targets = {uuid for each in moves for uuid in each.after}
    # a single call locks all consumers, providers and groups, so that locks are taken in the usual order
    locked = lock_claimed(tx, claims, targets, group_buckets(names), others, reservation)
    check_generations(claims, locked)
    if moves:
        moved = moved_claims(tx, moves, locked)
        if moved is None:
            raise LostRace("A window that should move has changed.")
        claims = [*claims, *moved]
    if reservation is not None:
        groups = {each.consumer: each.group.name for each in joining}
        # the reservation gives up the amounts that the other claimants take. It is a claimant, too, so that
        # one check of capacity covers all
        divided = reservations.divided_claims(tx, reservation, claims, groups, locked)
        if divided is None:
            raise LostRace(f"Reservation {reservation} no longer holds all claimed amounts.")
        claims = divided
    if preempted:
        window = claims[0].window
        # this line is for the type checker: only a window preempts
        assert window is not None
        earlier = window_room.preempted_claims(tx, preempted, window.starts_at, locked)
        if earlier is None:
            raise LostRace("A preemptible claim has changed.")
        claims = [*claims, *earlier]
    # the query is queued now and its answer is read after the write, so that one batch has all statements
    present = queue_versions(tx, described)
    members = tx.queue(*group_lookup(names)) if names else None
    try:
        write_claims(tx, claims, locked)
    except HoldRefusal as error:
        # another choice of the same request would be refused again, but a choice with other moves may succeed
        if moves or preempted:
            raise LostRace(error.detail) from error
        raise
    except CapacityExceeded as error:
        # the room of a reservation is locked, so another choice would be refused again unless a provider has
        # changed
        if reservation is not None and present() == described:
            raise
        raise LostRace(error.detail) from error
    except (Conflict, InvalidRequest) as error:
        # the error is a lost race and no error of the client, because this service made the choice from older
        # data
        raise LostRace(error.detail) from error
    # the versions are checked after the write, which is in the same batch; a lost race rolls back everything
    if present() != described:
        raise LostRace("A provider has changed.")
    if members is not None:
        _check_groups(joining, group_members(members.rows), {claim.consumer for claim in claims})
    # first all claimants leave their groups, because a claim without a group removes its consumer from any
    # group
    leave_groups(tx, [row.id for uuid, row in locked.consumers.items() if uuid not in preempted])
    join_groups(tx, {each.consumer: each.group.name for each in joining})
    # the end of a window is a part of its reservation. The end of a preempted claim counts as set now, so
    # that no reader of the time events up to now has missed the event of the new end
    ends = {
        claim.consumer: expiries.ClaimEnd(
            claim.window.ends_at,
            claim.cleaning_time,
            claim.on_end,
            claim.kept_until,
            window_id=None if claim.taken_from is None else locked.consumers[claim.taken_from].id,
        )
        for claim in claims
        if claim.window is not None and claim.owner.consumer_type != RESERVATION
    }
    expiries.write_ends(tx, ends, [row.id for uuid, row in locked.consumers.items() if uuid in ends])
    times = expiries.write(
        tx, expiring or {}, [row.id for uuid, row in locked.consumers.items() if uuid in (expiring or {})]
    )
    return {} if times is None else {row[0]: row[1] for row in times.rows}


def _check_groups(joining: Sequence[GroupMembership], members: Members, moving: Collection[str]) -> None:
    """Raise LostRace if a consumer must not join its group; ``moving`` consumers leave their hosts."""
    counts = {
        name: members_by_host(members.get(name, ()), moving) for name in {each.group.name for each in joining}
    }
    for each in joining:
        count = counts[each.group.name]
        if not each.group.allows_hosts(each.hosts, count):
            raise LostRace(f"The members of group {each.group.name} have changed.")
        # the member is counted now, because later consumers of the group have to see it
        count.update(each.hosts)
