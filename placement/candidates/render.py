"""The body of ``GET /allocation_candidates``, put together from ready-made pieces.

What a candidate asks for is a template that the uuids of a place fill in. The
summaries of a tree change only when something in the tree does (from microversion
1.29 on, where they do not depend on the request), and are kept with it.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import itemgetter
from typing import Any, Final

import orjson

from placement.candidates.pattern import Candidate, Pattern
from placement.microversion import Microversion
from placement.model.trees import Tree
from placement.model.world import Provider, World, in_order

ALLOCATIONS_BY_PROVIDER: Final[Microversion] = (1, 12)
TRAITS: Final[Microversion] = (1, 17)
ALL_CLASSES: Final[Microversion] = (1, 27)
WHOLE_TREES: Final[Microversion] = (1, 29)
MAPPINGS: Final[Microversion] = (1, 34)


def render(world: World, candidates: Sequence[Candidate], version: Microversion) -> bytes:
    """The JSON of the answer, in the shape of a microversion."""
    if not candidates:
        return b'{"allocation_requests":[],"provider_summaries":{}}'
    # The answer may be megabytes: its parts are joined once, with the commas between the parts.
    parts = _allocation_requests(candidates, version)
    parts[0] = b'{"allocation_requests":[' + parts[0]
    first, *others = _summaries(world, candidates, version)
    parts[-1] += b'],"provider_summaries":{' + first
    parts += others
    parts[-1] += b"}}"
    return b",".join(parts)


def _allocation_requests(candidates: Sequence[Candidate], version: Microversion) -> list[bytes]:
    """The JSON of each candidate."""
    patterns = {id(pattern): pattern for pattern, _ in candidates}
    templates = {number: _template(pattern, version) for number, pattern in patterns.items()}
    requests = []
    for pattern, place in candidates:
        text, pick = templates[id(pattern)]
        requests.append(text % pick(place.uuids))
    return requests


#: JSON with a gap for each uuid, and which of the uuids of a place fill them
_Template = tuple[bytes, Callable[[tuple[bytes, ...]], Any]]


def _template(pattern: Pattern, version: Microversion) -> _Template:
    """Nothing in it needs escaping, neither names nor uuids."""
    allocations = []
    gaps = list(pattern.resources)
    for amounts in pattern.resources.values():
        resources = ",".join([f'"{name}":{amount}' for name, amount in amounts.items()])
        if version >= ALLOCATIONS_BY_PROVIDER:
            allocations.append(f'"%b":{{"resources":{{{resources}}}}}')
        else:
            allocations.append(f'{{"resource_provider":{{"uuid":"%b"}},"resources":{{{resources}}}}}')
    joined = ",".join(allocations)
    if version < ALLOCATIONS_BY_PROVIDER:
        text = f'{{"allocations":[{joined}]}}'
    elif version < MAPPINGS:
        text = f'{{"allocations":{{{joined}}}}}'
    else:
        mappings = []
        for suffix, positions in pattern.mappings.items():
            gaps += positions
            uuids = ",".join(['"%b"'] * len(positions))
            mappings.append(f'"{suffix}":[{uuids}]')
        text = f'{{"allocations":{{{joined}}},"mappings":{{{",".join(mappings)}}}}}'
    return text.encode(), itemgetter(*gaps)


def _summaries(world: World, candidates: Sequence[Candidate], version: Microversion) -> Iterable[bytes]:
    """``"uuid":{...}`` of the providers in the candidates, with their whole trees from 1.29 on."""
    if version >= WHOLE_TREES:
        return [tree.summaries or _summarise(world, tree, version) for tree in _trees(world, candidates)]
    providers = world.providers
    used = dict.fromkeys(number for candidate in candidates for number in candidate.resources)
    if version >= ALL_CLASSES:
        return [_summary(world, providers[number], version, providers[number].inventories) for number in used]
    # every candidate has all the classes of the request
    asked = [amounts for candidate in candidates[:1] for amounts in candidate.resources.values()]
    classes = set().union(*asked)
    return [_summary(world, providers[number], version, classes) for number in used]


def _trees(world: World, candidates: Iterable[Candidate]) -> Iterable[Tree]:
    """The trees of all providers of which the candidates take something, each once."""
    places = dict.fromkeys([place for _, place in candidates])
    found = {place: None for place in places if isinstance(place, Tree)}
    if len(found) < len(places):
        trees = world.whole_trees()
        for candidate in candidates:
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
    if version >= TRAITS:
        summary["traits"] = in_order(provider.traits)
    if version >= WHOLE_TREES:
        parent = None if provider.parent_id is None else world.providers[provider.parent_id].uuid
        summary["parent_provider_uuid"] = parent
        summary["root_provider_uuid"] = world.providers[provider.root_id].uuid
    return b'"%b":%b' % (provider.uuid.encode(), orjson.dumps(summary))
