"""The resources ``/resource_providers``, ``/resource_providers/{uuid}`` and ``.../{uuid}/aggregates``."""

import time
import uuid as uuids
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

import orjson
from flask import Blueprint, Response

from placement import microversion
from placement.api.call import ApiRequest, api_operation, mount_prefix
from placement.exceptions import InvalidRequest, NotFound
from placement.microversion import Microversion
from placement.policies import rest as rules
from placement.read_model.feed import ModelView
from placement.read_model.provider import Provider
from placement.read_model.snapshot import ModelSnapshot
from placement.schemas import resource_provider as schemas
from placement.schemas.base import canonical_uuid
from placement.schemas.query import parse_provider_filter
from placement.search.budget import SearchBudget, yielding_slices
from placement.search.request import check_names, filter_providers
from placement.store import provider_properties, providers

blueprint = Blueprint("resource_providers", __name__)

# each link of a provider: the microversion that introduced it, and its relation
_LINKS: Final = (
    (microversion.INITIAL, "inventories"),
    (microversion.INITIAL, "usages"),
    (microversion.AGGREGATES, "aggregates"),
    (microversion.TRAITS, "traits"),
)

# a web server sends each piece separately, so few pieces are joined to one
_AS_ONE: Final = 10
"""Maximum number of pieces of an answer that are joined to one piece."""

_AGGREGATES_PATH: Final = "/resource_providers/<uuid>/aggregates"
_AGGREGATES_BODY, _AGGREGATE_LIST = schemas.AggregatesBody(), schemas.AggregateList()

_UUID: Final = b"{uuid}"
"""Placeholder in templates for the uuid of the provider."""


def render_providers(providers: Iterable[Provider], view: ModelView, version: Microversion) -> bytes:
    """Return the JSON documents of providers, separated by commas."""
    everyone = view.snapshot.providers
    template = _provider_template(mount_prefix(), version)
    return b",".join(
        [
            template.fill_gaps(
                each.uuid,
                each.name,
                each.generation,
                None if each.parent_id is None else everyone[each.parent_id].uuid,
                everyone[each.root_id].uuid,
            )
            for each in providers
        ]
    )


@dataclass(frozen=True, slots=True)
class _ProviderTemplate:
    """The JSON of a provider, with gaps for its values.

    ``nested`` is set if the microversion shows the parent and the root of a provider.
    """

    text: bytes
    nested: bool

    def fill_gaps(self, uuid: str, name: str, generation: int, parent: str | None, root: str) -> bytes:
        """Return the JSON of a provider with these values."""
        gaps: tuple[Any, ...] = (orjson.dumps(name), generation)
        if self.nested:
            gaps += (b'"%b"' % parent.encode() if parent else b"null", root.encode())
        return self.text.replace(_UUID, uuid.encode()) % gaps


@lru_cache(maxsize=256)
# templates are cached, because the documents of all providers in one version differ only in the gaps
def _provider_template(prefix: str, version: Microversion) -> _ProviderTemplate:
    path = f"{prefix}/resource_providers/{_UUID.decode()}"
    links = [{"rel": "self", "href": path}]
    links += [{"rel": rel, "href": f"{path}/{rel}"} for since, rel in _LINKS if version >= since]
    if version >= microversion.ALLOCATIONS_LINK:
        links.append({"rel": "allocations", "href": f"{path}/allocations"})
    # the text becomes a template for the operator %, so percent signs in the links are doubled
    shown_links = orjson.dumps(links).replace(b"%", b"%%")
    nested = (
        b',"parent_provider_uuid":%b,"root_provider_uuid":"%b"'
        if version >= microversion.NESTED_PROVIDERS
        else b""
    )
    text = b'{"uuid":"%b","name":%%b,"generation":%%d,"links":%b%b}' % (_UUID, shown_links, nested)
    return _ProviderTemplate(text, bool(nested))


def existing_provider(snapshot: ModelSnapshot, uuid: str) -> Provider:
    """Return the provider with the uuid that a path contains, or raise NotFound."""
    provider = snapshot.get(canonical_uuid(uuid) or uuid)
    if provider is None:
        raise providers.no_provider(uuid)
    return provider


def current_provider(call: ApiRequest, uuid: str) -> Provider:
    """Return the current provider with the uuid that a path contains, or raise NotFound."""
    with call.service.model.fresh_view() as view:
        return existing_provider(view.snapshot, uuid)


def path_uuid(text: str, missing: Callable[[str], NotFound] = providers.no_provider) -> str:
    """Convert a uuid from a path to its canonical form, as in the database.

    :param missing: a function that returns the error for a text that is no uuid.
    :raises NotFound: the text is no uuid.
    """
    canonical = canonical_uuid(text)
    if canonical is None:
        raise missing(text)
    return canonical


@contextmanager
def missing_provider_first(call: ApiRequest, uuid: str) -> Iterator[None]:
    """Return a context in which the caller parses the body of a request for a provider.

    :raises placement.exceptions.NotFound: the body is wrong, and the provider does not exist. This error
        replaces the error about the body.
    """
    try:
        yield
    except InvalidRequest:
        # the provider is looked up only after an error, so that valid requests need no lookup
        current_provider(call, uuid)
        raise


@api_operation(blueprint, "GET", "/resource_providers", rules.LIST_PROVIDERS, writes_json=True)
def list_all(call: ApiRequest) -> Response:
    """List the providers that pass the filters."""
    wanted = parse_provider_filter(call.query_parameters, call.version)
    with call.service.model.fresh_view() as view:
        check_names(wanted, view.names.classes, view.names.traits)
        budget = SearchBudget(yield_lock=view.yield_after(call.check_awaited))
        found = filter_providers(view.snapshot, wanted, budget)
        pieces, newest = [], []
        for some in yielding_slices(found, budget):
            # the documents are made in slices, so that a list of all providers does not delay other requests
            pieces += [render_providers(some, view, call.version), b","]
            newest.append(max([provider.updated_at for provider in some]))
        body = [b'{"resource_providers":[', *pieces[:-1], b"]}"]
        if len(pieces) <= _AS_ONE:
            body = [b"".join(body)]
        return call.answer_pieces(body, max(newest, default=time.time()))


@api_operation(blueprint, "POST", "/resource_providers", rules.CREATE_PROVIDER, reads_json=True)
def create_provider(call: ApiRequest) -> Response:
    """Create a provider. From microversion 1.20 on, the answer shows the new provider."""
    body = call.parse_body(schemas.creation_schema(call.version))
    uuid = body.get("uuid") or str(uuids.uuid4())
    name, parent = body["name"], body.get("parent_provider_uuid")
    root_of_it = call.service.database.write(lambda tx: providers.create_provider(tx, uuid, name, parent))
    location = f"/resource_providers/{uuid}"
    if call.version < microversion.PROVIDER_ANSWERED:
        return call.empty_answer(201, location)
    # the answer is made from the request, because the read model does not contain the new provider yet
    document = _provider_template(mount_prefix(), call.version).fill_gaps(uuid, name, 0, parent, root_of_it())
    return call.add_location(call.json_answer(document, time.time()), location)


@api_operation(blueprint, "GET", "/resource_providers/<uuid>", rules.SHOW_PROVIDER, writes_json=True)
def show_provider(call: ApiRequest, uuid: str) -> Response:
    """Show one provider."""
    return _provider_answer(call, uuid)


def _provider_answer(call: ApiRequest, uuid: str) -> Response:
    with call.service.model.fresh_view() as view:
        provider = existing_provider(view.snapshot, uuid)
        return call.json_answer(render_providers([provider], view, call.version), provider.updated_at)


@api_operation(blueprint, "PUT", "/resource_providers/<uuid>", rules.UPDATE_PROVIDER, reads_json=True)
def update(call: ApiRequest, uuid: str) -> Response:
    """Rename a provider, or change its parent."""
    known = path_uuid(uuid)
    with missing_provider_first(call, known):
        body = call.parse_body(schemas.update_schema(call.version))
    call.service.database.write(
        lambda tx: providers.update(
            tx,
            known,
            body["name"],
            body.get("parent_provider_uuid"),
            sets_parent="parent_provider_uuid" in body,
            may_move=call.version >= microversion.REPARENTING,
        )
    )
    return _provider_answer(call, known)


@api_operation(blueprint, "DELETE", "/resource_providers/<uuid>", rules.DELETE_PROVIDER)
def delete(call: ApiRequest, uuid: str) -> Response:
    """Delete a provider without children and allocations."""
    known = canonical_uuid(uuid) or uuid
    call.service.write(lambda tx: providers.delete(tx, known))
    return call.empty_answer()


def _aggregates_answer(
    call: ApiRequest, aggregates: list[str], generation: int, last_modified: float
) -> Response:
    document: dict[str, Any] = {"aggregates": aggregates}
    if call.version >= microversion.AGGREGATES_GENERATION:
        document["resource_provider_generation"] = generation
    return call.json_answer(document, last_modified)


@api_operation(
    blueprint, "GET", _AGGREGATES_PATH, rules.LIST_AGGREGATES, since=microversion.AGGREGATES, writes_json=True
)
def show_aggregates(call: ApiRequest, uuid: str) -> Response:
    """Show the aggregates of a provider."""
    provider = current_provider(call, uuid)
    return _aggregates_answer(call, sorted(provider.aggregates), provider.generation, provider.updated_at)


@api_operation(
    blueprint,
    "PUT",
    _AGGREGATES_PATH,
    rules.UPDATE_AGGREGATES,
    since=microversion.AGGREGATES,
    reads_json=True,
)
def replace_aggregates(call: ApiRequest, uuid: str) -> Response:
    """Replace the aggregates of a provider."""
    known = path_uuid(uuid)
    # requests before microversion 1.19 have no generation, so no generation is checked
    expected = None
    with missing_provider_first(call, known):
        if call.version >= microversion.AGGREGATES_GENERATION:
            body = call.parse_body(_AGGREGATES_BODY)
            aggregates, expected = body["aggregates"], body["resource_provider_generation"]
        else:
            aggregates = call.wrapped_body(_AGGREGATE_LIST, "aggregates")
    generation = call.service.database.write(
        lambda tx: provider_properties.replace_aggregates(tx, known, expected, aggregates)
    )
    return _aggregates_answer(call, aggregates, generation, time.time())
