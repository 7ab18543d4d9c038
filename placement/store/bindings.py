"""Claims of what was chosen by the read model: written if the choice is still good."""

from collections.abc import Mapping, Sequence
from functools import lru_cache

import sqlalchemy as sa

from placement.db.batch import KEPT_SIZES, Prepared, bind_parameters, bind_values
from placement.db.database import Transaction
from placement.db.tables import resource_providers
from placement.exceptions import Conflict, InvalidRequest
from placement.store.allocations import check_generations, lock_claimed, write_claims
from placement.store.claims import Claim


class LostRace(Exception):
    """Somebody else was faster: what was chosen is gone, taken, or not any more what it was."""


def bind(tx: Transaction, claims: Sequence[Claim], described: Mapping[int, int]) -> None:
    """Put all the claims into effect, or none of them.

    :param described: the ``described_seq``, by id, of each provider that makes the choices good, as of then.
        Those that nothing is taken of are not locked: who changes them later comes later.
    :raises ConcurrentUpdate: a consumer's generation is not the given one.
    :raises LostRace: the choice is no longer good.
    """
    locked = lock_claimed(tx, claims)
    check_generations(claims, locked)
    present = tx.queue(_described(len(described)), bind_values("id", sorted(described)))
    try:
        write_claims(tx, claims, locked)
    except (Conflict, InvalidRequest) as error:
        raise LostRace(error.detail) from error
    if {row[0]: row[1] for row in present.rows} != described:
        raise LostRace("A provider has changed.")


@lru_cache(KEPT_SIZES)
def _described(count: int) -> Prepared:
    chosen = resource_providers.c.id.in_(bind_parameters("id", count, sa.Integer))
    return Prepared(sa.select(resource_providers.c.id, resource_providers.c.described_seq).where(chosen))
