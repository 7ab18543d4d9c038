"""A fake systemd, and a driver of its services."""

import queue
from typing import Any

import pytest

pytest.importorskip("jeepney", reason="needs jeepney, of the extra systemd")

from compute_agent.drivers.foreign.records import ValueRecords
from compute_agent.drivers.systemd.driver import SystemdDriver
from tests.compute_agent.drivers.systemd.fake_systemd import FakeSystemd

HOST = "host-1"


@pytest.fixture
def systemd(tmp_path):
    fake = FakeSystemd(tmp_path)
    yield fake
    fake.close()


@pytest.fixture
def open_driver(systemd, tmp_path):
    """Open a driver with records that stay; its changes are in ``driver.changes``."""
    opened = []

    def open_driver(seconds=5.0, **options):
        options = {"look_interval": 60.0, **options}
        records = ValueRecords(tmp_path / "records", "unit", options.get("look_only", False))
        driver: Any = SystemdDriver(systemd.path, HOST, records, systemd.folders, seconds=seconds, **options)
        driver.changes = queue.Queue()
        driver.watch_guests(driver.changes.put)
        opened.append(driver)
        return driver

    yield open_driver
    for driver in opened:
        driver.close()
