"""Plans reports: finds the actions that make Placement's providers equal to the host's tree. Pure functions.

:func:`plan_actions` compares two trees.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Final

import os_traits

from compute_agent.inventory.attributes import is_ours
from compute_agent.inventory.provider_tree import (
    ProviderInventory,
    ProviderNode,
    ProviderTree,
    device_of,
)
from compute_agent.model.messages import full_name
from compute_agent.model.resource import HOST_OWNED
from compute_agent.report.adjustments import (
    SettledInventory,
    Written,
    in_words,
    remember_written,
    settle_inventory,
    written_fields,
)

CUSTOM_PREFIX: Final = "CUSTOM_"


@dataclass(frozen=True, slots=True)
class ReportedProvider:
    """A resource provider with its present values in Placement."""

    uuid: str
    name: str
    parent: str | None
    generation: int
    inventories: Mapping[str, ProviderInventory] = field(default_factory=dict)
    traits: frozenset[str] = frozenset()
    attributes: Mapping[str, str | float] = field(default_factory=dict)


def present_inventories(
    uuid: str, reported: Mapping[str, ReportedProvider]
) -> Mapping[str, ProviderInventory]:
    """The inventories of a provider in Placement; empty if Placement has no such provider."""
    return reported[uuid].inventories if uuid in reported else {}


def is_novas_device(provider: ReportedProvider) -> bool:
    """Whether nova-compute reports the PCI device that this provider represents."""
    if os_traits.COMPUTE_MANAGED_PCI_DEVICE in provider.traits:
        return True
    # This trait marks nova-compute's providers of vGPUs.
    return os_traits.OWNER_NOVA in provider.traits and bool(device_of(provider.name))


@dataclass(frozen=True, slots=True)
class OwnedNames:
    """The names and values of one provider that belong to the agent.

    :ivar classes: the resource classes that the agent can change and remove.
    :ivar traits: the traits that the agent can change and remove.
    :ivar written: the values that the agent wrote to fields that other programs can also set.
    """

    classes: frozenset[str] = frozenset()
    traits: frozenset[str] = frozenset()
    written: Written = frozenset()


Ownership = Mapping[str, OwnedNames]
"""The names and values that belong to the agent, by provider uuid. The agent has made each provider that has
an entry here.
"""


@dataclass(frozen=True, slots=True)
class CreateResourceClass:
    """Create a custom resource class."""

    name: str


@dataclass(frozen=True, slots=True)
class CreateTrait:
    """Create a custom trait."""

    name: str


@dataclass(frozen=True, slots=True)
class CreateProvider:
    """Create a provider below ``parent``; a root provider if ``parent`` is None."""

    uuid: str
    name: str
    parent: str | None


@dataclass(frozen=True, slots=True)
class UpdateProvider:
    """Give a provider another name or parent."""

    uuid: str
    name: str
    parent: str | None


@dataclass(frozen=True, slots=True)
class SetInventories:
    """Replace the inventories of a provider. The inventories include foreign ones, unchanged."""

    uuid: str
    inventories: Mapping[str, ProviderInventory]


@dataclass(frozen=True, slots=True)
class SetTraits:
    """Replace the traits of a provider. The traits include foreign ones, unchanged."""

    uuid: str
    traits: frozenset[str]


@dataclass(frozen=True, slots=True)
class SetAttributes:
    """Replace the attributes of a provider. The attributes include foreign ones, unchanged."""

    uuid: str
    attributes: Mapping[str, str | float]


@dataclass(frozen=True, slots=True)
class DeleteProvider:
    """Delete a provider of the agent that is no longer in the host's tree."""

    uuid: str


Action = (
    CreateResourceClass
    | CreateTrait
    | CreateProvider
    | UpdateProvider
    | SetInventories
    | SetTraits
    | SetAttributes
    | DeleteProvider
)


@dataclass(frozen=True, slots=True)
class KnownNames:
    """The resource classes and traits that the server knows, and whether it supports provider attributes."""

    classes: frozenset[str]
    traits: frozenset[str]
    attributes: bool = False


def plan_actions(
    derived: ProviderTree, reported: Mapping[str, ReportedProvider], owned: Ownership, known: KnownNames
) -> tuple[Action, ...]:
    """The actions that make ``reported`` equal to ``derived``, in an order in which each can succeed.

    The result is empty if nothing differs. Inventories, traits and providers of other programs stay. A
    standard trait that the server does not know is left out: the server's os-traits is older than the
    agent's.

    :param derived: the host's tree.
    :param reported: the providers in Placement, by uuid.
    :param owned: the agent's own parts of these providers.
    :param known: the names that the server knows.
    """
    return tuple(_plan_steps(derived, reported, owned, known))


def _plan_steps(
    derived: ProviderTree, reported: Mapping[str, ReportedProvider], owned: Ownership, known: KnownNames
) -> Iterator[Action]:
    """Yield, in order: names, providers, deletions, shrinking and growing inventories, traits, attributes."""
    # In this order, capacity that moves from one provider to another is never offered by both providers.
    classes = {name for node in derived.ours for name in node.inventories}
    yield from map(CreateResourceClass, sorted(classes - known.classes))
    traits = {name for node in derived.ours for name in node.traits}
    # Clients can create only custom traits; unknown_traits() returns the other traits.
    yield from (CreateTrait(name) for name in sorted(traits - known.traits) if name.startswith(CUSTOM_PREFIX))

    current: dict[str, ReportedProvider] = {}
    for node in derived.ours:
        has = reported.get(node.uuid)
        if has is None:
            yield CreateProvider(node.uuid, node.name, node.parent)
            # The following actions assume that the provider exists and is empty.
            has = ReportedProvider(node.uuid, node.name, node.parent, generation=0)
        elif (has.name, has.parent) != (node.name, node.parent):
            yield UpdateProvider(node.uuid, node.name, node.parent)
        current[node.uuid] = has

    # Deletions come after the updates, which move providers away from former parents: Placement deletes no
    # provider with children.
    yield from plan_deletions(reported, owned, derived)
    shrinking: list[Action] = []
    growing: list[Action] = []
    for node in derived.ours:
        has = current[node.uuid]
        wanted = wanted_inventories(derived, node, reported, owned)
        if wanted != dict(has.inventories):
            less = any(
                _offered_capacity(wanted.get(name)) < _offered_capacity(own)
                for name, own in has.inventories.items()
            )
            (shrinking if less else growing).append(SetInventories(node.uuid, wanted))
    yield from shrinking
    yield from growing

    for node in derived.ours:
        has = current[node.uuid]
        wanted_set = wanted_traits(node, has, owned.get(node.uuid, OwnedNames()), known)
        if wanted_set != has.traits:
            yield SetTraits(node.uuid, wanted_set)
        if known.attributes:
            yield from _plan_attributes(has, node.attributes)
    if known.attributes:
        yield from plan_device_attributes(reported, derived.device_attributes)


def plan_device_attributes(
    reported: Mapping[str, ReportedProvider], wanted: Mapping[str, Mapping[str, str | float]]
) -> Iterator[Action]:
    """Yield the changes that give nova-compute's devices exactly the ``wanted`` attributes of the agent.

    :param wanted: attributes by the PCI address of the device.
    """
    for provider in filter(is_novas_device, reported.values()):
        yield from _plan_attributes(provider, wanted.get(device_of(provider.name), {}))


def _plan_attributes(has: ReportedProvider, attributes: Mapping[str, str | float]) -> Iterator[SetAttributes]:
    others = {name: value for name, value in has.attributes.items() if not is_ours(name)}
    kept = {**others, **attributes}
    if kept != dict(has.attributes):
        yield SetAttributes(has.uuid, kept)


def _offered_capacity(inventory: ProviderInventory | None) -> int:
    """The units that an inventory offers; -1 without one, so that its removal counts as shrinking."""
    return -1 if inventory is None else inventory.total - inventory.reserved


def wanted_inventories(
    derived: ProviderTree, node: ProviderNode, reported: Mapping[str, ReportedProvider], owned: Ownership
) -> dict[str, ProviderInventory]:
    """All inventories that a provider should have: those of other programs, and the agent's own."""
    ours, present = owned.get(node.uuid, OwnedNames()), present_inventories(node.uuid, reported)
    others = {name: held for name, held in present.items() if name not in ours.classes}
    settled = settled_inventories(derived, node, reported, owned)
    return {**others, **{name: one.inventory for name, one in settled.items()}}


def settled_inventories(
    derived: ProviderTree, node: ProviderNode, reported: Mapping[str, ReportedProvider], owned: Ownership
) -> dict[str, SettledInventory]:
    """The agent's inventories of a provider by resource class, with the decisions about foreign values."""
    ours, present = owned.get(node.uuid, OwnedNames()), present_inventories(node.uuid, reported)
    return {
        name: settle_inventory(
            name,
            inventory,
            present.get(name),
            ours.written,
            derived.configured,
            _ratio_elsewhere(name, reported, owned),
        )
        for name, inventory in node.inventories.items()
    }


def adjustment_sentences(
    derived: ProviderTree, reported: Mapping[str, ReportedProvider], owned: Ownership
) -> Iterator[str]:
    """A message about each foreign value in the agent's inventories, with the decision about this value."""
    for node in derived.ours:
        for name, settled in settled_inventories(derived, node, reported, owned).items():
            for one in settled.adjustments:
                yield f"{full_name(node.name, node.uuid)}: {in_words(name, one)}"


def _ratio_elsewhere(name: str, reported: Mapping[str, ReportedProvider], owned: Ownership) -> float | None:
    """The highest allocation ratio of a class on the agent's providers; None if none has it."""
    ratios = (
        provider.inventories[name].allocation_ratio
        for uuid, provider in reported.items()
        if uuid in owned and name in provider.inventories
    )
    return max(ratios, default=None)


def wanted_traits(
    node: ProviderNode, has: ReportedProvider, ours: OwnedNames, known: KnownNames
) -> frozenset[str]:
    """All traits that a provider should have: those of other programs, and the agent's derived traits."""
    return (has.traits - ours.traits) | (node.traits - _unmakeable_traits(node, known))


def unknown_traits(derived: ProviderTree, known: KnownNames) -> frozenset[str]:
    """The traits of the tree that the server does not know and no client can create."""
    return frozenset[str]().union(*(_unmakeable_traits(node, known) for node in derived.ours))


def _unmakeable_traits(node: ProviderNode, known: KnownNames) -> frozenset[str]:
    return frozenset(t for t in node.traits - known.traits if not t.startswith(CUSTOM_PREFIX))


def plan_deletions(
    reported: Mapping[str, ReportedProvider], owned: Ownership, derived: ProviderTree | None = None
) -> Iterator[Action]:
    """Yield the deletions of providers of the agent that the tree no longer has, children first.

    A provider stays if another program has made a provider below it.

    :param derived: the present tree; None means that all providers of the agent are deleted.
    """
    present = {} if derived is None else {node.uuid: node.parent for node in derived.nodes}
    # The actions before the deletions have moved the remaining providers below their new parents.
    parents = {**{uuid: provider.parent for uuid, provider in reported.items()}, **present}
    doomed = {uuid for uuid in reported if uuid in owned and uuid not in present}
    while ready := doomed - set(parents.values()):
        for uuid in sorted(ready):
            yield DeleteProvider(uuid)
            del parents[uuid]
        doomed -= ready


def assume_ownership(
    derived: ProviderTree, reported: Mapping[str, ReportedProvider], owned: Ownership
) -> Ownership:
    """A copy of ``owned`` that also has entries for those providers of the tree that lack one.

    These entries are assumed. They are needed after the loss of the state file, which lists the agent's own
    names.

    The agent's classes and the derived traits that such a provider has in Placement count as the agent's own.
    """
    assumed = {
        node.uuid: OwnedNames(
            classes=(HOST_OWNED | node.inventories.keys()) & has.inventories.keys(),
            traits=node.traits & has.traits,
        )
        for node in derived.ours
        if node.uuid not in owned and (has := reported.get(node.uuid)) is not None
    }
    return {**owned, **assumed}


def ownership_before(
    derived: ProviderTree, reported: Mapping[str, ReportedProvider], owned: Ownership
) -> Ownership:
    """The names and values that can become the agent's own when a plan is sent.

    The caller saves these names and values before the first request. Otherwise a name that the agent wrote
    could count as foreign after a crash. A trait that another program has already set stays foreign. If the
    root belongs to nova-compute, nothing of the root ever belongs to the agent.
    """
    claims: dict[str, OwnedNames] = dict(owned)
    if derived.beside:
        claims.pop(derived.root.uuid, None)
    for node in derived.ours:
        old = owned.get(node.uuid, OwnedNames())
        has = reported.get(node.uuid)
        foreign = frozenset() if has is None else has.traits - old.traits
        claims[node.uuid] = OwnedNames(
            classes=old.classes | frozenset(node.inventories),
            traits=old.traits | (node.traits - foreign),
            written=old.written | written_fields(settled_inventories(derived, node, reported, owned)),
        )
    return claims


def ownership_after(
    derived: ProviderTree, claims: Ownership, reported: Mapping[str, ReportedProvider]
) -> Ownership:
    """The agent's own names and values when the providers in Placement are ``reported``.

    The result contains those names and values of ``claims`` that the tree has or that are still in Placement.

    :param claims: the result of :func:`ownership_before`.
    """
    result: dict[str, OwnedNames] = {}
    for uuid, claim in claims.items():
        node, has = derived.get(uuid), reported.get(uuid)
        if node is None and has is None:
            # A provider that is neither in the tree nor in Placement needs no entry.
            continue
        classes = frozenset() if node is None else frozenset(node.inventories)
        traits = frozenset() if node is None else node.traits
        written = claim.written
        if node is not None and has is not None:
            written = remember_written(
                settled_inventories(derived, node, reported, claims), claim.written, has.inventories
            )
        if has is not None:
            classes |= claim.classes & frozenset(has.inventories)
            traits = (traits | has.traits) & claim.traits
        result[uuid] = OwnedNames(classes & claim.classes, traits & claim.traits, written)
    return result


def to_api(inventory: ProviderInventory) -> dict[str, Any]:
    """Convert an inventory to the form of the Placement API."""
    return asdict(inventory)


def inventories_to_api(inventories: Mapping[str, ProviderInventory]) -> dict[str, dict[str, Any]]:
    """Convert inventories by resource class to the form of the Placement API."""
    return {name: to_api(inventory) for name, inventory in inventories.items()}


def provider_from_tree(record: Mapping[str, Any]) -> ReportedProvider:
    """Convert a provider from its form in an answer of ``/ext/v1/trees``."""
    return ReportedProvider(
        record["uuid"],
        record["name"],
        # A server can omit the parent of a root provider.
        record.get("parent_provider_uuid"),
        record["generation"],
        {name: from_api(inventory) for name, inventory in record["inventories"].items()},
        frozenset(record["traits"]),
        record["attributes"],
    )


def from_api(record: Mapping[str, Any]) -> ProviderInventory:
    """Convert an inventory from its form in the Placement API, which can have further keys."""
    return ProviderInventory(**{each.name: record[each.name] for each in fields(ProviderInventory)})
