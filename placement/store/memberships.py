"""Which consumers are in which group, in the database.

A consumer is in one group at most, from the claim that says so until one that says something else, or
until it holds nothing. Who joins a group keeps its bucket locked, so that of two who join at once one sees
the other.
"""

from collections.abc import Collection, Iterable, Mapping
from functools import lru_cache
from typing import Final

import sqlalchemy as sa

from placement.db import buckets
from placement.db.batch import (
    KEPT_SIZES,
    PreparedStatement,
    Rows,
    Values,
    bind_parameters,
    bind_rows,
    bind_values,
)
from placement.db.database import WriteTransaction
from placement.db.tables import (
    ConsumerId,
    allocations,
    consumer_groups,
    consumers,
    provider_traits,
    resource_providers,
    traits,
)
from placement.model.provider import SHARES
from placement.store.groups import GroupMember, Members, hosts_of


def buckets_of(names: Iterable[str]) -> set[int]:
    """What has to be locked to join groups of these names."""
    return {buckets.bucket_of_group(name) for name in names}


def lookup(names: Collection[str]) -> tuple[PreparedStatement, Values]:
    """The statement whose rows :func:`members` takes, with its values."""
    return _members(len(names)), bind_values("group", sorted(names))


def members(rows: Rows) -> Members:
    """Who is in the groups that were looked up, and where."""
    taken: dict[tuple[str, str, int], list[tuple[int, bool]]] = {}
    for name, consumer, generation, root, shares in rows:
        taken.setdefault((name, consumer, generation), []).append((root, bool(shares)))
    found: dict[str, set[GroupMember]] = {}
    for (name, consumer, generation), providers in taken.items():
        found.setdefault(name, set()).add(GroupMember(consumer, generation, hosts_of(providers)))
    return {name: frozenset(each) for name, each in found.items()}


_sharing: Final = (
    sa.select(provider_traits.c.provider_id)
    .join(traits, traits.c.id == provider_traits.c.trait_id)
    .where(traits.c.name == SHARES)
)


@lru_cache(KEPT_SIZES)
def _members(count: int) -> PreparedStatement:
    return PreparedStatement(
        sa.select(
            consumer_groups.c.name,
            consumers.c.uuid,
            consumers.c.generation,
            sa.func.coalesce(resource_providers.c.root_id, resource_providers.c.id),
            resource_providers.c.id.in_(_sharing),
        )
        .select_from(consumer_groups)
        .join(consumers, consumers.c.id == consumer_groups.c.consumer_id)
        .join(allocations, allocations.c.consumer_id == consumer_groups.c.consumer_id)
        .join(resource_providers, resource_providers.c.id == allocations.c.provider_id)
        .where(consumer_groups.c.name.in_(bind_parameters("group", count)))
    )


def leave(tx: WriteTransaction, consumer_ids: Collection[int]) -> None:
    """Have these (locked) consumers be in no group."""
    if consumer_ids:
        tx.queue(_removal(len(consumer_ids)), bind_values("id", sorted(consumer_ids)))


@lru_cache(KEPT_SIZES)
def _removal(count: int) -> PreparedStatement:
    chosen = consumer_groups.c.consumer_id.in_(bind_parameters("id", count, ConsumerId))
    return PreparedStatement(sa.delete(consumer_groups).where(chosen))


def join(tx: WriteTransaction, names: Mapping[str, str]) -> None:
    """Have consumers, by uuid, be in groups; they are in none, and the groups are locked."""
    rows = [{"consumer": consumer, "name": name} for consumer, name in sorted(names.items())]
    if rows:
        tx.queue(_insertion(len(rows)), bind_rows(rows))


@lru_cache(KEPT_SIZES)
def _insertion(count: int) -> PreparedStatement:
    """Makes members of consumers whose ids are not known yet."""
    rows = [
        {
            "consumer_id": sa.select(consumers.c.id).where(consumers.c.uuid == consumer).scalar_subquery(),
            "name": name,
        }
        for consumer, name in zip(
            bind_parameters("consumer", count), bind_parameters("name", count), strict=True
        )
    ]
    return PreparedStatement(sa.insert(consumer_groups).values(rows))
