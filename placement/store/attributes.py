"""Writes the attributes of providers: named texts and numbers that clients store with a provider."""

from collections.abc import Mapping
from typing import Final

import sqlalchemy as sa

from placement.db.batch import PreparedStatement
from placement.db.database import WriteTransaction
from placement.db.tables import provider_attributes, resource_providers
from placement.read_model.provider import Attribute
from placement.store import providers


def replace(tx: WriteTransaction, uuid: str, generation: int, wanted: Mapping[str, Attribute]) -> int:
    """Replace the attributes of a provider; return its generation, which increases with a change."""
    # both statements are queued before an answer is read, so that they take one round trip
    tx.lock([uuid])
    present = tx.queue(_present, {"provider": uuid})
    row = providers.read_locked(tx, uuid)
    providers.check_generation(row, generation)
    # equal attributes are not written, because each write makes all workers read the provider again
    if {name: number if text is None else text for name, text, number in present.rows} == wanted:
        return row.generation
    put(tx, {row.id: wanted})
    tx.note_changed([row.id], generation=True)
    return row.generation + 1


def put(tx: WriteTransaction, wanted: Mapping[int, Mapping[str, Attribute]]) -> None:
    """Replace the attributes of locked providers; ``wanted`` has the new attributes by provider id."""
    # everything is deleted and inserted again, because a provider has few attributes
    for provider_id in wanted:
        tx.queue(_removal, {"provider": provider_id})
    insert(tx, wanted)


def insert(tx: WriteTransaction, wanted: Mapping[int, Mapping[str, Attribute]]) -> None:
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


_present: Final = PreparedStatement(
    sa.select(provider_attributes.c.name, provider_attributes.c.text, provider_attributes.c.number)
    .join(resource_providers, resource_providers.c.id == provider_attributes.c.provider_id)
    .where(resource_providers.c.uuid == sa.bindparam("provider"))
)
_removal: Final = PreparedStatement(
    sa.delete(provider_attributes).where(provider_attributes.c.provider_id == sa.bindparam("provider"))
)
