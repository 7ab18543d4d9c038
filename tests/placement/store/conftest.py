"""Fixtures: a database with standard names, and one provider with inventories."""

from collections.abc import Iterator
from typing import Any

import pytest

from placement.db.batch import StatementBatch
from placement.db.database import ServiceDatabase
from placement.store import inventories, known_names, providers
from tests.placement.store.builders import inventory_values

HOST = "00000001-0000-4000-8000-000000000000"
TEN = inventory_values(10)


@pytest.fixture
def database(database_url: str) -> Iterator[ServiceDatabase]:
    database = ServiceDatabase(database_url)
    database.write(lambda tx: known_names.make_standard_names(tx, ()))
    database.write(lambda tx: providers.create_provider(tx, HOST, "host", None))
    database.write(lambda tx: inventories.replace_all(tx, HOST, 0, {"VCPU": TEN, "DISK_GB": TEN}))
    yield database
    database.close()


@pytest.fixture
def host() -> str:
    """The uuid of a provider at generation 1 with ten VCPU and ten DISK_GB."""
    return HOST


@pytest.fixture
def batch_sizes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A list of the number of statements in each batch that is sent from now on."""
    sizes: list[int] = []
    send = StatementBatch.send

    def counting_send(batch: StatementBatch, **options: Any) -> None:
        if batch.waiting:
            sizes.append(len(batch.waiting))
        send(batch, **options)

    monkeypatch.setattr(StatementBatch, "send", counting_send)
    return sizes
