"""Claims of new consumers, written without asking the database first what it has.

What makes a choice good is part of what is written: a provider may be taken of if it is described as it was
when it was chosen, which tells its capacity, and if all that is held of it by now leaves enough of that.
Where that is not so, the allocation is inserted as of no provider at all. No foreign key allows that, so that
all of the transaction is undone; the next attempt asks first, and finds out what is wrong.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
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
from placement.db.tables import NO_ID, allocations, consumers, resource_classes, resource_providers
from placement.model.provider import Provider
from placement.store.allocations import lock_claimed
from placement.store.claims import ConsumerClaim, amounts


def is_possible(
    tx: WriteTransaction, claims: Sequence[ConsumerClaim], chosen: Mapping[str, Provider]
) -> bool:
    """Whether it is worth trying: at the first attempt, for new consumers, where statements go together.

    :param chosen: by uuid all providers that make the choices good, as they were when these were made.
    """
    return (
        tx.optimistic
        and tx.sends_at_once
        and sum(len(resources) for claim in claims for resources in claim.resources.values()) <= MAX_ROWS
        and all(claim.generation is None for claim in claims)
        and all(chosen[uuid].inventories[name].portions(amount) for _, uuid, name, amount in amounts(claims))
    )


def write(tx: WriteTransaction, claims: Sequence[ConsumerClaim], chosen: Mapping[str, Provider]) -> None:
    """Queue all that puts these claims into effect, or none of them."""
    lock_claimed(tx, claims)
    taken: Counter[tuple[str, str]] = Counter()
    for _, uuid, name, amount in amounts(claims):
        taken[uuid, name] += amount
    rows = [
        {
            "consumer": claim.consumer,
            "provider": chosen[uuid].id,
            "described": chosen[uuid].described_seq,
            "class": name,
            "used": amount,
            "others": chosen[uuid].inventories[name].capacity - taken[uuid, name],
        }
        for claim, uuid, name, amount in amounts(claims)
    ]
    named = {uuid for uuid, _ in taken}
    witnesses = [provider for uuid, provider in chosen.items() if uuid not in named]
    values = {
        **bind_rows(rows),
        **bind_values("witness", [each.id for each in witnesses]),
        **bind_values("seen", [each.described_seq for each in witnesses]),
        "now": tx.now,
    }
    tx.queue(_insertion(len(rows), len(witnesses)), values)
    tx.changed([chosen[uuid].id for uuid in named], generation=True, usage_only=True)


@lru_cache(KEPT_SIZES)
def _insertion(count: int, witnesses: int) -> PreparedStatement:
    """Inserts allocations, if so many providers of which nothing is taken are described as they were, too.

    Of each class of a provider ``others`` may hold so much.
    """
    seen = [
        _described(provider, seq).exists()
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
        class_id = sa.select(resource_classes.c.id).where(resource_classes.c.name == name).scalar_subquery()
        held = sa.select(sa.func.coalesce(sa.func.sum(allocations.c.used), 0)).where(
            allocations.c.provider_id == provider, allocations.c.resource_class_id == class_id
        )
        good = _described(provider, described).where(held.scalar_subquery() <= others, *seen)
        rows.append(
            {
                "consumer_id": sa.select(consumers.c.id)
                .where(consumers.c.uuid == consumer)
                .scalar_subquery(),
                "provider_id": sa.func.coalesce(good.scalar_subquery(), NO_ID),
                "resource_class_id": sa.func.coalesce(class_id, NO_ID),
                "used": used,
                "updated_at": sa.bindparam("now", type_=sa.Double),
            }
        )
        seen = []  # once will do
    return PreparedStatement(sa.insert(allocations).values(rows))


def _described(provider: sa.BindParameter[int], seq: sa.BindParameter[int]) -> sa.Select[tuple[int]]:
    """The id of a provider if it is described so."""
    return sa.select(resource_providers.c.id).where(
        resource_providers.c.id == provider, resource_providers.c.described_seq == seq
    )
