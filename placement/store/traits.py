"""Creates and deletes traits, and writes the traits of providers."""

from collections.abc import Collection, Mapping, Set
from functools import cache, lru_cache
from typing import Final

import sqlalchemy as sa

from placement import extensions
from placement.db.batch import KEPT_SIZES, PreparedStatement, bind_parameters, bind_values
from placement.db.database import WriteTransaction
from placement.db.tables import provider_attributes, provider_traits, resource_providers, traits
from placement.exceptions import Conflict, InvalidRequest, NotFound
from placement.store import names, optimistic_write, providers


def create_trait(tx: WriteTransaction, name: str) -> bool:
    """Create a trait; return False if the trait exists already."""
    return names.create_name(tx, traits, name)


def delete(tx: WriteTransaction, name: str) -> None:
    """Delete a custom trait.

    :raises InvalidRequest: the trait is a standard trait.
    :raises Conflict: a provider has the trait.
    """
    trait_id = names.lock_name(tx, traits, name)
    # the use of the trait is checked under the lock of names, so that no provider can get the trait before
    # the deletion
    if trait_id is None:
        raise NotFound(f"No such trait(s): {name}.")
    if not name.startswith("CUSTOM_"):
        raise InvalidRequest(f"Cannot delete standard trait {name}.")
    if tx.has_row(provider_traits.c.trait_id == trait_id):
        raise Conflict(f"The trait {name} is in use by a resource provider.")
    tx.conn.execute(sa.delete(traits).where(traits.c.id == trait_id))


def replace(tx: WriteTransaction, uuid: str, generation: int, wanted: Collection[str]) -> int:
    """Replace the traits of a provider; return the provider's generation, which increases with a change.

    :raises InvalidRequest: no such trait.
    """
    # the names are a set, because a client may repeat a name, and the statement below counts names
    wanted = sorted(set(wanted))
    if optimistic_write.is_worthwhile(tx, generation, len(wanted)):
        values = {"count": len(wanted), **bind_values("trait", wanted)}
        # the statement finds the provider only if its traits differ: without a change, the generation must
        # not increase
        optimistic_write.find_provider(tx, _other_traits(len(wanted)), uuid, generation, **values)
        # the statement removes all traits, because an optimistic write does not know the current traits
        tx.queue(_removal_there, {})
        optimistic_write.insert(tx, provider_traits.c.trait_id, [{"name": name} for name in wanted], traits)
        if (stale := _stale_attributes_there()) is not None:
            tx.queue(stale, {})
        optimistic_write.stamp_provider(tx)
        return generation + 1
    row, present, ids = _lock(tx, uuid, wanted)
    providers.check_generation(row, generation)
    # the names are checked after the generation, because an outdated generation is reported first
    unknown = sorted(set(wanted) - set(ids))
    if unknown:
        raise InvalidRequest(f"No such trait {', '.join(unknown)}")
    return row.generation + _write(tx, row.id, present, set(ids.values()))


def remove_all(tx: WriteTransaction, uuid: str) -> None:
    """Remove all traits of a provider."""
    row, present, _ = _lock(tx, uuid, ())
    _write(tx, row.id, present, set())


def _lock(
    tx: WriteTransaction, uuid: str, wanted: Collection[str]
) -> tuple[providers.ProviderRow, Set[int], dict[str, int]]:
    """Lock a provider; return its row, the ids of its traits, and the ids of existing wanted traits."""
    # the lock is followed by both lookups in one batch
    tx.lock([uuid])
    present = tx.queue(_present, {"provider": uuid})
    lookup = names.NameLookup(tx, traits, wanted)
    row = providers.read_locked(tx, uuid)
    return row, set(present.scalars), lookup.ids


_present: Final = PreparedStatement(
    sa.select(provider_traits.c.trait_id)
    .join(resource_providers, resource_providers.c.id == provider_traits.c.provider_id)
    .where(resource_providers.c.uuid == sa.bindparam("provider"))
)


def _write(tx: WriteTransaction, provider_id: int, present: Set[int], wanted: Set[int]) -> bool:
    """Write a provider's traits if they differ, and increase its generation; return whether they differ."""
    # without a change there is no stamp: agents repeat their reports, and a stamp makes all workers read the
    # provider
    if wanted == present:
        return False
    put(tx, {provider_id: wanted})
    tx.note_changed([provider_id], generation=True)
    return True


def put(tx: WriteTransaction, wanted: Mapping[int, Set[int]]) -> None:
    """Replace the traits of locked providers; ``wanted`` has the ids of the new traits by provider id.

    If extensions have registered attributes for a trait, these are deleted with the trait.
    """
    for provider_id in wanted:
        tx.queue(_removal, {"provider": provider_id})
    # all traits are removed and the wanted traits inserted, because a provider has few traits
    insert(tx, wanted)
    if (stale := _stale_attributes()) is not None:
        for provider_id in wanted:
            tx.queue(stale, {"provider": provider_id})


def insert(tx: WriteTransaction, wanted: Mapping[int, Set[int]]) -> None:
    """Add traits to providers that have none; ``wanted`` has the ids of the traits by provider id."""
    tx.insert(
        provider_traits,
        [
            {"provider_id": provider_id, "trait_id": trait_id}
            for provider_id, trait_ids in wanted.items()
            for trait_id in sorted(trait_ids)
        ],
    )


def _removal_of(provider: sa.ColumnElement[int]) -> PreparedStatement:
    return PreparedStatement(sa.delete(provider_traits).where(provider_traits.c.provider_id == provider))


def _stale_attributes_of(provider: sa.ColumnElement[int]) -> PreparedStatement | None:
    """Return a statement that deletes attributes of removed traits; None if no attributes are registered."""

    def is_stale(trait: str, attributes: Collection[str]) -> sa.ColumnElement[bool]:
        present = (
            sa.select(sa.literal(1))
            .select_from(provider_traits.join(traits, traits.c.id == provider_traits.c.trait_id))
            .where(provider_traits.c.provider_id == provider, traits.c.name == trait)
        )
        # the condition reads the traits that the earlier statements have written
        return sa.and_(
            sa.or_(*(provider_attributes.c.name == each for each in attributes)), ~sa.exists(present)
        )

    # the extensions are read at the first use and not at import, because they register while they are loaded
    registered: list[Mapping[str, Collection[str]]] = list(
        extensions.registered_objects("trait_attributes").values()
    )
    stale = [is_stale(*both) for each in registered for both in each.items()]
    # without registrations, a write of traits has one statement less
    if not stale:
        return None
    its = provider_attributes.c.provider_id == provider
    return PreparedStatement(sa.delete(provider_attributes).where(its, sa.or_(*stale)))


# the names are cached, because extensions do not change while a process runs
@cache
def _stale_attributes() -> PreparedStatement | None:
    return _stale_attributes_of(sa.bindparam("provider"))


@cache
def _stale_attributes_there() -> PreparedStatement | None:
    return _stale_attributes_of(optimistic_write.PROVIDER)


@lru_cache(KEPT_SIZES)
def _other_traits(count: int) -> PreparedStatement:
    """Return a statement that finds a provider by id, unless the provider has exactly these traits."""
    its = provider_traits.c.provider_id == resource_providers.c.id
    # the sets are equal if their sizes are equal and the provider has no other trait
    total = sa.select(sa.func.count()).select_from(provider_traits).where(its).scalar_subquery()
    other = (
        sa.select(sa.literal(1))
        .select_from(provider_traits.join(traits, traits.c.id == provider_traits.c.trait_id))
        .where(its, traits.c.name.not_in(bind_parameters("trait", count)))
    )
    return optimistic_write.finding_statement(
        (total != sa.bindparam("count", type_=sa.Integer)) | sa.exists(other)
    )


_removal: Final = _removal_of(sa.bindparam("provider"))
_removal_there: Final = _removal_of(optimistic_write.PROVIDER)
