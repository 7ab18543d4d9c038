"""A guest that is being moved to another host, or resized."""

from __future__ import annotations

from dataclasses import dataclass

from compute_agent.model.allocation import Allocation


@dataclass(frozen=True, slots=True)
class GuestMigration:
    """The migration of a guest that still runs here.

    ``consumer`` holds what the guest held here; ``others`` are those that might as well be the one.
    """

    consumer: str
    others: tuple[str, ...] = ()

    def __str__(self) -> str:
        text = f"migrating: what it has here is held by consumer {self.consumer}"
        return text if not self.others else f"{text}, or by {' or '.join(self.others)}, which hold as much"


@dataclass(frozen=True, slots=True)
class GuestHolding:
    """What a guest holds of this host: by itself, or through its migration."""

    allocation: Allocation
    migration: GuestMigration | None = None
