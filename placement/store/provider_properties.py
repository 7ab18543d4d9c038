"""Writes the properties of providers: traits, aggregates and attributes.

Attributes are named texts and numbers that clients store with a provider.
"""

from collections.abc import Collection, Mapping, Sequence, Set
from functools import cache, lru_cache
from typing import Final

import sqlalchemy as sa

from placement import extensions
from placement.db.batch import KEPT_SIZES, PreparedStatement, bind_parameters, bind_values
from placement.db.database import WriteTransaction
from placement.db.tables import (
    provider_aggregates,
    provider_attributes,
    provider_traits,
    resource_providers,
    traits,
)
from placement.exceptions import InvalidRequest
from placement.read_model.provider import Attribute
from placement.store import optimistic_write, providers


def replace_traits(tx: WriteTransaction, uuid: str, generation: int, wanted: Collection[str]) -> int:
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
        tx.queue(_trait_removal_there, {})
        optimistic_write.insert(tx, provider_traits.c.trait_id, [{"name": name} for name in wanted], traits)
        if (stale := _stale_attributes_there()) is not None:
            tx.queue(stale, {})
        optimistic_write.stamp_provider(tx)
        return generation + 1
    row, present, ids = _lock_traits(tx, uuid, wanted)
    providers.check_generation(row, generation)
    # the names are checked after the generation, because an outdated generation is reported first
    unknown = sorted(set(wanted) - set(ids))
    if unknown:
        raise InvalidRequest(f"No such trait {', '.join(unknown)}")
    return row.generation + _write_traits(tx, row.id, present, set(ids.values()))


def remove_traits(tx: WriteTransaction, uuid: str) -> None:
    """Remove all traits of a provider."""
    row, present, _ = _lock_traits(tx, uuid, ())
    _write_traits(tx, row.id, present, set())


def _lock_traits(
    tx: WriteTransaction, uuid: str, wanted: Collection[str]
) -> tuple[providers.ProviderRow, Set[int], dict[str, int]]:
    """Lock a provider; return its row, the ids of its traits, and the ids of existing wanted traits."""
    return providers.lock_parts(tx, uuid, provider_traits.c.trait_id, traits, wanted)


def _write_traits(tx: WriteTransaction, provider_id: int, present: Set[int], wanted: Set[int]) -> bool:
    """Write a provider's traits if they differ, and increase its generation; return whether they differ."""
    # without a change there is no stamp: agents repeat their reports, and a stamp makes all workers read the
    # provider
    if wanted == present:
        return False
    put_traits(tx, provider_id, wanted)
    tx.note_changed([provider_id], generation=True)
    return True


def put_traits(tx: WriteTransaction, provider_id: int, wanted: Set[int]) -> None:
    """Replace the traits of a locked provider; ``wanted`` has the ids of the new traits.

    If the provider loses a trait for which extensions have registered attributes, its values of these
    attributes are deleted.
    """
    tx.queue(_trait_removal, {"provider": provider_id})
    # all traits are removed and the wanted traits inserted, because a provider has few traits
    insert_traits(tx, {provider_id: wanted})
    if (stale := _stale_attributes()) is not None:
        tx.queue(stale, {"provider": provider_id})


def insert_traits(tx: WriteTransaction, wanted: Mapping[int, Set[int]]) -> None:
    """Add traits to providers that have none; ``wanted`` has the ids of the traits by provider id."""
    tx.insert(
        provider_traits,
        [
            {"provider_id": provider_id, "trait_id": trait_id}
            for provider_id, trait_ids in wanted.items()
            for trait_id in sorted(trait_ids)
        ],
    )


def _removal_from(table: sa.Table, provider: sa.ColumnElement[int]) -> PreparedStatement:
    return PreparedStatement(sa.delete(table).where(table.c.provider_id == provider))


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


_trait_removal: Final = _removal_from(provider_traits, sa.bindparam("provider"))
_trait_removal_there: Final = _removal_from(provider_traits, optimistic_write.PROVIDER)


def replace_aggregates(
    tx: WriteTransaction, uuid: str, generation: int | None, aggregates: Sequence[str]
) -> int:
    """Replace the aggregates of a provider; return its generation afterwards.

    If ``generation`` is None (before microversion 1.19), the generation of the provider is neither checked
    nor increased.
    """
    # rows to insert are necessary: an optimistic write notices a changed provider only by a failing foreign
    # key
    if generation is not None and optimistic_write.is_worthwhile(tx, generation, len(aggregates)):
        optimistic_write.find_provider(tx, _found_provider, uuid, generation)
        # old aggregates are removed before the insertion, because new aggregates may repeat them
        tx.queue(_aggregate_removal_there, {})
        rows = [{"name": aggregate} for aggregate in sorted(aggregates)]
        optimistic_write.insert(tx, provider_aggregates.c.aggregate, rows)
        optimistic_write.stamp_provider(tx)
        return generation + 1
    row = providers.lock(tx, uuid)
    if generation is not None:
        providers.check_generation(row, generation)
    put_aggregates(tx, row.id, aggregates)
    # the provider is stamped without ``generation``, too, because readers have to see changes by clients of
    # old microversions
    tx.note_changed([row.id], generation=generation is not None)
    return row.generation + (generation is not None)


def put_aggregates(tx: WriteTransaction, provider_id: int, wanted: Collection[str]) -> None:
    """Replace the aggregates of a locked provider."""
    tx.queue(_aggregate_removal, {"provider": provider_id})
    insert_aggregates(tx, {provider_id: wanted})


def insert_aggregates(tx: WriteTransaction, wanted: Mapping[int, Collection[str]]) -> None:
    """Add aggregates to providers that have none; ``wanted`` has the new aggregates by provider id."""
    tx.insert(
        provider_aggregates,
        [
            {"provider_id": provider_id, "aggregate": aggregate}
            for provider_id, aggregates in wanted.items()
            for aggregate in sorted(aggregates)
        ],
    )


_aggregate_removal: Final = _removal_from(provider_aggregates, sa.bindparam("provider"))
_found_provider: Final = optimistic_write.finding_statement()
_aggregate_removal_there: Final = _removal_from(provider_aggregates, optimistic_write.PROVIDER)


def replace_attributes(
    tx: WriteTransaction, uuid: str, generation: int, wanted: Mapping[str, Attribute]
) -> int:
    """Replace the attributes of a provider; return its generation, which increases with a change."""
    # both statements are queued before an answer is read, so that they take one round trip
    tx.lock([uuid])
    present = tx.queue(_present_attributes, {"provider": uuid})
    row = providers.read_locked(tx, uuid)
    providers.check_generation(row, generation)
    # equal attributes are not written, because each write makes all workers read the provider again
    if {name: number if text is None else text for name, text, number in present.rows} == wanted:
        return row.generation
    put_attributes(tx, row.id, wanted)
    tx.note_changed([row.id], generation=True)
    return row.generation + 1


def put_attributes(tx: WriteTransaction, provider_id: int, wanted: Mapping[str, Attribute]) -> None:
    """Replace the attributes of a locked provider."""
    # everything is deleted and inserted again, because a provider has few attributes
    tx.queue(_attribute_removal, {"provider": provider_id})
    insert_attributes(tx, {provider_id: wanted})


def insert_attributes(tx: WriteTransaction, wanted: Mapping[int, Mapping[str, Attribute]]) -> None:
    """Add attributes to providers that have none; ``wanted`` has the new attributes by provider id."""
    rows = [
        {
            "provider_id": provider_id,
            "name": name,
            # numbers have a column of their own, because a database could not compare numbers stored as text
            "text": value if isinstance(value, str) else None,
            "number": None if isinstance(value, str) else value,
        }
        for provider_id, values in wanted.items()
        for name, value in sorted(values.items())
    ]
    tx.insert(provider_attributes, rows)


_present_attributes: Final = PreparedStatement(
    sa.select(provider_attributes.c.name, provider_attributes.c.text, provider_attributes.c.number)
    .join(resource_providers, resource_providers.c.id == provider_attributes.c.provider_id)
    .where(resource_providers.c.uuid == sa.bindparam("provider"))
)
_attribute_removal: Final = _removal_from(provider_attributes, sa.bindparam("provider"))
