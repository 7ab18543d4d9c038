"""The body of ``GET /allocation_candidates``, put together from ready-made pieces.

What a candidate asks for never changes, and the summaries of a tree change only
when something in the tree does (from microversion 1.29 on, where they do not
depend on the request). Both are kept as JSON.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import orjson

from placement.candidates.combine import Candidate
from placement.microversion import Microversion
from placement.model.world import Provider, World, in_order

ALLOCATIONS_BY_PROVIDER: Final[Microversion] = (1, 12)
TRAITS: Final[Microversion] = (1, 17)
ALL_CLASSES: Final[Microversion] = (1, 27)
WHOLE_TREES: Final[Microversion] = (1, 29)
MAPPINGS: Final[Microversion] = (1, 34)


def render(world: World, candidates: Sequence[Candidate], version: Microversion) -> bytes:
    """The JSON of the answer, in the shape of a microversion."""
    requests = ",".join(_allocation_requests(world, candidates, version)).encode()
    summaries = b",".join(_summaries(world, candidates, version))
    return b'{"allocation_requests":[%b],"provider_summaries":{%b}}' % (requests, summaries)


def _allocation_requests(
    world: World, candidates: Sequence[Candidate], version: Microversion
) -> Iterator[str]:
    """The JSON of each candidate, made once: neither the uuids of providers nor the amounts ever change."""
    shape = "list" if version < ALLOCATIONS_BY_PROVIDER else "plain" if version < MAPPINGS else "mapped"
    for candidate in candidates:
        if candidate.shape != shape:
            candidate.json = _allocation_request(world, candidate, version)
            candidate.shape = shape
        yield candidate.json


def _allocation_request(world: World, candidate: Candidate, version: Microversion) -> str:
    """Nothing in it needs escaping, neither names nor uuids."""
    providers = world.providers
    allocations = []
    for number, amounts in candidate.resources.items():
        text = ",".join([f'"{name}":{amount}' for name, amount in amounts.items()])
        uuid = providers[number].uuid
        if version >= ALLOCATIONS_BY_PROVIDER:
            allocations.append(f'"{uuid}":{{"resources":{{{text}}}}}')
        else:
            allocations.append(f'{{"resource_provider":{{"uuid":"{uuid}"}},"resources":{{{text}}}}}')
    joined = ",".join(allocations)
    if version < ALLOCATIONS_BY_PROVIDER:
        return f'{{"allocations":[{joined}]}}'
    if version < MAPPINGS:
        return f'{{"allocations":{{{joined}}}}}'
    return f'{{"allocations":{{{joined}}},"mappings":{{{_mappings(world, candidate)}}}}}'


def _mappings(world: World, candidate: Candidate) -> str:
    providers = world.providers
    parts = []
    for suffix, numbers in candidate.mappings.items():
        uuids = '","'.join([providers[number].uuid for number in numbers])
        parts.append(f'"{suffix}":["{uuids}"]')
    return ",".join(parts)


def _summaries(world: World, candidates: Sequence[Candidate], version: Microversion) -> Iterator[bytes]:
    """``"uuid":{...}`` of the providers in the candidates, with their whole trees from 1.29 on."""
    providers = world.providers
    used = dict.fromkeys(number for candidate in candidates for number in candidate.resources)
    if version >= WHOLE_TREES:
        roots = dict.fromkeys(providers[number].root_id for number in used)
        return (_kept_tree(world, root, version) for root in roots)
    if version >= ALL_CLASSES:
        return (_summary(world, providers[number], version, providers[number].inventories) for number in used)
    # every candidate has all the classes of the request
    asked = [amounts for candidate in candidates[:1] for amounts in candidate.resources.values()]
    classes = set().union(*asked)
    return (_summary(world, providers[number], version, classes) for number in used)


def _kept_tree(world: World, root: int, version: Microversion) -> bytes:
    """The summaries of all providers of a tree, made once for each revision of it."""
    kept: dict[int, tuple[int, bytes]] = world.kept.setdefault("trees", {})
    revision = world.revisions[root]
    known = kept.get(root)
    if known is not None and known[0] == revision:
        return known[1]
    members = [world.providers[number] for number in sorted(world.trees[root])]
    summaries = b",".join([_summary(world, each, version, each.inventories) for each in members])
    kept[root] = (revision, summaries)
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
