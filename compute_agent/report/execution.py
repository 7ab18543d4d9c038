"""Sends a plan to Placement, as one tree if Placement accepts trees, otherwise action by action.

If Placement refuses the whole tree, the actions are sent one by one, which shows the refused action.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from compute_agent.model.messages import full_name
from compute_agent.report.answers import (
    ConcurrentUpdateError,
    ConflictError,
    PlacementError,
    UnavailableError,
)
from compute_agent.report.client import PlacementClient
from compute_agent.report.plan import (
    Action,
    CreateProvider,
    CreateResourceClass,
    CreateTrait,
    DeleteProvider,
    ReportedProvider,
    SetAttributes,
    SetInventories,
    SetTraits,
    UpdateProvider,
    inventories_to_api,
)
from compute_agent.report.reshape import ReshapePlan


def _changed_provider(
    action: CreateProvider | UpdateProvider | SetInventories | SetTraits | SetAttributes,
    providers: Mapping[str, ReportedProvider],
) -> ReportedProvider:
    """A provider as it is after an action, with its former generation; 0 for a new provider."""
    match action:
        case CreateProvider(uuid, name, parent):
            return ReportedProvider(uuid, name, parent, generation=0)
        case UpdateProvider(uuid, name, parent):
            return replace(providers[uuid], name=name, parent=parent)
        case SetInventories(uuid, inventories):
            return replace(providers[uuid], inventories=dict(inventories))
        case SetTraits(uuid, traits):
            return replace(providers[uuid], traits=traits)
        case SetAttributes(uuid, attributes):
            return replace(providers[uuid], attributes=dict(attributes))


def _combine_actions(
    actions: Sequence[Action], providers: Mapping[str, ReportedProvider]
) -> tuple[list[dict[str, Any]], dict[str, ReportedProvider]] | None:
    """Combine actions into one request for a tree.

    :return: the body of the request, which has the changed fields of the changed providers, and these
        providers as they are after the actions, by uuid; None if a tree cannot replace the actions.
    """
    described: dict[str, dict[str, Any]] = {}
    after: dict[str, ReportedProvider] = {}
    present = dict(providers)
    for action in actions:
        match action:
            case CreateProvider():
                fields: dict[str, Any] = {}
            case SetInventories(inventories=inventories):
                fields = {"inventories": inventories_to_api(inventories)}
            case SetTraits(traits=traits):
                fields = {"traits": sorted(traits)}
            case SetAttributes(attributes=attributes):
                fields = {"attributes": dict(attributes)}
            case _:  # A tree can neither rename, move nor remove a provider.
                return None
        changed = _changed_provider(action, present)
        present[action.uuid] = after[action.uuid] = changed
        known = providers.get(action.uuid)
        place = {
            "uuid": changed.uuid,
            "name": changed.name,
            "parent_provider_uuid": changed.parent,
            "generation": None if known is None else known.generation,
        }
        described.setdefault(action.uuid, place).update(fields)
    return list(described.values()), after


LOG = logging.getLogger(__name__)

_NOT_TOGETHER: Final = frozenset({400, 403, 404, 405, 413})
"""The HTTP statuses of a refused tree after which the actions are sent one by one. For example, a proxy can
block the request with the tree, but no other requests.
"""


@dataclass(frozen=True, slots=True)
class ReportRefusal:
    """A change that Placement refused, and the reason. The log, ``status`` and metrics show the refusal.

    :ivar provider: the name of the provider, if the action does not contain the name.
    """

    action: Action | ReshapePlan
    reason: str
    provider: str = ""

    def __str__(self) -> str:
        """A short text about the refused request."""
        if isinstance(self.action, ReshapePlan):
            return "Reshape"
        name = getattr(self.action, "name", self.provider)
        return f"{type(self.action).__name__} {full_name(name, getattr(self.action, 'uuid', name))}"


@dataclass(frozen=True, slots=True)
class ReportOutcome:
    """The outcome of one report.

    :ivar sent: the number of accepted changes.
    """

    sent: int = 0
    refusals: tuple[ReportRefusal, ...] = ()


class PlanExecution:
    """Sends the actions of one plan, and updates ``providers`` after each accepted change."""

    def __init__(self, client: PlacementClient, providers: dict[str, ReportedProvider]) -> None:
        self._client = client
        self._providers = providers
        self._refusals: list[ReportRefusal] = []
        self._missing: set[str] = set()
        self._stuck_classes: set[str] = set()

    def run(self, actions: tuple[Action, ...]) -> ReportOutcome:
        """Send all actions, except actions that depend on a refused action.

        :raises PlacementError: further requests would fail, too, or the plan is outdated.
        """
        sent, actions = self._send_together(actions)
        for action in actions:
            obstacle = self._find_obstacle(action)
            if obstacle:
                self._note_refusal(action, obstacle)
                continue
            try:
                self._perform_action(action)
                sent += 1
            except (ConcurrentUpdateError, UnavailableError):
                raise
            except PlacementError as error:
                # HTTP 400 and 409 concern this action alone. After any other error, the next action would
                # fail, too.
                if not isinstance(error, ConflictError) and error.status != 400:
                    raise
                self._note_refusal(action, self._whose_name(action) or str(error))
        return ReportOutcome(sent, tuple(self._refusals))

    def _send_together(self, actions: tuple[Action, ...]) -> tuple[int, tuple[Action, ...]]:
        """Send the plan as one request for a tree, if that is possible.

        :return: the number of sent actions, and the actions that remain.
        """
        ahead = [each for each in actions if isinstance(each, CreateResourceClass | CreateTrait)]
        rest = [each for each in actions if not isinstance(each, CreateResourceClass | CreateTrait)]
        # With a single change, a tree request saves nothing.
        combined = _combine_actions(rest, self._providers) if len(rest) > 1 else None
        if combined is None or not self._client.has_trees():
            return 0, actions
        body, after = combined
        try:
            # A tree can contain only resource classes and traits that exist.
            for action in ahead:
                self._perform_action(action)
            LOG.debug("The agent sends %d changes of its provider tree to Placement", len(rest))
            generations = self._client.write_tree(body)
        except (ConcurrentUpdateError, UnavailableError):
            raise
        except PlacementError as error:
            if not isinstance(error, ConflictError) and error.status not in _NOT_TOGETHER:
                raise
            LOG.info(
                "Placement refused the changes in one request (%s), so the agent sends them one by one", error
            )
            return 0, actions
        for uuid, provider in after.items():
            self._providers[uuid] = replace(provider, generation=generations[uuid])
        return len(actions), ()

    def _whose_name(self, action: Action) -> str:
        """A remedy, if another provider already has the name of the root provider; otherwise empty."""
        if not isinstance(action, CreateProvider | UpdateProvider) or action.parent is not None:
            return ""
        # This request only serves to explain the refusal, so its own errors are ignored.
        try:
            other = self._client.provider_named(action.name)
        except PlacementError:
            return ""
        if other in (None, action.uuid):
            return ""
        return (
            f"the name {action.name} belongs to the provider {other}, but the provider of this host is"
            f" {action.uuid}. If {other} is this host's provider of a lost state folder, stop the agent,"
            f" write {other} into the file compute_id in [DEFAULT] state_path, and start the agent; guests"
            f" continue to run. If {other} is another host's provider, set [compute]"
            f" resource_provider_name to another name. If nova-compute made {other}, set [compute]"
            " provider_tree = beside"
        )

    def _find_obstacle(self, action: Action) -> str | None:
        """The reason why an action cannot be sent after a refused action; None if it can be sent."""
        match action:
            case CreateProvider(parent=parent) if parent in self._missing:
                return f"its parent {parent} could not be created"
            case SetInventories(uuid=uuid) | SetTraits(uuid=uuid) | SetAttributes(uuid=uuid) if (
                uuid in self._missing
            ):
                return "the provider could not be created"
            case SetInventories(uuid=uuid, inventories=inventories):
                # An inventory must not grow after a refused shrinking: its capacity would be offered by two
                # providers.
                added = inventories.keys() - self._providers[uuid].inventories.keys()
                if stuck := sorted(added & self._stuck_classes):
                    return f"{', '.join(stuck)} is still in use on another provider of the host"
        return None

    def _note_refusal(self, action: Action, reason: str) -> None:
        known = self._providers.get(getattr(action, "uuid", ""))
        self._refusals.append(ReportRefusal(action, reason, "" if known is None else known.name))
        match action:
            case CreateProvider(uuid=uuid):
                self._missing.add(uuid)
            case DeleteProvider(uuid=uuid):
                self._stuck_classes |= self._providers[uuid].inventories.keys()
            case SetInventories(uuid=uuid, inventories=inventories) if uuid in self._providers:
                self._stuck_classes |= self._providers[uuid].inventories.keys() - inventories.keys()

    def _perform_action(self, action: Action) -> None:
        client, providers = self._client, self._providers
        LOG.debug("The agent sends a change to Placement: %s", action)
        match action:
            case CreateResourceClass(name):
                client.create_resource_class(name)
                return
            case CreateTrait(name):
                client.create_trait(name)
                return
            case DeleteProvider(uuid):
                client.delete_provider(uuid)
                del providers[uuid]
                return
            case CreateProvider(uuid, name, parent):
                generation = client.create_provider(uuid, name, parent).generation
            case UpdateProvider(uuid, name, parent):
                generation = client.update_provider(uuid, name, parent).generation
            case SetInventories(uuid, inventories):
                body = inventories_to_api(inventories)
                generation = client.set_inventories(uuid, body, providers[uuid].generation)
            case SetTraits(uuid, traits):
                generation = client.set_traits(uuid, traits, providers[uuid].generation)
            case SetAttributes(uuid, attributes):
                generation = client.set_attributes(uuid, attributes, providers[uuid].generation)
        providers[uuid] = replace(_changed_provider(action, providers), generation=generation)
