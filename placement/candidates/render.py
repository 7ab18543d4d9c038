"""The body of ``GET /allocation_candidates``, put together from ready-made pieces.

From microversion 1.27 on the summary of a provider does not depend on the
request and changes only when the provider does. Its JSON is therefore kept in
the world, beside the provider object it was made from: providers are never
changed but replaced, so that the same object means the same JSON.
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
    """The JSON of each candidate: nothing in it needs escaping, neither names nor uuids."""
    providers = world.providers
    amounts_json: dict[tuple[tuple[str, int], ...], str] = {}
    for candidate in candidates:
        allocations = []
        for number, amounts in candidate.resources.items():
            key = tuple(amounts.items())
            text = amounts_json.get(key)
            if text is None:
                text = amounts_json[key] = orjson.dumps(amounts).decode()
            uuid = providers[number].uuid
            if version >= ALLOCATIONS_BY_PROVIDER:
                allocations.append(f'"{uuid}":{{"resources":{text}}}')
            else:
                allocations.append(f'{{"resource_provider":{{"uuid":"{uuid}"}},"resources":{text}}}')
        joined = ",".join(allocations)
        if version < ALLOCATIONS_BY_PROVIDER:
            yield f'{{"allocations":[{joined}]}}'
        elif version < MAPPINGS:
            yield f'{{"allocations":{{{joined}}}}}'
        else:
            yield f'{{"allocations":{{{joined}}},"mappings":{{{_mappings(world, candidate)}}}}}'


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
        numbers = [number for root in roots for number in sorted(world.trees[root])]
        return (_kept_summary(world, providers[number], version) for number in numbers)
    if version >= ALL_CLASSES:
        return (_kept_summary(world, providers[number], version) for number in used)
    # every candidate has all the classes of the request
    asked = [amounts for candidate in candidates[:1] for amounts in candidate.resources.values()]
    classes = set().union(*asked)
    return (_summary(world, providers[number], version, classes) for number in used)


def _kept_summary(world: World, provider: Provider, version: Microversion) -> bytes:
    """As :func:`_summary`, made once for a provider object."""
    kept = world.fragments.setdefault("nested" if version >= WHOLE_TREES else "flat", {})
    made_from, fragment = kept.get(provider.id, (None, b""))
    if made_from is not provider:
        fragment = _summary(world, provider, version, provider.inventories)
        kept[provider.id] = (provider, fragment)
    return fragment


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
