"""A slow and simple search for candidates, with which the fast search is compared.

For each tree, this search (the judge) tries every assignment of providers to needs. Then it checks each rule
of the API reference on the whole assignment, one rule a function. It shares no code with the search.
"""

from collections import Counter
from collections.abc import Iterator
from itertools import product

from placement.read_model.provider import SHARES, Provider
from placement.read_model.snapshot import ModelSnapshot
from placement.search.request import CandidatesRequest, RequestGroup

#: resources by suffix: (suffix, resource class or None, amount, provider)
Assignment = tuple[tuple[str, str | None, int, Provider], ...]
#: comparable: amounts by (provider id, class), and (suffix, provider id) pairs
Found = tuple[frozenset[tuple[int, str, int]], frozenset[tuple[str, int]]]


def all_candidates(snapshot: ModelSnapshot, request: CandidatesRequest) -> set[Found]:
    """All candidates of a request."""
    found = set()
    for root in snapshot:
        if root.parent_id is None and root_is_right(root, request):
            for assignment in assignments(snapshot, root, request):
                if all(rule(snapshot, request, assignment) for rule in RULES):
                    found.add(comparable(assignment))
    return found


def comparable(assignment: Assignment) -> Found:
    totals = totals_of(assignment)
    return (
        frozenset((provider_id, name, amount) for (provider_id, name), amount in totals.items()),
        frozenset((suffix, provider.id) for suffix, _, _, provider in assignment),
    )


def totals_of(assignment: Assignment) -> Counter[tuple[int, str]]:
    totals: Counter[tuple[int, str]] = Counter()
    for _, name, amount, provider in assignment:
        if name is not None:
            totals[provider.id, name] += amount
    return totals


def assignments(snapshot: ModelSnapshot, root: Provider, request: CandidatesRequest) -> Iterator[Assignment]:
    """All ways to choose a provider for each need, from a tree and the providers that share with it."""
    reachable = [provider for provider in snapshot if is_reachable(snapshot, root, provider)]
    choices: list[list[Assignment]] = []
    for group in request.groups:
        if group.suffix == "":
            for name, amount in group.resources.items():
                choices.append([((group.suffix, name, amount, provider),) for provider in reachable])
        else:
            parts = list(group.resources.items()) or [(None, 0)]
            choices.append(
                [
                    tuple((group.suffix, name, amount, provider) for name, amount in parts)
                    for provider in reachable
                ]
            )
    # bounds the product: no combination can make up for what one provider cannot give
    choices = [
        [parts for parts in choice if all(has_room(*part[1:]) for part in parts)] for choice in choices
    ]
    for combination in product(*choices):
        yield tuple(part for parts in combination for part in parts)


def is_reachable(snapshot: ModelSnapshot, root: Provider, provider: Provider) -> bool:
    if provider.root_id == root.id:
        return True
    of_tree = [member.aggregates for member in snapshot if member.root_id == root.id]
    return SHARES in provider.traits and any(provider.aggregates & aggregates for aggregates in of_tree)


def has_room(name: str | None, amount: int, provider: Provider) -> bool:
    if name is None:
        return True
    if name not in provider.inventories:
        return False
    inventory = provider.inventories[name]
    capacity = int((inventory.total - inventory.reserved) * inventory.allocation_ratio)
    return (
        amount >= inventory.min_unit
        and amount <= inventory.max_unit
        and amount % inventory.step_size == 0
        and amount + provider.used.get(name, 0) <= capacity
    )


def root_is_right(root: Provider, request: CandidatesRequest) -> bool:
    return all(trait in root.traits for trait in request.root_required) and not any(
        trait in root.traits for trait in request.root_forbidden
    )


def sums_fit(snapshot: ModelSnapshot, request: CandidatesRequest, assignment: Assignment) -> bool:
    """Whether the sum of the groups' amounts at each provider exceeds neither its free capacity nor its
    max_unit.
    """
    for (provider_id, name), total in totals_of(assignment).items():
        provider = snapshot.providers[provider_id]
        inventory = provider.inventories[name]
        capacity = int((inventory.total - inventory.reserved) * inventory.allocation_ratio)
        if total > inventory.max_unit or total + provider.used.get(name, 0) > capacity:
            return False
    return True


def of_group(assignment: Assignment, group: RequestGroup) -> list[Provider]:
    return [provider for suffix, _, _, provider in assignment if suffix == group.suffix]


def traits_are_right(snapshot: ModelSnapshot, request: CandidatesRequest, assignment: Assignment) -> bool:
    """Whether the providers of a group together have its required traits, and none of them has a forbidden
    trait.
    """
    for group in request.groups:
        providers = of_group(assignment, group)
        together = {trait for provider in providers for trait in provider.traits}
        if not all(any(trait in together for trait in traits) for traits in group.required):
            return False
        if any(trait in together for trait in group.forbidden):
            return False
    return True


def aggregates_are_right(snapshot: ModelSnapshot, request: CandidatesRequest, assignment: Assignment) -> bool:
    """Whether each provider is in all required aggregates. For the group without a suffix, its root may be
    the member.
    """
    for group in request.groups:
        for provider in of_group(assignment, group):
            members = [provider]
            if group.suffix == "":
                members.append(snapshot.providers[provider.root_id])
            if not any(
                all(any(one in member.aggregates for one in several) for several in group.member_of)
                for member in members
            ):
                return False
            if any(one in member.aggregates for one in group.forbidden_aggregates for member in members):
                return False
    return True


def trees_are_right(snapshot: ModelSnapshot, request: CandidatesRequest, assignment: Assignment) -> bool:
    for group in request.groups:
        for provider in of_group(assignment, group):
            if group.in_tree is not None:
                same = [member for member in snapshot if member.uuid == group.in_tree]
                if not same or same[0].root_id != provider.root_id:
                    return False
    return True


def ancestors_are_right(snapshot: ModelSnapshot, request: CandidatesRequest, assignment: Assignment) -> bool:
    """Whether each provider, together with its ancestors, has all traits of ``inside`` and none of
    ``outside``.
    """
    for group in request.groups:
        for provider in of_group(assignment, group):
            traits = {
                trait
                for above in ancestry(snapshot, provider.id)
                for trait in snapshot.providers[above].traits
            }
            if traits & group.outside or group.inside - traits:
                return False
    return True


def groups_are_isolated(snapshot: ModelSnapshot, request: CandidatesRequest, assignment: Assignment) -> bool:
    if request.group_policy != "isolate":
        return True
    suffixed = {(suffix, provider.id) for suffix, _, _, provider in assignment if suffix}
    return len(suffixed) == len({provider_id for _, provider_id in suffixed})


def subtrees_are_right(snapshot: ModelSnapshot, request: CandidatesRequest, assignment: Assignment) -> bool:
    """Whether one provider of the groups that same_subtree names is the ancestor of all the others, or equal
    to them.
    """
    for suffixes in request.same_subtrees:
        provider_ids = {provider.id for suffix, _, _, provider in assignment if suffix in suffixes}
        if not any(
            all(top in ancestry(snapshot, provider_id) for provider_id in provider_ids)
            for top in provider_ids
        ):
            return False
    return True


def ancestry(snapshot: ModelSnapshot, provider_id: int) -> list[int]:
    parent = snapshot.providers[provider_id].parent_id
    return [provider_id] if parent is None else [provider_id, *ancestry(snapshot, parent)]


def trees_are_used_once(snapshot: ModelSnapshot, request: CandidatesRequest, assignment: Assignment) -> bool:
    """Whether the candidate uses at most one provider of each tree, as below microversion 1.29."""
    providers = {provider.id: provider.root_id for _, _, _, provider in assignment}
    return request.nested or len(set(providers.values())) == len(providers)


RULES = (
    sums_fit,
    traits_are_right,
    aggregates_are_right,
    trees_are_right,
    ancestors_are_right,
    groups_are_isolated,
    subtrees_are_right,
    trees_are_used_once,
)
