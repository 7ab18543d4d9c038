"""A picture of who holds what: of each inventory a bar, in which each consumer has a part.

It is drawn from what Placement has, which is how much everybody holds and not where. Which CPUs and ways of a
cache these are only the agent of the host knows; it does not report them, as each guest that comes or goes
would then change providers that others are about to claim of.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from placement.model.provider import Provider
from placement_extras.console.host import ConsumerHolding, ProviderNodeView

MAX_LANES: Final = 48
"""Bars of a picture."""
MAX_PARTS: Final = 250
"""Parts of all bars together, but for those of the last one: a page is not to become large by its picture."""
COLOURS: Final = 6
"""Colours that parts have in turn; numbers tell them apart as well."""

_MAX_PARTS: Final = 40  # of one bar, on which more could not be told apart
_MAX_UNITS: Final = 128
_LABELLED: Final = 6.0  # percent of the width in which a number has room on a narrow screen


@dataclass(frozen=True, slots=True)
class BarSegment:
    """What one consumer holds: which it is in the list (0 for all others), and its place in percent."""

    number: int
    amount: int
    start: float
    width: float

    @property
    def colour(self) -> int:
        """0 for all others, else from 1 on."""
        return self.number and (self.number - 1) % COLOURS + 1

    @property
    def has_label(self) -> bool:
        """Whether its number has room."""
        return self.number > 0 and self.width >= _LABELLED


@dataclass(frozen=True, slots=True)
class InventoryBar:
    """One inventory. ``units`` are marks on it, where there are few enough to be seen; 0 for none."""

    provider: Provider
    resource_class: str
    capacity: int
    used: int
    parts: tuple[BarSegment, ...]
    units: int


@dataclass(frozen=True, slots=True)
class HostPicture:
    """The bars, those of one provider together, and how many there is no room for."""

    lanes: tuple[InventoryBar, ...]
    left_out: int


def draw(node: ProviderNodeView, held: Sequence[ConsumerHolding]) -> HostPicture:
    """The picture of the provider of a page with all below it, of which these consumers hold something.

    Inventories of which nobody holds anything are left away.
    """
    amounts: dict[tuple[int, str], list[tuple[int, int]]] = {}
    for number, each in enumerate(held, 1):
        for provider, name, used in each.amounts:
            amounts.setdefault((provider.id, name), []).append((number, used))
    shown: list[InventoryBar] = []
    parts = left_out = 0
    for lane in _lanes(node, amounts):
        if left_out or len(shown) == MAX_LANES or parts >= MAX_PARTS:
            left_out += 1
        else:
            shown.append(lane)
            parts += len(lane.parts)
    return HostPicture(tuple(shown), left_out)


def _lanes(
    node: ProviderNodeView, amounts: Mapping[tuple[int, str], Sequence[tuple[int, int]]]
) -> Iterator[InventoryBar]:
    for stock in node.stocks:
        holding = amounts.get((node.provider.id, stock.resource_class))
        if holding:
            capacity = max(0, stock.inventory.capacity)
            used = max(stock.used, sum(amount for _, amount in holding))
            units = capacity if capacity <= _MAX_UNITS and used <= capacity else 0
            parts = tuple(_parts(holding, used, max(capacity, used)))
            yield InventoryBar(node.provider, stock.resource_class, capacity, used, parts, units)
    for child in node.children:
        yield from _lanes(child, amounts)


def _parts(holding: Sequence[tuple[int, int]], used: int, whole: int) -> Iterator[BarSegment]:
    """Those of the consumers, then what others hold that are not listed."""
    done = 0
    for number, amount in holding[:_MAX_PARTS]:
        yield BarSegment(number, amount, 100 * done / whole, 100 * amount / whole)
        done += amount
    if used > done:
        yield BarSegment(0, used - done, 100 * done / whole, 100 * (used - done) / whole)
