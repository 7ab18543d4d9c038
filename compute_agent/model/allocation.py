"""What a consumer holds in Placement."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

Allocation = Mapping[str, Mapping[str, int]]
"""Amounts by provider uuid and resource class."""


@dataclass(frozen=True, slots=True)
class ConsumerAllocations:
    """All that one consumer holds, on this host and elsewhere. Empty when it holds nothing."""

    consumer: str
    resources: Allocation = field(default_factory=dict)
    generation: int | None = None
    project_id: str | None = None
    user_id: str | None = None
    consumer_type: str | None = None

    def without(self, providers: Collection[str]) -> ConsumerAllocations:
        """The same consumer when it holds nothing of these providers any more."""
        rest = {uuid: amounts for uuid, amounts in self.resources.items() if uuid not in providers}
        return replace(self, resources=rest)
