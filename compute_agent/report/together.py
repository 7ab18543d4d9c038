"""Actions of a plan as one description of a tree, where Placement takes whole trees.

What is refused as a whole is sent action by action: so it is found out which of them are refused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from compute_agent.report.plan import (
    Action,
    CreateProvider,
    CreateResourceClass,
    CreateTrait,
    ReportedProvider,
    SetAttributes,
    SetInventories,
    SetTraits,
    to_api,
)


@dataclass(frozen=True, slots=True)
class TreeWrite:
    """Names that have to be made ``ahead``, then all other ``actions``.

    ``before`` are providers by uuid, ``after`` those of the actions as they make them.
    """

    ahead: tuple[Action, ...]
    actions: tuple[Action, ...]
    before: Mapping[str, ReportedProvider]
    after: Mapping[str, ReportedProvider]

    def body(self) -> list[dict[str, Any]]:
        """The descriptions: what the actions are about, and nothing else."""
        described = {uuid: self._place(provider) for uuid, provider in self.after.items()}
        for action in self.actions:
            match action:
                case SetInventories(uuid, inventories):
                    described[uuid]["inventories"] = {
                        name: to_api(inventory) for name, inventory in inventories.items()
                    }
                case SetTraits(uuid, traits):
                    described[uuid]["traits"] = sorted(traits)
                case SetAttributes(uuid, attributes):
                    described[uuid]["attributes"] = dict(attributes)
        return list(described.values())

    def _place(self, provider: ReportedProvider) -> dict[str, Any]:
        known = self.before.get(provider.uuid)
        return {
            "uuid": provider.uuid,
            "name": provider.name,
            "parent_provider_uuid": provider.parent,
            "generation": None if known is None else known.generation,
        }


def together(actions: Sequence[Action], providers: Mapping[str, ReportedProvider]) -> TreeWrite | None:
    """The actions as one request; None if one of them cannot be part of it, or it would save nothing."""
    ahead = tuple(each for each in actions if isinstance(each, CreateResourceClass | CreateTrait))
    rest = tuple(each for each in actions if not isinstance(each, CreateResourceClass | CreateTrait))
    if len(rest) < 2:
        return None
    after: dict[str, ReportedProvider] = {}
    for action in rest:
        match action:
            case CreateProvider(uuid, name, parent):
                after[uuid] = ReportedProvider(uuid, name, parent, generation=0)
            case SetInventories(uuid, inventories):
                after[uuid] = replace(after.get(uuid) or providers[uuid], inventories=dict(inventories))
            case SetTraits(uuid, traits):
                after[uuid] = replace(after.get(uuid) or providers[uuid], traits=traits)
            case SetAttributes(uuid, attributes):
                after[uuid] = replace(after.get(uuid) or providers[uuid], attributes=dict(attributes))
            case _:  # what is moved, renamed or removed is so by requests of its own
                return None
    return TreeWrite(ahead, rest, providers, after)
