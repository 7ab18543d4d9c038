"""What placing looks at: providers as they are used, and who is in which group."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from placement.claims.choice import HostChoice, holding
from placement.claims.topology import Distances
from placement.claims.wanted import WantedClaim
from placement.model.snapshot import ModelSnapshot
from placement.store.groups import ConsumerGroup, Members, present

NOBODY: Final[Mapping[int, int]] = {}


@dataclass(frozen=True, slots=True)
class ClaimScenario:
    """A snapshot, which must not be changed, and of each group how many members a host has, by its root.

    ``distances`` are those of zones, where they are known; all others are equally far apart.
    """

    snapshot: ModelSnapshot
    groups: Mapping[str, Mapping[int, int]] = field(default_factory=dict)
    distances: Distances = field(default_factory=dict)

    @classmethod
    def of(cls, snapshot: ModelSnapshot, members: Members, wanted: Iterable[WantedClaim]) -> "ClaimScenario":
        """The world before any of those wanted has a place."""
        wanted = list(wanted)
        moving = {each.consumer for each in wanted}
        groups = {name: present(each, moving) for name, each in members.items()}
        far = any(each.topology is not None or "distance" in dict(each.order) for each in wanted)
        return cls(snapshot, groups, snapshot.distances() if far else {})

    def beside(self, group: ConsumerGroup | None) -> Mapping[int, int]:
        """How many members each host has that whoever joins this group would be beside."""
        return NOBODY if group is None else self.groups.get(group.name, NOBODY)

    def holding(self, wanted: WantedClaim, choice: HostChoice) -> "ClaimScenario":
        """The world in which this choice was made for one that is wanted."""
        world = replace(self, snapshot=holding(self.snapshot, choice))
        if wanted.group is None:
            return world
        count = Counter(self.beside(wanted.group))
        count.update(choice.hosts)
        return replace(world, groups={**self.groups, wanted.group.name: count})
