"""Tests of releases in a transaction of their own: they have the same result on each database, if possible in
one exchange.
"""

from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import pytest
import sqlalchemy as sa

from placement.db import buckets
from placement.db.database import ServiceDatabase
from placement.db.tables import allocations as table
from placement.db.tables import change_buckets, consumers, resource_providers
from placement.exceptions import NotFound
from placement.read_model.feed import ReadModel
from placement.store import allocations, inventories, providers
from placement.store.allocations import release
from placement.store.consumers import ANY_GENERATION
from tests.placement.store.builders import build_claim, inventory_values

FIRST, SECOND = (f"{number:08d}-0000-4000-8000-00000000c0de" for number in (1, 2))
HOSTS = [f"{number:08d}-0000-4000-8000-000000000000" for number in range(11, 14)]
TEN = inventory_values(10)


@pytest.fixture
def claimed(database: ServiceDatabase) -> ServiceDatabase:
    """Three hosts. The first consumer has allocations at the first two hosts, the second consumer at the last
    two.
    """

    def fill(tx: Any) -> None:
        for host in HOSTS:
            providers.create_provider(tx, host, host, None)
            inventories.add(tx, host, "VCPU", TEN)
            inventories.add(tx, host, "DISK_GB", TEN)

    database.write(fill)
    for consumer, hosts in ((FIRST, HOSTS[:2]), (SECOND, HOSTS[1:])):
        resources = {host: {"VCPU": 2, "DISK_GB": 1} for host in hosts}
        claim = build_claim(consumer, resources)
        database.write(lambda tx, claim=claim: allocations.replace(tx, [claim]))  # type: ignore[misc]
    return database


def counters(database: ServiceDatabase) -> dict[int, int]:
    with database.read() as conn:
        return {row.id: row.counter for row in conn.execute(sa.select(change_buckets))}


def stored(database: ServiceDatabase) -> tuple[Any, ...]:
    with database.read() as conn:
        held = {(row.consumer_id, row.provider_id) for row in conn.execute(sa.select(table))}
        rows = conn.execute(sa.select(resource_providers.c.uuid, resource_providers.c.generation))
        return held, set(conn.execute(sa.select(consumers.c.uuid)).scalars()), {tuple(row) for row in rows}


def test_exactly_the_allocations_of_the_consumer_are_released(claimed: ServiceDatabase) -> None:
    held, _, generations = stored(claimed)
    before = counters(claimed)
    release(claimed, FIRST)
    left, known, after = stored(claimed)
    (second,) = {consumer for consumer, _ in left}
    assert left == {each for each in held if each[0] == second}
    assert known == {SECOND}
    assert after == generations
    now = counters(claimed)
    assert {bucket for bucket in now if now[bucket] != before[bucket]} == {
        buckets.bucket_of(host) for host in HOSTS[:2]
    }


def test_other_workers_see_the_release(claimed: ServiceDatabase) -> None:
    model = ReadModel(claimed)
    with model.fresh_view() as view:
        described = {each.uuid: each.described_seq for each in view.snapshot}
        generation = {each.uuid: each.generation for each in view.snapshot}
    release(claimed, FIRST)
    with model.fresh_view() as view:
        assert {each.uuid: dict(each.used) for each in view.snapshot if each.uuid in HOSTS} == {
            HOSTS[0]: {},
            HOSTS[1]: {"VCPU": 2, "DISK_GB": 1},
            HOSTS[2]: {"VCPU": 2, "DISK_GB": 1},
        }
        assert {each.uuid: each.described_seq for each in view.snapshot} == described
        assert {each.uuid: each.generation for each in view.snapshot} == generation
    assert model.reread == 0


def test_a_consumer_without_allocations_is_not_found_and_nothing_changes(claimed: ServiceDatabase) -> None:
    release(claimed, FIRST)
    before, now = counters(claimed), stored(claimed)
    for unknown in (FIRST, HOSTS[0], "'; --"):
        with pytest.raises(NotFound, match=f"No allocations for consumer '{unknown}'"):
            release(claimed, unknown)
    assert (counters(claimed), stored(claimed)) == (before, now)
    release(claimed, SECOND)


def test_a_model_misses_no_racing_claims_and_releases(claimed: ServiceDatabase) -> None:
    model = ReadModel(claimed)

    def claim(round_: int) -> None:
        hosts = HOSTS[round_ % 3 :]
        wanted = build_claim(FIRST, {host: {"VCPU": 1} for host in hosts}, ANY_GENERATION)
        claimed.write(lambda tx: allocations.replace(tx, [wanted]))

    def give_back(_: int) -> None:
        with suppress(NotFound):
            release(claimed, FIRST)

    def follow(_: int) -> None:
        with model.fresh_view():
            pass

    with ThreadPoolExecutor(3) as pool:
        for each in [pool.submit(work, n) for n in range(20) for work in (claim, give_back, follow)]:
            each.result()
    with model.fresh_view() as view, ReadModel(claimed).fresh_view() as anew:
        assert {each.id: each for each in view.snapshot} == {each.id: each for each in anew.snapshot}
    assert model.reread == 0


def test_one_exchange_is_enough_for_a_database_that_takes_many_statements(
    claimed: ServiceDatabase, batch_sizes: list[int]
) -> None:
    at_once = claimed.write(lambda tx: tx.sends_at_once)
    batch_sizes.clear()
    release(claimed, FIRST)
    # consumer, lock, stamp, allocations, consumer; or consumer, what it holds; lock (in order), and so on
    assert batch_sizes == ([5] if at_once else [2, 4 if claimed.url.startswith("sqlite") else 5])
