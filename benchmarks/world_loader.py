"""Creates worlds: over REST, in slices and in turns on all services, or at once with SQL."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from typing import Any, Final

import sqlalchemy as sa

from benchmarks.clients import ClientPool, WorkTally
from benchmarks.http import ServiceConnection
from benchmarks.measure import ComparisonResult, interleave_repeats
from benchmarks.servers import MeasuredService
from benchmarks.worlds import ProviderWorld, Tree, WorldProvider
from placement.db import buckets, tables
from placement.db.database import ServiceDatabase, WriteTransaction
from placement.maintenance.heal import advance_sequence
from placement.store import known_names

CLIENTS: Final = 4
_BATCH: Final = 5_000
_DEFAULTS: Final = {"reserved": 0, "min_unit": 1, "step_size": 1, "allocation_ratio": 1.0}


def load_world(
    services: Mapping[str, MeasuredService], world: ProviderWorld, scale: float, repeats: int
) -> ComparisonResult:
    """Create the world on each service over REST; the result is in providers per second.

    Each repeat is a slice of the world, created by :data:`CLIENTS` clients at a time. The clients repeat
    refused requests. A side that failed does not have the whole world.
    """
    for service in services.values():
        with ServiceConnection(service.port) as connection:
            for name in world.classes:
                connection.expect_success("PUT", f"/resource_classes/{name}")
            for name in world.traits:
                connection.expect_success("PUT", f"/traits/{name}")
    trees = [world.tree(number) for number in range(world.size(scale))]
    slices = [trees[n::repeats] for n in range(repeats)]
    slices = [part for part in slices if part]
    providers = sum(map(len, trees))
    tallies = {name: WorkTally() for name in services}
    cpu = dict.fromkeys(services, 0.0)
    with ClientPool(min(CLIENTS, len(trees))) as clients:
        for service in services.values():
            clients.warm_up(service.port)

        def side_measurement(name: str, service: MeasuredService) -> Callable[[], float]:
            remaining = iter(slices)

            def load_slice() -> float:
                part = next(remaining)
                cpu[name] -= service.cpu_seconds()
                work = clients.load(service.port, part)
                tallies[name].add(work)
                cpu[name] += service.cpu_seconds()
                return sum(map(len, part)) / max(each.seconds for each in work)

            return load_slice

        samples = interleave_repeats(
            {name: side_measurement(name, service) for name, service in services.items()}, len(slices)
        )
    return ComparisonResult(
        "loading",
        f"{world.name}, {CLIENTS} clients",
        "providers/s",
        samples["ours"],
        samples.get("reference"),
        cpu_goal=8,
        cpu={name: 1000 * seconds / providers for name, seconds in cpu.items()},
        notes={name: tally.describe() for name, tally in tallies.items()},
    )


def load_directly(url: str, world: ProviderWorld, trees: int) -> int:
    """Write the world into a migrated, empty database of this service; return the number of providers."""
    database = ServiceDatabase(url)
    try:
        return database.write(lambda tx: _write_world(tx, world, trees))
    finally:
        database.close()


def _write_world(tx: WriteTransaction, world: ProviderWorld, trees: int) -> int:
    tx.lock_buckets(buckets.ALL)
    known_names.make_standard_names(tx, ("LLC", "MBA"))
    for table, names in ((tables.resource_classes, world.classes), (tables.traits, world.traits)):
        for name in names:
            tx.conn.execute(sa.insert(table).values(name=name, updated_at=tx.now))
    ids: dict[str, int] = {}
    known = {
        table.name: {row.name: row.id for row in tx.conn.execute(sa.select(table.c.id, table.c.name))}
        for table in (tables.resource_classes, tables.traits)
    }
    counters = {row.id: row.counter for row in tx.conn.execute(sa.select(tables.change_buckets))}
    for some in _tree_batches(map(world.tree, range(trees)), _BATCH // len(world.tree(0))):
        providers = [(provider, tree[0]) for tree in some for provider in tree]
        for provider, _ in providers:
            ids[provider.uuid] = len(ids) + 1
        rows = [_provider_row(provider, root, ids, counters, tx.now) for provider, root in providers]
        tx.conn.execute(sa.insert(tables.resource_providers), rows)
        for table, owned in _owned_rows([provider for provider, _ in providers], ids, known, tx.now):
            if owned:
                tx.conn.execute(sa.insert(table), owned)
    advance_sequence(tx.conn, tables.resource_providers)
    return len(ids)


def _tree_batches(trees: Iterable[Tree], size: int) -> Iterator[list[Tree]]:
    remaining = iter(trees)
    while batch := list(islice(remaining, max(1, size))):
        yield batch


def _provider_row(
    provider: WorldProvider,
    root: WorldProvider,
    ids: Mapping[str, int],
    counters: Mapping[int, int],
    now: float,
) -> dict[str, Any]:
    bucket = buckets.bucket_of(provider.uuid)
    return {
        "id": ids[provider.uuid],
        "uuid": provider.uuid,
        "name": provider.name,
        "generation": 1,
        "parent_id": None if provider.parent is None else ids[provider.parent],
        "root_id": None if provider is root else ids[root.uuid],
        "bucket": bucket,
        "change_seq": counters[bucket],
        "described_seq": counters[bucket],
        "updated_at": now,
    }


def _owned_rows(
    providers: Iterable[WorldProvider],
    ids: Mapping[str, int],
    known: Mapping[str, Mapping[str, int]],
    now: float,
) -> Iterator[tuple[sa.Table, list[dict[str, Any]]]]:
    """Yield the rows that belong to the providers, by table."""
    owners = [(ids[provider.uuid], provider) for provider in providers]
    yield (
        tables.inventories,
        [
            {
                "provider_id": provider_id,
                "resource_class_id": known["resource_classes"][name],
                **_DEFAULTS,
                **values,
                "updated_at": now,
            }
            for provider_id, provider in owners
            for name, values in provider.inventories.items()
        ],
    )
    yield (
        tables.provider_traits,
        [
            {"provider_id": provider_id, "trait_id": known["traits"][name]}
            for provider_id, provider in owners
            for name in provider.traits
        ],
    )
    yield (
        tables.provider_aggregates,
        [
            {"provider_id": provider_id, "aggregate": aggregate}
            for provider_id, provider in owners
            for aggregate in provider.aggregates
        ],
    )
