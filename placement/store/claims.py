"""The wanted allocations of consumers, and whether providers can give them: a decision without a database."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from placement.exceptions import Conflict, InvalidRequest
from placement.read_model.provider import Inventory
from placement.store.consumers import ConsumerOwnership, Generation

Resources = Mapping[str, int]
ByProvider = Mapping[str, Resources]


@dataclass(frozen=True, slots=True)
class ConsumerClaim:
    """The complete wanted allocations of one consumer: amounts by provider uuid and resource class.

    ``generation`` is the one of the consumer that the client knows: None means a new consumer, and
    :data:`~placement.store.consumers.ANY_GENERATION` any (before microversion 1.28). With ``in_any_portions``
    (for the rest of earlier allocations) the amounts need not be portions that the inventories allow.
    """

    consumer: str
    resources: ByProvider
    generation: Generation
    owner: ConsumerOwnership
    # after a part of it was taken, the rest of a reservation may not be a multiple of the step
    in_any_portions: bool = False

    @property
    def takes_anything(self) -> bool:
        """Return whether the claim has any amount."""
        return any(self.resources.values())


@dataclass(frozen=True, slots=True)
class ClaimantHolding:
    """One amount that a claimant has before its claim.

    ``consumer`` and ``provider`` are uuids, ``used`` is the held amount.
    """

    consumer: str
    provider_id: int
    provider: str
    class_id: int
    used: int


@dataclass(frozen=True, slots=True)
class ProviderSupply:
    """The inventories of a provider (by class id), and the usage of consumers other than the claimants."""

    provider_id: int
    inventories: dict[int, Inventory]
    used: dict[int, int]


def check_capacity(
    claims: Sequence[ConsumerClaim],
    supplies: Mapping[str, ProviderSupply],
    class_ids: Mapping[str, int],
    given_back: Iterable[ClaimantHolding],
) -> None:
    """Refuse claims that the providers cannot serve.

    Of each class of a provider, the claimants together may hold the capacity minus the usage of other
    consumers. If the consumers already hold more, for instance because the total was reduced, they may claim
    as much again. Such a claim does not increase the excess, and lets guests move away.

    :param supplies: inventories and usage, by the uuids of existing providers.
    :param class_ids: ids, by the names of existing classes.
    :raises InvalidRequest: there is no such provider, or no such class.
    :raises Conflict: a provider has no such inventory or not enough of it.
    """
    # all names are checked before any capacity, so that a wrong request is reported and not a conflict
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
    # summed over all claimants, because in one request one consumer may give what another takes
    held: Counter[tuple[int, int]] = Counter()
    for each in given_back:
        held[each.provider_id, each.class_id] += each.used
    taken: Counter[tuple[int, int]] = Counter()
    for claim, uuid, name, amount in claimed_amounts(claims):
        supply, class_id = supplies[uuid], class_ids[name]
        inventory = supply.inventories.get(class_id)
        # provider and class exist, so a missing inventory is a conflict and no wrong request
        if inventory is None:
            raise _capacity_refusal(f"Inventory for '{name}' on resource provider '{uuid}' invalid.")
        what = f"Unable to create allocation for '{name}' on resource provider '{uuid}'."
        # each amount alone, because portions limit what one consumer gets at once
        if not (claim.in_any_portions or inventory.is_portion(amount)):
            raise _capacity_refusal(f"{what} The requested amount would violate inventory constraints.")
        which = (supply.provider_id, class_id)
        taken[which] += amount
        # max(), because a claimant that holds more than the capacity may keep as much (see the docstring)
        if taken[which] > max(inventory.capacity - supply.used[class_id], held[which]):
            raise _capacity_refusal(f"{what} The requested amount would exceed the capacity.")


def claimed_amounts(claims: Iterable[ConsumerClaim]) -> Iterator[tuple[ConsumerClaim, str, str, int]]:
    """Yield each claimed amount: claim, provider, resource class, amount."""
    for claim in claims:
        for uuid, resources in claim.resources.items():
            for name, amount in resources.items():
                yield claim, uuid, name, amount


def _capacity_refusal(why: str) -> Conflict:
    return Conflict(f"Unable to allocate inventory: {why}")
