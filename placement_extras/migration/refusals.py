"""What of a database of OpenStack Placement cannot become rows of ours, found before anything is written."""

from collections.abc import Iterable, Iterator
from typing import Final

import sqlalchemy as sa

from placement.exceptions import InvalidRequest
from placement_extras.migration.reference import StockContent, canonical

_LARGEST: Final = 2**31 - 1  # of our column for amounts


def refusals(source: StockContent) -> list[str]:
    """The things, in words; no service of either kind makes them, but years and SQL by hand do."""
    providers = _providers(source)
    return [
        *_spellings("resource provider", (uuid for uuid, _ in providers)),
        *_names(providers),
        *_spellings("consumer", _consumers(source)),
        *_spellings("aggregate", _aggregates(source)),
        *_amounts(source),
    ]


def _providers(source: StockContent) -> list[tuple[str, str | None]]:
    p = source.tables.providers.c
    return [(uuid, name) for uuid, name in source.conn.execute(sa.select(p.uuid, p.name).order_by(p.id))]


def _consumers(source: StockContent) -> Iterator[str]:
    """Those that hold something."""
    yield from source.conn.execute(sa.select(source.queries["consumers"].subquery().c.uuid)).scalars()
    yield from source.unknown_consumers


def _aggregates(source: StockContent) -> Iterator[str]:
    """Those that have members, in one spelling each."""
    listed = source.queries["provider_aggregates"].subquery()
    yield from source.conn.execute(sa.select(listed.c.aggregate).distinct()).scalars()


def _spellings(what: str, texts: Iterable[str]) -> Iterator[str]:
    """Those that are no uuids, and those that are the same one."""
    known: dict[str, str] = {}
    for text in texts:
        try:
            first = known.setdefault(canonical(text), text)
        except InvalidRequest:
            yield f"{what} {text!r}: that is no uuid"
            continue
        if first is not text:
            yield f"{what} {text}: the same uuid as {first}, in another spelling"


def _names(providers: Iterable[tuple[str, str | None]]) -> Iterator[str]:
    """Where a provider without a name cannot get its uuid for one, as somebody else has that name."""
    known: dict[str, str] = {}
    for uuid, name in providers:
        first = known.setdefault(uuid if name is None else name, uuid)
        if first is not uuid:
            yield f"resource provider {uuid}: {name or uuid!r} is the name of {first}, too"


def _amounts(source: StockContent) -> Iterator[str]:
    """Rows of the same thing that add up to more than a column holds."""
    held = source.queries["allocations"].subquery().c
    query = sa.select(held.consumer_uuid, held.provider_id, held.resource_class_id, held.used)
    for consumer, provider, class_id, used in source.conn.execute(query.where(held.used > _LARGEST)):
        name = source.classes[class_id]
        yield f"allocation of {used} {name} of resource provider number {provider} for {consumer}: too much"
