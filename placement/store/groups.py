"""Groups of consumers, with their members, the members' hosts, and the checks of a policy.

This module does not use the database.
"""

from collections import Counter
from collections.abc import Collection, Container, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum


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
