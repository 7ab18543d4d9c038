"""Decides about values of inventories that other programs set, such as operators through the API.

:func:`settle_inventory` decides about the fields ``reserved`` and ``allocation_ratio``, which operators and
other programs can set through the API. The agent remembers each value before it sends it, as (resource class,
field, value). A value is *foreign* if the agent neither remembers it nor would write it now. The first
applicable rule decides:

- If an option of the ini file sets the field, the value is that of the option, as in Nova (see its
  documentation of ``cpu_allocation_ratio``).
- If the present value is foreign, it does not change.
- If the present value is the agent's own, ``reserved`` becomes the derived value, and ``allocation_ratio``
  stays unchanged. Without an option the agent changes no ratio, because ``initial_*_allocation_ratio`` is for
  new inventories only.

A foreign value of an exclusive class (PCPU, LLC, ...) can offer less than the host has, but never more,
because each unit has one holder. All functions are pure.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, replace

from compute_agent.inventory.derive import CONFIGURABLE
from compute_agent.inventory.provider_files import OPTION
from compute_agent.inventory.provider_tree import (
    FIELDS,
    Field,
    ProviderInventory,
)
from compute_agent.model.resource import EXCLUSIVE

Written = frozenset[tuple[str, Field, float]]
"""The values that the agent may have written last to the fields of a provider, as (resource class, field,
value).
"""


class AdjustmentVerdict(enum.StrEnum):
    """The decision about a value that another program has set."""

    KEPT = "kept"
    OVERRULED = "overruled by the configuration"
    LIMITED = "limited to the amounts of the host"


@dataclass(frozen=True, slots=True)
class InventoryAdjustment:
    """A field of an inventory that another program has set.

    :ivar value: the value that the other program set.
    :ivar own: the value that the agent would set.
    :ivar becomes: the value after the decision.
    """

    field: Field
    value: float
    own: float
    verdict: AdjustmentVerdict
    becomes: float


@dataclass(frozen=True, slots=True)
class SettledInventory:
    """The inventory to report, and the decisions about values that other programs set."""

    inventory: ProviderInventory
    adjustments: tuple[InventoryAdjustment, ...] = ()

    @property
    def kept_fields(self) -> frozenset[Field]:
        """The fields that keep a value of another program, possibly in a limited form."""
        return frozenset(each.field for each in self.adjustments if each.becomes != each.own)


def settle_inventory(
    name: str,
    derived: ProviderInventory,
    has: ProviderInventory | None,
    written: Written,
    configured: frozenset[tuple[str, Field]],
    ratio_elsewhere: float | None = None,
) -> SettledInventory:
    """Decide which inventory of a resource class to report.

    :param derived: the inventory as the agent derives it from the host.
    :param has: the present inventory in Placement; None means that Placement has no such inventory.
    :param configured: the classes and fields that an option of the ini file sets.
    :param ratio_elsewhere: the allocation ratio of the class on other providers of the host; None if no other
        provider has the class.
    """
    if has is None:
        # A new inventory takes the ratio of the class elsewhere on the host, so that an operator's ratio
        # survives a move.
        free = (name, "allocation_ratio") not in configured and name not in EXCLUSIVE
        if ratio_elsewhere is not None and free:
            return SettledInventory(replace(derived, allocation_ratio=ratio_elsewhere))
        return SettledInventory(derived)
    result, adjustments = derived, []
    for each in FIELDS:
        there, own = getattr(has, each), getattr(derived, each)
        if there == own:
            continue
        if (name, each, there) in written:
            # The derived value replaces the agent's own value; a ratio is replaced only if an option sets it.
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


def _judge_value(
    name: str,
    field: Field,
    there: float,
    derived: ProviderInventory,
    configured: frozenset[tuple[str, Field]],
) -> tuple[AdjustmentVerdict, float]:
    if (name, field) in configured:
        return AdjustmentVerdict.OVERRULED, getattr(derived, field)
    # Placement accepts a reserve above the total, so the agent limits it.
    if field == "reserved":
        # A reserve below the agent's own would offer units that the host does not have.
        least = derived.reserved if name in EXCLUSIVE else 0
        becomes: float = max(least, min(there, derived.total))
    else:
        becomes = min(there, derived.allocation_ratio) if name in EXCLUSIVE else there
    return (AdjustmentVerdict.KEPT if becomes == there else AdjustmentVerdict.LIMITED), becomes


def in_words(name: str, adjustment: InventoryAdjustment) -> str:
    """A message about a value that was set through the API, and the decision about it."""
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
            return f"{was_set}, which does not fit this host: it becomes {one.becomes:.10g}; {own}"


def written_fields(settled: Mapping[str, SettledInventory]) -> Written:
    """The values in a provider's inventories that the agent itself chose."""
    return frozenset(
        (name, each, getattr(one.inventory, each))
        for name, one in settled.items()
        for each in FIELDS
        if each not in one.kept_fields
    )


def remember_written(
    settled: Mapping[str, SettledInventory], claimed: Written, shown: Mapping[str, ProviderInventory]
) -> Written:
    """The written values to remember after Placement has shown the inventories ``shown``.

    If Placement shows the value of ``settled`` for a field, only this value is remembered. Otherwise all
    remembered values of the field stay, because an earlier request without an answer can still take effect.
    """
    sure = {
        (name, field, value)
        for name, field, value in written_fields(settled)
        if name in shown and getattr(shown[name], field) == value
    }
    certain = {(name, field) for name, field, _ in sure}
    return frozenset(sure | {one for one in claimed if (one[0], one[1]) not in certain and one[0] in shown})
