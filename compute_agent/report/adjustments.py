"""Who decides about ``reserved`` and ``allocation_ratio`` of an inventory: pure functions.

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
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from compute_agent.inventory.derive import CONFIGURABLE
from compute_agent.inventory.provider_files import OPTION
from compute_agent.inventory.provider_tree import FIELDS, Field, ProviderInventory
from compute_agent.model.resource import EXCLUSIVE

Written = frozenset[tuple[str, Field, float]]
"""What the agent may have written last to a provider: resource class, field, value."""


class AdjustmentVerdict(enum.StrEnum):
    """What becomes of a value that somebody else set."""

    KEPT = "kept"
    OVERRULED = "overruled by the configuration"
    LIMITED = "limited to what there is"


@dataclass(frozen=True, slots=True)
class InventoryAdjustment:
    """A field that somebody else set to ``value``, where the agent would have ``own``."""

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
    """What was set of an inventory of class ``name``, and what becomes of it."""
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
    """What of these inventories of a provider, by class, the agent writes on its own account."""
    return frozenset(_own(settled))


def _own(settled: Mapping[str, SettledInventory]) -> Iterator[tuple[str, Field, float]]:
    for name, one in settled.items():
        for field in FIELDS:
            if field not in one.kept:
                yield name, field, getattr(one.inventory, field)


def remembered(
    settled: Mapping[str, SettledInventory], claimed: Written, shown: Mapping[str, ProviderInventory]
) -> Written:
    """What to remember once Placement shows these inventories.

    Where it shows what the agent wrote, that alone; else all that it may have written.
    """
    sure = {
        (name, field, value)
        for name, field, value in _own(settled)
        if name in shown and getattr(shown[name], field) == value
    }
    certain = {(name, field) for name, field, _ in sure}
    return frozenset(sure | {one for one in claimed if (one[0], one[1]) not in certain and one[0] in shown})
