"""Writes the aggregates of providers."""

from collections.abc import Collection, Mapping, Sequence
from typing import Final

import sqlalchemy as sa

from placement.db.batch import PreparedStatement
from placement.db.database import WriteTransaction
from placement.db.tables import provider_aggregates
from placement.store import optimistic_write, providers


def replace(tx: WriteTransaction, uuid: str, generation: int | None, aggregates: Sequence[str]) -> int:
    """Replace the aggregates of a provider; return its generation afterwards.

    If ``generation`` is None (before microversion 1.19), the generation of the provider is neither checked
    nor increased.
    """
    # rows to insert are necessary: an optimistic write notices a changed provider only by a failing foreign
    # key
    if generation is not None and optimistic_write.is_worthwhile(tx, generation, len(aggregates)):
        optimistic_write.find_provider(tx, _found, uuid, generation)
        # old aggregates are removed before the insertion, because new aggregates may repeat them
        tx.queue(_removal_there, {})
        rows = [{"name": aggregate} for aggregate in sorted(aggregates)]
        optimistic_write.insert(tx, provider_aggregates.c.aggregate, rows)
        optimistic_write.stamp_provider(tx)
        return generation + 1
    row = providers.lock(tx, uuid)
    if generation is not None:
        providers.check_generation(row, generation)
    put(tx, {row.id: aggregates})
    # the provider is stamped without ``generation``, too, because readers have to see changes by clients of
    # old microversions
    tx.note_changed([row.id], generation=generation is not None)
    return row.generation + (generation is not None)


def put(tx: WriteTransaction, wanted: Mapping[int, Collection[str]]) -> None:
    """Replace the aggregates of locked providers; ``wanted`` has the new aggregates by provider id."""
    for provider_id in wanted:
        tx.queue(_removal, {"provider": provider_id})
    insert(tx, wanted)


def insert(tx: WriteTransaction, wanted: Mapping[int, Collection[str]]) -> None:
    """Add aggregates to providers that have none; ``wanted`` has the new aggregates by provider id."""
    tx.insert(
        provider_aggregates,
        [
            {"provider_id": provider_id, "aggregate": aggregate}
            for provider_id, aggregates in wanted.items()
            for aggregate in sorted(aggregates)
        ],
    )


def _removal_of(provider: sa.ColumnElement[int]) -> PreparedStatement:
    return PreparedStatement(
        sa.delete(provider_aggregates).where(provider_aggregates.c.provider_id == provider)
    )


_removal: Final = _removal_of(sa.bindparam("provider"))
_found: Final = optimistic_write.finding_statement()
_removal_there: Final = _removal_of(optimistic_write.PROVIDER)
