"""Moves inventories between providers together with their allocations, in one transaction."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from placement import exceptions
from placement.db import tables
from placement.db.database import ServiceDatabase, WriteTransaction
from placement.db.tables import resource_classes
from placement.exceptions import ConcurrentUpdate, InvalidRequest
from placement.read_model.provider import Inventory
from placement.store import (
    allocations,
    claimants,
    due_changes,
    expiries,
    inventories,
    known_names,
    providers,
    reservations,
    window_promises,
)
from placement.store.claims import ConsumerClaim
from placement.store.time_profile import AT_ONCE, TimeWindow


@dataclass(frozen=True, slots=True)
class NewInventories:
    """The wanted inventories of a provider, and the generation of the provider as the client knows it."""

    generation: int
    inventories: Mapping[str, Inventory]


def reshape_providers(
    database: ServiceDatabase, wanted: Mapping[str, NewInventories], claims: Sequence[ConsumerClaim]
) -> None:
    """Replace inventories and allocations together in a new transaction; see :func:`reshape_locked`."""
    # a client that has not seen all amounts of a window does not say where these amounts move
    due_changes.write_seen(database, lambda tx: reshape_locked(tx, wanted, claims))


def reshape_locked(
    tx: WriteTransaction, wanted: Mapping[str, NewInventories], claims: Sequence[ConsumerClaim]
) -> None:
    """Replace the inventories of providers and the allocations of consumers together, or change nothing.

    New inventories are written first and old inventories are deleted last, so that allocations may move from
    old inventories to new ones.

    :raises InvalidRequest: a provider or a resource class does not exist.
    :raises ConcurrentUpdate: a generation of a provider or a consumer is stale. UnseenReturns if the
        client cannot have seen all amounts of a window.
    :raises Conflict: an inventory to be deleted is still in use, or an inventory is too small.
    """
    own = [claim.consumer for claim in claims]
    # the promises of windows move together with the amounts that claims have taken from them
    windows = set(window_promises.source_windows(tx.conn, own).values())
    # one call locks all providers, with or without allocations, so that locks are taken in the usual order
    locked = claimants.lock_claimed(tx, claims, wanted, others=sorted(windows.difference(own)))
    present = {
        uuid: providers.queue_parts(tx, uuid, tables.inventories.c.resource_class_id) for uuid in wanted
    }
    lookup = known_names.NameLookup(
        tx, resource_classes, {name for new in wanted.values() for name in new.inventories}
    )
    rows = providers.find_providers(tx, wanted)
    for uuid, new in wanted.items():
        row = rows.get(uuid)
        if row is None:
            raise InvalidRequest(
                f"Resource provider {uuid} in inventories not found: {providers.no_provider(uuid)}",
                exceptions.PROVIDER_NOT_FOUND,
            )
        # all generations are checked before any write, so that a refusal needs no rollback
        if row.generation != new.generation:
            raise ConcurrentUpdate(
                f"resource provider generation conflict for provider {uuid}: "
                f"actual: {row.generation}, given: {new.generation}"
            )
    # providers are checked before consumers, because OpenStack Placement reports conflicts in this order
    claimants.check_generations(claims, locked)
    for uuid, new in wanted.items():
        # inventories are written before the allocations, which need the new inventories
        inventories.write(tx, rows[uuid], new.inventories, set(present[uuid].scalars), lookup.ids)
    # a reshape moves amounts. It changes neither the end times of claims, nor the times at which these were
    # set
    ends = expiries.read_ends(tx, locked.timed) if locked.timed else {}
    allocations.write_claims(tx, _timed_claims(tx, claims, ends, locked), locked)
    lasting = {each.consumer for each in claims if each.takes_anything and each.consumer in ends}
    expiries.write_ends(
        tx, {uuid: ends[uuid] for uuid in lasting}, [locked.consumers[uuid].id for uuid in lasting]
    )
    for uuid, new in wanted.items():
        kept = {lookup.ids[name] for name in new.inventories}
        going = set(present[uuid].scalars) - kept
        inventories.remove_some(tx, rows[uuid], going, said_before=inventories.UPDATE_CONFLICT)
        # providers with new inventories get a second increment, which clients expect; all other providers get
        # one increment
        tx.note_changed([rows[uuid].id], generation=bool(new.inventories))


def _timed_claims(
    tx: WriteTransaction,
    claims: Sequence[ConsumerClaim],
    ends: Mapping[str, expiries.ClaimEnd],
    locked: claimants.LockedConsumers,
) -> list[ConsumerClaim]:
    """Return the claims with their present times, and the claims of the windows from which they take amounts.

    :raises ConcurrentUpdate: the windows have changed since they were looked up.
    """
    found = _with_windows(tx, claims, ends, locked) if locked.timed else [*claims]
    # a locked consumer without a claim would lose its allocations by the write
    if locked.consumers.keys() - {each.consumer for each in found}:
        raise ConcurrentUpdate(_CHANGED)
    return found


_CHANGED: Final = "A reservation that claims of these consumers use has just changed. Please try again."


def _with_windows(
    tx: WriteTransaction,
    claims: Sequence[ConsumerClaim],
    ends: Mapping[str, expiries.ClaimEnd],
    locked: claimants.LockedConsumers,
) -> list[ConsumerClaim]:
    own = [claim.consumer for claim in claims]
    sources = window_promises.source_windows(tx.conn, own)
    if not locked.consumers.keys() >= set(sources.values()):
        raise ConcurrentUpdate(_CHANGED)
    due_changes.refuse_returns(tx, locked)
    times = due_changes.window_times(tx.conn, locked.timed.intersection(locked.consumers))
    windows = [
        reservations.window_claim(tx, row, locked, times[uuid])
        for uuid, row in locked.consumers.items()
        if uuid in times and uuid not in own
    ]
    found = []
    for claim in claims:
        end = ends.get(claim.consumer)
        if end is not None:
            time = TimeWindow(AT_ONCE, end.expires_at)
            claim = replace(claim, window=time, taken_from=sources.get(claim.consumer))
        elif claim.consumer in times:
            claim = replace(claim, window=times[claim.consumer])
        found.append(claim)
    return [*found, *windows]
