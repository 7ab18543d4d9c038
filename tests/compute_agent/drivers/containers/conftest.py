"""A fake engine of containers, and a driver of its containers."""

import queue
from typing import Any

import pytest

from compute_agent.drivers.containers.driver import ContainerDriver
from compute_agent.drivers.foreign.records import ValueRecords
from tests.compute_agent.drivers.containers.fake_engine import FakeEngine

HOST = "host-1"


@pytest.fixture
def engine(tmp_path, monkeypatch):
    fake = FakeEngine(tmp_path, monkeypatch)
    yield fake
    fake.close()


@pytest.fixture
def open_driver(tmp_path):
    """Open a driver with records that stay; its changes are in ``driver.changes``."""
    opened = []

    def open_driver(engine, **options):
        options = {"look_interval": 60.0, **options}
        records = ValueRecords(tmp_path / "records", "container", options.get("look_only", False))
        driver: Any = ContainerDriver("podman", engine.path, HOST, records, engine.folders, **options)
        driver.changes = queue.Queue()
        driver.watch_guests(driver.changes.put)
        opened.append(driver)
        return driver

    yield open_driver
    for driver in opened:
        driver.close()
