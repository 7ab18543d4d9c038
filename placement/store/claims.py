"""Claims of consumers, the check of capacity, and other times at which refused amounts would fit.

An amount without an end has to be free in addition to all windows ahead. If windows are in the way, the
amount fits when they are over, or now with an end time before they begin (:class:`TimeShifts`).

This module does not use the database.

A worked example
    A host has 8 VCPU, and a guest uses 2 of them. A window has 4 VCPU from 10:00 to 11:00. A claim of 5 VCPU
    without an end is refused. It fits from 11:00 on, or now with an end time until 10:00. A claim of 2 VCPU
    fits now, without an end.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from placement.db.tables import WINDOW_HOLD
from placement.exceptions import Conflict, InvalidRequest
from placement.read_model.provider import Inventory
from placement.store.consumers import ConsumerOwnership, Generation
from placement.store.time_profile import EndAction, TimeWindow, iso_time
from placement.store.time_skyline import NO_SKYLINE, SkylinesByProvider, TimeSkyline

Resources = Mapping[str, int]
ByProvider = Mapping[str, Resources]
"""Amounts by uuid of the provider and by resource class."""


@dataclass(frozen=True, slots=True)
class UnmetNeed:
    """The amount of a class that refused claims want from a provider, and the free amount there.

    ``free`` counts the present amounts of the claimants as free, and the hold of the provider as used.
    """

    provider: str
    resource_class: str
    wanted: int
    free: int


class CapacityExceeded(Conflict):
    """The provider with the given uuid has too little of a resource class.

    If no refused claim has an end time, ``needs`` has the amounts that they want together, and ``claimants``
    has their consumers.
    """

    needs: Sequence[UnmetNeed] = ()
    claimants: Collection[str] = ()

    def __init__(self, detail: str, provider: str, resource_class: str) -> None:
        super().__init__(detail)
        self.provider = provider
        self.resource_class = resource_class


@dataclass(frozen=True, slots=True)
class ConsumerClaim:
    """All allocations that one consumer wants: amounts by provider uuid and resource class.

    ``generation`` is the consumer's generation as the client knows it. A ``generation`` of None means a new
    consumer, and :data:`~placement.store.consumers.ANY_GENERATION` accepts any generation (before
    microversion 1.28). ``in_any_portions`` marks the remaining amounts of a reservation, which need not
    respect min_unit, max_unit and step_size. ``window`` is the time of the allocations; None means from now
    on, without an end time. The last ``cleaning_time`` seconds of the window follow the end of the claim;
    ``on_end`` is the action at the end of the claim. A preemptible claim keeps its allocations at least until
    ``kept_until``. After that time, the start of a window may end the claim. ``taken_from`` is the uuid of
    the window to which the amounts return when the claim ends; the same transaction has locked this window.
    """

    consumer: str
    resources: ByProvider
    generation: Generation
    owner: ConsumerOwnership
    # the value is True for the rest of a reservation, which may not be a multiple of the step size
    in_any_portions: bool = False
    window: TimeWindow | None = None
    cleaning_time: int = 0
    on_end: EndAction = EndAction.NONE
    kept_until: float | None = None
    taken_from: str | None = None

    @property
    def takes_anything(self) -> bool:
        """Return whether the claim has any amount."""
        return any(self.resources.values())


@dataclass(frozen=True, slots=True)
class ClaimantHolding:
    """A holding of a consumer before its new claim; ``consumer`` and ``provider`` are uuids."""

    consumer: str
    provider_id: int
    provider: str
    class_id: int
    used: int


@dataclass(frozen=True, slots=True)
class ProviderSupply:
    """The inventories of a provider by class id, and the amounts used by consumers without a claim."""

    provider_id: int
    inventories: dict[int, Inventory]
    used: dict[int, int]

    def balance_of(self, class_id: int | None) -> tuple[int, int]:
        """Return the capacity and used amount of a resource class; without an inventory the capacity is 0."""
        inventory = None if class_id is None else self.inventories.get(class_id)
        return (0, 0) if inventory is None or class_id is None else (inventory.capacity, self.used[class_id])


def check_capacity(
    claims: Sequence[ConsumerClaim],
    supplies: Mapping[str, ProviderSupply],
    class_ids: Mapping[str, int],
    given_back: Iterable[ClaimantHolding],
) -> None:
    """Refuse claims for which the providers have too little capacity.

    The claimants together may use that part of a class's capacity that no other consumer uses. If the
    claimants already use more, for instance because an operator reduced the total, they may claim the same
    amount again. A claim of the same amount does not increase the excess, and lets guests move away.

    :param supplies: inventories and usage of the existing providers, by uuid of the provider.
    :param class_ids: the ids of the existing resource classes, by name.
    :raises InvalidRequest: there is no such provider, or no such class.
    :raises Conflict: a provider has no inventory of a claimed class, or too little of the class is free.
    """
    # names are checked before capacities, because a wrong request is reported before a conflict
    for claim in claims:
        for uuid in claim.resources:
            if uuid not in supplies:
                raise InvalidRequest(f"Allocation for resource provider '{uuid}' that does not exist.")
    for claim in claims:
        named = {name for resources in claim.resources.values() for name in resources}
        if unknown := sorted(named - class_ids.keys()):
            raise InvalidRequest(
                f"Unable to allocate inventory for consumer {claim.consumer}: "
                f"No such resource class {', '.join(unknown)}."
            )
    # amounts are summed over all claimants, because one claimant may take the amount that another gives up in
    # the same request
    held: Counter[tuple[int, int]] = Counter()
    for each in given_back:
        held[each.provider_id, each.class_id] += each.used
    taken: Counter[tuple[int, int]] = Counter()
    for claim, uuid, name, amount in claimed_amounts(claims):
        supply, class_id = supplies[uuid], class_ids[name]
        inventory = supply.inventories.get(class_id)
        # the error is a conflict and no wrong request, because both provider and class exist
        if inventory is None:
            raise _capacity_refusal(f"Inventory for '{name}' on resource provider '{uuid}' invalid.")
        # min_unit, max_unit and step_size apply to each allocation alone
        if not (claim.in_any_portions or inventory.is_portion(amount)):
            raise _capacity_refusal(
                f"{_creation_text(uuid, name)} The requested amount would violate inventory constraints."
            )
        which = (supply.provider_id, class_id)
        taken[which] += amount
        # the limit is the larger number, because claimants may keep what they hold, even above the capacity
        # (see the docstring)
        if taken[which] > max(inventory.capacity - supply.used[class_id], held[which]):
            raise capacity_exceeded(uuid, name)


def unmet_needs(
    claims: Sequence[ConsumerClaim],
    supplies: Mapping[str, ProviderSupply],
    class_ids: Mapping[str, int],
    given_back: Iterable[ClaimantHolding],
) -> list[UnmetNeed]:
    """Return the amounts that refused claims want, together and without the amounts of holds.

    The parameters are those of :func:`check_capacity`, which has found all names.
    """
    holds = {each.consumer for each in claims if each.owner.consumer_type == WINDOW_HOLD}
    held: Counter[tuple[str, int]] = Counter()
    for each in given_back:
        if each.consumer in holds:
            held[each.provider, each.class_id] += each.used
    wanted: Counter[tuple[str, str]] = Counter()
    for _, uuid, name, amount in claimed_amounts(each for each in claims if each.consumer not in holds):
        wanted[uuid, name] += amount
    needs = []
    for (uuid, name), amount in wanted.items():
        capacity, used = supplies[uuid].balance_of(class_ids[name])
        needs.append(UnmetNeed(uuid, name, amount, capacity - used - held[uuid, class_ids[name]]))
    return needs


def claimed_amounts(claims: Iterable[ConsumerClaim]) -> Iterator[tuple[ConsumerClaim, str, str, int]]:
    """Yield claim, provider uuid, resource class and amount for each amount in the claims."""
    for claim in claims:
        for uuid, resources in claim.resources.items():
            for name, amount in resources.items():
                yield claim, uuid, name, amount


def capacity_exceeded(provider: str, resource_class: str) -> CapacityExceeded:
    """Return the error that refuses an amount, because the provider with the given uuid has too little."""
    detail = f"{_creation_text(provider, resource_class)} The requested amount would exceed the capacity."
    return CapacityExceeded(f"{_REFUSED}{detail}", provider, resource_class)


_REFUSED: Final = "Unable to allocate inventory: "


def _creation_text(provider: str, resource_class: str) -> str:
    return f"Unable to create allocation for '{resource_class}' on resource provider '{provider}'."


def _capacity_refusal(why: str) -> Conflict:
    return Conflict(f"{_REFUSED}{why}")


# a client needs some time to send the claim again, and a guest needs some time to start
MIN_STAY: Final = 60.0
"""Minimum number of seconds from now until the latest end that a refusal names."""


@dataclass(frozen=True, slots=True)
class TimeShifts:
    """Times at which a refused request without an end time would fit, in seconds since 1970.

    The request fits without an end time from ``earliest_start`` on. It fits now if it has an end time, which
    is ``latest_end`` at the latest. None means that no such time was found.
    """

    earliest_start: float | None = None
    latest_end: float | None = None

    @property
    def text(self) -> str:
        """The times as the end of a sentence about the request; empty if there are none."""
        found = []
        if self.earliest_start is not None:
            found.append(f"without an end time from {iso_time(self.earliest_start)} on")
        if self.latest_end is not None:
            found.append(f"now with an end time until {iso_time(self.latest_end)}")
        return ", or ".join(found)

    @property
    def shown_times(self) -> dict[str, str | None]:
        """The times as answers show them, by the name of their field."""
        return {
            name: None if time is None else iso_time(time)
            for name, time in (("earliest_start", self.earliest_start), ("latest_end", self.latest_end))
        }


def shifts_of_needs(needs: Sequence[UnmetNeed], skylines: SkylinesByProvider, now: float) -> TimeShifts:
    """Return the times at which all these amounts fit together.

    :param skylines: the skylines of all timed amounts of these providers, except those of the claimants.
    """
    earliest, latest = now, math.inf
    for each in needs:
        skyline, room = _room_of(each, skylines)
        most = room - each.wanted
        if most < 0:
            return TimeShifts()
        # an amount without an end that fits at some time fits at each later time
        earliest = max(earliest, skyline.first_fit(most, now, math.inf))
        fits_now = skyline.largest_sum(TimeWindow(now, now + MIN_STAY)) <= most
        latest = min(latest, skyline.fits_until(most, now) if fits_now else now)
    return TimeShifts(
        earliest if earliest > now else None,
        latest if now + MIN_STAY < latest < math.inf else None,
    )


def largest_amount(need: UnmetNeed, skylines: SkylinesByProvider, now: float) -> int | None:
    """Return the largest amount without an end that fits; None if windows do not prevent the wanted one."""
    skyline, room = _room_of(need, skylines)
    fitting = room - skyline.largest_sum(TimeWindow(now, math.inf))
    return max(0, fitting) if fitting < need.wanted <= room else None


def _room_of(need: UnmetNeed, skylines: SkylinesByProvider) -> tuple[TimeSkyline, int]:
    """Return the skyline of a provider and a class, and the free amount without any timed amounts."""
    skyline = skylines.get(need.provider, {}).get(need.resource_class, NO_SKYLINE)
    return skyline, need.free + skyline.counted
