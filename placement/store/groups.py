"""Groups of consumers: their members with the members' hosts, the checks of a policy, joining and leaving.

A consumer is a member of at most one group. The consumer leaves the group when it loses its last allocation.
A consumer also leaves its group with its next claim, unless this claim names the group again. A transaction
that adds a consumer to a group locks the bucket of the group. So if two consumers join at the same time, the
second transaction sees the first member.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Container, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

import sqlalchemy as sa

from placement.db import buckets
from placement.db.batch import PreparedStatement, Rows, StatementFamily, Values
from placement.db.database import WriteTransaction
from placement.db.tables import (
    TREE_ROOT,
    allocations,
    consumer_groups,
    consumers,
    provider_traits,
    resource_providers,
    traits,
)
from placement.read_model.provider import SHARES


class GroupPolicy(StrEnum):
    """How a policy restricts the hosts of the members of a group; a soft policy is only a preference."""

    AFFINITY = "affinity"
    ANTI_AFFINITY = "anti-affinity"
    SOFT_AFFINITY = "soft-affinity"
    SOFT_ANTI_AFFINITY = "soft-anti-affinity"

    @property
    def is_soft(self) -> bool:
        """Return whether the policy is only a preference, which excludes no host."""
        return self in (GroupPolicy.SOFT_AFFINITY, GroupPolicy.SOFT_ANTI_AFFINITY)


@dataclass(frozen=True, slots=True)
class ConsumerGroup:
    """The group that a consumer joins, and its policy; ``max_per_host`` limits anti-affinity."""

    name: str
    policy: GroupPolicy
    max_per_host: int = 1

    def allows_hosts(self, hosts: Collection[int], present: Mapping[int, int]) -> bool:
        """Return whether another member is allowed on these hosts.

        :param present: the number of other members at each host, by the id of the host's root; a missing host
            has 0.
        """
        # without other members, affinity restricts nothing
        if self.policy is GroupPolicy.AFFINITY:
            return not present or any(host in present for host in hosts)
        if self.policy is GroupPolicy.ANTI_AFFINITY:
            return all(present.get(host, 0) < self.max_per_host for host in hosts)
        # soft policies exclude no host, and only influence the order
        return True

    def host_preference(self, hosts: Collection[int], present: Mapping[int, int], size: int) -> float:
        """Return a score from 0 to 1 for placing another member on these hosts; 1 is best.

        :param present: the number of other members at each host, by the id of the host's root; a missing host
            has 0 members.
        :param size: the number of other members; a member on several hosts counts once.
        """
        # max() is needed, because a member on several hosts is beside the members on all these hosts
        here = max((present.get(host, 0) for host in hosts), default=0)
        if self.policy in (GroupPolicy.AFFINITY, GroupPolicy.SOFT_AFFINITY):
            # the share of members on this host: 1 if all members are on this host
            return here / max(1, size)
        # the score is 1 / (1 + n) instead of 0 or 1, so that hosts with many members still have different
        # scores
        return 1 / (1 + here)


@dataclass(frozen=True, slots=True)
class GroupMembership:
    """A consumer (by uuid), the group that it joins, and the roots of its hosts."""

    consumer: str
    group: ConsumerGroup
    hosts: Collection[int]


@dataclass(frozen=True, slots=True)
class GroupMember:
    """A member of a group, with the roots of the hosts of its allocations.

    The object stores the generation of the member's consumer. While this generation is unchanged, the
    allocations of the member are unchanged, too.
    """

    consumer: str
    generation: int
    hosts: frozenset[int]


Members = Mapping[str, frozenset[GroupMember]]
"""The members of groups, by the name of the group; groups without members may be missing."""


def hosts_of(taken: Iterable[tuple[int, bool]]) -> frozenset[int]:
    """Return the hosts on which a consumer has allocations, as the ids of the hosts' root providers.

    A sharing provider, such as shared storage, does not count as a host, unless the consumer only uses
    sharing providers.

    :param taken: for each provider of the consumer's allocations, the id of the root, and whether it is a
        sharing provider.
    """
    # the argument is copied to a tuple, because it is read twice and may be a generator
    taken = tuple(taken)
    return frozenset(root for root, shares in taken if not shares) or frozenset(root for root, _ in taken)


def members_by_host(members: Iterable[GroupMember], apart_from: Container[str]) -> Counter[int]:
    """Return the number of members at each host, by its root, without consumers in ``apart_from``."""
    return Counter(host for each in members if each.consumer not in apart_from for host in each.hosts)


def size(members: Iterable[GroupMember], apart_from: Container[str]) -> int:
    """Return the number of members with allocations, without the consumers in ``apart_from``."""
    return sum(1 for each in members if each.consumer not in apart_from and each.hosts)


def group_buckets(names: Iterable[str]) -> set[int]:
    """Return the buckets that must be locked before consumers join the groups with these names."""
    return {buckets.bucket_of_group(name) for name in names}


def group_lookup(names: Collection[str]) -> tuple[PreparedStatement, Values]:
    """Return the statement with its values that reads the rows for :func:`group_members`."""
    return _MEMBER_LOOKUP.bind_list(sorted(names))


def group_members(rows: Rows) -> Members:
    """Return the members of groups, with their hosts, from the rows of :func:`group_lookup`."""
    taken: dict[tuple[str, str, int], list[tuple[int, bool]]] = {}
    for name, consumer, generation, root, shares in rows:
        # the generation is part of a member, because with an equal generation its allocations are unchanged
        taken.setdefault((name, consumer, generation), []).append((root, bool(shares)))
    found: dict[str, set[GroupMember]] = {}
    for (name, consumer, generation), providers in taken.items():
        found.setdefault(name, set()).add(GroupMember(consumer, generation, hosts_of(providers)))
    return {name: frozenset(each) for name, each in found.items()}


# the query also tells which providers share, because these are not hosts (see hosts_of)
_sharing: Final = (
    sa.select(provider_traits.c.provider_id)
    .join(traits, traits.c.id == provider_traits.c.trait_id)
    .where(traits.c.name == SHARES)
)


_MEMBER_LOOKUP: Final = StatementFamily(
    consumer_groups.c.name,
    sa.select(
        consumer_groups.c.name,
        consumers.c.uuid,
        consumers.c.generation,
        TREE_ROOT,
        resource_providers.c.id.in_(_sharing),
    )
    .select_from(consumer_groups)
    .join(consumers, consumers.c.id == consumer_groups.c.consumer_id)
    # inner joins suffice, because each consumer has an allocation
    .join(allocations, allocations.c.consumer_id == consumer_groups.c.consumer_id)
    .join(resource_providers, resource_providers.c.id == allocations.c.provider_id)
    .where,
)


def leave_groups(tx: WriteTransaction, consumer_ids: Collection[int]) -> None:
    """Remove these consumers, which the caller has locked, from their groups."""
    if consumer_ids:
        tx.queue(*_MEMBERSHIP_REMOVAL.bind_list(sorted(consumer_ids)))


_MEMBERSHIP_REMOVAL: Final = StatementFamily(consumer_groups.c.consumer_id, sa.delete(consumer_groups).where)


def join_groups(tx: WriteTransaction, names: Mapping[str, str]) -> None:
    """Add consumers to groups; ``names`` has the name of each consumer's group, by the consumer's uuid.

    The caller has locked the buckets of the groups, and the consumers are in no group yet.
    """
    rows = [{"consumer_id": consumer, "name": name} for consumer, name in sorted(names.items())]
    # the ids of new consumers are unknown before the batch is sent
    tx.insert(consumer_groups, rows, keys=("consumer_id",))
