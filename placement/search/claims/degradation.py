"""Pure functions that find those amounts of reservations that their providers can no longer give.

A reservation promises amounts until its end. After the promise an operator may reduce an inventory, delete
it, or disable the host. The reservation stays, but becomes *degraded*, with one cause for each amount that
the provider can no longer give.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from placement.read_model.provider import DISABLED, Provider
from placement.read_model.snapshot import ModelSnapshot
from placement.store.allocations import Allocation
from placement.store.time_profile import TimeWindow
from placement.store.time_skyline import NO_SKYLINE, SkylinesByProvider

# the API has times of milliseconds, so no amount begins or ends within a millisecond
_MOMENT: Final = 0.001
"""Length, in seconds, of the short window that stands for an instant."""


class DegradationReason(StrEnum):
    """The reason why a provider can no longer give an amount of a reservation."""

    CAPACITY = "capacity_exceeded"
    DISABLED = "host_disabled"
    INVENTORY = "inventory_missing"
    PROVIDER = "provider_missing"


@dataclass(frozen=True, slots=True)
class DegradationCause:
    """An amount that its provider can no longer give; ``missing`` is the largest part missing at any time."""

    reason: DegradationReason
    provider: str
    resource_class: str
    missing: int


@dataclass(frozen=True, slots=True)
class PromisingProviders:
    """The providers of reservations by uuid, and the uuids of those providers that are disabled."""

    by_uuid: Mapping[str, Provider]
    disabled: Collection[str]

    @classmethod
    def from_snapshot(cls, snapshot: ModelSnapshot, uuids: Iterable[str]) -> PromisingProviders:
        """Return the providers with these uuids that exist. A disabled host disables its whole tree."""
        found = {uuid: each for uuid in uuids if (each := snapshot.get(uuid)) is not None}
        disabled = {
            uuid
            for uuid, provider in found.items()
            if any(DISABLED in each.traits for each in snapshot.lineage_of(provider))
        }
        return cls(found, disabled)

    def overfull_uuids(self, held: Iterable[Allocation]) -> set[str]:
        """Return the uuids of providers with more usage than capacity, for a class of these amounts."""
        return {
            each.provider
            for each in held
            # the usage includes the holds, so it is at least the usage at the busiest instant ahead
            if (provider := self.by_uuid.get(each.provider)) is not None
            and each.resource_class in provider.inventories
            and provider.free(each.resource_class) < 0
        }


def find_causes(
    held: Iterable[Allocation],
    window: TimeWindow,
    providers: PromisingProviders,
    skylines: SkylinesByProvider,
) -> list[DegradationCause]:
    """Return the causes of the degradation of a reservation with these amounts.

    The result is empty if all amounts are available.

    :param window: the part of the reservation's time that lies in the future.
    :param skylines: skylines that include those of all overfull providers.
    """
    causes = []
    for each in held:
        provider = providers.by_uuid.get(each.provider)
        if provider is None:
            reason, missing = DegradationReason.PROVIDER, each.used
        elif each.resource_class not in provider.inventories:
            reason, missing = DegradationReason.INVENTORY, each.used
        elif each.provider in providers.disabled:
            reason, missing = DegradationReason.DISABLED, each.used
        else:
            reason, missing = DegradationReason.CAPACITY, _missing_amount(each, provider, window, skylines)
        if missing > 0:
            causes.append(DegradationCause(reason, each.provider, each.resource_class, missing))
    return causes


def has_failed(
    held: Sequence[Allocation], now: float, providers: PromisingProviders, skylines: SkylinesByProvider
) -> bool:
    """Return whether none of the amounts of a reservation is available at the present time.

    :param now: the time of the database.
    :param skylines: skylines that include those of all overfull providers.
    """
    present = find_causes(held, TimeWindow(now, now + _MOMENT), providers, skylines)
    # a missing part is never larger than its amount
    return bool(present) and sum(each.missing for each in present) == sum(each.used for each in held)


def _missing_amount(
    held: Allocation, provider: Provider, window: TimeWindow, skylines: SkylinesByProvider
) -> int:
    """Return the part of an amount that exceeds the capacity at the busiest instant of the window."""
    free = provider.free(held.resource_class)
    if free >= 0:
        return 0
    here = skylines.get(held.provider, {}).get(held.resource_class, NO_SKYLINE)
    return min(held.used, here.largest_sum(window) - here.counted - free)
