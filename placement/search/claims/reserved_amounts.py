"""The amounts of reservations: claims take them, and providers may become unable to give them.

A claim that names a reservation takes all its amounts from there: :func:`read_reserved` reads them, and the
search runs in the snapshot of :func:`within_reservation`.

A reservation promises amounts until its end. After the promise an operator may reduce an inventory, delete
it, or disable the host. The reservation stays, but becomes *degraded*, with one cause for each amount that
the provider can no longer give (:func:`find_causes`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from placement.read_model.provider import DISABLED, SHARES, Provider
from placement.read_model.snapshot import ModelSnapshot
from placement.search.claims.claim import WantedClaim
from placement.search.claims.claim_context import ClaimContext
from placement.store import reservations
from placement.store.allocations import Allocation
from placement.store.time_profile import TimeWindow
from placement.store.time_skyline import NO_SKYLINE, SkylinesByProvider

# the API has times of milliseconds, so no amount begins or ends within a millisecond
_MOMENT: Final = 0.001
"""Length, in seconds, of the short window that stands for an instant."""


def read_reserved(
    context: ClaimContext, reservation: str, wanted: Sequence[WantedClaim]
) -> tuple[reservations.CapacityReservation, list[Allocation]]:
    """Return a reservation and the amounts that claims may take from it.

    :raises Conflict: there is no such reservation, or a claim is not allowed to use it: the reservation is
        for another project, another group or another time.
    """
    found, held = _find_reserved(context, reservation, wanted, may_be_window=False)
    if found is not None and found.starts_at is not None:
        # a fresh view releases claims from the window that have ended, and lets a window begin that is due
        with context.model.fresh_view():
            pass
        found, held = _find_reserved(context, reservation, wanted)
    for each in wanted:
        group = None if each.group is None else each.group.name
        if found is None or not found.serves_claim(each.owner.project_id, group):
            raise reservations.unusable_reservation(reservation, each.owner.project_id)
        found.refuse_time(each.window)
    # this line is for the type checker: there is at least one claim
    assert found is not None
    return found, held


def _find_reserved(
    context: ClaimContext, reservation: str, wanted: Sequence[WantedClaim], *, may_be_window: bool = True
) -> tuple[reservations.CapacityReservation | None, list[Allocation]]:
    """Return the reservation with its amounts, and with the amounts that repeated claims give back.

    :param may_be_window: whether to read the amounts of a window, too; it may have thousands of claims.
    """
    with context.database.read() as conn:
        found = reservations.find_reservation(conn, reservation)
        if found is None or not (may_be_window or found.starts_at is None):
            return found, []
        known = [each.consumer for each in wanted if each.generation is not None]
        return found, reservations.amounts_for_claims(conn, found, known)


def within_reservation(
    snapshot: ModelSnapshot, held: Collection[Allocation]
) -> tuple[ModelSnapshot, frozenset[str]]:
    """Return the snapshot in which to place a claim from a reservation, and the roots that the claim may use.

    In the trees of these roots, and at sharing providers, only the reserved amounts are free; other trees are
    unchanged. The original snapshot must not change while the result is used.
    """
    amounts: dict[int, dict[str, int]] = {}
    for each in held:
        provider = snapshot.get(each.provider)
        # an operator may have removed the inventory, or the provider, since the reservation was made
        if provider is not None and each.resource_class in provider.inventories:
            amounts.setdefault(provider.id, {})[each.resource_class] = each.used
    roots = {snapshot.providers[provider_id].root_id for provider_id in amounts}
    # amounts from sharing providers have to be reserved, too, although these providers belong to no host of
    # the reservation
    concerned = {member for root in roots for member in snapshot.trees[root]} | snapshot.by_trait.get(
        SHARES, set()
    )
    # the used amount becomes capacity minus the reserved amount, so that even an overcommitted host can give
    # the reserved amount
    used = {
        provider_id: {
            name: each.capacity - amounts.get(provider_id, {}).get(name, 0)
            for name, each in snapshot.providers[provider_id].inventories.items()
        }
        for provider_id in concerned
    }
    return snapshot.with_usage(used), frozenset(snapshot.providers[root].uuid for root in roots)


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
