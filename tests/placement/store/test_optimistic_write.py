"""Tests that a provider ends in the same state whether it is written in one exchange, or read first."""

from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa

from placement.db import tables
from placement.db.database import ServiceDatabase, WriteTransaction
from placement.exceptions import ServiceError
from placement.read_model.feed import ReadModel
from placement.read_model.provider import DISABLED, Inventory
from placement.read_model.rows import INVENTORY_COLUMNS
from placement.store import inventories, optimistic_write, provider_properties, providers
from placement_extras.console import DISABLED_REASON
from tests.placement.store.builders import inventory_values

NEW = "00000002-0000-4000-8000-000000000000"
NOBODY = "00000003-0000-4000-8000-000000000000"
ZONES = [f"0000000{number}-0000-4000-8000-0000000000aa" for number in (1, 2)]
AVX, VMX = "HW_CPU_X86_AVX2", "HW_CPU_X86_VMX"
TEN = inventory_values(10, reserved=1, min_unit=2, max_unit=8, step_size=2, allocation_ratio=1.5)
NOTHING = inventory_values(10, reserved=10)
LESS = inventory_values(10, reserved=11)
Write = Callable[[WriteTransaction], object]
COLUMNS = {
    tables.inventories: ("resource_class_id", *(each.name for each in INVENTORY_COLUMNS)),
    tables.provider_traits: ("trait_id",),
    tables.provider_aggregates: ("aggregate",),
    tables.provider_attributes: ("name", "text", "number"),
}
_rp = tables.resource_providers.c


def has(uuid: str, generation: int, **wanted: Inventory) -> Write:
    return lambda tx: inventories.replace_all(tx, uuid, generation, wanted)


def can(uuid: str, generation: int, *wanted: str) -> Write:
    return lambda tx: provider_properties.replace_traits(tx, uuid, generation, wanted)


def is_in(uuid: str, generation: int | None, *wanted: str) -> Write:
    return lambda tx: provider_properties.replace_aggregates(tx, uuid, generation, wanted)


def is_disabled_because(why: str, generation: int) -> Write:
    return lambda tx: provider_properties.replace_attributes(
        tx, NEW, generation, {DISABLED_REASON: why, "rack": "7"}
    )


LOADED = [has(NEW, 0, VCPU=TEN, DISK_GB=TEN), can(NEW, 1, AVX, VMX), is_in(NEW, 2, *ZONES)]
CASES: dict[str, list[Write]] = {
    "as compute hosts do": LOADED,
    "one of each": [has(NEW, 0, VCPU=TEN), can(NEW, 1, AVX), is_in(NEW, 2, ZONES[0])],
    "others": [*LOADED, has(NEW, 3, VCPU=TEN, PCPU=TEN), can(NEW, 4, VMX, DISABLED), is_in(NEW, 5, ZONES[1])],
    "the same again": [
        *LOADED,
        has(NEW, 3, VCPU=TEN, DISK_GB=TEN),
        can(NEW, 4, VMX, AVX),
        is_in(NEW, 4, *ZONES),
    ],
    "fewer, more": [*LOADED, can(NEW, 3, AVX), can(NEW, 4, AVX, VMX), is_in(NEW, 5, ZONES[0])],
    "none": [*LOADED, has(NEW, 3), can(NEW, 4), is_in(NEW, 5)],
    "the same trait twice": [can(NEW, 0, AVX, AVX)],
    "a stale generation": [*LOADED, has(NEW, 0, VCPU=TEN), can(NEW, 1, AVX), is_in(NEW, 2, ZONES[1])],
    "a generation of the future": [has(NEW, 7, VCPU=TEN), can(NEW, 7, AVX), is_in(NEW, 7, *ZONES)],
    "no generation": [has(NEW, 1 << 31, VCPU=TEN), can(NEW, 1 << 70, AVX), is_in(NEW, -1, *ZONES)],
    "without a generation": [is_in(NEW, None, *ZONES)],
    "no such provider": [has(NOBODY, 0, VCPU=TEN), can(NOBODY, 0, AVX), is_in(NOBODY, 0, *ZONES)],
    "no such name": [
        has(NEW, 0, CUSTOM_NO=TEN),
        has(NEW, 0, VCPU=TEN, CUSTOM_NO=TEN),
        can(NEW, 0, "CUSTOM_NO"),
    ],
    "a name that there is not among others": [can(NEW, 0, AVX, "CUSTOM_NO"), can(NEW, 0, AVX)],
    "less than nothing": [has(NEW, 0, VCPU=TEN, DISK_GB=LESS), has(NEW, 0, VCPU=NOTHING)],
    "inventories that came without the generation": [
        lambda tx: inventories.add(tx, NEW, "VCPU", TEN),
        lambda tx: tx.conn.execute(sa.update(tables.resource_providers).values(generation=0)).rowcount,
        has(NEW, 0, DISK_GB=TEN),
    ],
    "why it is disabled stays with the trait": [
        can(NEW, 0, DISABLED),
        is_disabled_because("disk", 1),
        can(NEW, 2, DISABLED, AVX),
    ],
    "why it was disabled goes with the trait": [
        can(NEW, 0, DISABLED),
        is_disabled_because("disk", 1),
        can(NEW, 2, AVX),
    ],
}


def outcomes(database: ServiceDatabase, writes: list[Write]) -> list[Any]:
    """The answers of writes to a new provider, and its final state."""
    database.write(lambda tx: providers.create_provider(tx, NEW, "new", None))
    found: list[Any] = []
    for write in writes:
        try:
            found.append(database.write(write))
        except ServiceError as error:
            found.append((type(error), error.detail, error.code))
    with database.read() as conn:
        chosen = sa.select(_rp.id, _rp.generation).where(_rp.uuid == NEW)
        provider_id, generation = conn.execute(chosen).one()
        for table, names in COLUMNS.items():
            rows = conn.execute(
                sa.select(*(table.c[name] for name in names)).where(table.c.provider_id == provider_id)
            )
            found.append(sorted(map(tuple, rows)))
    database.write(lambda tx: providers.delete(tx, NEW))
    return [*found, generation]


def test_writes_with_and_without_reading_first_are_the_same(
    database: ServiceDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    at_once = {name: outcomes(database, writes) for name, writes in CASES.items()}
    monkeypatch.setattr(optimistic_write, "is_worthwhile", lambda *_: False)
    assert {name: outcomes(database, writes) for name, writes in CASES.items()} == at_once


def test_other_workers_see_the_write(database: ServiceDatabase, host: str) -> None:
    database.write(lambda tx: providers.create_provider(tx, NEW, "new", None))
    model = ReadModel(database)
    with model.fresh_view():
        pass
    for write in (*LOADED, can(host, 1, AVX), is_in(host, 2, *ZONES)):
        database.write(write)
        with model.fresh_view() as view, ReadModel(database).fresh_view() as anew:
            assert {each.id: each for each in view.snapshot} == {each.id: each for each in anew.snapshot}
    assert model.reread == 0


def test_one_exchange_is_enough_for_a_database_that_takes_many_statements(
    database: ServiceDatabase, batch_sizes: list[int]
) -> None:
    at_once = database.write(lambda tx: tx.sends_at_once)
    database.write(lambda tx: providers.create_provider(tx, NEW, "new", None))
    for write in LOADED:
        batch_sizes.clear()
        database.write(write)
        assert len(batch_sizes) == (1 if at_once else 2)
