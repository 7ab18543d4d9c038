"""Who is on the hosts, and what each would ask for elsewhere."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

from placement.model.provider import DISABLED, SHARES
from placement.model.snapshot import ModelSnapshot
from placement.search.budget import SearchBudget, slices
from placement.search.request import CandidatesRequest, RequestGroup
from placement.store.groups import hosts_of
from placement.store.holders import HeldAmount
from placement_extras.planner.ways import Slot


@dataclass(eq=False, frozen=True, slots=True)
class HostedConsumer:
    """A consumer with all that it holds, by provider id and class, and the roots of the hosts where it is.

    ``request`` is what it asks for elsewhere: the same object for all that ask for the same. Nobody knows
    what was asked for when it came: what it holds is looked for, each class at one provider, and no traits.
    What it holds of a class at several providers comes from a provider each again, with what else it has
    there. A disabled host takes no guest, as the requests of flavors ask it.
    """

    consumer: str
    consumer_type: str | None
    held: Mapping[Slot, int]
    hosts: frozenset[int]
    request: CandidatesRequest

    @property
    def amounts(self) -> dict[str, int]:
        """All that it holds, by class."""
        found: dict[str, int] = {}
        for (_, name), amount in self.held.items():
            found[name] = found.get(name, 0) + amount
        return found


def guests_of(
    snapshot: ModelSnapshot, held: Sequence[HeldAmount], budget: SearchBudget
) -> list[HostedConsumer]:
    """The guests who hold this, in the order of their uuids; without what no provider of the snapshot has.

    :raises placement.search.budget.BudgetExhausted: it takes too long.
    """
    by_consumer: dict[tuple[str, str | None], dict[Slot, int]] = {}
    for each in chain.from_iterable(slices(held, budget)):
        provider = snapshot.providers.get(each.provider_id)
        if provider is not None and each.resource_class in provider.inventories:
            whose = each.consumer, each.consumer_type
            by_consumer.setdefault(whose, {})[each.provider_id, each.resource_class] = each.used
    requests: dict[object, CandidatesRequest] = {}
    guests = []
    for (consumer, kind), amounts in sorted(by_consumer.items(), key=lambda item: item[0][0]):
        budget.spend(len(amounts))
        asked = _groups(amounts)
        if asked not in requests:
            requests[asked] = _request(asked)
        taken = [snapshot.providers[provider_id] for provider_id, _ in amounts]
        hosts = hosts_of((each.root_id, SHARES in each.traits) for each in taken)
        guests.append(HostedConsumer(consumer, kind, amounts, hosts, requests[asked]))
    return guests


_Amounts = tuple[tuple[str, int], ...]


def _groups(held: Mapping[Slot, int]) -> tuple[_Amounts, tuple[_Amounts, ...]]:
    """What is asked for in the group without a suffix, and in each of those with one."""
    providers = Counter(name for _, name in held)
    by_provider: dict[int, dict[str, int]] = {}
    for (provider_id, name), amount in held.items():
        by_provider.setdefault(provider_id, {})[name] = amount
    common: dict[str, int] = {}
    apart = []
    for amounts in by_provider.values():
        if any(providers[name] > 1 for name in amounts):
            apart.append(tuple(sorted(amounts.items())))
        else:
            common |= amounts
    return tuple(sorted(common.items())), tuple(sorted(apart))


def _request(asked: tuple[_Amounts, tuple[_Amounts, ...]]) -> CandidatesRequest:
    common, apart = asked
    groups = [RequestGroup("", dict(common))] if common else []
    groups += [RequestGroup(f"_{number}", dict(amounts)) for number, amounts in enumerate(apart)]
    return CandidatesRequest(tuple(groups), group_policy="none", root_forbidden=frozenset((DISABLED,)))
