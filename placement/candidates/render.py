"""The body of ``GET /allocation_candidates``, put together from ready-made pieces.

What a candidate asks for is a template that the uuids of a place fill in. The
summaries of a tree change only when something in the tree does (from microversion
1.29 on, where they do not depend on the request), and are kept with it.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from operator import itemgetter
from typing import Any

import orjson

from placement import microversion
from placement.candidates.pattern import Offer, Pattern, candidates_of
from placement.microversion import Microversion
from placement.model.trees import Tree
from placement.model.world import Provider, World, in_order


def render(world: World, offers: Sequence[Offer], version: Microversion) -> bytes:
    """The JSON of the answer, in the shape of a microversion."""
    if not offers:
        return b'{"allocation_requests":[],"provider_summaries":{}}'
    # The answer may be megabytes: its parts are joined once, with the commas between the parts.
    parts = _allocation_requests(offers, version)
    parts[0] = b'{"allocation_requests":[' + parts[0]
    first, *others = _summaries(world, offers, version)
    parts[-1] += b'],"provider_summaries":{' + first
    parts += others
    parts[-1] += b"}}"
    return b",".join(parts)


def _allocation_requests(offers: Sequence[Offer], version: Microversion) -> list[bytes]:
    """The JSON of the candidates of each offer."""
    distinct = {id(patterns): patterns for _, patterns in offers}
    templates = {number: _template(patterns, version) for number, patterns in distinct.items()}
    requests = []
    for place, patterns in offers:
        text, pick = templates[id(patterns)]
        requests.append(text % pick(place.uuids))
    return requests


#: JSON with a gap for each uuid, and which of the uuids of a place fill them
_Template = tuple[bytes, Callable[[tuple[bytes, ...]], Any]]


def _template(patterns: Iterable[Pattern], version: Microversion) -> _Template:
    """Nothing in it needs escaping, neither names nor uuids."""
    gaps: list[int] = []
    requests = []
    for pattern in patterns:
        gaps += pattern.resources
        allocations = ",".join([_allocation(amounts, version) for amounts in pattern.resources.values()])
        if version < microversion.ALLOCATIONS_BY_PROVIDER:
            requests.append(f'{{"allocations":[{allocations}]}}')
        elif version < microversion.MAPPINGS:
            requests.append(f'{{"allocations":{{{allocations}}}}}')
        else:
            gaps += chain.from_iterable(pattern.mappings.values())
            mappings = ",".join([_mapping(suffix, len(at)) for suffix, at in pattern.mappings.items()])
            requests.append(f'{{"allocations":{{{allocations}}},"mappings":{{{mappings}}}}}')
    return ",".join(requests).encode(), itemgetter(*gaps)


def _allocation(amounts: Mapping[str, int], version: Microversion) -> str:
    resources = ",".join([f'"{name}":{amount}' for name, amount in amounts.items()])
    if version < microversion.ALLOCATIONS_BY_PROVIDER:
        return f'{{"resource_provider":{{"uuid":"%b"}},"resources":{{{resources}}}}}'
    return f'"%b":{{"resources":{{{resources}}}}}'


def _mapping(suffix: str, providers: int) -> str:
    uuids = ",".join(['"%b"'] * providers)
    return f'"{suffix}":[{uuids}]'


def _summaries(world: World, offers: Sequence[Offer], version: Microversion) -> Iterable[bytes]:
    """``"uuid":{...}`` of the providers in the candidates, with their whole trees from 1.29 on."""
    if version >= microversion.NESTED_CANDIDATES:
        return [tree.summaries or _summarise(world, tree, version) for tree in _trees(world, offers)]
    providers = world.providers
    candidates = list(candidates_of(offers))
    used = dict.fromkeys(number for candidate in candidates for number in candidate.resources)
    if version >= microversion.ALL_CLASSES_SUMMARISED:
        return [_summary(world, providers[number], version, providers[number].inventories) for number in used]
    # every candidate has all the classes of the request
    classes = set().union(*candidates[0].resources.values())
    return [_summary(world, providers[number], version, classes) for number in used]


def _trees(world: World, offers: Iterable[Offer]) -> Iterable[Tree]:
    """The trees of all providers of which the candidates take something, each once."""
    places = dict.fromkeys([place for place, _ in offers])
    found = {place: None for place in places if isinstance(place, Tree)}
    if len(found) < len(places):
        trees = world.whole_trees()
        for candidate in candidates_of(offers):
            if candidate.place not in found:
                roots = {world.providers[number].root_id for number in candidate.resources}
                found.update((trees[root], None) for root in roots)
    return found


def _summarise(world: World, tree: Tree, version: Microversion) -> bytes:
    summaries = b",".join([_summary(world, each, version, each.inventories) for each in tree.members])
    tree.summaries = summaries
    return summaries


def _summary(
    world: World, provider: Provider, version: Microversion, classes: Mapping[str, Any] | set[str]
) -> bytes:
    summary: dict[str, Any] = {
        "resources": {
            name: {"capacity": inventory.capacity, "used": provider.used.get(name, 0)}
            for name, inventory in provider.inventories.items()
            if name in classes
        }
    }
    if version >= microversion.CANDIDATES_TRAITS:
        summary["traits"] = in_order(provider.traits)
    if version >= microversion.NESTED_CANDIDATES:
        parent = None if provider.parent_id is None else world.providers[provider.parent_id].uuid
        summary["parent_provider_uuid"] = parent
        summary["root_provider_uuid"] = world.providers[provider.root_id].uuid
    return b'"%b":%b' % (provider.uuid.encode(), orjson.dumps(summary))
