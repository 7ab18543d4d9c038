"""Reads providers, with their inventories, traits, aggregates and usage, from the database."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, NamedTuple, TypeVar

import sqlalchemy as sa

from placement.db.batch import (
    PreparedStatement,
    Rows,
    StatementBatch,
    StatementFamily,
    bind_parameters,
    bind_values,
    pad_values,
)
from placement.db.tables import (
    RESERVATION,
    TREE_ROOT,
    allocations,
    claim_expiries,
    consumers,
    inventories,
    is_planned,
    provider_aggregates,
    provider_attributes,
    provider_traits,
    reservations,
    resource_classes,
    resource_providers,
    traits,
)
from placement.read_model.provider import Attribute, Inventory, Provider

T = TypeVar("T")

# each id is a parameter, and SQLite allows at most 32,766 parameters in a statement
_CHUNK: Final = 500
"""Maximum number of providers in one statement that reads inventories, traits, aggregates or usage."""
# rows become providers in batches, because a large cloud has millions of rows
_MANY: Final = 10_000
"""Maximum number of rows that are in memory at the same time when a whole table is read."""
# the number limits the memory: values of deleted providers are kept until it is reached
_MAX_SHARED: Final = 100_000
"""Maximum number of distinct values that are kept for sharing.

When there are more, all of them are dropped.
"""
# the limit is low: most updates have few pairs, and each pair is a further alternative for the query planner
_MAX_PAIRS: Final = 64
"""Maximum number of pairs (a bucket and a counter) in one statement."""
# only the low bits are summed, because a sum of stamps of 64 bits would exceed the integers of SQLite
_SUMMED_BITS: Final = (1 << 32) - 1
"""The bits of a stamp that count for the sum in a fingerprint."""

_rp = resource_providers.c

_providers: Final = sa.select(
    _rp.id,
    _rp.uuid,
    _rp.name,
    _rp.generation,
    _rp.parent_id,
    TREE_ROOT.label("root_id"),
    _rp.updated_at,
    _rp.bucket,
    _rp.change_seq,
    _rp.described_seq,
)
# the columns have the order of the fields, because rows are passed to the constructor unchanged
INVENTORY_COLUMNS: Final = (
    inventories.c.total,
    inventories.c.reserved,
    inventories.c.min_unit,
    inventories.c.max_unit,
    inventories.c.step_size,
    inventories.c.allocation_ratio,
)
"""The columns of an :class:`~placement.read_model.provider.Inventory`, in the order of its fields."""
_inventories: Final = sa.select(
    inventories.c.provider_id,
    inventories.c.resource_class_id,
    inventories.c.updated_at,
    *INVENTORY_COLUMNS,
)
# usage is summed by the database, because a host may have thousands of allocations but only a few classes
_used: Final = sa.select(
    allocations.c.provider_id, allocations.c.resource_class_id, sa.func.sum(allocations.c.used)
).group_by(allocations.c.provider_id, allocations.c.resource_class_id)
_traits: Final = sa.select(provider_traits.c.provider_id, provider_traits.c.trait_id)
_attributes: Final = sa.select(
    provider_attributes.c.provider_id,
    provider_attributes.c.name,
    provider_attributes.c.text,
    provider_attributes.c.number,
)
_aggregates: Final = sa.select(provider_aggregates.c.provider_id, provider_aggregates.c.aggregate)

_PARTS: Final = {
    "inventories": (_inventories, inventories),
    "used": (_used, allocations),
    "traits": (_traits, provider_traits),
    "aggregates": (_aggregates, provider_aggregates),
    "attributes": (_attributes, provider_attributes),
}
"""Queries for the parts of all providers, by kind, each with the table that has the ids of the providers."""


class NameRow(NamedTuple):
    """The columns that the model needs from the row of a resource class or trait."""

    id: int
    name: str
    updated_at: float


class NameTable:
    """The names of resource classes and traits by id, and the time when each name was last written."""

    def __init__(self, classes: Sequence[Any], trait_rows: Sequence[Any]) -> None:
        self.class_of: dict[int, str] = {row.id: row.name for row in classes}
        self.trait_of: dict[int, str] = {row.id: row.name for row in trait_rows}
        self.classes: dict[str, float] = {row.name: row.updated_at for row in classes}
        self.traits: dict[str, float] = {row.name: row.updated_at for row in trait_rows}


def read_names(conn: sa.Connection) -> NameTable:
    """Return all names of resource classes and traits, in the order of their creation."""
    return NameTable(
        *(conn.execute(sa.select(table).order_by(table.c.id)).all() for table in (resource_classes, traits))
    )


class SharedValues:
    """Replaces equal values by one shared object, to save memory.

    Thousands of hosts have only few different inventories and sets of traits. All kept values are dropped
    from time to time, because otherwise values that no provider uses any more would be kept for ever.
    """

    def __init__(self) -> None:
        self._kept: dict[Any, Any] = {}
        #: inventories of whole providers, by the names of classes and the identities of kept inventories
        self._inventories: dict[tuple[Any, ...], dict[str, Inventory]] = {}

    def __call__(self, value: Any) -> Any:
        """Return the object that represents all values equal to this value."""
        if len(self._kept) >= _MAX_SHARED:
            # all values are dropped together; existing providers keep their objects, and providers that are
            # read later share new objects
            self._kept.clear()
            # inventories are dropped, too, because the keys of this mapping are the identities of kept
            # inventories
            self._inventories.clear()
        return self._kept.setdefault(value, value)

    def __len__(self) -> int:
        return len(self._kept) + len(self._inventories)

    def shared_inventories(self, found: tuple[Any, ...]) -> dict[str, Inventory]:
        """Return shared inventories by class; ``found`` has each class name, followed by its inventory."""
        if not found:
            return NOTHING
        by_name = dict(zip(found[::2], map(self, found[1::2]), strict=True))
        # the key has identities, because equal inventories are one object, and hashing their values would
        # take longer
        key = tuple([part for name, inventory in by_name.items() for part in (name, id(inventory))])
        return self._inventories.setdefault(key, by_name)


class BucketFingerprint(NamedTuple):
    """The number of a bucket's providers and the sum of their change numbers: equal only for equal states."""

    providers: int
    total: int


def fingerprint_summand(change_seq: int) -> int:
    """Return the number that a ``change_seq`` adds to the sum in a :class:`BucketFingerprint`."""
    # the low bits suffice, because change counters grow by random steps
    return change_seq & _SUMMED_BITS


class ProviderVersion(NamedTuple):
    """The row of a provider in ``resource_providers``, with its stamps (see :mod:`placement.db.buckets`)."""

    id: int
    uuid: str
    name: str
    generation: int
    parent_id: int | None
    root_id: int
    updated_at: float
    bucket: int
    change_seq: int
    described_seq: int


@dataclass(frozen=True)
class ChangedBuckets:
    """The providers of some buckets that have changed.

    ``used`` has rows of provider id, id of a resource class, and used amount. ``fingerprints`` has the
    fingerprint of each bucket, over all its providers.
    """

    providers: list[ProviderVersion]
    used: Rows
    fingerprints: dict[int, BucketFingerprint]


def read_changed(batch: StatementBatch, known: Mapping[int, int]) -> ChangedBuckets:
    """Read the providers with stamps above the ``known`` counter of their bucket, and their usage."""
    answers = []
    pairs = list(known.items())
    for start in range(0, len(pairs), _MAX_PAIRS):
        chunk = pairs[start : start + _MAX_PAIRS]
        buckets, counters = zip(*pad_values(chunk), strict=True)
        values = {**bind_values("bucket", buckets), **bind_values("counter", counters)}
        # all chunks are queued before an answer is read, so that they are sent together
        answers.append([batch.add(statement, values) for statement in _stamped_statements(len(buckets))])
    return ChangedBuckets(
        [ProviderVersion._make(row) for providers, _, _ in answers for row in providers.rows],
        [row for _, used, _ in answers for row in used.rows],
        {
            # some drivers return sums as Decimal
            bucket: BucketFingerprint(count, int(total))
            for _, _, fingerprints in answers
            for bucket, count, total in fingerprints.rows
        },
    )


# statements are cached by the padded number of buckets: 1, 2, 4 and so on up to 64 are seven statements
@lru_cache
def _stamped_statements(count: int) -> tuple[PreparedStatement, PreparedStatement, PreparedStatement]:
    """Return statements for this number of buckets: changed providers, their usage, and fingerprints."""
    chosen = bind_parameters("bucket", count, sa.Integer)
    pairs = zip(chosen, bind_parameters("counter", count, sa.BigInteger), strict=True)
    stamped = sa.or_(*(sa.and_(_rp.bucket == bucket, _rp.change_seq > counter) for bucket, counter in pairs))
    # the sums include all providers of a bucket, and so prove that the model also has the unchanged providers
    total = sa.func.sum(_rp.change_seq.bitwise_and(_SUMMED_BITS))
    return (
        PreparedStatement(_providers.where(stamped)),
        PreparedStatement(_used.join(resource_providers).where(stamped)),
        PreparedStatement(
            sa.select(_rp.bucket, sa.func.count(), total).where(_rp.bucket.in_(chosen)).group_by(_rp.bucket)
        ),
    )


def read_all(
    conn: sa.Connection, names: NameTable, shared: SharedValues
) -> Iterator[tuple[ProviderVersion, Provider]]:
    """Read all providers; yield each provider with its database row."""
    parts = {kind: _stream_rows(conn, query) for kind, (query, _) in _PARTS.items()}
    return _assemble_providers(
        map(ProviderVersion._make, _stream_rows(conn, _providers)), parts, names, shared
    )


def read_some(
    conn: sa.Connection, rows: Sequence[ProviderVersion], names: NameTable, shared: SharedValues
) -> Iterator[tuple[ProviderVersion, Provider]]:
    """Read the providers with these rows; yield each provider together with its row."""
    # each table and chunk has a query of its own, because a join would repeat rows for each combination
    for start in range(0, len(rows), _CHUNK):
        chunk = rows[start : start + _CHUNK]
        batch, ids = StatementBatch(conn), [row.id for row in chunk]
        # all statements are queued before an answer is read, so that they are sent together
        answers = {kind: batch.add(*each.bind_list(ids)) for kind, each in _of_some.items()}
        parts = {kind: answer.rows for kind, answer in answers.items()}
        yield from _assemble_providers(chunk, parts, names, shared)


_of_some: Final = {
    kind: StatementFamily(table.c.provider_id, query.where) for kind, (query, table) in _PARTS.items()
}
"""Statements that select the inventories and other parts of some providers, by kind."""


# conditions are sub-queries instead of joins, so that each database walks the index of the times, and mostly
# reads one row
_is_reservation: Final = (
    sa.select(sa.literal(1))
    .where(consumers.c.id == reservations.c.consumer_id, consumers.c.consumer_type == RESERVATION)
    .correlate(reservations)
    .exists()
)
_is_present: Final = (
    sa.select(sa.literal(1))
    .where(
        consumers.c.id == claim_expiries.c.consumer_id, consumers.c.generation == claim_expiries.c.generation
    )
    .correlate(claim_expiries)
    .exists()
)
_next_expiries: Final = [
    PreparedStatement(sa.select(time).where(*conditions).order_by(time).limit(1))
    for time, *conditions in (
        (reservations.c.expires_at, _is_reservation),
        # this is the next start of a pending window
        (
            reservations.c.starts_at,
            _is_reservation,
            is_planned(reservations.c.consumer_id),
            reservations.c.starts_at.is_not(None),
        ),
        (claim_expiries.c.expires_at, _is_present),
    )
]


def read_next_expiry(conn: sa.Connection) -> float:
    """Return the database's time of the next expiry or start of a window; infinity if there is neither."""
    batch = StatementBatch(conn)
    # all statements are queued before an answer is read, so that they are sent together
    answers = [batch.add(each, {}) for each in _next_expiries]
    return min((float(time) for answer in answers for time in answer.scalars), default=math.inf)


def sum_up(rows: Iterable[Any], names: NameTable) -> dict[int, dict[str, int]]:
    """Return the used amount of each class, by provider; providers without usage are missing."""
    used: dict[int, dict[str, int]] = {}
    for provider_id, class_id, amount in rows:
        # some drivers return sums as Decimal
        used.setdefault(provider_id, {})[names.class_of[class_id]] = int(amount)
    return used


def _stream_rows(conn: sa.Connection, query: Any) -> Iterator[Any]:
    """Yield the rows of a query in batches, because there may be millions."""
    for some in conn.execute(query).partitions(_MANY):
        yield from some


def _assemble_providers(
    rows: Iterable[ProviderVersion],
    parts: Mapping[str, Iterable[Any]],
    names: NameTable,
    shared: SharedValues,
) -> Iterator[tuple[ProviderVersion, Provider]]:
    """Yield each provider with its row, made of the rows of its inventories, traits and other ``parts``."""
    owned_inventories: dict[int, tuple[Any, ...]] = {}
    owned_times: dict[int, tuple[float, ...]] = {}
    for provider_id, class_id, written_at, *values in parts["inventories"]:
        owned_times[provider_id] = (*owned_times.get(provider_id, ()), written_at)
        before = owned_inventories.get(provider_id, ())
        # the inventories are tuples, because lists would need more memory for a few inventories
        owned_inventories[provider_id] = (*before, names.class_of[class_id], shared(Inventory(*values)))
    used = sum_up(parts["used"], names)
    owned_traits: dict[int, list[str]] = {}
    for provider_id, trait_id in parts["traits"]:
        owned_traits.setdefault(provider_id, []).append(names.trait_of[trait_id])
    aggregates: dict[int, list[str]] = {}
    for provider_id, aggregate in parts["aggregates"]:
        aggregates.setdefault(provider_id, []).append(shared(aggregate))
    attributes: dict[int, dict[str, Attribute]] = {}
    for provider_id, name, text, number in parts["attributes"]:
        # an attribute is stored in one of two columns, either as a text or as a number
        attributes.setdefault(provider_id, {})[shared(name)] = number if text is None else text
    ids: dict[int, int] = {}
    # the id is one integer object in all providers, keys and indexes, to save memory
    same = ids.setdefault
    updated_at, times = 0.0, NO_TIMES
    for row in rows:
        # successive providers with equal times share one float object
        if row.updated_at != updated_at:
            updated_at = row.updated_at
        provider_id = same(row.id, row.id)
        if (own_times := _shorten_times(owned_times.pop(provider_id, NO_TIMES))) != times:
            times = own_times
        parent_id = None if row.parent_id is None else same(row.parent_id, row.parent_id)
        yield (
            row,
            Provider(
                id=provider_id,
                uuid=row.uuid,
                name=row.name,
                generation=row.generation,
                parent_id=parent_id,
                root_id=same(row.root_id, row.root_id),
                updated_at=updated_at,
                inventories=shared.shared_inventories(owned_inventories.pop(provider_id, ())),
                used=used.pop(provider_id, NOTHING),
                traits=shared(frozenset(owned_traits.pop(provider_id, ()))),
                aggregates=shared(frozenset(aggregates.pop(provider_id, ()))),
                attributes=attributes.pop(provider_id, NOTHING),
                described_seq=row.described_seq,
                inventory_times=times,
            ),
        )


def _shorten_times(times: tuple[float, ...]) -> tuple[float, ...]:
    """Shorten the times of inventories to the form of ``Provider.inventory_times``."""
    return times[:1] if len(set(times)) == 1 else times


NOTHING: Final[dict[str, Any]] = {}
NO_TIMES: Final[tuple[float, ...]] = ()
