"""Plans of reports: the actions that make Placement's providers equal to the host's tree. Pure functions.

:func:`plan_actions` compares two trees. :func:`settle_inventory` decides about ``reserved`` and
``allocation_ratio``, which operators and other programs may set through the API. A foreign value stays unless
an option of the ini file sets the field, as in Nova (see its documentation of ``cpu_allocation_ratio``). The
agent remembers each value before it sends it, as (class, field, value). A value is foreign if the agent
neither remembers it nor would write it now.

- An option of the ini file sets the field: the value of the option.
- Another program set the field: the foreign value.
- The value is the agent's own: ``reserved`` as derived, ``allocation_ratio`` unchanged. An option that is
  not set changes no ratio, as ``initial_*_allocation_ratio`` is for new inventories.

Foreign values can offer less of an exclusive class (PCPU, LLC, ...) than the host has, and never more: one
unit has one holder.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final

import os_traits

from compute_agent.inventory.attributes import is_ours
from compute_agent.inventory.derive import CONFIGURABLE
from compute_agent.inventory.provider_files import OPTION
from compute_agent.inventory.provider_tree import (
    FIELDS,
    Field,
    ProviderInventory,
    ProviderNode,
    ProviderTree,
    device_of,
)
from compute_agent.model.messages import full_name
from compute_agent.model.resource import EXCLUSIVE, HOST_OWNED

Written = frozenset[tuple[str, Field, float]]
"""Values that the agent may have written last to a provider: resource class, field, value."""


class AdjustmentVerdict(enum.StrEnum):
    """The outcome for a value that another program set."""

    KEPT = "kept"
    OVERRULED = "overruled by the configuration"
    LIMITED = "limited to what there is"


@dataclass(frozen=True, slots=True)
class InventoryAdjustment:
    """A field that another program set to ``value``, and the agent would set to ``own``."""

    field: Field
    value: float
    own: float
    verdict: AdjustmentVerdict
    becomes: float


@dataclass(frozen=True, slots=True)
class SettledInventory:
    """The inventory to report, and the values that other programs set."""

    inventory: ProviderInventory
    adjustments: tuple[InventoryAdjustment, ...] = ()

    @property
    def kept_fields(self) -> frozenset[Field]:
        """Fields with values of other programs."""
        return frozenset(each.field for each in self.adjustments if each.becomes != each.own)


def settle_inventory(
    name: str,
    derived: ProviderInventory,
    has: ProviderInventory | None,
    written: Written,
    configured: frozenset[tuple[str, Field]],
    ratio_elsewhere: float | None = None,
) -> SettledInventory:
    """The inventory of a class to report.

    :param has: the inventory in Placement; None without one.
    :param written: values that the agent may have written last.
    :param configured: classes and fields that an option of the ini file sets.
    :param ratio_elsewhere: the ratio of the class on other providers of the host.
    """
    if has is None:
        # An inventory that moves to another provider keeps the ratio that an operator gave it there.
        free = ("allocation_ratio" not in fields_of(name, configured)) and name not in EXCLUSIVE
        if ratio_elsewhere is not None and free:
            return SettledInventory(replace(derived, allocation_ratio=ratio_elsewhere))
        return SettledInventory(derived)
    result, adjustments = derived, []
    for each in FIELDS:
        there, own = getattr(has, each), getattr(derived, each)
        if there == own:
            continue
        if (name, each, there) in written:
            # The agent's own value follows the derived one, except for a ratio that no option sets.
            if each == "allocation_ratio" and (name, each) not in configured and name not in EXCLUSIVE:
                result = replace(result, allocation_ratio=there)
            continue
        verdict, becomes = _judge_value(name, each, there, derived, configured)
        adjustments.append(InventoryAdjustment(each, there, own, verdict, becomes))
        if each == "reserved":
            result = replace(result, reserved=int(becomes))
        else:
            result = replace(result, allocation_ratio=becomes)
    return SettledInventory(result, tuple(adjustments))


def fields_of(name: str, configured: frozenset[tuple[str, Field]]) -> frozenset[Field]:
    """Fields of a class that options set."""
    return frozenset(field for one, field in configured if one == name)


def _judge_value(
    name: str,
    field: Field,
    there: float,
    derived: ProviderInventory,
    configured: frozenset[tuple[str, Field]],
) -> tuple[AdjustmentVerdict, float]:
    if (name, field) in configured:
        return AdjustmentVerdict.OVERRULED, getattr(derived, field)
    # Placement accepts a reserve above the total; the agent caps it.
    if field == "reserved":
        # A smaller reserve than the agent's own would offer units that the host does not have.
        least = derived.reserved if name in EXCLUSIVE else 0
        becomes: float = max(least, min(there, derived.total))
    else:
        becomes = min(there, derived.allocation_ratio) if name in EXCLUSIVE else there
    return (AdjustmentVerdict.KEPT if becomes == there else AdjustmentVerdict.LIMITED), becomes


def in_words(name: str, adjustment: InventoryAdjustment) -> str:
    """A sentence about a value that was set through the API, and its outcome."""
    one = adjustment
    option = next((it for it, which in CONFIGURABLE.items() if which == (name, one.field)), "")
    was_set = f"{one.field} of {name} was set to {one.value:.10g} through the API"
    own = f"the agent's is {one.own:.10g}"
    match one.verdict:
        case AdjustmentVerdict.KEPT if option:
            return f"{was_set} and stays; {own}; set [DEFAULT] {option} to enforce it"
        case AdjustmentVerdict.KEPT:
            return f"{was_set} and stays; {own}: set that to have the agent decide again"
        case AdjustmentVerdict.OVERRULED:
            says = f"[DEFAULT] {option} says" if option else f"the files of {OPTION} say"
            return f"{was_set}, but {says} {one.own:.10g}: unset that to keep what is set here"
        case AdjustmentVerdict.LIMITED:
            return f"{was_set}, which is more than there is: it becomes {one.becomes:.10g}; {own}"


def written_fields(settled: Mapping[str, SettledInventory]) -> Written:
    """Values of a provider's inventories that the agent writes by itself."""
    return frozenset(_own_fields(settled))


def _own_fields(settled: Mapping[str, SettledInventory]) -> Iterator[tuple[str, Field, float]]:
    for name, one in settled.items():
        for each in FIELDS:
            if each not in one.kept_fields:
                yield name, each, getattr(one.inventory, each)


def remember_written(
    settled: Mapping[str, SettledInventory], claimed: Written, shown: Mapping[str, ProviderInventory]
) -> Written:
    """The values to remember after Placement shows these inventories.

    A field with the agent's value needs no other remembered values. For any other field all remembered values
    stay, because a request without an answer may still take effect.
    """
    sure = {
        (name, field, value)
        for name, field, value in _own_fields(settled)
        if name in shown and getattr(shown[name], field) == value
    }
    certain = {(name, field) for name, field, _ in sure}
    return frozenset(sure | {one for one in claimed if (one[0], one[1]) not in certain and one[0] in shown})


CUSTOM_PREFIX: Final = "CUSTOM_"


@dataclass(frozen=True, slots=True)
class ReportedProvider:
    """A provider in Placement."""

    uuid: str
    name: str
    parent: str | None
    generation: int
    inventories: Mapping[str, ProviderInventory] = field(default_factory=dict)
    traits: frozenset[str] = frozenset()
    attributes: Mapping[str, str | float] = field(default_factory=dict)


def is_novas_device(provider: ReportedProvider) -> bool:
    """Whether nova-compute reports the PCI device that the provider stands for."""
    return os_traits.COMPUTE_MANAGED_PCI_DEVICE in provider.traits


@dataclass(frozen=True, slots=True)
class OwnedNames:
    """The agent's own parts of one provider: classes and traits that it may change and remove.

    ``written`` are the values that it may have written last to fields that other programs set, too.
    """

    classes: frozenset[str] = frozenset()
    traits: frozenset[str] = frozenset()
    written: Written = frozenset()


Ownership = Mapping[str, OwnedNames]
"""Owned names by provider uuid. Each provider with an entry is the agent's as well."""


@dataclass(frozen=True, slots=True)
class CreateResourceClass:
    """Make a custom resource class known."""

    name: str


@dataclass(frozen=True, slots=True)
class CreateTrait:
    """Make a custom trait known."""

    name: str


@dataclass(frozen=True, slots=True)
class CreateProvider:
    """Create a provider below ``parent``, or a root if that is None."""

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
    """Replace the inventories of a provider: the agent's current ones, and those of others unchanged."""

    uuid: str
    inventories: Mapping[str, ProviderInventory]


@dataclass(frozen=True, slots=True)
class SetTraits:
    """Replace the traits of a provider: the agent's current ones, and those of others unchanged."""

    uuid: str
    traits: frozenset[str]


@dataclass(frozen=True, slots=True)
class SetAttributes:
    """Replace the attributes of a provider: the agent's current ones, and those of others unchanged."""

    uuid: str
    attributes: Mapping[str, str | float]


@dataclass(frozen=True, slots=True)
class DeleteProvider:
    """Delete a provider of the agent that is no longer in the tree."""

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
    """Names that the server knows, and whether it keeps attributes."""

    classes: frozenset[str]
    traits: frozenset[str]
    attributes: bool = False


def plan_actions(
    derived: ProviderTree, reported: Mapping[str, ReportedProvider], owned: Ownership, known: KnownNames
) -> tuple[Action, ...]:
    """The actions that make ``reported`` equal to ``derived``, in an order in which each is possible.

    Empty if nothing differs. Inventories, traits and providers of other programs stay. A standard trait that
    the server does not know is left out: its os-traits is older than the agent's.
    """
    return tuple(_plan_steps(derived, reported, owned, known))


def _plan_steps(
    derived: ProviderTree, reported: Mapping[str, ReportedProvider], owned: Ownership, known: KnownNames
) -> Iterator[Action]:
    """Names, providers, deletions, shrinking inventories, growing ones, traits, attributes."""
    # The order matters after each action: capacity that moves is never offered twice on the way.
    classes = {name for node in derived.ours for name in node.inventories}
    yield from map(CreateResourceClass, sorted(classes - known.classes))
    traits = {name for node in derived.ours for name in node.traits}
    # A client can create custom traits only; unknown_traits() names the others.
    yield from (CreateTrait(name) for name in sorted(traits - known.traits) if name.startswith(CUSTOM_PREFIX))

    current: dict[str, ReportedProvider] = {}
    for node in derived.ours:
        has = reported.get(node.uuid)
        if has is None:
            yield CreateProvider(node.uuid, node.name, node.parent)
            # The plan goes on as if the provider existed and were empty.
            has = ReportedProvider(node.uuid, node.name, node.parent, generation=0)
        elif (has.name, has.parent) != (node.name, node.parent):
            yield UpdateProvider(node.uuid, node.name, node.parent)
        current[node.uuid] = has

    # After the updates: providers have left their former parents, and Placement deletes none with children.
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
    """Changes that give nova-compute's devices the ``wanted`` attributes by address, and no other of ours."""
    for provider in filter(is_novas_device, reported.values()):
        yield from _plan_attributes(provider, wanted.get(device_of(provider.name), {}))


def _plan_attributes(has: ReportedProvider, attributes: Mapping[str, str | float]) -> Iterator[SetAttributes]:
    others = {name: value for name, value in has.attributes.items() if not is_ours(name)}
    kept = {**others, **attributes}
    if kept != dict(has.attributes):
        yield SetAttributes(has.uuid, kept)


def _offered_capacity(inventory: ProviderInventory | None) -> int:
    """The offered units of an inventory; -1 for a missing one, so that its removal counts as shrinking."""
    return -1 if inventory is None else inventory.total - inventory.reserved


def wanted_inventories(
    derived: ProviderTree, node: ProviderNode, reported: Mapping[str, ReportedProvider], owned: Ownership
) -> dict[str, ProviderInventory]:
    """All inventories that the provider should have: foreign ones, and the agent's with foreign values."""
    has, ours = reported.get(node.uuid), owned.get(node.uuid, OwnedNames())
    present = {} if has is None else has.inventories
    others = {name: held for name, held in present.items() if name not in ours.classes}
    settled = settled_inventories(derived, node, reported, owned)
    return {**others, **{name: one.inventory for name, one in settled.items()}}


def settled_inventories(
    derived: ProviderTree, node: ProviderNode, reported: Mapping[str, ReportedProvider], owned: Ownership
) -> dict[str, SettledInventory]:
    """The agent's inventories of a provider by class, with the values that other programs set."""
    has, ours = reported.get(node.uuid), owned.get(node.uuid, OwnedNames())
    present = {} if has is None else has.inventories
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
    """A sentence for each value that other programs set on the agent's inventories, with its outcome."""
    for node in derived.ours:
        for name, settled in settled_inventories(derived, node, reported, owned).items():
            for one in settled.adjustments:
                yield f"{full_name(node.name, node.uuid)}: {in_words(name, one)}"


def _ratio_elsewhere(name: str, reported: Mapping[str, ReportedProvider], owned: Ownership) -> float | None:
    """The largest ratio of a class on the agent's providers; None if none has the class."""
    ratios = (
        provider.inventories[name].allocation_ratio
        for uuid, provider in reported.items()
        if uuid in owned and name in provider.inventories
    )
    return max(ratios, default=None)


def wanted_traits(
    node: ProviderNode, has: ReportedProvider, ours: OwnedNames, known: KnownNames
) -> frozenset[str]:
    """All traits that the provider should have: foreign ones, and the agent's derived ones."""
    return (has.traits - ours.traits) | (node.traits - _unmakeable_traits(node, known))


def unknown_traits(derived: ProviderTree, known: KnownNames) -> frozenset[str]:
    """Traits of the tree that the server does not know, and that no client can create."""
    return frozenset[str]().union(*(_unmakeable_traits(node, known) for node in derived.ours))


def _unmakeable_traits(node: ProviderNode, known: KnownNames) -> frozenset[str]:
    return frozenset(t for t in node.traits - known.traits if not t.startswith(CUSTOM_PREFIX))


def plan_deletions(
    reported: Mapping[str, ReportedProvider], owned: Ownership, derived: ProviderTree | None = None
) -> Iterator[Action]:
    """Deletions of the agent's former providers, children first. A provider with a foreign child stays.

    :param derived: the present tree; None deletes all providers of the agent.
    """
    present = {} if derived is None else {node.uuid: node.parent for node in derived.nodes}
    # Actions before these have moved the remaining providers below their new parents.
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
    """``owned`` with assumed entries for the agent's other providers, as after the loss of the state file."""
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
    """The parts that may become the agent's while a plan is carried out.

    The parts are saved before any request. So after a crash in the middle no part of the agent counts as
    foreign. A present trait of another program stays foreign. No part of nova-compute's root is ever the
    agent's.
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
    """The agent's own parts after Placement shows ``reported``: claims that are derived, or still present."""
    result: dict[str, OwnedNames] = {}
    for uuid, claim in claims.items():
        node, has = derived.get(uuid), reported.get(uuid)
        if node is None and has is None:
            # Neither derived nor in Placement: nothing is left to own.
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
    """An inventory in the form of the API."""
    return asdict(inventory)


def provider_from_tree(record: Mapping[str, Any]) -> ReportedProvider:
    """A provider from the form of the API of trees."""
    return ReportedProvider(
        record["uuid"],
        record["name"],
        # A server may leave out the parent of a root.
        record.get("parent_provider_uuid"),
        record["generation"],
        {name: from_api(inventory) for name, inventory in record["inventories"].items()},
        frozenset(record["traits"]),
        record["attributes"],
    )


def from_api(record: Mapping[str, Any]) -> ProviderInventory:
    """An inventory from the API's form, which may have further keys."""
    return ProviderInventory(
        total=record["total"],
        reserved=record["reserved"],
        min_unit=record["min_unit"],
        max_unit=record["max_unit"],
        step_size=record["step_size"],
        allocation_ratio=record["allocation_ratio"],
    )
