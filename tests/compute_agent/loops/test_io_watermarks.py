"""Tests of a watermark of I/O pressure, through the worker to the block I/O limits of guests."""

from dataclasses import replace

import pytest

from compute_agent.controllers.blockio import BlockIoController
from compute_agent.host.block_devices import BlockDevice, BlockDevices
from compute_agent.model.resource import BlockIo, BlockIoClass, DeviceRates
from compute_agent.pipeline.events import ReconcileGuests
from compute_agent.throttling.watermarks.metrics import BUILT_IN, MetricRegistry, host_usage
from tests.compute_agent.loops.overload import Overload

LINES = """
[qos]
margin = 0

[watermark:waiting]
metric = io_pressure
throttle_down = 50%
throttle_up = 40%
for_samples = 1
cool_down = 0
"""
RATES = DeviceRates(write_bytes=1_000_000, write_operations=500)
DISKS = frozenset({"254:0"})
BULK = BlockIoClass("bulk", weight=200, rates=RATES, devices=("vda",))
WHOLE = BlockIo(200, RATES, devices=DISKS)


class Waiting(Overload):
    """A host with tasks that wait for disks for a given percentage of the time."""

    def __init__(self, folder):
        super().__init__(folder)
        self.lines, self.waiting = LINES, 80.0
        (metric,) = (one for one in BUILT_IN if one.name == "io_pressure")
        self.registry = MetricRegistry([replace(metric, measure=self._waited)])

    def controllers(self):
        devices = BlockDevices((BlockDevice("vda", "254:0"),))
        return (BlockIoController(self.driver, {"bulk": BULK}, lambda: devices),)

    def _waited(self, now, before):
        return host_usage(self.waiting, None, 100.0)

    def io(self, uuid):
        """The block I/O settings of a guest in the kernel."""
        return self.driver.blockio[uuid]


@pytest.fixture
def host(tmp_path):
    with Waiting(tmp_path) as host:
        host.run("writer", 1.0, blockio_class="bulk")
        yield host


def test_a_best_effort_guest_is_limited_while_others_wait_and_released_afterwards(host):
    host.run("served", 1.0, qos_class="LSR", blockio_class="bulk")
    assert host.io("writer") == host.io("served") == WHOLE
    host.watermarks.run_round()
    (view,) = (one for one in host.pipeline.guest_views() if one.limits)
    ((knob, percent),) = view.limits.items()
    assert (view.guest.uuid, knob.lever) == ("writer", "blockio")
    assert host.io("writer") == WHOLE.scaled_limits(percent)
    assert host.io("writer").rates.write_bytes < RATES.write_bytes
    assert host.io("writer").weight < 200
    assert host.io("served") == WHOLE
    host.waiting = 10.0
    host.rounds(until=lambda: host.io("writer") == WHOLE)
    assert host.saved().throttles == ()


def test_no_guest_is_held_below_its_floor_and_the_limit_outlives_the_agent(host):
    host.rounds(40)
    floor = host.io("writer")
    assert floor.rates.write_bytes == pytest.approx(100_000, rel=0.01)
    host.crash()
    host.boot()
    assert host.io("writer") == floor


def test_a_limit_that_another_program_lifts_is_restored(host):
    host.watermarks.run_round()
    held = host.io("writer")
    host.driver.blockio["writer"] = WHOLE
    host.pipeline.submit(ReconcileGuests()).result(10)
    assert host.io("writer") == held
