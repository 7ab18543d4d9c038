"""Precedence for ``reserved`` and ``allocation_ratio`` of an inventory, and plans of reports. Pure functions.

Operators and other tools set them through the API. What they set stays, as long as no option of the ini file
says something else: that is what Nova does (its documentation of ``cpu_allocation_ratio``). What differs from
all that the agent may have written last was set by somebody else. So the agent remembers what it writes, as
(class, field, value), before it is sent; a value that it wrote, or would write now, is its own.

    option set in the ini file   the option's value, whatever was set
    set by somebody else         that stays
    the agent's own              reserved: as derived; allocation_ratio: as it is (an option that is not set
                                 changes no ratio; ``initial_*_allocation_ratio`` is for new inventories)

Of an exclusive class (PCPU, LLC, ...) others can offer less than there is, never more: what one holds nobody
else has.

What has to be sent so that Placement knows the host as it is.

A pure function from two trees to a list of actions.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final

from compute_agent.inventory.attributes import is_ours
from compute_agent.inventory.derive import CONFIGURABLE
from compute_agent.inventory.provider_files import OPTION
from compute_agent.inventory.provider_tree import FIELDS, Field, ProviderInventory, ProviderNode, ProviderTree
from compute_agent.model.messages import full_name
from compute_agent.model.resource import EXCLUSIVE, HOST_OWNED

Written = frozenset[tuple[str, Field, float]]
"""What the agent may have written last to a provider: resource class, field, value."""


class AdjustmentVerdict(enum.StrEnum):
    """The outcome for a value that another program set."""

    KEPT = "kept"
    OVERRULED = "overruled by the configuration"
    LIMITED = "limited to what there is"


@dataclass(frozen=True, slots=True)
class InventoryAdjustment:
    """A field that another program set to ``value``, where the agent would have ``own``."""

    field: Field
    value: float
    own: float
    verdict: AdjustmentVerdict
    becomes: float


@dataclass(frozen=True, slots=True)
class SettledInventory:
    """An inventory as it shall be, and what others set of it."""

    inventory: ProviderInventory
    adjustments: tuple[InventoryAdjustment, ...] = ()

    @property
    def kept(self) -> frozenset[Field]:
        """The fields that are not the agent's."""
        return frozenset(each.field for each in self.adjustments if each.becomes != each.own)


def settle(
    name: str,
    derived: ProviderInventory,
    has: ProviderInventory | None,
    written: Written,
    configured: frozenset[tuple[str, Field]],
    ratio_elsewhere: float | None = None,
) -> SettledInventory:
    """The inventory of class ``name`` as it shall be, where Placement ``has`` one (None: none so far).

    ``configured`` are the classes and fields that an option of the ini file sets. ``ratio_elsewhere`` is the
    ratio that the class has on other providers of the host, for one that comes here.
    """
    if has is None:
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
            if each == "allocation_ratio" and (name, each) not in configured and name not in EXCLUSIVE:
                result = replace(result, allocation_ratio=there)
            continue
        verdict, becomes = _judge(name, each, there, derived, configured)
        adjustments.append(InventoryAdjustment(each, there, own, verdict, becomes))
        if each == "reserved":
            result = replace(result, reserved=int(becomes))
        else:
            result = replace(result, allocation_ratio=becomes)
    return SettledInventory(result, tuple(adjustments))


def fields_of(name: str, configured: frozenset[tuple[str, Field]]) -> frozenset[Field]:
    """The fields of a class that options set."""
    return frozenset(field for one, field in configured if one == name)


def _judge(
    name: str,
    field: Field,
    there: float,
    derived: ProviderInventory,
    configured: frozenset[tuple[str, Field]],
) -> tuple[AdjustmentVerdict, float]:
    if (name, field) in configured:
        return AdjustmentVerdict.OVERRULED, getattr(derived, field)
    if field == "reserved":
        least = derived.reserved if name in EXCLUSIVE else 0
        becomes: float = max(least, min(there, derived.total))
    else:
        becomes = min(there, derived.allocation_ratio) if name in EXCLUSIVE else there
    return (AdjustmentVerdict.KEPT if becomes == there else AdjustmentVerdict.LIMITED), becomes


def in_words(name: str, adjustment: InventoryAdjustment) -> str:
    """The values that operators set of an inventory of class ``name``, and the outcome."""
    one = adjustment
    option = next((it for it, which in CONFIGURABLE.items() if which == (name, one.field)), "")
    was_set = f"{one.field} of {name} was set to {one.value:.10g} through the API"
    own = f"the agent's is {one.own:.10g}"
    match one.verdict:
        case AdjustmentVerdict.KEPT if option:
            return f"{was_set} and stays; {own}, which [DEFAULT] {option} in the ini file would enforce"
        case AdjustmentVerdict.KEPT:
            return f"{was_set} and stays; {own}: set that to have the agent decide again"
        case AdjustmentVerdict.OVERRULED:
            says = f"[DEFAULT] {option} says" if option else f"the files of {OPTION} say"
            return f"{was_set}, but {says} {one.own:.10g}: unset that to keep what is set here"
        case AdjustmentVerdict.LIMITED:
            return f"{was_set}, which is more than there is: it becomes {one.becomes:.10g}; {own}"


def writing(settled: Mapping[str, SettledInventory]) -> Written:
    """The fields of a provider's inventories, by class, that the agent writes by itself."""
    return frozenset(_own(settled))


def _own(settled: Mapping[str, SettledInventory]) -> Iterator[tuple[str, Field, float]]:
    for name, one in settled.items():
        for each in FIELDS:
            if each not in one.kept:
                yield name, each, getattr(one.inventory, each)


def remembered(
    settled: Mapping[str, SettledInventory], claimed: Written, shown: Mapping[str, ProviderInventory]
) -> Written:
    """The values to remember after Placement shows these inventories.

    Where it shows what the agent wrote, that alone; else all that it may have written.
    """
    sure = {
        (name, field, value)
        for name, field, value in _own(settled)
        if name in shown and getattr(shown[name], field) == value
    }
    certain = {(name, field) for name, field, _ in sure}
    return frozenset(sure | {one for one in claimed if (one[0], one[1]) not in certain and one[0] in shown})


CUSTOM_PREFIX: Final = "CUSTOM_"


@dataclass(frozen=True, slots=True)
class ReportedProvider:
    """A provider as Placement has it."""

    uuid: str
    name: str
    parent: str | None
    generation: int
    inventories: Mapping[str, ProviderInventory] = field(default_factory=dict)
    traits: frozenset[str] = frozenset()
    attributes: Mapping[str, str | float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class OwnedNames:
    """The agent's own parts of one provider: classes and traits that it may change and remove.

    ``written`` is what it may have written last of fields that others set, too (see ``adjustments``).
    """

    classes: frozenset[str] = frozenset()
    traits: frozenset[str] = frozenset()
    written: Written = frozenset()


Ownership = Mapping[str, OwnedNames]
"""By provider uuid; the providers themselves are the agent's as well."""


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
    """Create a provider below ``parent`` (None: as a root)."""

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
    """Delete a provider that the agent made and does not need any more."""

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


def plan(
    derived: ProviderTree, reported: Mapping[str, ReportedProvider], owned: Ownership, known: KnownNames
) -> tuple[Action, ...]:
    """The actions, in an order in which each can be done, that make ``reported`` what ``derived`` says.

    Empty when nothing differs. Inventories and traits of others on our providers, and providers of others in
    our tree, stay. Traits that the server does not know and that are not custom (its os-traits is older than
    ours) are left out.
    """
    return tuple(_actions(derived, reported, owned, known))


def _actions(
    derived: ProviderTree, reported: Mapping[str, ReportedProvider], owned: Ownership, known: KnownNames
) -> Iterator[Action]:
    """Names, providers, what shrinks, what grows, traits, attributes.

    Capacity that moves is never counted twice on the way.
    """
    classes = {name for node in derived.ours for name in node.inventories}
    yield from map(CreateResourceClass, sorted(classes - known.classes))
    traits = {name for node in derived.ours for name in node.traits}
    yield from (CreateTrait(name) for name in sorted(traits - known.traits) if name.startswith(CUSTOM_PREFIX))

    current: dict[str, ReportedProvider] = {}
    for node in derived.ours:
        has = reported.get(node.uuid)
        if has is None:
            yield CreateProvider(node.uuid, node.name, node.parent)
            has = ReportedProvider(node.uuid, node.name, node.parent, generation=0)
        elif (has.name, has.parent) != (node.name, node.parent):
            yield UpdateProvider(node.uuid, node.name, node.parent)
        current[node.uuid] = has

    yield from deletions(reported, owned, derived)
    shrinking: list[Action] = []
    growing: list[Action] = []
    for node in derived.ours:
        has = current[node.uuid]
        wanted = wanted_inventories(derived, node, reported, owned)
        if wanted != dict(has.inventories):
            less = any(_offered(wanted.get(name)) < _offered(own) for name, own in has.inventories.items())
            (shrinking if less else growing).append(SetInventories(node.uuid, wanted))
    yield from shrinking
    yield from growing

    for node in derived.ours:
        has = current[node.uuid]
        wanted_set = wanted_traits(node, has, owned.get(node.uuid, OwnedNames()), known)
        if wanted_set != has.traits:
            yield SetTraits(node.uuid, wanted_set)
        if known.attributes:
            others = {name: value for name, value in has.attributes.items() if not is_ours(name)}
            kept = {**others, **node.attributes}
            if kept != dict(has.attributes):
                yield SetAttributes(node.uuid, kept)


def _offered(inventory: ProviderInventory | None) -> int:
    """The capacity of an inventory; negative for a missing one."""
    return -1 if inventory is None else inventory.total - inventory.reserved


def wanted_inventories(
    derived: ProviderTree, node: ProviderNode, reported: Mapping[str, ReportedProvider], owned: Ownership
) -> dict[str, ProviderInventory]:
    """All inventories that the provider should have: those of others, and the agent's derived ones.

    Of ours, what somebody set through the API stays.
    """
    has, ours = reported.get(node.uuid), owned.get(node.uuid, OwnedNames())
    present = {} if has is None else has.inventories
    others = {name: held for name, held in present.items() if name not in ours.classes}
    settled = settled_inventories(derived, node, reported, owned)
    return {**others, **{name: one.inventory for name, one in settled.items()}}


def settled_inventories(
    derived: ProviderTree, node: ProviderNode, reported: Mapping[str, ReportedProvider], owned: Ownership
) -> dict[str, SettledInventory]:
    """The inventories of ours on a provider by class, and what of them others set."""
    has, ours = reported.get(node.uuid), owned.get(node.uuid, OwnedNames())
    present = {} if has is None else has.inventories
    return {
        name: settle(
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
    """A sentence for each value that others set on the agent's inventories, with the outcome."""
    for node in derived.ours:
        for name, settled in settled_inventories(derived, node, reported, owned).items():
            for one in settled.adjustments:
                yield f"{full_name(node.name, node.uuid)}: {in_words(name, one)}"


def _ratio_elsewhere(name: str, reported: Mapping[str, ReportedProvider], owned: Ownership) -> float | None:
    """The largest ratio of a class on our providers; None where none has it."""
    ratios = (
        provider.inventories[name].allocation_ratio
        for uuid, provider in reported.items()
        if uuid in owned and name in provider.inventories
    )
    return max(ratios, default=None)


def wanted_traits(
    node: ProviderNode, has: ReportedProvider, ours: OwnedNames, known: KnownNames
) -> frozenset[str]:
    """All traits the provider should have: those of others, and ours as derived."""
    return (has.traits - ours.traits) | (node.traits - _unknown(node, known))


def unknown_traits(derived: ProviderTree, known: KnownNames) -> frozenset[str]:
    """The traits of the tree that the server does not know and that cannot be made."""
    return frozenset[str]().union(*(_unknown(node, known) for node in derived.ours))


def _unknown(node: ProviderNode, known: KnownNames) -> frozenset[str]:
    return frozenset(t for t in node.traits - known.traits if not t.startswith(CUSTOM_PREFIX))


def deletions(
    reported: Mapping[str, ReportedProvider], owned: Ownership, derived: ProviderTree | None = None
) -> Iterator[Action]:
    """Providers that were ours, children before their parents; none that still has somebody else's child.

    Without ``derived`` it is all that is ours.
    """
    present = {} if derived is None else {node.uuid: node.parent for node in derived.nodes}
    # What stays of ours is below its new parent by now.
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
    """``owned``, with what must be ours of providers that it knows nothing of (the state file was lost)."""
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
    """The parts that may become the agent's while the plan is carried out, to remember before any request.

    A crash in the middle then leaves nothing that nobody owns. A trait that is there already and was put
    there by somebody else stays theirs. Nothing of nova-compute's root is the agent's, whatever was before.
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
            written=old.written | writing(settled_inventories(derived, node, reported, owned)),
        )
    return claims


def ownership_after(
    derived: ProviderTree, claims: Ownership, reported: Mapping[str, ReportedProvider]
) -> Ownership:
    """The agent's own parts after Placement shows ``reported``.

    Of the claims it is what is derived or still there.
    """
    result: dict[str, OwnedNames] = {}
    for uuid, claim in claims.items():
        node, has = derived.get(uuid), reported.get(uuid)
        if node is None and has is None:
            continue
        classes = frozenset() if node is None else frozenset(node.inventories)
        traits = frozenset() if node is None else node.traits
        written = claim.written
        if node is not None and has is not None:
            written = remembered(
                settled_inventories(derived, node, reported, claims), claim.written, has.inventories
            )
        if has is not None:
            classes |= claim.classes & frozenset(has.inventories)
            traits = (traits | has.traits) & claim.traits
        result[uuid] = OwnedNames(classes & claim.classes, traits & claim.traits, written)
    return result


def to_api(inventory: ProviderInventory) -> dict[str, Any]:
    """An inventory as the API has it."""
    return asdict(inventory)


def described(record: Mapping[str, Any]) -> ReportedProvider:
    """A provider as a tree shows it."""
    return ReportedProvider(
        record["uuid"],
        record["name"],
        record["parent_provider_uuid"],
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
