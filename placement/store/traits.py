"""Traits: the names there are, and which provider has which."""

from collections.abc import Collection, Iterable
from typing import Final

import sqlalchemy as sa

from placement.db.batch import Prepared
from placement.db.database import Transaction
from placement.db.tables import provider_traits, traits
from placement.exceptions import ConcurrentUpdate, Conflict, InvalidRequest, NotFound
from placement.store import names, providers


def create(tx: Transaction, name: str) -> bool:
    """Make a trait; False when it is there already."""
    return names.create(tx, traits, name)


def delete(tx: Transaction, name: str) -> None:
    """Remove a custom trait.

    :raises NotFound, InvalidRequest, Conflict: there is none, it is a standard one, a provider has it.
    """
    number = names.locked(tx, traits, name)
    if number is None:
        raise NotFound(f"No such trait(s): {name}.")
    if not name.startswith("CUSTOM_"):
        raise InvalidRequest(f"Cannot delete standard trait {name}.")
    if tx.exists(provider_traits.c.trait_id == number):
        raise Conflict(f"The trait {name} is in use by a resource provider.")
    tx.conn.execute(sa.delete(traits).where(traits.c.id == number))


def replace(tx: Transaction, uuid: str, generation: int, wanted: Collection[str]) -> int:
    """Make the provider's traits exactly these; return its new generation.

    :raises NotFound, InvalidRequest, ConcurrentUpdate: no such provider, no such trait, stale.
    """
    tx.lock([uuid])
    lookup = names.Lookup(tx, traits, wanted)
    row = providers.locked(tx, uuid, None)
    if row.generation != generation:
        raise ConcurrentUpdate(
            "Resource provider's generation already changed. Please update the generation and try again."
        )
    ids = lookup.ids
    unknown = sorted(set(wanted) - set(ids))
    if unknown:
        raise InvalidRequest(f"No such trait {', '.join(unknown)}")
    _write(tx, row.id, ids.values())
    return row.generation + 1


def remove_all(tx: Transaction, uuid: str) -> None:
    """Take all its traits from a provider.

    :raises NotFound: no such provider.
    """
    _write(tx, providers.lock(tx, uuid).id, ())


def _write(tx: Transaction, provider_id: int, trait_ids: Iterable[int]) -> None:
    tx.queue(_removal, {"provider": provider_id})
    tx.insert(provider_traits, [{"provider_id": provider_id, "trait_id": number} for number in trait_ids])
    tx.changed([provider_id], generation=True)


_removal: Final = Prepared(
    sa.delete(provider_traits).where(provider_traits.c.provider_id == sa.bindparam("provider"))
)
