"""Groups of consumers: who is a member, where, and what a policy allows. Data and decisions, no database."""

from collections import Counter
from collections.abc import Collection, Container, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum


class GroupPolicy(StrEnum):
    """How members of a group are to be placed beside each other; of soft ones as far as there is room."""

    AFFINITY = "affinity"
    ANTI_AFFINITY = "anti-affinity"
    SOFT_AFFINITY = "soft-affinity"
    SOFT_ANTI_AFFINITY = "soft-anti-affinity"

    @property
    def is_soft(self) -> bool:
        """Whether it only says what is better."""
        return self in (GroupPolicy.SOFT_AFFINITY, GroupPolicy.SOFT_ANTI_AFFINITY)


@dataclass(frozen=True, slots=True)
class ConsumerGroup:
    """The group that a consumer joins, and what is asked of its place beside the other members.

    ``max_per_host`` is how many members a host may have, for anti-affinity.
    """

    name: str
    policy: GroupPolicy
    max_per_host: int = 1

    def allows(self, hosts: Collection[int], present: Mapping[int, int]) -> bool:
        """Whether one more member may be on these hosts.

        :param present: how many of the others each host has, by the id of its root; none has none.
        """
        if self.policy is GroupPolicy.AFFINITY:
            return not present or any(host in present for host in hosts)
        if self.policy is GroupPolicy.ANTI_AFFINITY:
            return all(present.get(host, 0) < self.max_per_host for host in hosts)
        return True

    def liking(self, hosts: Collection[int], present: Mapping[int, int], size: int) -> float:
        """From 0 to 1, how well one more member is placed on these hosts; as for :meth:`allows`.

        :param size: how many others there are; one that is on several hosts is one.
        """
        here = max((present.get(host, 0) for host in hosts), default=0)
        if self.policy in (GroupPolicy.AFFINITY, GroupPolicy.SOFT_AFFINITY):
            return here / max(1, size)
        return 1 / (1 + here)


@dataclass(frozen=True, slots=True)
class GroupMember:
    """A consumer of a group, with the roots of the hosts where it holds something.

    With the same generation it holds what it held.
    """

    consumer: str
    generation: int
    hosts: frozenset[int]


Members = Mapping[str, frozenset[GroupMember]]
"""By the name of the group; one without members may be left out."""


def hosts_of(taken: Iterable[tuple[int, bool]]) -> frozenset[int]:
    """On which hosts a consumer is, by the ids of their roots.

    A provider that shares with others (a pool of disk, say) is no host to be on, unless there is no other.

    :param taken: for all providers that it holds something of the id of their root, and whether they share.
    """
    taken = tuple(taken)
    return frozenset(root for root, shares in taken if not shares) or frozenset(root for root, _ in taken)


def present(members: Iterable[GroupMember], apart_from: Container[str]) -> Counter[int]:
    """How many of them each host has, some consumers not counted."""
    return Counter(host for each in members if each.consumer not in apart_from for host in each.hosts)


def size(members: Iterable[GroupMember], apart_from: Container[str]) -> int:
    """How many of them there are, some consumers not counted."""
    return sum(1 for each in members if each.consumer not in apart_from and each.hosts)
